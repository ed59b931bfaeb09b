"use strict";
// What all pages share: unpacking data, the charts, light and dark.

async function unpack(name) {
  const text = document.getElementById(`data-${name}`).textContent;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

/** An element with text and children; text is never read as HTML. */
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function failed(error) {
  const place = document.getElementById("failure");
  place.hidden = false;
  place.textContent = `This page could not be shown whole: ${error.message ?? error}`;
  console.error(error);
}

const chartPlaces = () => document.querySelectorAll("[data-chart]");

function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return { text: colour("--text"), muted: colour("--muted"), line: colour("--line"),
    panel: colour("--panel") };
}

function themed(layout) {
  const { text, muted, line, panel } = themeColours();
  const coloured = {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: text, size: 12, family: "system-ui, sans-serif" },
    margin: { l: 58, r: 14, t: 30, b: 46 },
    hoverlabel: { bgcolor: panel, bordercolor: line, font: { color: text } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: text },
  };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    coloured[name] = { ...layout[name], gridcolor: line, zerolinecolor: line, linecolor: line,
      automargin: true, tickfont: { color: muted } };
  }
  return coloured;
}

let figures = {};

function drawCharts() {
  const options = { responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  return Promise.all(Array.from(chartPlaces(), (place) => {
    const { data, layout } = figures[place.dataset.chart];
    return Plotly.newPlot(place, data, themed(layout), options);
  }));
}

function showLines(which) {
  for (const place of chartPlaces()) {
    const lines = place.data.flatMap((trace, index) => (trace.meta ? [index] : []));
    if (!lines.length) continue;
    const kinds = lines.map((index) => place.data[index].meta);
    Plotly.restyle(place, {
      visible: kinds.map((kind) => which === "both" || kind === which),
      opacity: kinds.map((kind) => (kind === "raw" && which === "both" ? 0.35 : 1)),
    }, lines);
  }
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(dark));
  button.textContent = dark ? "Light" : "Dark";
  for (const place of chartPlaces()) {
    if (place.data) Plotly.relayout(place, themed(figures[place.dataset.chart].layout));
  }
}

async function startCharts() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches);
  dark.addEventListener("change", () => setTheme(dark.matches));
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme !== "dark");
  });
  const script = document.createElement("script");
  script.nonce = document.currentScript?.nonce ?? document.querySelector("script[nonce]").nonce;
  script.textContent = await unpack("plotly");
  document.head.append(script);
  figures = JSON.parse(await unpack("charts"));
  await drawCharts();
  for (const input of document.querySelectorAll("#smoothing input")) {
    input.addEventListener("change", () => showLines(input.value));
  }
  document.body.dataset.charts = "ready";
}

startCharts().catch(failed);
