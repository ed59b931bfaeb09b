r"""The reward ``math_verify``: the answer equals the reference as mathematics.

Parsing and comparing are those of https://github.com/huggingface/Math-Verify. Its own time limits
are off, because they need SIGALRM, which works in the main thread alone. Instead, the answer is cut
out first (``answers``), so that it never searches a long text; what would take long to compute,
such as ``9^{9^9}``, is not computed (``rlax_rewards.bounds``); and what takes long nevertheless
meets ``rlax.deadlines.reward_s``, as with every reward.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from pydantic import Field

from rlax_plugin.api import PositiveInt, Prompt, Reward
from rlax_rewards.answers import PLACES, AnswerConfig, Place, answer_in
from rlax_rewards.bounds import is_small, may_be_parsed

_KEPT = 1024  # parsed references
_SPACED_GROUPS = re.compile(r"(?<=\d)\\[,!](?=\d{3}(?!\d))")
_WORDS = re.compile(r"[^\W\d_]{3,}(?:[ -][^\W\d_]+)*")


class MathVerifyConfig(AnswerConfig):
    """1 if the answer equals the prompt's reference as mathematics, else 0."""

    answer: Place = Field("boxed", description=f"which part of the completion it is. {PLACES}")
    most_characters: PositiveInt = Field(
        1000, description="length of an answer; a longer one is wrong"
    )


class MathVerify(Reward):
    """1.0 or 0.0.

    A reference is an expression in LaTeX, with or without dollar signs, or a solution with its
    answer in a box. Words of three letters or more, such as ``east`` or ``\\text{east}``, are
    compared as texts without case: as mathematics they would be products of letters.
    """

    def __init__(self, config: MathVerifyConfig):
        import math_verify  # imports sympy, which takes a second

        # It warns that its limits are off.
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self._config, self._library = config, math_verify
        self._places = [
            math_verify.LatexExtractionConfig(boxed_match_priority=0),
            math_verify.ExprExtractionConfig(),
        ]
        self._parsed_reference = functools.lru_cache(_KEPT)(self._parsed)

    def __call__(self, prompt: Prompt, completion: str) -> float:
        """Scores one completion.

        Raises:
          ValueError: the reference is not an expression that it can read.
        """
        reference = _plain(answer_in(prompt.reference, "boxed") or prompt.reference)
        config = self._config
        answer = answer_in(completion, config.answer, marker=config.marker, tag=config.tag)
        if answer is None or not reference:
            return self._without_answer(prompt, reference)
        answer = _plain(answer)
        if _WORDS.fullmatch(reference) or _WORDS.fullmatch(answer):
            return float(reference.casefold() == answer.casefold())
        expected = self._parsed_reference(reference)
        if not expected:
            raise ValueError(f"prompt {prompt.id}: cannot read the reference {reference[:100]!r}")
        if len(answer) > config.most_characters or not may_be_parsed(answer):
            return 0.0
        found = self._parsed(answer)
        if not found:
            return 0.0
        return float(self._library.verify(expected, found, timeout_seconds=None))

    def _without_answer(self, prompt: Prompt, reference: str) -> float:
        if not reference:
            raise ValueError(f"prompt {prompt.id} has no reference to compare with")
        return 0.0

    def _parsed(self, text: str) -> list[Any]:
        """The expressions that a text may mean; empty if it is none, or too large to compute."""
        if not may_be_parsed(text):
            return []
        found = self._library.parse(
            f"\\boxed{{{text}}}",
            extraction_config=self._places,
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
        return found if all(map(is_small, found)) else []


def _plain(text: str) -> str:
    """Without dollar signs around it, ``\\text`` around words, and thin spaces in numbers."""
    text = _SPACED_GROUPS.sub("", text.strip())
    for mark in ("$$", "$"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    word = re.fullmatch(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", text)
    return word[1].strip() if word and _WORDS.fullmatch(word[1].strip()) else text
