/* Own curves over the public one: one mark per logged value, a line for the eye, and what happened at the foot. */

const overlayView = { x: data.overlay.start.x, y: data.overlay.start.y, line: "shown", logx: "log", marks: "shown" };
const SMOOTHED = "line: debiased average, half-life 5 % of the steps done";
const SIZES = { severe: 12, warning: 11, info: 8 };

/* x of a curve on an axis, or null where the run's facts do not give it. */
function curveX(run, curve, axis) {
  const factor = run.factors[axis];
  const base = curve[data.overlay.axes[axis].base];
  return factor === null || base === null ? null : base.map((value) => value === null ? null : value * factor);
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
  const name = run.public ? run.title : shortName(run.name);
  const hover = `${plain(shortName(run.name))}<br>${data.overlay.axes[view.x].label} %{x:.4~g}<br>%{y:.4~g}<extra></extra>`;
  const raw = {
    x, y: curve.value, type: "scatter", mode: "markers", name: plain(name), legendgroup: run.name,
    meta: { run: run.name, kind: "raw" }, hovertemplate: hover, showlegend: !lined,
    marker: { color: colour, size: run.public ? 5 : dense ? 3.5 : 7, symbol: run.public ? "x-thin" : ownSymbol(index),
              opacity: dense ? (run.public ? .65 : .3) : .9, line: { color: colour, width: run.public ? 1.2 : 0 } },
  };
  if (!lined) return [raw];
  const line = {
    x: broken(x, curve.breaks), y: broken(curve.line, curve.breaks), type: "scatter", mode: "lines", legendgroup: run.name,
    name: plain(name), meta: { run: run.name, kind: "line" }, hoverinfo: "skip",
    line: { color: colour, width: run.public ? 2.5 : 2, dash: run.public ? "solid" : ownDash(index) },
  };
  return [raw, line];
}

/* x of marks, null where a run's facts do not place them on this axis. */
function markX(run, marks, view) {
  const factor = run.factors[view.x], base = data.overlay.axes[view.x].base;
  return marks.map((mark) => factor === null || mark[base] === null ? null : mark[base] * factor);
}

/* The text of each mark: marks within 1 % of one another lie on one spot, so each tells of up to three of them. */
function withNeighbours(marks, tell) {
  return marks.map((mark) => {
    const near = marks.filter((other) => other !== mark && Math.abs(other.done / mark.done - 1) < .01);
    const more = near.length > 2 ? `<br>… and ${near.length - 2} more here` : "";
    return [mark, ...near.slice(0, 2)].map(tell).join("<br>") + more;
  });
}

/* The rows of marks at the foot: published events lowest, then one row per run with findings. */
function markTraces(view) {
  const overlay = data.overlay, publicRun = overlay.runs.find((run) => run.public);
  const width = narrow() ? 38 : 62, traces = [];
  const row = (marks, run, level, tell, more) => ({
    x: markX(run, marks, view), text: withNeighbours(marks, tell), y: marks.map(() => .025 + .04 * level), yaxis: "y2", type: "scatter", mode: "markers",
    hovertemplate: "%{text}<extra></extra>", cliponaxis: false, ...more,
  });
  if (overlay.events.length) {
    const tell = (event) => `<b>${event.kind}, step ${event.step}</b><br>${lines(plain(event.what), width)}`;
    traces.push(row(overlay.events, publicRun, 0, tell, {
      name: "published events", meta: { kind: "events" },
      marker: { symbol: overlay.events.map((event) => event.kind === "data" ? "star" : "triangle-up"), color: css("--public"),
                size: overlay.events.map((event) => event.kind === "data" ? 13 : 9), opacity: .85 },
    }));
  }
  const own = overlay.runs.filter((run) => !run.public);
  overlay.runs.filter((run) => run.found.length).forEach((run, level) => {
    const colour = run.public ? css("--public") : ownColour(own.indexOf(run));
    const tell = (f) => `<b>${plain(shortName(run.name))}, ${f.severity}: ${plain(f.title)}</b><br>${f.steps}<br>` +
      `${lines(plain(f.says), width)}<br><i>Try first:</i> ${lines(plain(f.try_first), width)}`;
    traces.push(row(run.found, run, level + 1, tell, {
      name: "found in the logs", meta: { kind: "found", run: run.name }, legendgroup: "found", showlegend: level === 0,
      marker: { symbol: run.found.map((f) => f.severity === "info" ? "diamond-open" : "diamond"), color: colour,
                size: run.found.map((f) => SIZES[f.severity] ?? 11), line: { color: colour, width: 1.2 } },
    }));
  });
  return traces;
}

function dataEventLines(view) {
  const events = data.overlay.events.filter((event) => event.kind === "data");
  const at = markX(data.overlay.runs.find((run) => run.public), events, view).filter((x) => x !== null);
  return {
    shapes: at.map((x) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: css("--soft"), width: 1, dash: "dot" } })),
    annotations: at.map((x) => ({ x: view.logx === "log" ? Math.log10(x) : x, yref: "paper", y: .99, yanchor: "top",
                                  xanchor: "right", text: "new data mix", showarrow: false, font: { size: 11, color: css("--soft") } })),
  };
}

function drawOverlay() {
  const view = overlayView, overlay = data.overlay;
  const own = overlay.runs.filter((run) => !run.public);
  const traces = overlay.runs.flatMap((run) => runTraces(run, own.indexOf(run), view));
  if (view.marks === "shown") traces.push(...markTraces(view));
  const { shapes, annotations } = view.marks === "shown" ? dataEventLines(view) : { shapes: [], annotations: [] };
  if (view.y === "relative" && view.x === "fraction" && overlay.reference) {
    shapes.push({ type: "rect", x0: overlay.reference[0], x1: overlay.reference[1], yref: "paper", y0: 0, y1: 1, layer: "below",
                  fillcolor: faded(css("--accent"), .16), line: { width: 0 } });
  }
  const measure = overlay.measures[view.y];
  const smoothed = traces.some((trace) => trace.meta.kind === "line" && overlay.runs.find((run) => run.name === trace.meta.run).curves[view.y].smoothed);
  const title = measure.label + (smoothed ? `<br><span style="font-size:11px">${narrow() ? "line: average, see below" : SMOOTHED}</span>` : "");
  draw("overlay", traces, {
    xaxis: { title: { text: wrapped(overlay.axes[view.x].label) }, type: view.logx, range: startRange(view),
             tickformat: view.x === "fraction" ? "~%" : undefined, nticks: view.logx === "log" ? logTicks() : narrow() ? 4 : 0 },
    yaxis: { title: { text: title }, type: measure.log ? "log" : "linear", dtick: null, nticks: 7, tickformat: "~g", range: startHeight(view) },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    shapes, annotations, uirevision: `${view.x} ${view.logx} ${view.y}`,
  });
  const absent = overlay.runs.filter((run) => !run.curves[view.y]).map((run) => run.absent[view.y]);
  const unplaced = overlay.runs.filter((run) => run.curves[view.y] && run.factors[view.x] === null).map((run) => run.missing[view.x]);
  document.getElementById("overlay-note").textContent = measure.note + (smoothed ? ` On this axis the ${SMOOTHED}.` : "");
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
  const range = [Math.min(...own) * .9, Math.max(...own) * 1.08];
  return data.overlay.measures[view.y].log ? range.map(Math.log10) : range;
}

function overlayRows() {
  const header = ["run", "metric", "steps_done", "tokens", "value", "smoothed"];
  const rows = data.overlay.runs.flatMap((run) => Object.entries(run.curves).flatMap(([measure, curve]) =>
    curve.done.map((done, i) => [run.name, measure, done, curve.tokens[i] ?? "", curve.value[i], curve.smoothed ? curve.line[i] : ""])));
  return [header, ...rows];
}
