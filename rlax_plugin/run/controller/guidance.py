"""A demonstration in place of a sample, in groups whose samples all fail (``config.Guidance``)."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence

import numpy as np

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.defects import defect
from rlax_plugin.base.types import EMPTY, Prompt, Request, Score
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.manager import told
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.rollout.episodes.runner import ScoredEpisodes
from rlax_plugin.rollout.fleet.requests import single_turn
from rlax_plugin.run.controller.generation import Generation
from rlax_plugin.run.controller.screening import Ended
from rlax_plugin.run.metrics.step import StepStats
from rlax_plugin.run.state.run_state import Open

log = logging.getLogger("rlax.controller")

_KEY = "rlax.prompt_source.name"


def check_answers(section: RlaxSection, source: PromptSource) -> None:
    """Checks that the prompt source has right answers, if the config wants guidance.

    Raises:
      ConfigError: it has none, or none to a prompt of the split train.
      PluginError: it failed.
    """
    if section.objective.guidance is None:
        return
    reason = "gives no right answers, which rlax.objective.guidance needs: "
    if not source.gives_answers:
        reason += "it has neither answer_tokens nor answer_turns"
    elif not any(_right_answer(section, source, prompt) for prompt in source.prompts("train")):
        reason += "no prompt of the split train has a reference, or more than an end token"
    else:
        return
    raise ConfigError(_KEY, section.prompt_source.name, reason)


def _right_answer(
    section: RlaxSection, source: PromptSource, prompt: Prompt
) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    try:
        found = source.right_answer(prompt)
        cast = functools.partial(np.ndarray.astype, dtype=np.int32, casting="same_kind")
        return [(given, cast(np.asarray(answer))) for given, answer in found]
    except Exception as error:
        where = f"{_KEY} = {section.prompt_source.name!r}"
        why = f"has no answer to prompt {prompt.id} that can be used: {told(error)}"
        raise PluginError(f"{where}: {one_line(why, 200)}") from error


class Guide:
    """Puts a right answer of the prompt source in place of the last sample of a failed group.

    The rewards score it as any sample. If they do not give it more than the failures, or it is no
    answer that could have been sampled, the group stays as it is, and this is counted.

    Raises:
      ConfigError: see ``check_answers``.
    """

    def __init__(self, section: RlaxSection, generation: Generation):
        self._section, self._source = section, generation.source
        self._generation, self._dispatcher = generation, generation.dispatcher
        self._threshold = section.curation.pass_threshold
        self._on, self._warned = section.objective.guidance is not None, False
        check_answers(section, generation.source)

    async def guided(
        self,
        asked: Open,
        request: Request,
        scored: ScoredEpisodes,
        ended: Ended | None,
        stats: StepStats,
    ) -> ScoredEpisodes:
        """Returns the samples of a group, the last one replaced if all have failed.

        Args:
          request: the one that the samples answer.
          ended: the reason the group has only its first samples.
          stats: counts demonstrations that are refused.

        Raises:
          PluginError: the prompt source failed.
        """
        totals = [score.total for score in scored.scores if isinstance(score, Score)]
        if not self._on or ended or len(totals) < len(scored.scores):
            return scored
        if max(totals) >= self._threshold:
            return scored
        turns = _right_answer(self._section, self._source, asked.prompt)
        if len(turns) != 1:
            self._refuse(asked, f"has {len(turns)} turns" if turns else "is missing", stats)
            return scored
        ((_, tokens),) = turns
        *others, last = scored.episodes
        oldest = min(int(s.versions.min()) for e in scored.episodes for s in e.sampled)
        answer = dataclasses.replace(
            next(last.sampled),
            tokens=tokens,
            logprobs=np.zeros(len(tokens), np.float32),
            versions=np.full(len(tokens), oldest, np.int32),
            finish="stop",
            workers=(),
            side=EMPTY,
        )
        vocabulary, decode = self._dispatcher.vocabulary, self._source.decode
        if why := defect([answer], request.sampling, vocabulary, decode=decode):
            self._refuse(asked, why.removeprefix("sample 0 "), stats)
            return scored
        (shown,) = single_turn(self._source, request.context, (answer,), last.index)
        (score,) = await self._generation.rewards.score(asked.prompt, (shown,), step=asked.step)
        if not isinstance(score, Score) or score.total <= max(totals):
            got = f"{score.total:g}" if isinstance(score, Score) else score.shown
            self._refuse(asked, f"gets the reward {got}, not more than the failures", stats)
            return scored
        shown = dataclasses.replace(shown, demonstration=True)
        return scored._replace(episodes=(*others, shown), scores=(*scored.scores[:-1], score))

    def _refuse(self, asked: Open, why: str, stats: StepStats) -> None:
        stats.guidance_refused += 1
        if not self._warned:  # the metric counts them all
            self._warned = True
            log.warning("the right answer to prompt %s %s", asked.prompt.id, one_line(why, 200))
