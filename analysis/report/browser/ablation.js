/* The ablation: each mixture's difference from the baseline at the end, set by set, and over training. */

const ablationView = { view: "domains", set: "overall" };
const ABLATION_NOTES = {
  domains: "Final evaluation on held-out text: left of zero is better. Large marks are means over seeds, small open ones single seeds, " +
    "bars 95 % t intervals with the noise of all runs together.",
  curve: "The difference at every evaluation: below zero is better. Lines are means over seeds, small open marks single seeds, bands " +
    "pointwise 95 % t intervals. They hold at one point at a time: do not pick the best one.",
};

const setsOf = () => ["overall", ...data.ablation.domains];
const effectOf = (mixture, set) => set === "overall" ? mixture.overall : mixture.domains[set];

function seedMarks(mixture, index, x, y, text) {
  return { x, y, text, type: "scatter", mode: "markers", name: "seeds", legendgroup: mixture.mixture, showlegend: false, meta: { kind: "seeds" },
           hovertemplate: `${plain(mixture.mixture)}, %{text}<extra></extra>`,
           marker: { color: css("--paper"), size: 6, symbol: ownSymbol(index), line: { color: ownColour(index), width: 1.4 } } };
}

function mixtureDomains(mixture, index, count) {
  const names = setsOf(), effects = names.map((name) => effectOf(mixture, name)), colour = ownColour(index);
  const step = Math.min(.24, .7 / count);
  const y = names.map((_, row) => -row + step * ((count - 1) / 2 - index));
  const reach = (side) => effects.map((e) => e.interval ? Math.abs(e.interval[side] - e.difference) : 0);
  return [
    { x: effects.map((e) => e.difference), y, type: "scatter", mode: "markers", name: plain(mixture.mixture), legendgroup: mixture.mixture, meta: { kind: "mean" },
      error_x: { type: "data", symmetric: false, array: reach(1), arrayminus: reach(0), color: colour, thickness: 1.6, width: 4 },
      customdata: effects.map((e) => [e.verdict, e.interval ? signed(e.interval[0], 4) : "?", e.interval ? signed(e.interval[1], 4) : "?"]),
      hovertemplate: `${plain(mixture.mixture)}<br>%{x:+.4f} bits per byte<br>95 % interval %{customdata[1]} to %{customdata[2]}<br>%{customdata[0]}<extra></extra>`,
      marker: { color: colour, size: 10, symbol: ownSymbol(index) } },
    seedMarks(mixture, index, effects.flatMap((e) => e.per_seed), effects.flatMap((e, row) => e.per_seed.map(() => y[row])),
              effects.flatMap((e) => e.per_seed.map((d, s) => `seed ${mixture.seeds[s]}: ${signed(d, 4)}`))),
  ];
}

const curvePlace = (point) => point.fraction ?? point.step;

function mixtureCurve(mixture, index) {
  const points = mixture.curves[ablationView.set], known = points.filter((p) => p.interval), colour = ownColour(index);
  const traces = [
    { x: points.map(curvePlace), y: points.map((p) => p.mean), type: "scatter", mode: "lines", name: plain(mixture.mixture), legendgroup: mixture.mixture,
      meta: { kind: "mean" }, line: { color: colour, width: 2, dash: ownDash(index) },
      hovertemplate: `${plain(mixture.mixture)}<br>mean %{y:+.4f}<extra></extra>` },
    seedMarks(mixture, index, points.flatMap((p) => p.per_seed.map(() => curvePlace(p))), points.flatMap((p) => p.per_seed),
              points.flatMap((p) => p.per_seed.map((d, s) => `seed ${mixture.seeds[s]}, step ${p.step}: ${signed(d, 4)}`))),
  ];
  if (!known.length) return traces;
  return [band(known.map(curvePlace), known.map((p) => p.interval), faded(colour, .13), "95 %", "interval",
               { legendgroup: mixture.mixture, showlegend: false }), ...traces];
}

/* High enough for all single seeds; early intervals may leave the picture. */
function curveRange() {
  const values = data.ablation.mixtures.flatMap((m) => m.curves[ablationView.set].flatMap((p) => p.per_seed));
  const ends = data.ablation.mixtures.flatMap((m) => m.curves[ablationView.set].at(-1)?.interval ?? []);
  const all = [0, ...values, ...ends], room = .12 * (Math.max(...all) - Math.min(...all)) || 1;
  return [Math.min(...all) - room, Math.max(...all) + room];
}

function drawAblation() {
  const ablation = data.ablation, mixtures = ablation.mixtures, count = mixtures.length, names = setsOf();
  const delta = `bits per byte, minus ${plain(ablation.baseline)}`;
  const box = document.getElementById("ablation");
  const atEnd = ablationView.view === "domains";
  const height = atEnd ? 130 + names.length * Math.max(44, 20 * count) : 490;
  box.style.height = `${height}px`;
  document.getElementById("ablation-note").textContent = ABLATION_NOTES[ablationView.view];
  box.closest("figure").querySelector('[data-key="set"]').parentElement.hidden = atEnd;
  if (atEnd) {
    draw("ablation", mixtures.flatMap((m, i) => mixtureDomains(m, i, count)), {
      height,
      xaxis: { title: { text: wrapped(`${delta} (left of zero is better)`) }, ...zeroLine() },
      yaxis: { tickvals: names.map((_, row) => -row), ticktext: names.map((n) => n === "overall" ? "<b>overall</b>" : plain(n)), ticks: "", showgrid: false,
               range: [-names.length + .4, .6], fixedrange: true },
    });
  } else {
    const share = mixtures.every((m) => m.curves[ablationView.set].every((p) => p.fraction !== null));
    draw("ablation", mixtures.flatMap(mixtureCurve), {
      height,
      xaxis: { title: { text: share ? "fraction of the schedule" : "step" }, tickformat: share ? "~%" : undefined },
      yaxis: { title: { text: wrapped(`${ablationView.set}: ${delta}`) }, ...zeroLine(), nticks: 7, range: curveRange() },
    });
  }
}

function ablationRows() {
  const header = ["mixture", "set", "step", "seed", "difference_bpb", "mean", "low", "high", "verdict"];
  const curves = data.ablation.mixtures.flatMap((m) => setsOf().flatMap((set) => m.curves[set].flatMap((p) => p.per_seed.map((d, s) =>
    [m.mixture, set, p.step, m.seeds[s], d, p.mean, ...(p.interval ?? ["", ""]), ""]))));
  const ends = data.ablation.mixtures.flatMap((m) => setsOf().flatMap((set) => {
    const effect = effectOf(m, set);
    return effect.per_seed.map((d, s) => [m.mixture, set, "end", m.seeds[s], d, effect.difference, ...(effect.interval ?? ["", ""]), effect.verdict]);
  }));
  return [header, ...ends, ...curves];
}
