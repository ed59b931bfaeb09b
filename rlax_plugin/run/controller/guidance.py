"""A demonstration in place of a sample, in groups whose samples all fail (``config.Guidance``)."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import EMPTY, Request, Score
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.rollout.episodes.runner import ScoredEpisodes
from rlax_plugin.rollout.fleet.requests import single_turn
from rlax_plugin.run.controller.screening import Ended
from rlax_plugin.run.metrics.step import StepStats
from rlax_plugin.run.state.run_state import Open

log = logging.getLogger("rlax.controller")


def check_answers(section: RlaxSection, source: PromptSource) -> None:
    """Checks that the prompt source has right answers, if the config wants guidance.

    Raises:
      ConfigError: it has none.
    """
    names = ("answer_tokens", "answer_turns")
    answers = any(getattr(type(source), n) is not getattr(PromptSource, n) for n in names)
    if section.objective.guidance is not None and not answers:
        reason = (
            "gives no right answers, which rlax.objective.guidance needs: it has neither "
            "answer_tokens nor answer_turns"
        )
        raise ConfigError("rlax.prompt_source.name", section.prompt_source.name, reason)


class Guide:
    """Puts a right answer of the prompt source in place of the last sample of a failed group.

    The rewards score it as any sample. If they do not give it more than the failures, or it is no
    answer that could have been sampled, the group stays as it is, and this is counted.

    Raises:
      ConfigError: see ``check_answers``.
    """

    def __init__(self, section: RlaxSection, source: PromptSource, rewards: RewardPool):
        self._source, self._rewards = source, rewards
        self._threshold = section.curation.pass_threshold
        self._on, self._warned = section.objective.guidance is not None, False
        check_answers(section, source)

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
        """
        totals = [score.total for score in scored.scores if isinstance(score, Score)]
        if not self._on or ended or len(totals) < len(scored.scores):
            return scored
        if max(totals) >= self._threshold:
            return scored
        turns = self._source.answer_turns(asked.prompt)
        tokens = np.asarray(turns[0][1], np.int32)
        most = request.sampling.max_new_tokens
        if len(turns) != 1 or not 0 < len(tokens) <= most:
            self._refuse(asked, f"has {len(turns)} turns, the first of {len(tokens)} tokens", stats)
            return scored
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
        (shown,) = single_turn(self._source, request.context, (answer,), last.index)
        (score,) = await self._rewards.score(asked.prompt, (shown,), step=asked.step)
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
