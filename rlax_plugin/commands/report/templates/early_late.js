"use strict";
// Answers early and late in training, side by side: to one prompt, if any was asked twice.

let pairable = []; // {prompt, groups: [{prompt, group, step, rows}]}, groups by step, two at least
let picked = null;
let pairsTold = ""; // what they are pairs of

function groupRows() {
  const prompts = new Map();
  for (let row = 0; row < searched.length; row++) {
    const prompt = value("prompt", row), group = value("group", row);
    if (!prompts.has(prompt)) prompts.set(prompt, new Map());
    const groups = prompts.get(prompt);
    if (!groups.has(group)) groups.set(group, { prompt, group, step: value("step", row), rows: [] });
    groups.get(group).rows.push(row);
  }
  const byStep = (groups) => groups.sort((a, b) => a.step - b.step || a.group - b.group);
  const span = ({ groups }) => groups.at(-1).step - groups[0].step;
  const again = Array.from(prompts, ([prompt, groups]) => ({ prompt, groups: byStep(Array.from(groups.values())) }))
    .filter(({ groups }) => groups.length > 1).sort((a, b) => span(b) - span(a));
  pairsTold = `${again.length.toLocaleString("en")} prompts were asked more than once`;
  if (again.length) return again;
  const all = byStep(Array.from(prompts.values(), (groups) => Array.from(groups.values())).flat());
  if (all.length > 1) pairsTold = "no prompt was asked more than once: these are groups of two prompts";
  return all.slice(0, Math.floor(all.length / 2)).map((early, index) => (
    { prompt: early.prompt, groups: [early, all[all.length - 1 - index]] }));
}

const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

function question(index) {
  const prompt = table.prompts[index];
  return [element("pre", { textContent: prompt.text }),
    element("span", { className: "muted", textContent: `reference: ${prompt.reference}` })];
}

async function side(title, { prompt, group, step, rows }, asked) {
  const rewards = rows.map((row) => value("reward", row)).filter((reward) => reward !== null);
  const made = element("div", { className: "side" },
    element("h3", { textContent: `${title}: step ${step}, group ${group}` }),
    element("span", { className: "mean", textContent: rewards.length
      ? `mean reward ${mean(rewards).toFixed(3)} of ${rewards.length}; ${shown("fate", rows[0])}` : "no rewards" }),
    ...(asked ? question(prompt) : []));
  for (const row of rows) {
    const tokens = await tokensOf(row);
    made.append(element("div", { className: "answer" },
      element("span", { className: "reward", textContent: fixed(3)(value("reward", row)) }),
      element("div", { className: "tokens" },
        ...episodeNodes(tokens, value("completion", row), value("turns", row), table))));
  }
  return made;
}

async function drawPair() {
  const [early, late] = ["early", "late"].map((id) => picked.groups[Number(byId(id).value)]);
  const differ = early.prompt !== late.prompt;
  const sides = await Promise.all([side("Early", early, differ), side("Late", late, differ)]);
  const both = differ ? [] : [element("div", { className: "wide" }, ...question(early.prompt))];
  byId("pair").replaceChildren(...both, ...sides);
}

function pick(entry) {
  picked = entry;
  byId("prompt-search").value = table.prompts[entry.prompt].text;
  for (const [id, chosen] of [["early", 0], ["late", entry.groups.length - 1]]) {
    byId(id).replaceChildren(...entry.groups.map(({ group, step }, index) => element("option",
      { value: String(index), textContent: `step ${step}, group ${group}`, selected: index === chosen })));
  }
  return drawPair();
}

function startPairs() {
  pairable = groupRows();
  byId("pairs").textContent = pairsTold;
  if (!pairable.length) {
    for (const control of byId("pick").querySelectorAll("input, select, button")) control.disabled = true;
    return undefined;
  }
  byId("legend-pair").replaceChildren(...logprobLegend());
  byId("prompts").append(...pairable.slice(0, 1000).map(({ prompt }) =>
    element("option", { value: table.prompts[prompt].text })));
  byId("pick").addEventListener("submit", (event) => event.preventDefault());
  byId("prompt-search").addEventListener("change", () => {
    const wanted = byId("prompt-search").value.toLowerCase();
    const texts = pairable.map(({ prompt }) => table.prompts[prompt].text.toLowerCase());
    const exact = texts.indexOf(wanted);
    const index = exact >= 0 ? exact : texts.findIndex((text) => text.includes(wanted));
    byId("pairs").textContent = index < 0 ? "no such prompt is among these" : pairsTold;
    if (index >= 0) pick(pairable[index]).catch(failed);
  });
  byId("another").addEventListener("click", () => {
    pick(pairable[(pairable.indexOf(picked) + 1) % pairable.length]).catch(failed);
  });
  for (const id of ["early", "late"]) byId(id).addEventListener("change", () => drawPair().catch(failed));
  const sides = () => ["early", "late"].map((id) => byId(id).selectedOptions[0].text);
  keepers.pair = () => ({ prompt: table.prompts[picked.prompt].id, sides: sides() });
  const again = pairable.find(({ prompt }) => table.prompts[prompt].id === left.pair?.prompt);
  if (!again) return pick(pairable[0]);
  return pick(again).then(() => {
    ["early", "late"].forEach((id, index) => {
      const option = Array.from(byId(id).options).find(({ text }) => text === left.pair.sides[index]);
      if (option) option.selected = true;
    });
    return drawPair();
  });
}

const pairsStarted = tableStarted.then(startPairs);
pairsStarted.then(() => { document.body.dataset.pairs = "ready"; }).catch(failed);
