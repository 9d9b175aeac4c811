"use strict";
/* Draws the figures from the embedded data. One function per figure returns traces and layout for a view;
   `draw` puts them on the page in the colours of the current theme. */

const data = JSON.parse(document.getElementById("report-data").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 640;
const OWN_SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross"];
const OWN_DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const ownColour = (i) => css(`--own-${i % 5}`);
const faded = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
const shortName = (name) => name.slice(name.lastIndexOf("/") + 1);
const signed = (value, digits) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(digits);

/* An axis title in lines of about 30 characters where the screen is narrow. */
const wrapped = (title) => narrow() ? title.replace(/(.{1,30})(\s|$)/g, "$1<br>").replace(/<br>$/, "") : title;

/* So few that a log axis is labelled at 1, 2 and 5 of each decade, or at decades alone: all nine run into each other. */
const logTicks = () => narrow() ? 3 : 5;

function baseLayout(extra) {
  const axis = {
    gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, ticks: "outside", tickcolor: css("--line"),
    automargin: true, exponentformat: "power", title: { standoff: 8 },
  };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
    margin: { l: narrow() ? 44 : 64, r: 12, t: 12, b: 48 },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--ink") }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
    hovermode: "closest", dragmode: narrow() ? false : "zoom", ...extra,
  };
  for (const key of ["xaxis", "yaxis"]) layout[key] = { ...axis, ...extra[key] };
  return layout;
}

function draw(id, traces, layout) {
  const config = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  if (narrow()) config.displayModeBar = false;
  return Plotly.react(document.getElementById(id), traces, baseLayout(layout), config);
}

/* ---------------------------------------------------------------- figure 1: overlay */

const overlayView = { x: data.overlay && data.overlay.start.x, y: data.overlay && data.overlay.start.y, line: "shown", logx: "log" };

/* x of a curve on an axis, or null where the run's facts do not give it. */
function curveX(run, curve, axis) {
  const factor = run.factors[axis];
  return factor === null ? null : curve[data.overlay.axes[axis].base].map((value) => value === null ? null : value * factor);
}

/* The list with a null before each break, so that no line is drawn where nothing was logged. */
function broken(values, breaks) {
  const at = new Set(breaks);
  return values.flatMap((value, i) => at.has(i) ? [null, value] : [value]);
}

function runTraces(run, index, view) {
  const curve = run.curves[view.y];
  const x = curve ? curveX(run, curve, view.x) : null;
  if (x === null) return [];
  const colour = run.public ? css("--public") : ownColour(index);
  const dense = curve.value.length > 150;
  const lined = !curve.smoothed || view.line === "shown";
  const hover = `${shortName(run.name)}<br>${data.overlay.axes[view.x].label} %{x:.4~g}<br>%{y:.4~g}<extra></extra>`;
  const raw = {
    x, y: curve.value, type: "scatter", mode: "markers", name: run.public ? run.title : shortName(run.name), legendgroup: run.name,
    meta: { run: run.name, kind: "raw" }, hovertemplate: hover, showlegend: !lined,
    marker: { color: colour, size: run.public ? 5 : dense ? 3.5 : 7, symbol: run.public ? "x-thin" : OWN_SYMBOLS[index % 5],
              opacity: dense ? (run.public ? .65 : .3) : .9, line: { color: colour, width: run.public ? 1.2 : 0 } },
  };
  if (!lined) return [raw];
  const line = {
    x: broken(x, curve.breaks), y: broken(curve.line, curve.breaks), type: "scatter", mode: "lines", legendgroup: run.name,
    name: run.public ? run.title : shortName(run.name), meta: { run: run.name, kind: "line" }, hoverinfo: "skip",
    line: { color: colour, width: run.public ? 2.5 : 2, dash: run.public ? "solid" : OWN_DASHES[index % 5] },
  };
  return [raw, line];
}

function eventTrace(view) {
  const run = data.overlay.runs.find((candidate) => candidate.public);
  const factor = run.factors[view.x], base = data.overlay.axes[view.x].base;
  if (factor === null || !data.overlay.events.length) return null;
  const wrap = (text) => text.replace(/(.{1,60})(\s|$)/g, "$1<br>");
  return {
    x: data.overlay.events.map((event) => event[base] * factor), y: data.overlay.events.map(() => .03), yaxis: "y2",
    type: "scatter", mode: "markers", name: "events", meta: { kind: "events" },
    text: data.overlay.events.map((event) => `<b>${event.kind}, step ${event.done - 1}</b><br>${wrap(event.what)}`),
    hovertemplate: "%{text}<extra></extra>",
    marker: { symbol: data.overlay.events.map((event) => event.kind === "data" ? "star" : "triangle-up"), color: css("--public"),
              size: data.overlay.events.map((event) => event.kind === "data" ? 13 : 8), opacity: .85 },
  };
}

function dataEventLines(view) {
  const run = data.overlay.runs.find((candidate) => candidate.public);
  const factor = run.factors[view.x], base = data.overlay.axes[view.x].base;
  if (factor === null) return { shapes: [], annotations: [] };
  const events = data.overlay.events.filter((event) => event.kind === "data");
  return {
    shapes: events.map((event) => ({ type: "line", x0: event[base] * factor, x1: event[base] * factor, yref: "paper", y0: 0, y1: 1,
                                     line: { color: css("--soft"), width: 1, dash: "dot" } })),
    annotations: events.map((event) => ({
      x: view.logx === "log" ? Math.log10(event[base] * factor) : event[base] * factor, yref: "paper", y: .99, yanchor: "top",
      xanchor: "right", text: "new data mix", showarrow: false, font: { size: 11, color: css("--soft") } })),
  };
}

function drawOverlay() {
  const view = overlayView, overlay = data.overlay;
  const own = overlay.runs.filter((run) => !run.public);
  const traces = overlay.runs.flatMap((run) => runTraces(run, own.indexOf(run), view));
  const events = eventTrace(view);
  if (events) traces.push(events);
  const { shapes, annotations } = dataEventLines(view);
  if (view.y === "relative" && view.x === "fraction" && overlay.reference) {
    shapes.push({ type: "rect", x0: overlay.reference[0], x1: overlay.reference[1], yref: "paper", y0: 0, y1: 1, layer: "below",
                  fillcolor: faded(css("--accent"), .13), line: { width: 0 } });
  }
  const measure = overlay.measures[view.y];
  draw("overlay", traces, {
    xaxis: { title: { text: wrapped(overlay.axes[view.x].label) }, type: view.logx, range: startRange(view),
             tickformat: view.x === "fraction" ? "~%" : undefined, nticks: view.logx === "log" ? logTicks() : 0 },
    yaxis: { title: { text: measure.label }, type: measure.log ? "log" : "linear", dtick: null, nticks: 7, tickformat: "~g", range: startHeight(view) },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    shapes, annotations, uirevision: `${view.x} ${view.logx} ${view.y}`,
  });
  const absent = overlay.runs.filter((run) => !run.curves[view.y]).map((run) => `${run.name} does not log this measure`);
  const unplaced = overlay.runs.filter((run) => run.curves[view.y] && run.factors[view.x] === null).map((run) => run.missing[view.x]);
  document.getElementById("overlay-note").textContent = measure.note;
  document.getElementById("overlay-missing").textContent = [...absent, ...unplaced].map((reason) => `Not drawn: ${reason}.`).join(" ");
}

/* On the fraction axis the first view begins where the own runs begin; a double click shows everything. */
function startRange(view) {
  if (view.x !== "fraction") return undefined;
  const starts = data.overlay.runs.filter((run) => !run.public && run.factors.fraction !== null)
    .map((run) => run.factors.fraction * Math.min(...Object.values(run.curves).map((curve) => curve.done[0])));
  if (!starts.length) return undefined;
  return view.logx === "log" ? [Math.log10(Math.min(...starts) * .8), Math.log10(1.1)] : [-.01, 1.02];
}

/* A loss begins with the height that the own runs need: the public one starts at ln(its vocabulary), far above. */
function startHeight(view) {
  if (view.y !== "relative" || view.x !== "fraction") return undefined;
  const own = data.overlay.runs.filter((run) => !run.public && run.curves.relative).flatMap((run) => run.curves.relative.value);
  if (!own.length) return undefined;
  const range = [Math.min(...own) * .93, Math.max(...own) * 1.08];
  return data.overlay.measures[view.y].log ? range.map(Math.log10) : range;
}

/* ---------------------------------------------------------------- figure 2: ladder */

function band(points, key, colour, name) {
  const x = points.map((point) => point.flops);
  return {
    x: [...x, ...[...x].reverse()], type: "scatter", mode: "lines", fill: "toself", fillcolor: colour, line: { width: 0 }, name,
    y: [...points.map((point) => point[key][0]), ...points.map((point) => point[key][1]).reverse()], hoverinfo: "skip", meta: { kind: key },
  };
}

function drawLadder() {
  const fit = data.fit, losses = fit.points.map((point) => point.loss);
  const spread = Math.max(...losses) - Math.min(...losses);
  const traces = [
    band(fit.band, "t_interval", faded(css("--accent"), .1), "95 % interval from residuals"),
    band(fit.band, "interval", faded(css("--accent"), .25), "95 % bootstrap over runs"),
    { x: fit.band.map((p) => p.flops), y: fit.band.map((p) => p.loss), type: "scatter", mode: "lines", name: "power law",
      line: { color: css("--accent"), width: 2 }, hoverinfo: "skip", meta: { kind: "law" } },
    { x: fit.points.map((p) => p.flops), y: losses, type: "scatter", mode: "markers+text", name: "runs", meta: { kind: "runs" },
      text: fit.points.map((p) => shortName(p.name)), cliponaxis: false,
      textposition: fit.points.map((_, i) => i === fit.points.length - 1 ? "top left" : "top right"),
      customdata: fit.points.map((p) => [p.predicted, 100 * (p.loss / p.predicted - 1)]),
      hovertemplate: "%{text}<br>%{x:.3~g} FLOPs<br>loss %{y:.4f}<br>law %{customdata[0]:.4f} (%{customdata[1]:+.2f} %)<extra></extra>",
      marker: { size: 11, color: fit.points.map((_, i) => ownColour(i)), symbol: fit.points.map((_, i) => OWN_SYMBOLS[i % 5]) } },
  ];
  const held = fit.holdout;
  if (held.reason === null) {
    const at = Math.max(...fit.points.map((p) => p.flops));
    traces.push({ x: [at], y: [held.predicted], type: "scatter", mode: "markers", name: "predicted without the largest run", meta: { kind: "holdout" },
                  marker: { symbol: "circle-open", size: 14, color: css("--bad"), line: { width: 2 } },
                  hovertemplate: `predicted from the smaller runs %{y:.4f}<br>error ${signed(100 * held.relative_error, 2)} %<extra></extra>` });
  }
  draw("ladder", traces, {
    xaxis: { title: { text: wrapped("active training FLOPs (without the LM head)") }, type: "log", nticks: logTicks() },
    yaxis: { title: { text: wrapped(fit.loss_label) }, type: "log", nticks: 7, tickformat: "~g",
             range: [Math.log10(Math.min(...losses) - .6 * spread), Math.log10(Math.max(...losses) + .6 * spread)] },
  });
}

/* ---------------------------------------------------------------- figure 3: ablation */

const ablationView = { view: "domains" };

function mixtureDomains(mixture, index, count) {
  const names = ["overall", ...data.ablation.domains];
  const effects = names.map((name) => name === "overall" ? mixture.overall : mixture.domains[name]);
  const y = names.map((_, row) => -row + (count - 1) * .12 - index * .24);
  const colour = ownColour(index);
  const reach = (side) => effects.map((e) => e.interval ? Math.abs(e.interval[side] - e.difference) : 0);
  return [
    { x: effects.map((e) => e.difference), y, type: "scatter", mode: "markers", name: mixture.mixture, legendgroup: mixture.mixture, meta: { kind: "mean" },
      error_x: { type: "data", symmetric: false, array: reach(1), arrayminus: reach(0), color: colour, thickness: 1.6, width: 4 },
      customdata: effects.map((e) => [e.verdict, e.interval ? signed(e.interval[0], 4) : "?", e.interval ? signed(e.interval[1], 4) : "?"]),
      hovertemplate: `${mixture.mixture}<br>%{x:+.4f} bits per byte<br>95 % interval %{customdata[1]} to %{customdata[2]}<br>%{customdata[0]}<extra></extra>`,
      marker: { color: colour, size: 10, symbol: OWN_SYMBOLS[index % 5] } },
    { x: effects.flatMap((e) => e.per_seed), y: effects.flatMap((e, row) => e.per_seed.map(() => y[row])), type: "scatter", mode: "markers",
      name: "seeds", legendgroup: mixture.mixture, showlegend: false, meta: { kind: "seeds" },
      text: effects.flatMap((e) => mixture.seeds.map((seed) => `seed ${seed}`)), hovertemplate: `${mixture.mixture}, %{text}<br>%{x:+.4f}<extra></extra>`,
      marker: { color: css("--paper"), size: 6, symbol: OWN_SYMBOLS[index % 5], line: { color: colour, width: 1.4 } } },
  ];
}

function mixtureCurve(mixture, index) {
  const x = mixture.curves.overall.map((point) => point.fraction === null ? point.step : point.fraction);
  const colour = ownColour(index);
  const seeds = mixture.seeds.map((seed, s) => ({
    x, y: mixture.curves.overall.map((point) => point.per_seed[s]), type: "scatter", mode: "markers", showlegend: false, legendgroup: mixture.mixture,
    meta: { kind: "seeds" }, hovertemplate: `${mixture.mixture}, seed ${seed}<br>%{y:+.4f}<extra></extra>`,
    marker: { color: css("--paper"), size: 6, symbol: OWN_SYMBOLS[index % 5], line: { color: colour, width: 1.4 } } }));
  const mean = { x, y: mixture.curves.overall.map((point) => point.mean), type: "scatter", mode: "lines", name: mixture.mixture, legendgroup: mixture.mixture,
                 meta: { kind: "mean" }, line: { color: colour, width: 2, dash: OWN_DASHES[index % 5] }, hoverinfo: "skip" };
  return [mean, ...seeds];
}

function drawAblation() {
  const ablation = data.ablation, mixtures = ablation.mixtures;
  const delta = `bits per byte, minus ${ablation.baseline}`;
  if (ablationView.view === "domains") {
    const names = ["overall", ...ablation.domains];
    draw("ablation", mixtures.flatMap((m, i) => mixtureDomains(m, i, mixtures.length)), {
      xaxis: { title: { text: wrapped(`${delta} (left of zero is better)`) }, zeroline: true, zerolinecolor: css("--soft"), zerolinewidth: 1.5 },
      yaxis: { tickvals: names.map((_, row) => -row), ticktext: names.map((n) => n === "overall" ? "<b>overall</b>" : n), ticks: "", showgrid: false,
               range: [-names.length + .4, .6], fixedrange: true },
    });
  } else {
    draw("ablation", mixtures.flatMap(mixtureCurve), {
      xaxis: { title: { text: "fraction of the schedule" } },
      yaxis: { title: { text: delta }, zeroline: true, zerolinecolor: css("--soft"), zerolinewidth: 1.5, nticks: 7 },
    });
  }
}

/* ---------------------------------------------------------------- the page */

const figures = {
  overlay: { draw: drawOverlay, view: overlayView, rows: overlayRows },
  ladder: { draw: drawLadder, view: {}, rows: ladderRows },
  ablation: { draw: drawAblation, view: ablationView, rows: ablationRows },
};

function overlayRows() {
  const header = ["run", "metric", "steps_done", "tokens", "value"];
  const rows = data.overlay.runs.flatMap((run) => Object.entries(run.curves).flatMap(([measure, curve]) =>
    curve.done.map((done, i) => [run.name, measure, done, curve.tokens[i] ?? "", curve.value[i]])));
  return [header, ...rows];
}

function ladderRows() {
  return [["run", "flops", "loss", "predicted"], ...data.fit.points.map((p) => [p.name, p.flops, p.loss, p.predicted])];
}

function ablationRows() {
  const rows = data.ablation.mixtures.flatMap((m) => [["overall", m.overall], ...Object.entries(m.domains)].flatMap(([domain, effect]) =>
    effect.per_seed.map((value, i) => [m.mixture, domain, m.seeds[i], value, effect.difference, ...(effect.interval ?? ["", ""]), effect.verdict])));
  return [["mixture", "domain", "seed", "difference_bpb", "mean", "low", "high", "verdict"], ...rows];
}

function csv(rows) {
  const cell = (value) => /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function start() {
  for (const [id, figure] of Object.entries(figures)) {
    if (!document.getElementById(id)) continue;
    figure.draw();
    const link = document.querySelector(`a.download[data-figure="${id}"]`);
    link.href = URL.createObjectURL(new Blob([csv(figure.rows())], { type: "text/csv" }));
  }
  for (const button of document.querySelectorAll(".choice button")) {
    button.addEventListener("click", () => {
      const { figure, key, value } = button.dataset;
      figures[figure].view[key] = value;
      for (const other of button.parentElement.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      figures[figure].draw();
    });
  }
  const redraw = () => Object.entries(figures).forEach(([id, figure]) => document.getElementById(id) && figure.draw());
  for (const query of ["(prefers-color-scheme: dark)", "print", "(max-width: 639px)"]) {
    window.matchMedia(query).addEventListener("change", redraw);
  }
}

start();
