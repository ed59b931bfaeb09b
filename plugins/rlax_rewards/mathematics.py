r"""The reward ``math_verify``: the answer equals the reference as mathematics.

Parsing and comparing are those of https://github.com/huggingface/Math-Verify. Its own time limits
are off, because they need SIGALRM, which works in the main thread alone and not while C code runs.
Instead, the answer is extracted first (``answers``), so that it never searches a long text, and it
runs in a process with a limit on CPU time and memory (``rlax_rewards.verdicts``). An answer that
needs more, such as ``9^{9^9}``, is wrong.
"""

from __future__ import annotations

import functools
import re

from pydantic import Field

from rlax_plugin.api import BuildContext, LimitedFunction, OverLimitError, Prompt, Reward, Score
from rlax_rewards.answers import PLACES, AnswerConfig, Place, answer_in
from rlax_rewards.budget import CpuBudget, check_budget

_KEPT = 1024  # references
_LONGEST = 1000  # characters of an answer
_SPACED_GROUPS = re.compile(r"(?<=\d)\\[,!](?=\d{3}(?!\d))")
_WORDS = re.compile(r"[^\W\d_]{3,}(?:[ -][^\W\d_]+)*")


class MathVerifyConfig(AnswerConfig, CpuBudget):
    """1 if the answer equals the prompt's reference as mathematics, else 0."""

    answer: Place = Field("boxed", description=f"which part of the completion it is. {PLACES}")


class MathVerify(Reward):
    """1.0 or 0.0.

    A reference is an expression in LaTeX, with or without dollar signs, or a solution with its
    answer in a box. Words of three letters or more, such as ``east`` or ``\\text{east}``, are
    compared as texts without case: as mathematics they would be products of letters.
    """

    def __init__(self, config: MathVerifyConfig, verdict: LimitedFunction):
        self._config, self._verdict = config, verdict
        self._reason_against = functools.lru_cache(_KEPT)(self._unreadable)

    def __call__(self, prompt: Prompt, completion: str) -> float | Score:
        """Scores one completion.

        Raises:
          ValueError: the reference is not an expression that it can read.
        """
        reference = _plain(answer_in(prompt.reference, "boxed") or prompt.reference)
        if not reference:
            raise ValueError(f"prompt {prompt.id} has no reference to compare with")
        config = self._config
        answer = answer_in(completion, config.answer, marker=config.marker, tag=config.tag)
        if answer is None:
            return 0.0
        answer = _plain(answer)
        if _WORDS.fullmatch(reference) or _WORDS.fullmatch(answer):
            return float(reference.casefold() == answer.casefold())
        if reason := self._reason_against(reference):
            raise ValueError(f"prompt {prompt.id}: cannot read the reference {reason}")
        if answer == reference:
            return 1.0
        if len(answer) > _LONGEST:
            return 0.0
        try:
            return float(self._verdict(reference, answer))
        except OverLimitError as error:
            return Score(0.0, ending=error.ending)

    def _unreadable(self, reference: str) -> str:
        """Returns what is wrong with a reference; empty if it can be read."""
        shown = repr(reference[:100])
        try:
            return "" if self._verdict(reference, None) else shown
        except OverLimitError as error:
            return f"{shown}: {error}"


def build_math_verify(config: MathVerifyConfig, context: BuildContext) -> MathVerify:
    """Returns the reward, with a process that compares."""
    return MathVerify(config, config.limited("rlax_rewards.verdicts:verdict", context))


def check_math_verify(config: MathVerifyConfig, context: BuildContext) -> None:
    """See ``check_budget``."""
    check_budget(config, context, "math_verify")


def _plain(text: str) -> str:
    """Returns a text without dollar signs around it, ``\\text`` around words, and thin spaces."""
    text = _SPACED_GROUPS.sub("", text.strip())
    for mark in ("$$", "$"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    word = re.fullmatch(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", text)
    return word[1].strip() if word and _WORDS.fullmatch(word[1].strip()) else text
