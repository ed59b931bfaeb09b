"""The run state: the state of every group, and of the choice of the next prompts.

It is the sum of the run's events. Live, an event is applied when it happens; on a resume the
recorded events are applied again, in the same order, to the snapshot of a checkpoint. No I/O, no
clock, no concurrency.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import Prompt, ScoredGroup
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.curation.pass_rate_table import PartOfRates, PassRateTable, RateColumns
from rlax_plugin.data.curation.stages import Stages
from rlax_plugin.data.prompts.table import JoinedPrompts, id_at, indices_of
from rlax_plugin.ports.curation import Sampler
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.ready_groups import ReadyGroups


@dataclass(slots=True)
class Open:
    """A group that was issued and is not scored yet.

    Attributes:
      index: of the prompt in its split.
      posterior: (alpha, beta) of the prompt's pass rate when the group was issued.
    """

    prompt: Prompt
    index: int
    min_version: int
    posterior: tuple[float, float]
    attempt: int = 1

    @property
    def step(self) -> int:
        """The RL step whose temperature and reward weights are the group's.

        It begins with ``min_version``, the oldest weights that may generate the group. It stays
        the same if the group is issued again, in any process.
        """
        return self.min_version + 1


@dataclass(slots=True)
class Totals:
    """Counts over the whole run.

    Attributes:
      samples, tokens: all that were generated, also those that were discarded later.
    """

    issued: int = 0
    reissued: int = 0
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    samples: int = 0
    tokens: int = 0
    reward_errors: int = 0
    turns_discarded: int = 0
    samples_saved: int = 0
    tokens_saved: int = 0
    max_staleness: int = 0
    restarts: int = 0


class Saved(NamedTuple):
    """A copy of a run state, which later events do not change.

    Attributes:
      document: JSON-able; of ready groups only their ids, for which ``segment_of`` is complete.
      rates: the pass-rate table.
    """

    document: dict[str, Any]
    rates: RateColumns


class RunState:
    """The state of a run as the sum of its events.

    Attributes:
      prompts: of the split that is trained on.
      rates: the pass rate of each prompt.
      open: group id -> issued group that is not scored yet; in issue order.
      outstanding: environment -> its open and ready groups; "" if there is one.
      trained: environment -> its groups that have trained.
      ready: the accepted groups that are not in a batch yet, by id.
      next_id: id of the group that is issued next.
      segment_of: group id of a ready group -> journal segment in whose file of samples it is.
      next_step: the step whose batch is next, from 1.
      issued_for_step: groups issued since the last batch, or since the run was resumed.
    """

    def __init__(
        self,
        section: RlaxSection,
        prompts: Sequence[Prompt],
        samplers: Mapping[str, Sampler],
        rates: PassRateTable,
    ):
        self._section, self._samplers = section, samplers
        self.prompts, self.rates = prompts, rates
        self.outstanding, self.trained = Counter[str](), Counter[str]()
        self._stages = Stages(section.curation.stages, prompts, rates)
        self._rng = np.random.default_rng([section.seed, 1])
        self.next_id = self._oldest_open = 0
        self.open: dict[int, Open] = {}
        self.ready = ReadyGroups()
        self.segment_of: dict[int, int] = {}
        self.next_step = 1
        self.issued_for_step = 0
        self.totals = Totals()

    @property
    def oldest_open(self) -> int | None:
        """The oldest open group; None if there is none."""
        while self._oldest_open < self.next_id and self._oldest_open not in self.open:
            self._oldest_open += 1  # no group is opened again
        return self._oldest_open if self.open else None

    @property
    def stage(self) -> int | None:
        """Number of completed curriculum stages; None: the config has no stages."""
        return self._stages.number if self._stages else None

    def choose(self, count: int, min_version: int, environment: str = "") -> ev.Issued:
        """Lets the sampler choose the next prompts, and issues a group for each.

        Args:
          environment: the one of several that has the prompts; "": there is one.

        Raises:
          TrainingError: the sampler chose more or fewer than ``count``, or others than these.
        """
        prompts, rates, start = self._stages.prompts(self.next_step), self.rates, 0
        if isinstance(self.prompts, JoinedPrompts):
            prompts, start = self.prompts.parts[environment], self.prompts.starts[environment]
            rates = PartOfRates(self.rates, start, len(prompts))
        chosen = self._samplers[environment].choose(prompts, rates, self._rng, count)
        if len(chosen) != count:
            raise TrainingError(f"the sampler chose {len(chosen)} prompts instead of {count}")
        if wrong := [index for index in chosen if not 0 <= index < len(prompts)]:
            raise TrainingError(
                f"rlax.curation.sampler chose prompt {wrong[0]}: must be from 0 to "
                f"{len(prompts) - 1}"
            )
        chosen = [start + index for index in chosen]
        issued = [self.prompts[index] for index in chosen]
        event = ev.Issued(self.next_id, tuple(p.id for p in issued), min_version)
        posteriors = zip(*(column.tolist() for column in self.rates.posterior(chosen)), strict=True)
        for index, prompt, posterior in zip(chosen, issued, posteriors, strict=True):
            self.open[self.next_id] = Open(prompt, index, min_version, posterior)
            self.next_id += 1
        self.totals.issued += count
        self.issued_for_step += count
        self.outstanding[environment] += count
        return event

    def environment_of(self, group_id: int) -> str:
        """Returns the environment of an open or ready group; "" if there is one."""
        one = self.open.get(group_id)
        prompt = self.ready[group_id].prompt if one is None else one.prompt
        return self._section.environment_of(prompt.id)

    def name_of(self, group: ScoredGroup) -> str:
        """Returns the environment of a group; "" if there is one."""
        return self._section.environment_of(group.prompt.id)

    def apply(self, event: ev.Event, group: ScoredGroup | None = None) -> None:
        """Applies an event to the state.

        Args:
          group: of a ``Scored`` event.

        Raises:
          TrainingError: the sampler chooses different prompts than were recorded.
        """
        match event:
            case ev.Issued():
                self._choose_again(event)
            case ev.Reissued():
                self.open[event.group].attempt = event.attempt
                self.totals.reissued += 1
            case ev.Generated():
                self.totals.samples += event.samples * event.begins_episodes
                self.totals.tokens += event.tokens
            case ev.Discarded():
                self.totals.turns_discarded += 1
            case ev.Scored():
                assert group is not None
                self._score(event, group)
            case ev.Trained():
                for group_id in event.groups:
                    self.trained[self.environment_of(group_id)] += 1
                    self._take(group_id)
                self.totals.trained += len(event.groups)
                self.totals.max_staleness = max(self.totals.max_staleness, event.staleness)
                self.next_step = event.step + 1
                self.issued_for_step = 0
            case ev.Dropped():
                environment = self.environment_of(event.group)
                if self.open.pop(event.group, None) is None:
                    self._take(event.group)
                else:
                    self.outstanding[environment] -= 1
                self.totals.dropped[event.reason] += 1
                self.totals.samples_saved += event.samples
                self.totals.tokens_saved += event.tokens
            case ev.Resumed():
                self.totals.restarts += 1
                # If too few were accepted because a judge was away, it may be back by now.
                self.issued_for_step = 0

    def _choose_again(self, event: ev.Issued) -> None:
        environment = self._section.environment_of(event.prompts[0])  # one event has one
        again = self.choose(len(event.prompts), event.min_version, environment)
        if again != event:
            raise TrainingError(
                f"the sampler chose other prompts for groups {event.first} to "
                f"{event.first + len(event.prompts) - 1} on resume than before: the prompt source "
                "or the sampler has changed since the run began, or has state that it does not save"
            )

    def _score(self, event: ev.Scored, group: ScoredGroup) -> None:
        self.totals.samples_saved += event.samples_saved
        self.totals.tokens_saved += event.tokens_saved
        index = self.open.pop(event.group).index
        if event.scored:
            failed = event.scored - event.passed
            whole = event.rejected != Ending.NOT_NEEDED
            self.rates.observe(index, event.passed, failed, group.newest_version, whole=whole)
        self.totals.reward_errors += len(group.episodes) - event.scored
        if event.rejected is None:
            self.ready.add(group)
            self.totals.accepted += 1
        else:
            self.totals.rejected[event.rejected] += 1
            self.outstanding[self._section.environment_of(group.prompt.id)] -= 1

    def _take(self, group_id: int) -> None:
        self.outstanding[self.environment_of(group_id)] -= 1
        self.ready.remove(group_id)
        self.segment_of.pop(group_id, None)

    # --- snapshot ------------------------------------------------------------------------------

    def state(self) -> Saved:
        """Returns a copy of the whole state."""
        # Not dataclasses.asdict: it makes a Counter of a Counter's items.
        totals = {f.name: getattr(self.totals, f.name) for f in dataclasses.fields(self.totals)}
        # Copies: the state is written while more happens.
        document = {
            "next_id": self.next_id,
            "next_step": self.next_step,
            "issued_for_step": self.issued_for_step,
            "rng": self._rng.bit_generator.state,
            **self._sampler_state(),
            "trained": dict(self.trained),
            "stage": self._stages.number,
            "outcomes": list(self.rates.outcomes),
            "totals": copy.deepcopy(totals),
            "open": [
                {
                    "group": group_id,
                    "prompt": one.prompt.id,
                    "index": one.index,
                    "min_version": one.min_version,
                    "posterior": list(one.posterior),
                    "attempt": one.attempt,
                }
                for group_id, one in self.open.items()
            ],
            "ready": {str(group_id): self.segment_of.get(group_id) for group_id in self.ready},
        }
        return Saved(document, self.rates.columns())

    def _sampler_state(self) -> dict[str, Any]:
        found = {name: copy.deepcopy(one.state()) for name, one in self._samplers.items()}
        return {"sampler": found[""]} if "" in found else {"samplers": found}

    def restore(
        self,
        state: Mapping[str, Any],
        rates: RateColumns,
        load: Callable[[Mapping[int, int]], Mapping[int, ScoredGroup]],
    ) -> None:
        """Restores what the method ``state`` has saved.

        Args:
          state: its document.
          rates: the pass-rate table.
          load: reads the ready groups; given their ids, each with the number of the segment that
            has it, it returns the groups by id.

        Raises:
          TrainingError: the prompt source has lost a prompt of an open group.
        """
        self.next_id = state["next_id"]
        self.next_step = state["next_step"]
        self.issued_for_step = state["issued_for_step"]
        self._rng.bit_generator.state = state["rng"]
        for name, sampler in self._samplers.items():
            sampler.restore(state["samplers"][name] if name else state["sampler"])
        passed, failed, mixed = state["outcomes"]
        self.rates.restore(dataclasses.replace(rates, outcomes=(passed, failed, mixed)))
        self._stages.number = min(state["stage"], len(self._stages))
        totals = dict(state["totals"])
        for name in ("rejected", "dropped"):
            totals[name] = Counter(totals[name])
        self.totals = Totals(**totals)
        self.open = self._restored(state["open"])
        self._oldest_open = min(self.open, default=self.next_id)
        self.segment_of = {int(group_id): segment for group_id, segment in state["ready"].items()}
        self.ready = ReadyGroups(load(self.segment_of).values())
        self.trained = Counter(state.get("trained", {}))  # only several environments need them
        self.outstanding = Counter(map(self.environment_of, [*self.open, *self.ready]))

    def _restored(self, found: Sequence[Mapping[str, Any]]) -> dict[int, Open]:
        lost = {one["prompt"] for one in found if not self._is_at(one["index"], one["prompt"])}
        index_of = indices_of(self.prompts, lost)
        if missing := sorted(lost - index_of.keys()):
            raise TrainingError(f"the prompt source no longer has prompt {missing[0]}")
        opened = {}
        for one in found:
            index = index_of[one["prompt"]] if one["prompt"] in lost else one["index"]
            alpha, beta = one["posterior"]
            opened[one["group"]] = Open(
                self.prompts[index], index, one["min_version"], (alpha, beta), one["attempt"]
            )
        return opened

    def _is_at(self, index: int, prompt_id: str) -> bool:
        """True if the prompt of this id is still at its index."""
        if not 0 <= index < len(self.prompts):
            return False
        return id_at(self.prompts, index) == prompt_id
