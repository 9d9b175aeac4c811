"""The report in a real browser: figures with data, working switches, no error, nothing fetched."""

import os
import shutil

import pytest

from analysis.ablation import ablate
from analysis.compare import compare
from analysis.fit import fit_law, ladder_points
from analysis.laws import find
from analysis.report.findings import findings
from analysis.report.page import write_page

playwright = pytest.importorskip("playwright.sync_api")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip

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
    write_page(path, ladder, marin, comparison, fit, deltas, findings(comparison, fit, deltas))
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
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 3")
    yield page
    assert complaints == []
    assert fetched == []
    context.close()


def traces(page, figure):
    """The figure's traces as the browser holds them: kind, run and finite points."""
    return page.evaluate(
        """id => document.getElementById(id).data.map(t => ({
             kind: t.meta.kind, run: t.meta.run, x: Array.from(t.x).filter(v => v !== null),
             y: Array.from(t.y).filter(v => v !== null)}))""",
        figure,
    )


def test_the_three_figures_hold_data(opened):
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
    for figure in ("overlay", "ladder", "ablation"):
        assert opened.locator(f"#{figure} .scatterlayer .points path").count() > 0
    assert opened.locator(".findings li").count() == 3
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


def test_every_view_can_be_drawn(opened):
    views = [("y", y) for y in ("loss", "bpb", "grad_norm", "lr", "relative")]
    views += [("x", x) for x in ("tokens", "step", "flops", "tokens_per_parameter", "fraction")]
    for key, value in views:
        assert {t["run"] for t in press(opened, "overlay", key, value) if t["kind"] == "raw"} == RUNS
    assert any(t["kind"] == "line" for t in traces(opened, "overlay"))
    assert not any(t["kind"] == "line" for t in press(opened, "overlay", "line", "hidden"))
    curve = press(opened, "ablation", "view", "curve")
    assert all(len(t["x"]) == 12 for t in curve)


def test_the_change_of_data_is_marked_where_it_happened(opened):
    events = next(t for t in traces(opened, "overlay") if t["kind"] == "events")
    assert any(x == pytest.approx(108_001 / 390_251) for x in events["x"])


def test_each_figure_can_be_downloaded_as_it_is(opened):
    expected = {
        "overlay": "run,metric,steps_done",
        "ladder": "run,flops,loss",
        "ablation": "mixture,domain,seed",
    }
    for figure, header in expected.items():
        with opened.expect_download() as waiting:
            opened.click(f'a.download[data-figure="{figure}"]')
        text = waiting.value.path().read_text(encoding="utf-8")
        assert text.startswith(header)
        assert text.count("\n") > 3


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

    def luminance(colour):
        channels = [int(v) / 255 for v in colour[4:-1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    paper = luminance(colours[-1])
    for text in colours[:-1]:
        light, dark = sorted([luminance(text), paper], reverse=True)
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
