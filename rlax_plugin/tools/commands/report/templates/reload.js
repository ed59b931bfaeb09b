"use strict";
// The page of a run that is watched reloads itself, and comes back as it was left. Others do not.

const EVERY_MS = 1000 * Number(document.body.dataset.reloadS);
const CALM_MS = 2000; // without the keyboard or a pointer
const MOST_DOUBLINGS = 5; // of the pause, while the file stays as it is
const unchanged = left.written === document.body.dataset.written ? (left.unchanged ?? 0) + 1 : 0;
const pauseMs = EVERY_MS * 2 ** Math.min(unchanged, MOST_DOUBLINGS);
let touched = -Infinity;
let pressed = false;

/** True while a reload would disturb: a dialog is open, or somebody types, selects or scrolls. */
function disturbs() {
  const active = document.activeElement;
  const selects = getSelection()?.type === "Range"
    || (active?.matches("input[type=search]") && active.selectionStart !== active.selectionEnd);
  return pressed || selects || document.querySelector("dialog[open]") !== null
    || performance.now() - touched < CALM_MS;
}

/** The element that begins nearest to the top of the screen, and its distance from there. */
function topmost() {
  if (!scrollY) return null;
  const below = document.querySelector("header").offsetHeight;
  let found = null;
  for (const one of document.querySelectorAll("main [id]")) {
    const { top, height } = one.getBoundingClientRect();
    const away = Math.abs(top - below);
    if (height && away < (found?.away ?? Infinity)) found = { id: one.id, top, away };
  }
  return found;
}

function goBack() {
  const at = left.topmost && document.getElementById(left.topmost.id);
  if (at) scrollBy(0, at.getBoundingClientRect().top - left.topmost.top);
}

function focused() {
  const { id, selectionStart } = document.activeElement ?? {};
  return id && document.activeElement.matches("input[type=search]") ? { id, at: selectionStart } : null;
}

function reload() {
  const kept = Object.fromEntries(Object.entries(keepers).map(([name, value]) => [name, value()]));
  Object.assign(kept, { topmost: topmost(), focused: focused(), unchanged,
    written: document.body.dataset.written, reloads: document.getElementById("reloads").checked });
  try {
    sessionStorage.setItem(LEFT_AT, JSON.stringify(kept));
  } catch {
    // The browser stores nothing for this page: it begins at its top.
  }
  location.reload();
}

function startReloading() {
  history.scrollRestoration = "manual";
  document.getElementById("reloads").checked = left.reloads ?? true;
  const touch = () => { touched = performance.now(); };
  for (const name of ["keydown", "pointerdown", "wheel", "input"]) addEventListener(name, touch, { passive: true });
  addEventListener("pointerdown", () => { pressed = true; });
  for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, () => { pressed = false; });
  const began = performance.now();
  setInterval(() => {
    const due = document.visibilityState === "visible" && performance.now() - began >= pauseMs;
    if (due && document.getElementById("reloads").checked && !disturbs()) reload();
  }, 250);
}

goBack(); // the charts have their places, but what is below may not be there yet
const whole = typeof tableStarted === "undefined" ? chartsStarted : tableStarted;
whole.then(() => {
  if (touched === -Infinity) goBack();
  const field = left.focused && document.getElementById(left.focused.id);
  if (field) {
    field.focus({ preventScroll: true });
    field.setSelectionRange(left.focused.at, left.focused.at);
  }
  if (EVERY_MS) startReloading();
  else document.getElementById("watched")?.remove(); // the run has ended
  document.body.dataset.reloading = "ready";
}).catch(failed);
