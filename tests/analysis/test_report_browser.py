"""The report in a real browser: figures with data, working switches, no error, nothing fetched."""

import os
import shutil

import pytest

from analysis.ablation import ablate
from analysis.compare import compare
from analysis.fit import fit_law, ladder_points
from analysis.laws import find
from analysis.report.page import write_page

playwright = pytest.importorskip("playwright.sync_api")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip

DIAGNOSIS = [
    {
        "run": "own/ladder/small", "verdict": "warning", "says": "Loss spike: one", "phases": [],
        "findings": [
            {"kind": "spike", "title": "Loss spike", "onset_step": 60, "peak_step": 61, "end_step": 70,
             "severity": "severe", "evidence": {"says": "loss <b>3.1</b> to 7.2"}, "causes": ["learning rate"],
             "try_first": "let it run", "sources": ["PaLM"]},
            {"kind": "missing_values", "onset_step": 90, "peak_step": None, "end_step": None, "severity": "info",
             "evidence": "one", "causes": [], "try_first": "nothing"},
        ],
    },
]  # fmt: skip
FORECAST = {
    "run": "marin-535b", "method": "floor", "metric": "eval/paloma_macro/loss", "unit": "nats/token", "warnings": [],
    "points": [
        {"fraction": f / 10, "step": f * 39_000, "predicted": 2.5 - f / 20, "interval": [2.4 - f / 20, 2.6 - f / 20],
         "landed": 2.52 - f / 20 if f < 5 else None}
        for f in range(1, 11)
    ],
}  # fmt: skip
FIGURES = ("overlay", "ladder", "ablation", "forecast")
RUNS = {"marin-535b", "own/ladder/small", "own/ladder/medium", "own/ladder/large"}


@pytest.fixture(scope="module")
def page_file(ladder, ablation, marin, tmp_path_factory):
    """The whole report."""
    by_variant = {}
    for run in ablation:
        variant, seed = run.name.removeprefix("own/ablation/").split("/seed-")
        by_variant.setdefault(variant, {})[int(seed)] = run
    comparison, deltas = compare(ladder, marin), ablate(by_variant, "balanced")
    points, metric = ladder_points(ladder)
    fit = fit_law(find("power-law"), points) | {"metric": metric}
    path = tmp_path_factory.mktemp("page") / "index.html"
    write_page(path, ladder, marin, comparison, fit, deltas, DIAGNOSIS, FORECAST)
    return path


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium that is already installed; without one the tests are skipped, under CI they fail."""
    executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if executable is None:
        reason = f"no Chromium found (looked for {', '.join(BROWSERS)}); install one, e.g. `apt-get install chromium`"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, page_file, request):
    """The page, and what the browser complained about or fetched while the test used it."""
    options = getattr(request, "param", {})
    context = browser.new_context(**options)
    page = context.new_page()
    complaints, fetched = [], []
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda r: fetched.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None,
    )
    page.goto(page_file.as_uri())
    page.wait_for_function("document.querySelectorAll('.plot.js-plotly-plot .main-svg').length >= 8")
    yield page
    assert complaints == []
    assert fetched == []
    context.close()


def luminance(colour):
    """Relative luminance of a computed colour (WCAG)."""
    channels = [int(v) / 255 for v in colour[4:-1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def traces(page, figure):
    """The figure's traces as the browser holds them: kind, run and finite points."""
    return page.evaluate(
        """id => document.getElementById(id).data.map(t => ({
             kind: t.meta.kind, run: t.meta.run, x: Array.from(t.x).filter(v => v !== null),
             y: Array.from(t.y).filter(v => v !== null)}))""",
        figure,
    )


def test_the_figures_hold_data(opened):
    overlay = traces(opened, "overlay")
    raw = {t["run"]: t for t in overlay if t["kind"] == "raw"}
    assert set(raw) == RUNS
    assert all(len(t["y"]) > 100 for t in raw.values())
    runs = next(t for t in traces(opened, "ladder") if t["kind"] == "runs")
    assert len(runs["y"]) == 3
    means = [t for t in traces(opened, "ablation") if t["kind"] == "mean"]
    assert [len(t["x"]) for t in means] == [6, 6]
    seeds = [t for t in traces(opened, "ablation") if t["kind"] == "seeds"]
    assert [len(t["x"]) for t in seeds] == [12, 12]
    landed = next(t for t in traces(opened, "forecast") if t["kind"] == "landed")
    assert landed["y"] == pytest.approx([2.47, 2.42, 2.37, 2.32])
    for figure in FIGURES:
        assert opened.locator(f"#{figure} .scatterlayer .points path").count() > 0
    assert opened.locator(".findings li").count() == 5
    assert opened.locator("#ledger tbody tr").count() > 15


def press(page, figure, key, value):
    page.click(f'button[data-figure="{figure}"][data-key="{key}"][data-value="{value}"]')
    return traces(page, figure)


def test_switching_the_axis_changes_the_data(opened):
    def last_x(found, run):
        return next(t["x"][-1] for t in found if t["kind"] == "raw" and t["run"] == run)

    fraction = last_x(traces(opened, "overlay"), "own/ladder/small")
    tokens = last_x(press(opened, "overlay", "x", "tokens"), "own/ladder/small")
    per_parameter = press(opened, "overlay", "x", "tokens_per_parameter")
    assert fraction == pytest.approx(1.0)
    assert tokens == pytest.approx(240 * 2048)
    assert last_x(per_parameter, "own/ladder/small") == pytest.approx(240 * 2048 / 24_000)
    assert last_x(per_parameter, "marin-535b") == pytest.approx(791 * 0.51, rel=0.02)
    before = traces(opened, "overlay")
    assert press(opened, "overlay", "y", "lr") != before
    assert opened.locator("#overlay-note").inner_text().startswith("Both divided by their own peak")
    assert "smoothed" not in opened.locator("#overlay .ytitle").text_content()
    press(opened, "overlay", "y", "loss")
    assert "debiased average, half-life 5 %" in opened.locator("#overlay .ytitle").text_content()


def test_every_view_can_be_drawn(opened):
    views = [("y", y) for y in ("loss", "bpb", "grad_norm", "lr", "relative")]
    views += [("x", x) for x in ("tokens", "step", "flops", "tokens_per_parameter", "fraction")]
    for key, value in views:
        assert {t["run"] for t in press(opened, "overlay", key, value) if t["kind"] == "raw"} == RUNS
    assert any(t["kind"] == "line" for t in traces(opened, "overlay"))
    assert not any(t["kind"] == "line" for t in press(opened, "overlay", "line", "hidden"))
    assert opened.locator('[data-figure="ablation"][data-key="set"]').first.is_hidden()
    overall = press(opened, "ablation", "view", "curve")
    assert [len(t["x"]) for t in overall if t["kind"] == "mean"] == [12, 12]
    assert [len(t["x"]) for t in overall if t["kind"] == "interval"] == [24, 24]
    assert press(opened, "ablation", "set", "code") != overall
    errors = press(opened, "forecast", "view", "error")
    assert next(t for t in errors if t["kind"] == "landed")["y"] == pytest.approx([0.02] * 4)


def test_the_change_of_data_is_marked_where_it_happened(opened):
    events = next(t for t in traces(opened, "overlay") if t["kind"] == "events")
    assert any(x == pytest.approx(108_001 / 390_251) for x in events["x"])


def hover(page, figure, kind, index):
    """Move the mouse over a mark of the figure and return the text that appears."""
    place = page.evaluate(
        """([id, kind, index]) => {
             const box = document.getElementById(id), trace = box._fullData.find(t => t.meta.kind === kind);
             const area = box.querySelector('.nsewdrag').getBoundingClientRect();
             const y = (trace.yaxis === 'y2' ? box._fullLayout.yaxis2 : box._fullLayout.yaxis).d2p(trace.y[index]);
             return [area.left + box._fullLayout.xaxis.d2p(trace.x[index]), area.top + y];
           }""",
        [figure, kind, index],
    )
    page.mouse.move(place[0] - 3, place[1])
    page.mouse.move(*place)
    page.wait_for_timeout(300)  # Plotly looks anew at most ten times a second
    return page.locator(f"#{figure} .hoverlayer .hovertext").first.text_content()


def test_an_event_explains_itself_on_hover(opened):
    opened.locator("#overlay").scroll_into_view_if_needed()
    events = next(t for t in traces(opened, "overlay") if t["kind"] == "events")
    change = next(i for i, x in enumerate(events["x"]) if x == pytest.approx(108_001 / 390_251))
    assert "data, step 108000" in hover(opened, "overlay", "events", change)
    text = hover(opened, "overlay", "found", 0)
    assert "severe: Loss spike" in text
    assert "<b>3.1</b>" in text  # as it stands in the log, not as markup
    assert "Try first: let it run" in text


def test_each_figure_can_be_downloaded_as_it_is(opened):
    expected = {
        "overlay": "run,metric,steps_done",
        "ladder": "run,flops,loss",
        "ablation": "mixture,set,step,seed",
        "forecast": "fraction,step,predicted",
    }
    for figure, header in expected.items():
        with opened.expect_download() as waiting:
            opened.click(f'button.download[data-figure="{figure}"]')
        assert waiting.value.suggested_filename == f"{figure}.csv"
        text = waiting.value.path().read_text(encoding="utf-8")
        assert text.startswith(header)
        assert text.count("\n") > 3


def test_a_command_can_be_copied(opened):
    button = opened.locator("#scaling button.copy")
    button.click()
    opened.wait_for_function("document.querySelector('#scaling button.copy').textContent !== 'Copy'")
    assert button.text_content() in ("Copied", "Marked")


def paper(page):
    """Luminance of the page's background, and of the ink of an axis label of the overlay."""
    colours = page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor,
                  getComputedStyle(document.querySelector('#overlay .xtick text')).fill]"""
    )
    return [luminance(colour) for colour in colours]


@pytest.mark.parametrize("opened", [{"color_scheme": "dark"}, {"color_scheme": "light"}], indirect=True)
def test_the_switch_overrules_the_system_for_text_and_figures(opened):
    for theme, dark in (("light", False), ("dark", True)):
        opened.click(f'button[data-theme-choice="{theme}"]')
        background, ink = paper(opened)
        assert (background < 0.05) == dark
        assert (ink > 0.5) == dark


@pytest.mark.parametrize(
    "opened", [{"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}], indirect=True
)
def test_print_is_light_fits_the_page_and_unfolds(opened):
    opened.emulate_media(media="print")
    opened.wait_for_function("document.querySelector('#overlay .main-svg').clientWidth === PRINTED.width")
    background, ink = paper(opened)
    assert background > 0.95
    assert ink < 0.1
    assert opened.locator("details:not([open])").count() == 0
    assert opened.locator(".controls").first.is_hidden()
    opened.emulate_media(media="screen")
    opened.wait_for_function("document.querySelector('#overlay .main-svg').clientWidth > PRINTED.width")
    assert opened.locator("details:not([open])").count() > 0


@pytest.mark.parametrize(
    "opened",
    [
        {"viewport": {"width": 360, "height": 740}},
        {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"},
        {"viewport": {"width": 1400, "height": 900}},
    ],
    indirect=True,
)
def test_nothing_sticks_out_sideways(opened):
    width = opened.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1]


@pytest.mark.parametrize("opened", [{"color_scheme": "dark"}, {"color_scheme": "light"}], indirect=True)
def test_text_stands_out_from_the_paper_in_both_schemes(opened):
    """Contrast of body, captions and the figure's axis text of at least 4.5 to 1 (WCAG AA)."""
    colours = opened.evaluate(
        """() => ['body', 'figcaption', '#overlay .xtick text'].map(s => {
             const style = getComputedStyle(document.querySelector(s));
             return s.startsWith('#') ? style.fill : style.color;
           }).concat(getComputedStyle(document.body).backgroundColor)"""
    )

    background = luminance(colours[-1])
    for text in colours[:-1]:
        light, dark = sorted([luminance(text), background], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize(
    "opened",
    [{"viewport": {"width": 360, "height": 740}}, {"viewport": {"width": 1280, "height": 900}}],
    indirect=True,
)
def test_no_two_labels_of_an_axis_run_into_each_other(opened):
    """In every view of the overlay, and in the other figures as they open."""
    into_each_other = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(figure => {
        const boxes = [...figure.querySelectorAll('.xtick text')].map(t => t.getBoundingClientRect());
        boxes.sort((a, b) => a.left - b.left);
        return boxes.slice(1).filter((box, i) => box.left < boxes[i].right).map(() => figure.id);
    })"""
    for x in ("tokens", "step", "flops", "tokens_per_parameter", "fraction"):
        for scale in ("linear", "log"):
            press(opened, "overlay", "x", x)
            press(opened, "overlay", "logx", scale)
            assert opened.evaluate(into_each_other) == [], (x, scale)
            assert opened.locator("#overlay .xtick text").count() > 1
