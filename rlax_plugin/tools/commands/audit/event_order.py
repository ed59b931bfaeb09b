"""Checks the events of a journal against the order in which they must happen."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass

from rlax_plugin.run.controller.mixing import Mix
from rlax_plugin.run.state import events as ev
from rlax_plugin.tools.commands.audit.record_limits import Limits
from rlax_plugin.tools.commands.audit.report import Figures, Findings, Rule

_REJECTED, _DROPPED = -1, -2  # beside the step that a group trained at


@dataclass(slots=True)
class Alive:
    """A group that has not ended.

    Attributes:
      attempt: number of times it was issued.
      generated, scored: the events of this attempt, once they happened; a group with ``scored`` is
        ready.
      segment: segment in which it was scored.
      digest: checksum of its samples, once they are in a rollouts file.
      overtaken: True if it was reported as lost.
    """

    prompt: str
    min_version: int
    attempt: int = 1
    generated: Generation | None = None
    scored: ev.Scored | None = None
    segment: int = 0
    digest: str = ""
    overtaken: bool = False

    @property
    def step(self) -> int:
        """The RL step of its temperature and reward weights, see ``run.state.run_state.Open``."""
        return self.min_version + 1


class History:
    """The state of a run as its events add up; keeps live groups and a few bytes for every group.

    Attributes:
      alive: group id -> group, in issue order.
      next_id, next_step: expected id of the next group and step of the next batch.
      scored, trained, batch: groups scored in the current segment, its ``Trained`` events, and the
        groups that these name.
    """

    def __init__(self, limits: Limits, figures: Figures, findings: Findings):
        self._limits, self._figures, self._findings = limits, figures, findings
        self.alive: dict[int, Alive] = {}
        self._ends = array("q")  # by group id; 0: alive
        self.next_step = 1
        self._published: dict[int, tuple[str, int]] = {}  # version -> digest, restarts before it
        self._mix = Mix(limits.shares, limits.groups_per_step) if limits.shares else None
        self._trained_of = Counter[str]()  # environment -> groups
        self._generated_with: dict[int, int] = {}  # version -> the first group generated with it
        self.begin_segment(0)

    @property
    def next_id(self) -> int:
        return len(self._ends)

    def begin_segment(self, number: int) -> None:
        self._segment = number
        self.scored: dict[int, Alive] = {}
        self.trained: list[ev.Trained] = []
        self.batch: dict[int, Alive] = {}

    def apply(self, event: ev.Event) -> None:
        match event:
            case ev.Issued():
                self._issued(event)
            case ev.Reissued():
                self._reissued(event)
            case ev.Generated():
                self._generated(event)
            case ev.Discarded():
                self._discarded(event)
            case ev.Scored():
                self._scored(event)
            case ev.Trained():
                self._trained(event)
            case ev.Dropped():
                self._dropped(event)
            case ev.Published():
                self._was_published(event)
            case ev.Resumed():
                self._resumed(event)

    def end(self) -> None:
        """Counts the groups that are left, and reports impossible weight versions."""
        for version, group in sorted(self._generated_with.items()):
            # Not whether its publication was noted: a process may be killed before that.
            if version >= self.next_step:
                self._findings.violation(
                    Rule.UNPRODUCED,
                    f"group {group} was generated with version {version}: expected at most "
                    f"{self.next_step - 1}, the last step with a batch",
                    group=group,
                )
        self._figures.issued = self.next_id
        self._figures.ready = sum(one.scored is not None for one in self.alive.values())
        self._figures.open = len(self.alive) - self._figures.ready

    # --- groups --------------------------------------------------------------------------------

    def _issued(self, event: ev.Issued) -> None:
        if event.first != self.next_id:
            message = f"expected group {self.next_id} to be issued next, found group {event.first}"
            self._findings.violation(Rule.ISSUE_ORDER, message, group=event.first)
        for prompt in event.prompts:
            self.alive[self.next_id] = Alive(prompt, event.min_version)
            self._ends.append(0)

    def _reissued(self, event: ev.Reissued) -> None:
        one = self._open(event.group, "issued again")
        if one is None:
            return
        if event.attempt != one.attempt + 1:
            self._findings.violation(
                Rule.UNKNOWN_ATTEMPT,
                f"group {event.group} is issued again: expected attempt {one.attempt + 1}, "
                f"found {event.attempt}",
                group=event.group,
            )
        one.attempt, one.generated = event.attempt, None
        self._figures.reissued += 1

    def _generated(self, event: ev.Generated) -> None:
        one = self._open(event.group, "generated")
        if one is None:
            return
        if event.sample is not None:
            self._later_turn(event, one)
        elif one.generated is not None:
            self._findings.violation(
                Rule.GENERATED_TWICE,
                f"group {event.group} was generated at attempt {event.attempt}: expected it to be "
                f"issued again after it was generated at attempt {one.generated.attempt}",
                group=event.group,
            )
        if event.sample is None:
            one.generated = Generation(event.attempt, event.samples, event)
        for version in (event.oldest_version, event.newest_version):
            self._generated_with.setdefault(version, event.group)
        if event.oldest_version < one.min_version and not self._limits.logged:
            self._findings.violation(
                Rule.TOO_OLD,
                f"group {event.group} was generated with version {event.oldest_version}: expected "
                f"at least {one.min_version}, as it was issued with",
                group=event.group,
            )
        if not 1 <= event.attempt <= one.attempt:
            self._findings.violation(
                Rule.UNKNOWN_ATTEMPT,
                f"group {event.group} was generated: expected an attempt that was issued, "
                f"1 to {one.attempt}, found {event.attempt}",
                group=event.group,
            )

    def _later_turn(self, event: ev.Generated, one: Alive) -> None:
        what = f"turn {event.turn} of sample {event.sample} was generated"
        if one.generated is None and event.turn == 0:  # the environment begins
            one.generated = Generation(event.attempt, self._limits.group_size)
        if one.generated is None:
            wanted = "the first turns of the group before it"
            self._turn_misplaced(Rule.WRONG_ORDER, event.group, what, wanted)
        elif wanted := one.generated.add(event):
            self._turn_misplaced(Rule.WRONG_TURN, event.group, what, wanted)

    def _discarded(self, event: ev.Discarded) -> None:
        one = self._open(event.group, "discarded in part")
        if one is None:
            return
        what = f"turn {event.turn} of sample {event.sample} is discarded"
        wanted = "it to be generated before" if one.generated is None else None
        if wanted := wanted or (one.generated and one.generated.discard(event)):
            self._turn_misplaced(Rule.WRONG_TURN, event.group, what, wanted)
        self._figures.turns_discarded += 1

    def _turn_misplaced(self, rule: Rule, group: int, what: str, wanted: str) -> None:
        message = f"group {group}: {what}: expected {wanted}"
        self._findings.violation(rule, message, group=group)

    def _scored(self, event: ev.Scored) -> None:
        what = "accepted" if event.rejected is None else "rejected"
        one = self._open(event.group, what, if_ended=Rule.ENDED_TWICE)
        if one is None:
            return
        if one.generated is None and (event.scored or event.rejected is None):
            message = f"group {event.group} is scored: expected it to be generated before"
            self._findings.violation(Rule.WRONG_ORDER, message, group=event.group)
        one.scored, one.segment = event, self._segment
        self.scored[event.group] = one
        if event.rejected is not None:
            self._end(event.group, _REJECTED)
            self._figures.rejected[event.rejected] += 1

    def _dropped(self, event: ev.Dropped) -> None:
        if not event.reason.strip():
            message = f"group {event.group} is dropped: expected a reason, found none"
            self._findings.violation(Rule.DROPPED_WITHOUT_REASON, message, group=event.group)
        one = self.alive.get(event.group)
        if one is not None and one.scored is None:
            self._dropped_open(event.group, one)
        if one is not None or self._ready(event.group, "dropped", None) is not None:
            self._end(event.group, _DROPPED)
            self._figures.dropped[event.reason] += 1

    def _dropped_open(self, group: int, one: Alive) -> None:
        """Reports a drop before scoring unless the group was issued for weights too old to use."""
        oldest = self.next_step - self._limits.max_staleness
        if one.generated is None and one.min_version < oldest:
            return
        what = "its first turns are generated" if one.generated else "it could still train"
        self._findings.violation(
            Rule.WRONG_ORDER,
            f"group {group} is dropped before it is scored, but {what}: expected one that was "
            f"issued with a version below {oldest} and not generated, found {one.min_version}",
            group=group,
        )

    def _trained(self, event: ev.Trained) -> None:
        step = event.step
        if step != self.next_step:
            self._findings.violation(
                Rule.STEP_ORDER,
                f"expected a batch for step {self.next_step}, found one for step {step}",
                step=step,
            )
        groups = list(event.groups)
        if wanted := self._wrong_batch(groups):
            message = f"step {step} trains groups {groups}: expected {wanted}"
            self._findings.violation(Rule.WRONG_BATCH, message, step=step)
        planned, found = self._planned(), self._by_environment(groups)
        if self._mix and any(count > planned.get(name, 0) for name, count in found.items()):
            message = f"step {step} trains {found} groups: expected {planned}, by their weights"
            self._findings.violation(Rule.WRONG_BATCH, message, step=step)
        youngest = {self._environment(group): group for group in groups if group in self.alive}
        if self._mix is None:
            youngest = {"": max(groups, default=-1)}
        for group in groups:
            one = self._ready(group, f"trained at step {step}", step)
            if one is not None:
                self.batch[group] = one
                self._end(group, step)
                self._figures.trained += 1
        self._trained_of.update(found)
        for name, group in youngest.items():
            passed_over = (self._limits.look_ahead - 1) * planned.get(name, 0)
            self._look_for_overtaken(step, group, name, passed_over)
        self.trained.append(event)
        self.next_step = step + 1
        self._figures.steps += 1

    def _wrong_batch(self, groups: list[int]) -> str | None:
        """Returns the expected groups if a batch has the wrong ones; does not check row lengths."""
        if not groups or groups != sorted(groups):
            return "at least one, in issue order"
        limits, generated = (
            self._limits,
            [self.alive[g].generated for g in groups if g in self.alive],
        )
        room = limits.rows - sum(event.sequences for event in generated if event)
        wanted = limits.tokens_per_batch
        if wanted:
            tokens_n = [event.tokens for event in generated if event]
            enough, more = sum(tokens_n) >= wanted, sum(tokens_n[:-1]) >= wanted
            what = f"{wanted} tokens, reached by the last one, found {tokens_n}"
        else:
            wanted = limits.groups_per_step
            enough, more = len(groups) >= wanted, len(groups) > wanted
            what = str(wanted)
        # One more would have fitted for certain if there was a row for each of its sequences.
        fits = bool(limits.selected) or room >= limits.group_sequences
        if more or (not enough and fits):
            return what
        return None

    def _environment(self, group: int) -> str:
        return self._limits.environment_of(self.alive[group].prompt)

    def _by_environment(self, groups: list[int]) -> dict[str, int]:
        """Returns environment -> the number of these groups that belong to it."""
        return dict(Counter(self._environment(group) for group in groups if group in self.alive))

    def _planned(self) -> dict[str, int]:
        """Returns environment -> the number of its groups in the next batch, by weight."""
        if self._mix is None:
            return {"": self._limits.groups_per_step}
        planned = self._mix.of_batch(self._trained_of)
        return {name: count for name, count in planned.items() if count}

    def _look_for_overtaken(self, step: int, youngest: int, name: str, passed_over: int) -> None:
        """Reports older groups of an environment, but for so many that a look-ahead passes over."""
        for group, one in self.alive.items():
            if group > youngest:
                return
            if self._environment(group) != name:
                continue
            if passed_over:  # also one that was accepted while this batch was made
                passed_over -= 1
                continue
            if not one.overtaken:
                one.overtaken = True
                message = (
                    f"expected the oldest groups first, found group {youngest} trained at step "
                    f"{step} while group {group} is {self._state(group)}"
                )
                self._findings.violation(Rule.LOST_GROUP, message, step=step, group=group)

    def _open(self, group: int, what: str, if_ended: Rule = Rule.WRONG_ORDER) -> Alive | None:
        """Returns the group if it waits to be scored; reports a violation otherwise."""
        one = self.alive.get(group)
        if one is not None and one.scored is None:
            return one
        self._misplaced(if_ended if one is None else Rule.WRONG_ORDER, group, what, None)
        return None

    def _ready(self, group: int, what: str, step: int | None) -> Alive | None:
        """Returns the group if it waits to be trained; reports a violation otherwise."""
        one = self.alive.get(group)
        if one is not None and one.scored is not None:
            return one
        rule = Rule.WRONG_ORDER
        if one is None:
            twice = step is not None and group < self.next_id and self._ends[group] > 0
            rule = Rule.TRAINED_TWICE if twice else Rule.ENDED_TWICE
        self._misplaced(rule, group, what, step)
        return None

    def _misplaced(self, rule: Rule, group: int, what: str, step: int | None) -> None:
        known = 0 <= group < self.next_id
        self._findings.violation(
            rule if known else Rule.UNKNOWN_GROUP,
            f"group {group} is {what}, but it "
            + (f"is {self._state(group)}" if known else "was never issued"),
            step=step,
            group=group,
        )

    def _state(self, group: int) -> str:
        """Describes the state of a group, for messages, after the word "is"."""
        one = self.alive.get(group)
        if one is not None:
            return (
                "open and not yet scored" if one.scored is None else "accepted and not yet trained"
            )
        end = self._ends[group]
        if end > 0:
            return f"already trained, at step {end}"
        return "already rejected" if end == _REJECTED else "already dropped"

    def _end(self, group: int, end: int) -> None:
        del self.alive[group]
        self._ends[group] = end

    # --- the run -------------------------------------------------------------------------------

    def _was_published(self, event: ev.Published) -> None:
        version, restarts = event.version, self._figures.restarts
        if version >= self.next_step:
            self._findings.violation(
                Rule.PUBLISHED_EARLY,
                f"version {version} is published: expected at most {self.next_step - 1}, the last "
                "step with a batch",
                step=version,
            )
        digest, before = self._published.get(version, (event.digest, -1))
        if before == restarts:
            message = f"version {version} is published again: expected a restart in between"
            self._findings.violation(Rule.PUBLISHED_TWICE, message, step=version)
        elif digest != event.digest:
            self._findings.warning(
                f"segment {self._segment}: version {version} was published again with other "
                f"weights, {event.digest} after {digest}: training is not bit-exact here"
            )
        self._published[version] = event.digest, restarts

    def _resumed(self, event: ev.Resumed) -> None:
        self._figures.restarts += 1
        if not 0 <= event.step < self.next_step:
            self._findings.violation(
                Rule.RESUMED_AHEAD,
                f"the run is resumed from a checkpoint of step {event.step}: expected at most "
                f"{self.next_step - 1}, the last step with a batch",
                step=event.step,
            )


Place = tuple[int, int, int]
"""The place of a turn: sample, trajectory and turn."""


class Generation:
    """The events ``Generated`` of one attempt, added up.

    Args:
      attempt: the attempt.
      samples: number of samples of the group.
      first: the event of the first turns of all samples; None: the environment begins episodes, so
        that each of their turns has an event of its own.
    """

    def __init__(self, attempt: int, samples: int, first: ev.Generated | None = None):
        self.attempt, self.samples, self._first = attempt, samples, first
        self._later: dict[Place, ev.Generated] = {}  # in the order in which they happened

    @property
    def _all(self) -> list[ev.Generated]:
        return [*([] if self._first is None else [self._first]), *self._later.values()]

    @property
    def tokens(self) -> int:
        """Number of tokens of all turns that are not void."""
        return sum(event.tokens for event in self._all)

    @property
    def oldest_version(self) -> int | None:
        return min((event.oldest_version for event in self._all), default=None)

    @property
    def newest_version(self) -> int | None:
        return max((event.newest_version for event in self._all), default=None)

    @property
    def sequences(self) -> int:
        """Number of trajectories of all samples."""
        return self._first_turns + sum(turn == 0 for _, _, turn in self._later)

    @property
    def turns(self) -> int:
        return self._first_turns + len(self._later)

    @property
    def _first_turns(self) -> int:
        return 0 if self._first is None else self.samples

    def add(self, event: ev.Generated) -> str | None:
        """Adds a later turn; returns a description of the expected event if it is wrong."""
        assert event.sample is not None
        place = event.sample, event.trajectory, event.turn
        if place in self._later or (self._first and event.begins_episodes):
            return "every turn once"
        self._later[place] = event
        if not 0 <= event.sample < self.samples:
            return f"a sample from 0 to {self.samples - 1}"
        if event.samples != 1 or event.attempt != self.attempt:
            return f"one sample, of attempt {self.attempt}"
        before = event.sample, event.trajectory, event.turn - 1
        known = before in self._later or (self._first and before[1:] == (0, 0))
        if event.turn and not known:
            return f"turn {event.turn - 1} before it"
        return None

    def discard(self, event: ev.Discarded) -> str | None:
        """Removes a turn; returns a description of the expected event if it is wrong."""
        place = event.sample, event.trajectory, event.turn
        if place not in self._later:
            return "a turn that was generated by itself"
        del self._later[place]
        return None
