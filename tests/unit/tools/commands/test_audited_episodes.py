"""Falsified histories of episodes: each turn is generated once, in order, of its sample."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from histories import SIZE, Draft, History, episode, group, place, sampled, scored

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Episode, ScoredGroup, Trajectory
from rlax_plugin.run.state import events as ev
from rlax_plugin.tools.commands.audit import Report, Rule, audit

NUMBER, VERSION, ATTEMPT = 7, 2, 2  # the group of step 3 that has episodes of several turns


def turns(index: int, *versions: Sequence[int]) -> Episode:
    """An episode of one trajectory; each turn has as many tokens as versions."""
    return episode(
        index, *(sampled(NUMBER, index, v, seed=1000 * index + i) for i, v in enumerate(versions))
    )


# Sample 0 has three turns, of 2, 1 and 3 tokens; sample 1 has two, each of its own trajectory.
TWO = turns(1, [2, 2], [2])
EPISODES = (
    turns(0, [2, 2], [2], [2, 2, 2]),
    dataclasses.replace(
        TWO, trajectories=tuple(Trajectory((t,)) for t in TWO.trajectories[0].turns)
    ),
)


def of_turns(*episodes: Episode) -> ScoredGroup:
    return group(NUMBER, VERSION, "h", attempt=ATTEMPT, episodes=episodes)


def later(
    sample: int, turn: int, tokens: int, trajectory: int = 0, **changes: object
) -> ev.Generated:
    event = ev.Generated(NUMBER, ATTEMPT, ("w0",), 2, 2, 1, tokens, sample, trajectory, turn)
    return dataclasses.replace(event, **changes)  # type: ignore[arg-type]


FIRST = ev.Generated(NUMBER, ATTEMPT, ("w0",), 2, 2, SIZE, 4)
# As they happen: the samples take turns.
ONE, OTHER, LAST = later(0, 1, 1), later(1, 0, 1, trajectory=1), later(0, 2, 3)


class Told(History):
    """The fourth segment tells of a group whose samples have several turns."""

    def __init__(self, *generated: ev.Event, episodes: tuple[Episode, ...] = EPISODES) -> None:
        super().__init__()
        self.config["environment"] = {"name": "calculator"}
        self.config["episodes"] = {"max_tokens": 8}
        self.config["rollouts"]["max_new_tokens"] = 8
        self.config["batches"] = {"rows": 6}
        self.draft: Draft = self.segments[3]
        old, new = self.groups[NUMBER], of_turns(*episodes)
        generated_before, judged = scored(old)
        self.draft.replace(generated_before, *generated)
        assert judged in self.draft.events
        assert self.draft.batch is not None
        self.draft.batch = [self.groups[5], new]


def audited(directory: Path, history: History) -> Report:
    files = RunFiles(directory)
    history.write(files)
    return audit(files)


def test_turns_in_any_order_of_samples_are_clean(tmp_path: Path) -> None:
    for number, events in enumerate(
        ([FIRST, ONE, OTHER, LAST], [FIRST, OTHER, ONE, LAST], [FIRST, ONE, LAST, OTHER])
    ):
        report = audited(tmp_path / str(number), Told(*events))
        assert report.violation is None, report.violation
    # Of the other five groups five tokens each train.
    assert report.figures.tokens == 25 + 9 and report.figures.turns_discarded == 0


def test_turns_that_an_environment_begins_are_clean(tmp_path: Path) -> None:
    events = [later(1, 0, 2), later(0, 0, 2), ONE, OTHER, LAST]
    again = [later(1, 0, 2), ev.Discarded(NUMBER, 1, 0, 0), *events]
    for number, told in enumerate((events, again)):
        report = audited(tmp_path / str(number), Told(*told))
        assert report.violation is None, report.violation
        assert report.figures.tokens == 25 + 9 and report.figures.turns_discarded == number


def test_only_a_group_without_a_score_may_have_no_turn(tmp_path: Path) -> None:
    """Its environment begins its episodes, and has failed in all of them before a turn."""
    for scores, violates in ((0, False), (1, True)):
        told = History()
        told.segments[-1].events.append(ev.Scored(10, 0, scores, "all rewards failed"))
        report = audited(tmp_path / str(scores), told)
        said = str(report.violation)
        assert ("group 10 is scored: expected it to be generated before" in said) == violates, said


def test_a_turn_that_is_discarded_may_be_generated_again(tmp_path: Path) -> None:
    void = ev.Discarded(NUMBER, 0, 0, 2), ev.Discarded(NUMBER, 0, 0, 1)
    events = [FIRST, ONE, OTHER, later(0, 2, 5), *void, ONE, LAST]
    report = audited(tmp_path, Told(*events))
    assert report.violation is None, report.violation
    assert report.figures.turns_discarded == 2


def test_turns_of_an_attempt_that_was_given_up_do_not_count(tmp_path: Path) -> None:
    again = ev.Reissued(NUMBER, ATTEMPT + 1, "its worker is not trusted", Ending.QUARANTINED)
    third = [dataclasses.replace(e, attempt=ATTEMPT + 1) for e in (FIRST, ONE, OTHER, LAST)]
    told = Told(FIRST, ONE, again, *third)
    assert told.draft.batch is not None
    told.draft.batch[1] = dataclasses.replace(of_turns(*EPISODES), attempt=ATTEMPT + 1)
    assert audited(tmp_path, told).violation is None


OLDER = (turns(0, [2, 2], [1], [2, 2, 2]), EPISODES[1])
FALSIFIED: list[tuple[str, Callable[[], History], Rule, str]] = [
    ("a first turn too few", lambda: Told(later(0, 0, 2), ONE, LAST, OTHER),
     Rule.GENERATION_DIFFERS, "turns: expected 4, as the journal says, found 5"),
    ("a later turn before the first", lambda: Told(ONE, FIRST, OTHER, LAST), Rule.WRONG_ORDER,
     "turn 1 of sample 0 was generated: expected the first turns of the group before it"),
    ("a turn twice", lambda: Told(FIRST, ONE, ONE, OTHER, LAST), Rule.WRONG_TURN,
     "turn 1 of sample 0 was generated: expected every turn once"),
    ("the first turn of a sample twice", lambda: Told(FIRST, later(0, 0, 2), ONE, OTHER, LAST),
     Rule.WRONG_TURN, "expected every turn once"),
    ("the first turns twice", lambda: Told(FIRST, ONE, FIRST, ONE, OTHER, LAST),
     Rule.GENERATED_TWICE, "expected it to be issued again"),
    ("a sample that does not exist", lambda: Told(FIRST, ONE, OTHER, LAST, later(2, 1, 1)),
     Rule.WRONG_TURN, "expected a sample from 0 to 1"),
    ("a gap in turns", lambda: Told(FIRST, ONE, OTHER, later(0, 3, 3)), Rule.WRONG_TURN,
     "turn 3 of sample 0 was generated: expected turn 2 before it"),
    ("a trajectory without its first turn",
     lambda: Told(FIRST, ONE, later(1, 1, 1, trajectory=1), LAST), Rule.WRONG_TURN,
     "expected turn 0 before it"),
    ("several samples in a later turn", lambda: Told(FIRST, later(0, 1, 1, samples=2), OTHER, LAST),
     Rule.WRONG_TURN, "expected one sample, of attempt 2"),
    ("a turn of an older attempt", lambda: Told(FIRST, later(0, 1, 1, attempt=1), OTHER, LAST),
     Rule.WRONG_TURN, "expected one sample, of attempt 2"),
    ("a turn too few", lambda: Told(FIRST, ONE, LAST), Rule.GENERATION_DIFFERS,
     "turns: expected 4, as the journal says, found 5"),
    ("tokens that do not add up", lambda: Told(FIRST, ONE, OTHER, later(0, 2, 4)),
     Rule.GENERATION_DIFFERS, "tokens: expected 10, as the journal says, found 9"),
    ("a discarded turn that never was",
     lambda: Told(FIRST, ONE, ev.Discarded(NUMBER, 0, 0, 2), OTHER, LAST), Rule.WRONG_TURN,
     "turn 2 of sample 0 is discarded: expected a turn that was generated by itself"),
    ("a discarded turn before the first", lambda: Told(ev.Discarded(NUMBER, 0, 0, 1), FIRST, ONE,
     OTHER, LAST), Rule.WRONG_TURN, "expected it to be generated before"),
    ("a discarded turn that trains",
     lambda: Told(FIRST, ONE, OTHER, LAST, ev.Discarded(NUMBER, 0, 0, 2)), Rule.GENERATION_DIFFERS,
     "turns: expected 4, as the journal says, found 5"),
    ("an older version in a later turn",
     lambda: Told(FIRST, later(0, 1, 1, oldest_version=1, newest_version=1), OTHER, LAST,
                  episodes=OLDER), Rule.MIXED_VERSIONS,
     "sample 0: expected no turn with an older version than the turn before it, found 1 after 2"),
    ("a turn older than the group was issued for",
     lambda: Told(FIRST, later(0, 1, 1, oldest_version=0, newest_version=2), OTHER, LAST),
     Rule.TOO_OLD, "was generated with version 0: expected at least 1"),
    ("one seed for two turns", lambda: Told(FIRST, ONE, OTHER, LAST, episodes=(
        episode(0, *(sampled(NUMBER, 0, v, seed=5) for v in ([2, 2], [2], [2, 2, 2]))),
        EPISODES[1])), Rule.REPEATED_SEED, "expected a seed of its own"),
    ("a later turn of a group that is scored",
     lambda: (h := Told(FIRST, ONE, OTHER, LAST), h.draft.events.insert(-1, LAST))[0],
     Rule.WRONG_ORDER, "group 7 is generated, but it is accepted and not yet trained"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("falsified", "rule", "message"),
    [case[1:] for case in FALSIFIED],
    ids=[case[0] for case in FALSIFIED],
)
def test_the_violation_is_named(
    tmp_path: Path, falsified: Callable[[], History], rule: Rule, message: str
) -> None:
    report = audited(tmp_path, falsified())
    assert place(report) == (rule, 4, None, NUMBER), report.violation
    assert report.violation is not None and message in report.violation.message
