"""Contracts of a task: its prompts, and the reward that scores completions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlax_plugin.base.types import Prompt
from rlax_plugin.ports.abilities import has
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.testing.contracts import fresh_process
from rlax_plugin.testing.contracts.fresh_process import SPLITS
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial

_LONG = 20_000  # characters
_STABLE = (
    "derive prompts from the config alone, in a fixed order; ids from a content hash such as "
    "hashlib's, because hash() of a text differs between processes"
)


def check_prompt_source(trial: Trial, part: Inspection) -> None:
    """Checks prompts, their tokens, and the conversion back to text."""
    source: PromptSource = trial.built(part)
    splits: dict[str, Sequence[Prompt]] = {}
    with part.rule(
        'prompts("train"), ("validation") and ("test") are not empty and have int32 tokens',
        "return a sequence of rlax_plugin.api.Prompt for each of the three splits, with tokens "
        "made by np.array(ids, dtype=np.int32)",
    ):
        for split in SPLITS:
            found = source.prompts(split)
            require(len(found) > 0, f"split {split!r} is empty")
            for prompt in found:
                tokens = prompt.tokens
                right = isinstance(tokens, np.ndarray) and tokens.dtype == np.int32
                message = f"in split {split!r} {prompt.text!r} has tokens {tokens!r}"
                require(right and tokens.ndim == 1 and len(tokens) > 0, message)
            splits[split] = found
    if not part.sound:
        return
    with part.rule("no prompt is in two splits", "make the id a hash of the whole prompt"):
        for one, other in itertools.combinations(SPLITS, 2):
            both = {p.id for p in splits[one]} & {p.id for p in splits[other]}
            require(not both, f"{len(both)} prompts of {one!r} are in {other!r} too")
    with part.rule("two fresh builds, also in another process, give the same prompts", _STABLE):
        expected = {name: fresh_process.digest(prompts) for name, prompts in splits.items()}
        again = trial.build()
        here = {split: fresh_process.digest(again.prompts(split)) for split in SPLITS}
        require(here == expected, "a second build in this process gives others")
        there = fresh_process.ask(trial.lean, "prompt_source", trial.choice, {}, trial.process_s)
        require(there["splits"] == expected, "another process gives others")
    with part.rule(
        "decode gives the text of tokens, without stop tokens",
        "leave out stop_ids and padding in decode; stop_ids is a tuple of ints",
    ):
        _check_decode(source, splits["train"][0])
    if has(source, PromptSource, "encode"):
        with part.rule(
            "encode gives the tokens of a prompt's text",
            "return a list of whole numbers, the ids of prompts(...), those in front of the text "
            "included",
        ):
            # The text of several messages does not say where one ends.
            texts = [p for p in splits["train"] if "messages" not in p.metadata]
            for prompt in texts[:3]:
                tokens, expected = list(source.encode(prompt.text)), prompt.tokens.tolist()
                whole = all(isinstance(token, int | np.integer) for token in tokens)
                right = whole and tokens == expected
                require(right, f"{prompt.text!r} gives {tokens}, not {expected}")


def _check_decode(source: PromptSource, prompt: Prompt) -> None:
    text = source.decode(prompt.tokens)
    require(isinstance(text, str), f"it decodes to {text!r}")
    for stop in source.stop_ids:
        ended = source.decode(np.append(prompt.tokens, np.int32(stop)))
        require(ended == text, f"{text!r} and stop token {stop} decode to {ended!r}")


def check_reward(trial: Trial, part: Inspection) -> None:
    """Checks scores of completions in a fresh process, as reward processes compute them."""
    with part.rule("there are prompts to judge", "mend the plug-in's prompt source first"):
        _check_scores(trial, trial.prompts(), part)


def _check_scores(trial: Trial, prompts: Sequence[Prompt], part: Inspection) -> None:
    first, other = prompts[0], prompts[1]
    word = first.reference or "7"
    completions = {
        "right": first.reference,
        "wrong": other.reference,
        "empty": "",
        "very long": word * -(-_LONG // len(word)),
        "odd unicode": "\u202e\U0001d7dc\x00\ufffd\U0001f642",
    }
    answer: dict[str, Any] = {}
    with part.rule(
        "it can be built and called in a fresh process",
        "keep it in an importable module named in rlax.plugins, and everything it needs in its "
        "options; a call that takes too long needs a deadline of its own",
    ):
        cases = [fresh_process.case_of(first, text) for text in completions.values()]
        question, process_s = {"cases": cases}, trial.process_s
        answer = fresh_process.ask(trial.lean, "reward", trial.choice, question, process_s)
    if not answer:
        return
    scored = dict(zip(completions, answer["scored"], strict=True))
    with part.rule(
        "a right, a wrong and an empty completion get a finite number",
        "return a float or a Score, score_group one for each episode, and raise only where a "
        "completion cannot be judged; token_rewards need one array for each turn, with a number "
        "for each sampled token; metrics are finite, under short names; if it needs other "
        "prompts than these, name the plug-in with their source in check_plugin(..., plugins=...)",
    ):
        for name in ("right", "wrong", "empty"):
            error, shown = scored[name][0].get("error"), repr(completions[name][:20])
            require(error is None, f"the {name} completion {shown} gets the error {error}")
    with part.rule(
        "the same completion gets the same reward twice", "keep no state and use no random numbers"
    ):
        for name, (score, again) in scored.items():
            same = score.get("parts") == again.get("parts")
            require(same or not part.sound, f"the {name} completion gets {score}, then {again}")
    with part.rule(
        f"imports none of {', '.join(fresh_process.HEAVY)}",
        "score with numpy or plain Python, and import nothing that imports them: reward processes "
        "must start at once and leave the accelerator to the trainer",
    ):
        require(not answer["heavy"], f"{' and '.join(answer['heavy'])} was imported")
