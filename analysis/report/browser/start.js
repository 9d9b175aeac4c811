/* The page: draws the figures one after the other, and what its buttons do. */

const figures = {
  overlay: { draw: drawOverlay, view: overlayView, rows: overlayRows },
  ladder: { draw: drawLadder, view: {}, rows: ladderRows },
  ablation: { draw: drawAblation, view: ablationView, rows: ablationRows },
  forecast: { draw: drawForecast, view: forecastView, rows: forecastRows },
};
const present = Object.entries(figures).filter(([id]) => document.getElementById(id));
const redraw = () => present.forEach(([, figure]) => figure.draw());

function csv(rows) {
  const cell = (value) => /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function download(id) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csv(figures[id].rows())], { type: "text/csv" }));
  link.download = `${id}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch { // a page from a file may not use the clipboard: mark the text instead
    getSelection().selectAllChildren(code);
    button.textContent = document.execCommand("copy") ? "Copied" : "Marked";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function press(button) {
  for (const other of button.parentElement.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
}

function choose(button) {
  const { figure, key, value } = button.dataset;
  figures[figure].view[key] = value;
  press(button);
  figures[figure].draw();
}

/* `auto` follows the system. */
function useTheme(button) {
  const theme = button.dataset.themeChoice;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  press(button);
  redraw();
}

/* On paper figures have the width of the page and the light colours, and everything folded is shown. */
function print(begins) {
  if (begins === screenState.printing) return;
  screenState.printing = begins;
  for (const details of document.querySelectorAll("details")) {
    if (begins) details.dataset.was = String(details.open);
    details.open = begins || details.dataset.was === "true";
  }
  redraw();
  if (!begins) present.forEach(([id]) => Plotly.Plots.resize(document.getElementById(id))); // back to the screen's width
}

function start() {
  const listen = (selector, act) => document.querySelectorAll(selector).forEach((b) => b.addEventListener("click", () => act(b)));
  listen("button[data-figure][data-key]", choose);
  listen("button.download", (button) => download(button.dataset.figure));
  listen("button.copy", copy);
  listen("button[data-theme-choice]", useTheme);
  for (const query of ["(prefers-color-scheme: dark)", "(max-width: 639px)"]) {
    window.matchMedia(query).addEventListener("change", redraw);
  }
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  window.matchMedia("print").addEventListener("change", (event) => print(event.matches));
  const next = ([first, ...rest]) => {
    if (!first) return;
    first[1].draw();
    setTimeout(() => next(rest)); // the page answers between two figures
  };
  next(present);
}

start();
