"""Issues groups: decides their number, their prompts, and the oldest weights they may use."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import Key, Request, SamplingParams
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.environment import Environment
from rlax_plugin.rollout.fleet.dispatch import RequestRefresher
from rlax_plugin.rollout.fleet.newest import NewestVersion
from rlax_plugin.rollout.fleet.requests import sample_seed
from rlax_plugin.run.controller.buffer import Buffer
from rlax_plugin.run.controller.limits import too_few_accepted
from rlax_plugin.run.controller.turns import Turns
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.run_history import RunHistory
from rlax_plugin.run.state.run_state import Open

MOST_BEGUN = 32
"""Groups that are issued in one go, which takes a few milliseconds."""


class Issuing(RequestRefresher):
    """Makes the requests of training; ``Staleness`` bounds how many, ``BatchRule`` counts them.

    Args:
      sampling: environment -> settings of its requests; "" if there is one.
      environments: environment -> it.
      last_step: of the run; no groups are issued for later steps.
      newest: published weight version; groups that need a newer one are not issued yet.
    """

    def __init__(
        self,
        section: RlaxSection,
        sampling: Mapping[str, SamplingParams],
        *,
        history: RunHistory,
        turns: Turns,
        environments: Mapping[str, Environment],
        buffer: Buffer,
        last_step: int,
        newest: NewestVersion,
    ):
        self._section, self._sampling, self._last_step = section, sampling, last_step
        self._history, self._turns, self._buffer = history, turns, buffer
        self._environments = environments
        self._rule, self._staleness = buffer.rule, buffer.staleness
        self._newest = newest

    @property
    def at_once(self) -> int:
        """Maximum number of groups that are issued in one go.

        The prompts that take the place of rejected groups depend on the scores so far. In a
        deterministic run they must not depend on how many arrive meanwhile.
        """
        return sys.maxsize if self._section.deterministic else MOST_BEGUN

    # --- new groups ----------------------------------------------------------------------------

    def _outstanding(self) -> int:
        """Counts the groups that train before the next one issued, as the batch rule counts them.

        A count below one step's groups means that the next batch is incomplete. So if no group is
        open, the bounds still allow the groups that this batch lacks.
        """
        return len(self._history.open) + self._rule.worth(self._buffer.groups)

    def _capacity(self) -> int:
        steps_left = self._last_step - self._history.run_state.next_step + 1
        return min(self._staleness.capacity, steps_left * self._rule.groups)

    def _missing(self) -> tuple[str, int, int] | None:
        """Finds the first place among the next groups to train that may be issued and is not.

        Returns:
          The environment, the number of groups that train before, and the number of groups that
          are missing there and train in the same step; None: none is missing.
        """
        groups, capacity = self._rule.groups, self._capacity()
        if (mix := self._buffer.mix) is None:
            ahead = self._outstanding()
            count = min(capacity - ahead, groups - ahead % groups)
            return ("", ahead, count) if ahead < capacity else None
        state, found = self._history.run_state, None
        for name, places in mix.places(state.trained, self._staleness.capacity).items():
            most = min(capacity, self._buffer.capacity(name))
            lacking = [place for place in places[state.outstanding[name] :] if place < most]
            if lacking and (found is None or lacking[0] < found[1]):
                step = lacking[0] // groups
                found = name, lacking[0], sum(place // groups == step for place in lacking)
        return found

    def new(self) -> Iterator[Request]:
        """Issues as many groups as the bounds on flight and staleness allow.

        The caller may do other work between two requests: the groups of a step are chosen at once.

        Raises:
          TrainingError: the next step has had ``max_refill`` times its groups, and too few were
            accepted.
        """
        state, curation = self._history.run_state, self._section.curation
        while (missing := self._missing()) is not None:
            name, ahead, count = missing
            version = self._staleness.wanted_version(state.next_step, ahead)
            if version > self._newest.number:
                return  # its publication is a reason to ask again
            if state.issued_for_step >= curation.max_refill * self._rule.groups:
                self._give_up()
                return
            # Those that share a step share a wanted version: choose them together.
            event = self._history.choose(count, version, name)
            for group_id in range(event.first, event.first + len(event.prompts)):
                if (one := state.open.get(group_id)) is not None:  # or it has ended meanwhile
                    yield self.refreshed(self._request(group_id, one))

    def _give_up(self) -> None:
        state, ready = self._history.run_state, self._buffer.ready
        if state.open or self._buffer.would_complete:
            return  # what is still in flight may yet do
        raise too_few_accepted(
            state.next_step, state.issued_for_step, self._rule, ready, self._history.stats.scored
        )

    # --- groups that are issued again ----------------------------------------------------------

    def left_open(self, group_id: int) -> Request | None:
        """Returns the next attempt at a group left open by an earlier process.

        The attempt number stays if its first turns are recorded: they are not generated again. None
        while the version that it needs is not published.
        """
        one = self._history.open[group_id]
        request = self.refreshed(self._request(group_id, one))
        if request.min_version > self._newest.number:
            return None
        if not self._turns.recorded(group_id):
            reason, ending = "the trainer was restarted", Ending.TRAINER_RESTARTED
            self._history.note(ev.Reissued(group_id, one.attempt + 1, reason, ending))
        return dataclasses.replace(request, attempt=one.attempt)

    @property
    def oldest_version(self) -> int:
        """Returns the oldest version whose tokens can still train, at the next step or later."""
        return max(0, self._staleness.oldest(self._history.next_step))

    def refreshed(self, request: Request) -> Request:
        """Returns the request with the version that its group needs now."""
        return self._staleness.refreshed(request, self._history.next_step)

    def reissued(self, request: Request, reason: str, ending: Ending) -> None:
        """Records that a training group is issued again, see ``RequestRefresher``."""
        key = request.key
        if key.purpose == "train" and key.sample is None:
            self._history.note(ev.Reissued(key.group, request.attempt, reason, ending))

    def _request(self, group_id: int, one: Open) -> Request:
        seeds = tuple(
            sample_seed(self._section.seed, "train", group_id, i)
            for i in range(self._section.rollouts.group_size)
        )
        name = self._section.environment_of(one.prompt.id)
        prompt = dataclasses.replace(one.prompt, id=self._section.own_id(one.prompt.id))
        key, tokens = Key("train", group_id), self._environments[name].context(prompt)
        temperature = self._section.rollouts.temperature_at(one.step)
        sampling = dataclasses.replace(self._sampling[name], temperature=temperature)
        return Request(key, one.attempt, tokens, seeds, sampling, one.min_version)
