"use strict";
// Completions token by token, coloured by log-prob or by weight version.

const SURPRISING = 6; // nats: the strongest colour

/** The texts of a rollout's tokens: as the vocabulary has them, with the spaces of the completion. */
function tokenTexts(ids, completion, vocabulary) {
  const characters = Array.from(completion);
  const known = Object.keys(vocabulary).length > 0;
  const oneEach = !known && (characters.length === ids.length || characters.length === ids.length - 1);
  let at = 0;
  return ids.map((id, index) => {
    if (oneEach) return characters[index] ?? "";
    const text = vocabulary[id] ?? "";
    // Tokenizers that mark the beginning of words lose the space when a token stands alone.
    const spaced = text && !completion.startsWith(text, at) && completion.startsWith(` ${text}`, at);
    const shown = spaced ? ` ${text}` : text;
    if (completion.startsWith(shown, at)) at += shown.length;
    return shown;
  });
}

function logprobColour(logprob) {
  const share = Math.min(1, Math.max(0, -logprob / SURPRISING));
  return `rgb(var(--surprise) / ${(0.85 * share).toFixed(3)})`;
}

function versionColour(version, oldest, newest) {
  const share = newest > oldest ? (version - oldest) / (newest - oldest) : 1;
  return `hsl(${210 + 130 * share} 75% 55% / 0.4)`;
}

function shownLogprob(milli) {
  return `${(milli / 1000).toFixed(3)} nats, p = ${Math.exp(milli / 1000).toPrecision(3)}`;
}

/**
 * Spans for sampled tokens; `tokens` has ids, milli-nats and a version for each.
 * `all` are the versions that colours range over: those of all turns.
 */
function tokenSpans(tokens, completion, { vocabulary, stops }, colouring = "logprob", all = tokens.versions) {
  const texts = tokenTexts(tokens.ids, completion, vocabulary);
  const oldest = Math.min(...all), newest = Math.max(...all);
  return texts.map((text, index) => {
    const id = tokens.ids[index], milli = tokens.milli[index], version = tokens.versions[index];
    const span = element("span", { className: "token", textContent: text });
    if (text === "") {
      span.className = "token unseen";
      span.textContent = stops.includes(id) ? "⟨stop⟩" : `⟨${id}⟩`;
    }
    span.style.background = colouring === "version"
      ? versionColour(version, oldest, newest) : logprobColour(milli / 1000);
    span.title = `token ${id}: ${shownLogprob(milli)}, version ${version}`;
    return span;
  });
}

/**
 * What an episode shows: one completion, or its turns, what was given apart from what was sampled.
 * Only sampled tokens have a colour: what was given has no log-prob and does not train.
 */
function episodeNodes(tokens, completion, turns, table, colouring = "logprob") {
  if (!turns) return tokenSpans(tokens, completion, table, colouring);
  const nodes = [];
  let at = 0, before = 0;
  turns.forEach(([given, sampled, count, finish, reward, trajectory], index) => {
    if (trajectory !== before) {
      nodes.push(element("div", { className: "turn-mark", textContent: `trajectory ${trajectory + 1}` }));
      before = trajectory;
    }
    if (index > 0) {
      nodes.push(element("div", { className: "turn given" },
        element("span", { className: "turn-mark", textContent: "given" }),
        element("span", { className: "given-text", textContent: given })));
    }
    const part = {};
    for (const name of ["ids", "milli", "versions"]) part[name] = tokens[name].slice(at, at + count);
    at += count;
    const paid = reward === null ? "" : `, reward ${reward}`;
    nodes.push(element("div", { className: "turn sampled" },
      element("span", { className: "turn-mark", textContent: `turn ${index + 1}`,
        title: `${count} tokens, ended by ${finish}${paid}` }),
      element("span", {}, ...tokenSpans(part, sampled, table, colouring, tokens.versions))));
  });
  return nodes;
}

function logprobLegend() {
  const steps = [0, -0.5, -1, -2, -4, -SURPRISING].map((nats) => {
    const label = nats === -SURPRISING ? `${nats} and less` : String(nats);
    const span = element("span", { className: "token", textContent: label });
    span.style.background = logprobColour(nats);
    return span;
  });
  return ["log-prob, nats:", ...steps];
}

function versionLegend(versions) {
  const oldest = Math.min(...versions), newest = Math.max(...versions);
  const spans = [...new Set(versions)].map((version) => {
    const span = element("span", { className: "token", textContent: String(version) });
    span.style.background = versionColour(version, oldest, newest);
    return span;
  });
  return ["weight version:", ...spans];
}
