/* The ladder: final loss against compute, the fitted law with two intervals, and the prediction for the largest run. */

function drawLadder() {
  const fit = data.fit, losses = fit.points.map((point) => point.loss), flops = fit.band.map((point) => point.flops);
  const spread = Math.max(...losses) - Math.min(...losses);
  const traces = [
    band(flops, fit.band.map((p) => p.t_interval), faded(css("--accent"), .1), "95 % interval from residuals", "t_interval"),
    band(flops, fit.band.map((p) => p.interval), faded(css("--accent"), .25), "95 % bootstrap over runs", "interval"),
    { x: flops, y: fit.band.map((p) => p.loss), type: "scatter", mode: "lines", name: "power law",
      line: { color: css("--accent"), width: 2 }, hoverinfo: "skip", meta: { kind: "law" } },
    { x: fit.points.map((p) => p.flops), y: losses, type: "scatter", mode: "markers+text", name: "runs", meta: { kind: "runs" },
      text: fit.points.map((p) => plain(shortName(p.name))), cliponaxis: false,
      textposition: fit.points.map((_, i) => i === fit.points.length - 1 ? "top left" : "top right"),
      customdata: fit.points.map((p) => [p.predicted, 100 * (p.loss / p.predicted - 1)]),
      hovertemplate: "%{text}<br>%{x:.3~g} FLOPs<br>loss %{y:.4f}<br>law %{customdata[0]:.4f} (%{customdata[1]:+.2f} %)<extra></extra>",
      marker: { size: 11, color: fit.points.map((_, i) => ownColour(i)), symbol: fit.points.map((_, i) => ownSymbol(i)) } },
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
             range: [Math.log10(Math.max(Math.min(...losses) - .6 * spread, Math.min(...losses) / 2)), Math.log10(Math.max(...losses) + .6 * spread)] },
  });
}

function ladderRows() {
  return [["run", "flops", "loss", "predicted"], ...data.fit.points.map((p) => [p.name, p.flops, p.loss, p.predicted])];
}
