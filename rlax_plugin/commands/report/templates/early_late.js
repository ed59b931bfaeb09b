"use strict";
// One prompt's answers early and late in training, side by side.

let pairable = []; // {prompt, groups: [{group, step, rows}]}, groups by step, two at least
let picked = null;

function groupRows() {
  const prompts = new Map();
  for (let row = 0; row < searched.length; row++) {
    const prompt = value("prompt", row), group = value("group", row);
    if (!prompts.has(prompt)) prompts.set(prompt, new Map());
    const groups = prompts.get(prompt);
    if (!groups.has(group)) groups.set(group, { group, step: value("step", row), rows: [] });
    groups.get(group).rows.push(row);
  }
  const span = ({ groups }) => groups.at(-1).step - groups[0].step;
  return Array.from(prompts, ([prompt, groups]) => ({
    prompt,
    groups: Array.from(groups.values()).sort((a, b) => a.step - b.step || a.group - b.group),
  })).filter(({ groups }) => groups.length > 1).sort((a, b) => span(b) - span(a));
}

const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

async function side(title, { group, step, rows }) {
  const rewards = rows.map((row) => value("reward", row)).filter((reward) => reward !== null);
  const made = element("div", { className: "side" },
    element("h3", { textContent: `${title}: step ${step}, group ${group}` }),
    element("span", { className: "mean", textContent: rewards.length
      ? `mean reward ${mean(rewards).toFixed(3)} of ${rewards.length}; ${shown("fate", rows[0])}` : "no rewards" }));
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
  const at = (id) => picked.groups[Number(byId(id).value)];
  const prompt = table.prompts[picked.prompt];
  const question = element("div", { className: "wide" },
    element("pre", { textContent: prompt.text }),
    element("span", { className: "muted", textContent: `reference: ${prompt.reference}` }));
  const sides = await Promise.all([side("Early", at("early")), side("Late", at("late"))]);
  byId("pair").replaceChildren(question, ...sides);
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
  const count = pairable.length.toLocaleString("en");
  byId("pairs").textContent = `${count} prompts were asked more than once`;
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
    byId("pairs").textContent = index < 0 ? "no such prompt was asked more than once"
      : `${count} prompts were asked more than once`;
    if (index >= 0) pick(pairable[index]).catch(failed);
  });
  byId("another").addEventListener("click", () => {
    pick(pairable[(pairable.indexOf(picked) + 1) % pairable.length]).catch(failed);
  });
  for (const id of ["early", "late"]) byId(id).addEventListener("change", () => drawPair().catch(failed));
  return pick(pairable[0]);
}

tableStarted.then(startPairs).then(() => { document.body.dataset.pairs = "ready"; }).catch(failed);
