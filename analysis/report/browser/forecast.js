/* The forecast: what was predicted at each point of the run, with its interval, and what has landed. */

const forecastView = { view: "loss" };
const FORECAST_NOTES = {
  loss: "The line was predicted, circles have landed. Closed circles lie inside their interval, open ones outside.",
  error: "Each landed value minus what was predicted there: above zero, the run is worse than forecast.",
};

function drawForecast() {
  const points = [...data.forecast.points].sort((a, b) => a.fraction - b.fraction);
  const error = forecastView.view === "error", base = (p) => error ? p.predicted : 0;
  const known = points.filter((p) => p.interval), landed = points.filter((p) => p.landed !== null);
  const inside = (p) => p.interval && p.interval[0] <= p.landed && p.landed <= p.interval[1];
  document.getElementById("forecast-note").textContent = FORECAST_NOTES[forecastView.view];
  draw("forecast", [
    band(known.map((p) => p.fraction), known.map((p) => p.interval.map((end) => end - base(p))), faded(css("--accent"), .2), "95 % interval", "interval"),
    { x: points.map((p) => p.fraction), y: points.map((p) => p.predicted - base(p)), type: "scatter", mode: "lines", name: "predicted",
      meta: { kind: "predicted" }, line: { color: css("--accent"), width: 2, dash: "dash" }, text: points.map((p) => p.predicted.toFixed(4)),
      hovertemplate: "%{x:.1%} of the run<br>predicted %{text}<extra></extra>" },
    { x: landed.map((p) => p.fraction), y: landed.map((p) => p.landed - base(p)), type: "scatter", mode: "markers", name: "landed", meta: { kind: "landed" },
      customdata: landed.map((p) => [p.step, p.landed, signed(p.landed - p.predicted, 4)]),
      hovertemplate: "step %{customdata[0]:,}<br>landed %{customdata[1]:.4f}<br>%{customdata[2]} from the forecast<extra></extra>",
      marker: { color: css("--own-1"), size: 8, symbol: landed.map((p) => inside(p) ? "circle" : "circle-open"), line: { color: css("--own-1"), width: 1.8 } } },
  ], {
    xaxis: { title: { text: "fraction of the run" }, tickformat: "~%" },
    yaxis: { title: { text: wrapped(error ? "landed − predicted" : `${data.forecast.metric ?? "loss"}, ${data.forecast.unit ?? ""}`) },
             nticks: 7, ...(error ? zeroLine() : {}) },
  });
}

function forecastRows() {
  return [["fraction", "step", "predicted", "low", "high", "landed"],
          ...data.forecast.points.map((p) => [p.fraction, p.step, p.predicted, ...(p.interval ?? ["", ""]), p.landed ?? ""])];
}
