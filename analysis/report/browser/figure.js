"use strict";
/* What all figures share: the embedded data, the colours of the current theme, axes, and putting traces on the page. */

const data = JSON.parse(document.getElementById("report-data").textContent);
const OWN_SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross"];
const OWN_DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const PRINTED = { width: 670, height: 400 }; // pixels of a figure between the margins of an A4 page
const screenState = { printing: false };

/* A theme's colour as rgb(): the variables hold light-dark(), which only a used colour resolves. */
const probe = document.body.appendChild(document.createElement("span"));
probe.hidden = true;
const css = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
const faded = (colour, alpha) => colour.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);

const narrow = () => window.innerWidth < 640 && !screenState.printing;
const ownColour = (i) => css(`--own-${i % 5}`);
const ownSymbol = (i) => OWN_SYMBOLS[i % 5];
const ownDash = (i) => OWN_DASHES[i % 5];
const shortName = (name) => name.slice(name.lastIndexOf("/") + 1);
const signed = (value, digits) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(digits);
const lines = (text, width) => text.replace(new RegExp(`(.{1,${width}})(\\s|$)`, "g"), "$1<br>").replace(/(<br>)+$/, "");

/* Text from logs as it stands: Plotly reads a few HTML tags. */
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/* An axis title in lines of about 30 characters where the screen is narrow. */
const wrapped = (title) => narrow() ? lines(title, 30) : title;

/* So few that a log axis is labelled at 1, 2 and 5 of each decade, or at decades alone: all nine run into each other. */
const logTicks = () => narrow() ? 3 : 5;

const zeroLine = () => ({ zeroline: true, zerolinecolor: css("--soft"), zerolinewidth: 1.5 });

function baseLayout(extra) {
  const axis = {
    gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, ticks: "outside", tickcolor: css("--line"),
    automargin: true, exponentformat: "power", title: { standoff: narrow() ? 4 : 8, font: { size: narrow() ? 12 : 14 } },
  };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
    margin: { l: narrow() ? 36 : 64, r: 12, t: 12, b: 48 },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12.5 }, align: "left", namelength: -1 },
    legend: { orientation: "h", x: narrow() ? -.2 : 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)",
              font: { size: narrow() ? 11 : 13 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") },
    hovermode: "closest", hoverdistance: narrow() ? 30 : 20, dragmode: narrow() ? false : "zoom", ...extra,
    ...(screenState.printing ? { ...PRINTED, uirevision: "print" } : {}),
  };
  for (const key of ["xaxis", "yaxis"]) layout[key] = { ...axis, ...extra[key] };
  return layout;
}

function draw(id, traces, layout) {
  const config = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  if (narrow()) config.displayModeBar = false;
  return Plotly.react(document.getElementById(id), traces, baseLayout(layout), config);
}

/* A shaded stretch between the two ends of `key` of each point, in the order of x. */
function band(x, intervals, colour, name, kind, more) {
  return {
    x: [...x, ...[...x].reverse()], y: [...intervals.map((i) => i[0]), ...intervals.map((i) => i[1]).reverse()],
    type: "scatter", mode: "lines", fill: "toself", fillcolor: colour, line: { width: 0 }, name, hoverinfo: "skip", meta: { kind }, ...more,
  };
}
