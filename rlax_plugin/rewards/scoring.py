"""Inside a reward process: computes the scores of the episodes of one job."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from rlax_plugin.functions.loading import own_line
from rlax_plugin.functions.returned import ReturnedError
from rlax_plugin.rewards.forms import Form
from rlax_plugin.rewards.messages import (
    checked,
    checked_metrics,
    finite,
    score_to,
    weighted,
    within,
)
from rlax_plugin.text.harmless import harmless, one_line
from rlax_plugin.types import Episode, Prompt, Score

_MOST_TRACEBACKS = 20  # a reward that always fails must not fill the disk
_LONGEST_TRACEBACK = 10_000  # characters, of its end

Call = Callable[[Form, tuple[Any, ...]], Awaitable[Any]]


class Failures:
    """Formats exceptions of rewards and environments as one line, and logs each traceback once."""

    def __init__(self) -> None:
        self.shown: set[tuple[str, str, int | None]] = set()  # type, file and line

    def __call__(self, what: str, prompt_id: str, error: BaseException) -> str:
        """Returns an exception in one line; its traceback is in the log.

        Args:
          what: the part that raised it, such as "a reward".
          prompt_id: id of the prompt.
          error: the exception.
        """
        if isinstance(error, ReturnedError):  # it names the function and its line itself
            self._log(what, prompt_id, (str(error), "", None), f"{error}\n")
            return one_line(str(error))
        found = traceback.extract_tb(error.__traceback__)
        where = found[-1] if found else traceback.FrameSummary("?", 0, "?")
        kind = type(error).__name__, where.filename, where.lineno
        self._log(what, prompt_id, kind, _traceback(error))
        if (own := own_line(error)) is not None:
            return f"{_said(error)} ({own[0]}, line {own[1]}, in {one_line(own[2], 100)})"
        return f"{_said(error)} (line {where.lineno} of {one_line(where.name, 100)})"

    def _log(self, what: str, prompt_id: str, kind: tuple[str, str, int | None], text: str) -> None:
        if kind not in self.shown and len(self.shown) < _MOST_TRACEBACKS:
            self.shown.add(kind)
            shown = harmless(text[-_LONGEST_TRACEBACK:])
            said = f"{what} failed on prompt {prompt_id}:\n{shown}"
            print(said, end="", file=sys.stderr, flush=True)


def _said(error: BaseException) -> str:
    """Formats an exception whose ``__str__`` may raise."""
    try:
        return one_line(f"{type(error).__name__}: {error}")
    except Exception as failed:  # noqa: BLE001  code of the reward, which may raise anything
        return f"{type(error).__name__}, which cannot be shown: {type(failed).__name__}"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failed:  # noqa: BLE001  as above
        return f"{type(error).__name__}, which cannot be shown: {type(failed).__name__}\n"


class _Sum:
    """The combined values of several rewards for one episode, or the error of one of them."""

    def __init__(self, lengths: Sequence[int], said: Callable[[BaseException], str]):
        self._lengths, self._said = lengths, said
        self._parts: list[float] = []
        self._weights: list[float] = []
        self._metrics: dict[str, float] = {}
        self._tokens: list[np.ndarray] = []
        self._abstained = 0
        self.error = ""

    def fail(self, error: BaseException, name: str) -> None:
        """Keeps the first error, which names the reward."""
        if not self.error:
            said = self._said(error)
            self.error = said if not name or name in said else f"{name}: {said}"

    def add(self, given: Any, form: Form) -> None:
        """Adds the value that a reward has returned, after checking it.

        Parts and metrics are recorded unchanged; the total and token rewards are weighted.
        """
        weight = form.weight
        if given is None and form.abstains:
            self._abstained += 1
            self._add(0.0, weight)
            return
        try:
            if not isinstance(given, Score):
                self._add(within(given, form.limit, form.name), weight)
                return
            total = within(given.total, form.limit, form.name)
            score = checked(total, given.metrics, given.token_rewards, self._lengths)
            for one in score.token_rewards:
                if one.size:
                    within(one[np.abs(one).argmax()], form.limit, f"{form.name} for a token")
            self._add(total, weight)
            for name, value in score.metrics.items():
                self._metrics[name] = self._metrics.get(name, 0.0) + value
            if score.token_rewards and weight:
                before = self._tokens or [np.zeros(length) for length in self._lengths]
                self._tokens = [
                    a + weight * b for a, b in zip(before, score.token_rewards, strict=True)
                ]
        except BaseException as error:  # noqa: BLE001  ``__float__`` of the reward's may raise it
            self.fail(error, form.name)

    def _add(self, part: float, weight: float) -> None:
        self._parts.append(part)
        self._weights.append(weight)

    def shown(self) -> dict[str, Any]:
        """Returns the score or the error as JSON."""
        total = weighted(self._weights, self._parts)
        if self._abstained == len(self._parts) > 0:
            self.error = self.error or "no reward gave this sample a score: each returned None"
        try:
            if not self.error:
                finite(total)
                checked_metrics(self._metrics)
        except ValueError as error:
            self.fail(error, "")
        if self.error:
            return {"error": self.error}
        return score_to(Score(total, tuple(self._parts), self._metrics, tuple(self._tokens)))


async def scores_of(
    forms: Sequence[Form],
    prompt: Prompt,
    episodes: Sequence[Episode],
    lengths: Sequence[Sequence[int]],
    *,
    call: Call,
    at: Callable[[int], None],
    failures: Failures,
) -> list[dict[str, Any]]:
    """Returns a score as JSON, or an error, for each episode.

    A reward that fails for an episode ends the scoring of that episode alone; one that sees the
    group fails for all of them.

    Args:
      forms: the rewards.
      prompt: the prompt.
      episodes: its episodes.
      lengths: for each episode, the number of sampled tokens of each turn.
      call: calls a reward.
      at: called with the number of the reward that is called next.
      failures: formats exceptions.
    """

    def said(error: BaseException) -> str:
        return failures("a reward", prompt.id, error)

    async def add(form: Form, episode: Episode, to: _Sum) -> None:
        try:
            given = await call(form, form.arguments(prompt, episode))
        # A failure is data here: it travels to the record. sys.exit is one, too.
        except BaseException as error:  # noqa: BLE001
            to.fail(error, form.name)
        else:
            to.add(given, form)

    sums = [_Sum(one, said) for one in lengths]
    for number, form in enumerate(forms):
        left = [(e, s) for e, s in zip(episodes, sums, strict=True) if not s.error]
        if not left:
            break
        at(number)
        if form.what == "group":
            await _add_group(form, prompt, episodes, sums, call)
        elif form.waits and len(left) > 1:
            await asyncio.gather(*(add(form, *one) for one in left))
        else:
            for one in left:
                await add(form, *one)
    return [one.shown() for one in sums]


async def _add_group(
    form: Form, prompt: Prompt, episodes: Sequence[Episode], sums: Sequence[_Sum], call: Call
) -> None:
    try:
        given = list(await call(form, (prompt, tuple(episodes))))
        if len(given) != len(episodes):
            raise ValueError(f"it returned {len(given)} scores for {len(episodes)} episodes")
    except BaseException as error:  # noqa: BLE001  as above
        for one in sums:
            one.fail(error, form.name)
    else:
        for one, value in zip(sums, given, strict=True):
            if not one.error:
                one.add(value, form)
