"use strict";
// What all pages share: unpacking data, the charts, their x axis, light and dark.

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

async function unpack(name, kind = "text") {
  const bytes = fromBase64(document.getElementById(`data-${name}`).textContent);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream)[kind]();
}

/** Runs a script that is not part of the page's text, so that another thread compiles it. */
function execute(source) {
  const script = document.createElement("script");
  script.nonce = document.querySelector("script[nonce]").nonce;
  script.src = URL.createObjectURL(source);
  return new Promise((resolve, reject) => {
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error("the program of the charts cannot be run")));
    document.head.append(script);
  });
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

// What the page was before it reloaded itself (reload.js); empty if it is opened anew.
const LEFT_AT = `rlax ${location.pathname}`;
const left = takeLeft();
const keepers = {}; // name -> function that returns what is kept over a reload

function takeLeft() {
  try {
    const text = sessionStorage.getItem(LEFT_AT);
    sessionStorage.removeItem(LEFT_AT);
    return text ? JSON.parse(text) : {};
  } catch {
    return {}; // the browser stores nothing for this page
  }
}

/** Checks a radio button of a set by its value; returns false if there is none. */
function choose(set, value) {
  const found = Array.from(document.querySelectorAll(`#${set} input`)).find((input) => input.value === value);
  if (found) found.checked = true;
  return Boolean(found);
}

const chosen = (set, otherwise) => document.querySelector(`#${set} input:checked`)?.value ?? otherwise;
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
    margin: { l: 58, r: 34, t: 30, b: 46 },
    hoverlabel: { bgcolor: panel, bordercolor: line, font: { color: text } },
    // In the margin on the right: above the chart they would cover the legend.
    modebar: { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: text },
  };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    coloured[name] = { ...layout[name], gridcolor: line, zerolinecolor: line, linecolor: line,
      automargin: true, tickfont: { color: muted } };
  }
  return coloured;
}

// --- the x axis --------------------------------------------------------------------------------

const ARRAYS = { f8: Float64Array, f4: Float32Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array,
  u2: Uint16Array, i4: Int32Array, u4: Uint32Array };

/** The numbers of a figure, which may be packed. */
function numbers(values) {
  if (!values?.bdata) return Array.from(values ?? []);
  return Array.from(new ARRAYS[values.dtype](fromBase64(values.bdata).buffer));
}

/** The position of a step on another axis: linear between two entries of the run's table. */
function moved(step, axis, run) {
  const { step: steps, [axis]: positions } = xAxes.tables[run];
  if (step === null || !steps.length) return null;
  let low = 0, high = steps.length - 1;
  if (step <= steps[low]) return positions[low];
  if (step >= steps[high]) return positions[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  const share = (step - steps[low]) / (steps[high] - steps[low]);
  return positions[low] + share * (positions[high] - positions[low]);
}

/** Widths with which bars at these places touch each other, as they do over steps. */
function widths(places) {
  const between = places.slice(1).map((place, index) => place - places[index]);
  return places.map((_, index) => Math.min(between[index - 1] ?? Infinity, between[index] ?? Infinity));
}

function movedTrace(trace, axis, run) {
  const x = numbers(trace.x).map((step) => moved(step, axis, run));
  return { ...trace, x, ...(trace.type === "bar" && x.length > 1 ? { width: widths(x) } : {}) };
}

function movedLayout(layout, axis, run) {
  const made = { ...layout, uirevision: axis };
  for (const name of Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key))) {
    const text = layout[name].title?.text && xAxes.titles[axis];
    made[name] = { ...layout[name], ...(text ? { title: { ...layout[name].title, text } } : {}) };
  }
  made.shapes = (layout.shapes ?? []).map((shape) => (
    { ...shape, x0: moved(shape.x0, axis, run), x1: moved(shape.x1, axis, run) }));
  made.annotations = (layout.annotations ?? []).map((note) => ({ ...note, x: moved(note.x, axis, run) }));
  return made;
}

// --- the charts --------------------------------------------------------------------------------

const OPTIONS = { responsive: true, displaylogo: false, displayModeBar: "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
let charts = {}; // key -> figure
let xAxes = { titles: {}, tables: [] };
let look = 0; // counts changes of axis, lines and theme; charts of an earlier look are drawn again
const near = new Set(); // places of charts that are on the screen, or almost

/** Traces and layout of a chart, as the switches of the page are set. */
function figureNow(key) {
  const { data, layout } = charts[key];
  const axis = chosen("axis", "step"), lines = chosen("smoothing", "both");
  const moves = axis !== "step" && layout.meta?.steps;
  const hidden = left.charts?.[key]?.hidden ?? [];
  const traces = data.map((trace) => {
    const made = moves ? movedTrace(trace, axis, trace.meta?.run ?? 0) : { ...trace };
    const kind = trace.meta?.lines;
    if (kind) {
      made.visible = lines === "both" || kind === lines;
      made.opacity = kind === "raw" && lines === "both" ? 0.35 : 1;
    }
    return hidden.includes(trace.name) ? { ...made, visible: "legendonly" } : made;
  });
  const placed = moves ? movedLayout(layout, axis, 0) : { ...layout, uirevision: "step" };
  const zoomed = left.charts?.[key]?.axes ?? {};
  for (const [name, range] of Object.entries(zoomed)) {
    if (placed[name]) placed[name] = { ...placed[name], ...range };
  }
  return [traces, themed(placed)];
}

async function show(place) {
  if (place.dataset.look === String(look)) return;
  place.dataset.look = String(look);
  const first = !place.data;
  await Plotly.react(place, ...figureNow(place.dataset.chart), OPTIONS);
  if (first) place.on("plotly_relayout", () => { place.dataset.zoomed = "true"; });
}

/** Draws every chart now, for printing. */
const drawAll = () => Promise.all(Array.from(chartPlaces(), show));

function redraw() {
  look += 1;
  for (const place of near) show(place).catch(failed);
}

/** Draws charts when they come near the screen; resolves when those that are there are drawn. */
function drawNear() {
  const places = chartPlaces();
  if (!places.length) return undefined;
  return new Promise((resolve, reject) => {
    const watcher = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) near.add(target); else near.delete(target);
      }
      const shown = entries.filter((entry) => entry.isIntersecting).map((entry) => show(entry.target));
      Promise.all(shown).then(resolve, reject);
    }, { rootMargin: "300px 0px" });
    for (const place of places) watcher.observe(place);
  });
}

// --- what is kept ------------------------------------------------------------------------------

/** Zoom and hidden lines of a chart; null if it is as it was made. */
function changesOf(place) {
  if (!place.data) return null;
  const hidden = place.data.filter((trace) => trace.visible === "legendonly").map(({ name }) => name);
  const axes = {};
  for (const name of Object.keys(place.layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    const { autorange, range } = place.layout[name];
    if (place.dataset.zoomed) axes[name] = autorange ? { autorange: true } : { autorange: false, range };
  }
  return hidden.length || place.dataset.zoomed ? { hidden, axes } : null;
}

Object.assign(keepers, {
  axis: () => chosen("axis"),
  lines: () => chosen("smoothing"),
  theme: () => document.documentElement.dataset.chosen && document.documentElement.dataset.theme,
  charts: () => Object.fromEntries(Array.from(chartPlaces(), (place) => [place.dataset.chart, changesOf(place)])
    .filter(([, changes]) => changes)),
  details: () => Object.fromEntries(Array.from(document.querySelectorAll("details[id]"), ({ id, open }) => [id, open])),
});

// --- the start ---------------------------------------------------------------------------------

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(dark));
  button.textContent = dark ? "Light" : "Dark";
  redraw();
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  if (left.theme) document.documentElement.dataset.chosen = "true";
  setTheme(left.theme ? left.theme === "dark" : dark.matches);
  dark.addEventListener("change", () => setTheme(dark.matches));
  document.getElementById("theme").addEventListener("click", () => {
    document.documentElement.dataset.chosen = "true";
    setTheme(document.documentElement.dataset.theme !== "dark");
  });
}

async function startCharts() {
  startTheme();
  choose("smoothing", left.lines);
  choose("axis", left.axis);
  for (const [id, open] of Object.entries(left.details ?? {})) {
    const found = document.getElementById(id);
    if (found) found.open = open;
  }
  const [source, packed] = await Promise.all([unpack("plotly", "blob"), unpack("charts")]);
  await execute(source);
  ({ charts, x_axes: xAxes } = JSON.parse(packed));
  await drawNear();
  for (const input of document.querySelectorAll("#smoothing input, #axis input")) {
    input.addEventListener("change", redraw);
  }
  addEventListener("beforeprint", () => drawAll().catch(failed));
  document.body.dataset.charts = "ready";
}

const chartsStarted = startCharts().catch(failed);
