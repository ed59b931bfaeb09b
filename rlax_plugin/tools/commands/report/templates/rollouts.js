"use strict";
// The table of rollouts: search, filters, sorting, pages; and the dialog of one rollout.

const PAGE_ROWS = 50;
const byId = (id) => document.getElementById(id);
const fixed = (digits) => (value) => (value === null ? "–" : value.toFixed(digits));
const plain = (value) => (value === null ? "–" : String(value));

// [key, heading, how a value is shown (of which row), kind]
const COLUMNS = [
  ["step", "step", plain, "number"],
  ["group", "group", plain, "number"],
  ["sample", "sample", plain, "number"],
  ["prompt", "prompt", (value) => table.prompts[value].text, "text"],
  ["completion", "completion", plain, "text"],
  ["reward", "reward", fixed(3), "number"],
  ["advantage", "advantage", fixed(3), "number"],
  ["logprob", "mean log-prob", fixed(3), "number"],
  ["tokens", "tokens", plain, "number"],
  ["oldest", "versions", (oldest, row) => versionRange(oldest, value("newest", row)), "number"],
  ["finish", "ended by", plain, ""],
  ["fate", "fate", (value) => table.fates[value], ""],
  ["worker", "worker", plain, ""],
];

// Only where an episode of the page has several turns.
const TURNS = ["turns", "turns", (turns) => String(turnsOf(turns)), "number"];
const turnsOf = (turns) => turns?.length ?? 1;

function versionRange(oldest, newest) {
  return oldest === newest ? plain(oldest) : `${oldest}–${newest}`;
}

let table = null; // the unpacked index: prompts, fates, vocabulary, columns
let searched = []; // per rollout, in small letters: what a search looks through
let found = []; // rows that pass search and filters, in the order shown
let sorting = { key: "step", descending: false };
let page = 0;
let opened = -1; // place in `found` of the rollout in the dialog
const chunks = new Map();

const value = (key, row) => table.columns[key][row];
const shown = (key, row) => COLUMNS.find(([name]) => name === key)[2](value(key, row), row);

/** Ids, log-probs in thousandths of a nat, and versions of a rollout's tokens. */
async function tokensOf(row) {
  const number = Math.floor(row / table.chunk);
  if (!chunks.has(number)) chunks.set(number, unpack(`tokens-${number}`).then(JSON.parse));
  const chunk = await chunks.get(number);
  const at = row % table.chunk;
  const versions = [];
  for (let i = 0; i < chunk.versions[at].length; i += 2) {
    versions.push(...Array(chunk.versions[at][i + 1]).fill(chunk.versions[at][i]));
  }
  return { ids: chunk.tokens[at], milli: chunk.logprobs[at], versions };
}

function filter() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fate = byId("fate").value;
  const first = Number(byId("from").value || -Infinity), last = Number(byId("to").value || Infinity);
  found = [];
  for (let row = 0; row < searched.length; row++) {
    const step = value("step", row);
    if (step < first || step > last) continue;
    if (fate !== "" && value("fate", row) !== Number(fate)) continue;
    if (words.every((word) => searched[row].includes(word))) found.push(row);
  }
  sort();
  page = 0;
  draw();
}

function sort() {
  const { key, descending } = sorting;
  const [, , show, kind] = COLUMNS.find(([name]) => name === key);
  const keys = new Map(found.map((row) => {
    const raw = value(key, row);
    if (key === "turns") return [row, turnsOf(raw)];
    return [row, kind === "number" ? raw : show(raw, row)];
  }));
  const sign = descending ? -1 : 1;
  found.sort((a, b) => {
    const x = keys.get(a), y = keys.get(b);
    if (x === y) return value("step", a) - value("step", b) || value("group", a) - value("group", b) || a - b;
    if (x === null) return 1; // what has no value comes last, either way
    if (y === null) return -1;
    return sign * (x < y ? -1 : 1);
  });
}

function draw() {
  const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
  page = Math.min(page, pages - 1);
  const rows = found.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS).map((row, index) => {
    const line = element("tr", { tabIndex: 0 });
    line.dataset.place = page * PAGE_ROWS + index;
    for (const [key, , show, kind] of COLUMNS) {
      const text = show(value(key, row), row);
      line.append(element("td", { className: kind, textContent: text, title: kind === "text" ? text : "" }));
    }
    return line;
  });
  byId("rows").replaceChildren(...rows);
  byId("count").textContent = `${found.length.toLocaleString("en")} of ${searched.length.toLocaleString("en")}`;
  byId("page").textContent = `page ${page + 1} of ${pages}`;
  byId("previous").disabled = page === 0;
  byId("next").disabled = page === pages - 1;
  for (const heading of byId("columns").children) {
    const active = heading.dataset.key === sorting.key;
    const direction = sorting.descending ? "descending" : "ascending";
    heading.setAttribute("aria-sort", active ? direction : "none");
    const arrow = active ? (sorting.descending ? " ↓" : " ↑") : "";
    heading.firstChild.textContent = heading.dataset.title + arrow;
  }
}

async function open(place) {
  opened = place;
  const row = found[place];
  const prompt = table.prompts[value("prompt", row)];
  byId("rollout-title").textContent =
    `Step ${value("step", row)}, group ${value("group", row)}, sample ${value("sample", row)}`;
  byId("rollout-prompt").textContent = prompt.text;
  byId("rollout-asked").textContent = prompt.asked ?? "";
  byId("rollout-first").hidden = prompt.asked === undefined;
  const turns = value("turns", row);
  byId("rollout-kind").textContent = turns ? `Episode of ${turns.length} turns` : "Completion";
  byId("rollout-given").hidden = !turns;
  const facts = [
    ["reward", plain(value("reward", row))], ["advantage", plain(value("advantage", row))],
    ["reference", prompt.reference], ["fate", shown("fate", row)], ["ended by", value("finish", row)],
    ["worker", value("worker", row)], ["tokens", value("tokens", row)],
    ["mean log-prob", `${shown("logprob", row)} nats`],
    ["weight versions", shown("oldest", row)],
    ["pass rate of the prompt before", fixed(3)(value("passrate", row))],
    ["attempt", value("attempt", row)], ["seed", value("seed", row)], ["prompt id", prompt.id],
  ];
  const parts = value("parts", row);
  if (parts.length > 1 || parts.some((part) => part !== value("reward", row))) {
    facts.splice(1, 0, ...parts.map((part, i) => [`of it ${table.rewards[i] ?? i}`, plain(part)]));
  }
  if (turns) {
    facts.push(["turns", turns.length], ["what rewards read", value("completion", row)]);
    turns.forEach(([, , count, finish, reward], index) => facts.push([`turn ${index + 1}`,
      `${count} tokens, ended by ${finish}${reward === null ? "" : `, reward ${reward}`}`]));
  }
  facts.push(...Object.entries(value("figures", row) ?? {}).map(([name, figure]) => [`metric ${name}`, figure]));
  if (value("error", row) !== null) facts.splice(1, 0, ["reward failed", value("error", row)]);
  byId("rollout-facts").replaceChildren(...facts.map(([name, text]) => element("div", {},
    element("dt", { textContent: name }), element("dd", { textContent: String(text) }))));
  byId("earlier").disabled = place === 0;
  byId("later").disabled = place === found.length - 1;
  if (!byId("rollout").open) byId("rollout").showModal();
  await colourTokens();
}

async function colourTokens() {
  const row = found[opened];
  const tokens = await tokensOf(row);
  if (row !== found[opened]) return; // another one was opened meanwhile
  const colouring = document.querySelector("#colouring input:checked").value;
  const nodes = episodeNodes(tokens, value("completion", row), value("turns", row), table, colouring);
  byId("rollout-tokens").replaceChildren(...nodes);
  byId("legend").replaceChildren(
    ...(colouring === "version" ? versionLegend(tokens.versions) : logprobLegend()));
}

function step(by) {
  const place = opened + by;
  if (place >= 0 && place < found.length) open(place).catch(failed);
}

function listenToTable() {
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["search", "fate", "from", "to"]) byId(id).addEventListener("input", filter);
  byId("previous").addEventListener("click", () => { page -= 1; draw(); });
  byId("next").addEventListener("click", () => { page += 1; draw(); });
  const openLine = (line) => line && open(Number(line.dataset.place)).catch(failed);
  byId("rows").addEventListener("click", (event) => openLine(event.target.closest("tr")));
  byId("rows").addEventListener("keydown", (event) => {
    const line = event.target.closest("tr");
    if (event.key === "Enter") openLine(line);
    else if (event.key === "ArrowDown") line.nextElementSibling?.focus();
    else if (event.key === "ArrowUp") line.previousElementSibling?.focus();
    else return;
    event.preventDefault();
  });
}

function listenToDialog() {
  byId("close").addEventListener("click", () => byId("rollout").close());
  byId("earlier").addEventListener("click", () => step(-1));
  byId("later").addEventListener("click", () => step(1));
  byId("rollout").addEventListener("keydown", (event) => {
    if (event.target.matches("input")) return; // arrows choose a colouring there
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  byId("colouring").addEventListener("change", () => colourTokens().catch(failed));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input, select") && !byId("rollout").open) {
      event.preventDefault();
      byId("search").focus();
    }
  });
}

async function startTable() {
  table = JSON.parse(await unpack("rollouts"));
  if (table.columns.turns.some(Boolean)) {
    COLUMNS.splice(COLUMNS.findIndex(([key]) => key === "reward"), 0, TURNS);
  }
  searched = table.columns.step.map((_, row) => [
    table.prompts[value("prompt", row)].text, value("completion", row), value("worker", row),
    table.fates[value("fate", row)], value("finish", row), value("error", row) ?? "",
    ...(value("turns", row) ?? []).flatMap(([given, sampled]) => [given, sampled]),
  ].join("\n").toLowerCase());
  table.fates.forEach((fate, index) => {
    byId("fate").append(element("option", { value: String(index), textContent: fate }));
  });
  byId("columns").append(...COLUMNS.map(([key, title, , kind]) => {
    const button = element("button", { type: "button", textContent: title });
    button.addEventListener("click", () => {
      sorting = { key, descending: sorting.key === key && !sorting.descending };
      sort();
      page = 0;
      draw();
    });
    const heading = element("th", { className: kind, scope: "col" }, button);
    Object.assign(heading.dataset, { key, title });
    return heading;
  }));
  listenToTable();
  listenToDialog();
  const kept = left.table;
  if (kept) {
    // A field that is filled was filled since the page reloaded.
    for (const id of ["search", "from", "to"]) byId(id).value ||= kept[id];
    const option = Array.from(byId("fate").options).find(({ text }) => text === kept.fate);
    if (option) option.selected = true;
    sorting = kept.sorting;
  }
  filter();
  if (kept) {
    page = kept.page;
    draw();
  }
  keepers.table = () => ({ search: byId("search").value, from: byId("from").value, to: byId("to").value,
    fate: byId("fate").selectedOptions[0].text, sorting, page });
}

// The charts come first: the table is further down.
const tableStarted = chartsStarted.then(startTable);
tableStarted.then(() => { document.body.dataset.table = "ready"; }).catch(failed);
