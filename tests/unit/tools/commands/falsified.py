"""Histories made false, one lie each; see ``FALSIFIED``, and ``histories`` for the true one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from histories import REASON, Draft, History, cells, episode, group, rejected, sampled, scored

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import Episode, Score, ScoredGroup, group_of
from rlax_plugin.run.state import events as ev
from rlax_plugin.tools.commands.audit import Rule

Falsify = Callable[[History], object]


def first(history: History) -> Draft:
    return history.segments[0]


def second(history: History) -> Draft:
    return history.segments[1]


def fourth(history: History) -> Draft:
    return history.segments[3]


def fifth(history: History) -> Draft:
    return history.segments[4]


def trained_twice(h: History) -> None:
    fourth(h).replace(ev.Trained(3, (5, 7), 2), ev.Trained(3, (4, 7), 3))
    fourth(h).batch = [h.groups[4], h.groups[7]]


def overtaken(h: History) -> None:
    generated, judged = scored(h.groups[4])
    second(h).events.remove(generated)
    second(h).events.remove(judged)
    second(h).replace(ev.Trained(2, (3, 4), 2), ev.Trained(2, (3, 5), 2))
    second(h).batch, second(h).others = [h.groups[3], h.groups[5]], []


def too_stale(h: History) -> None:
    old = group(5, 0, "f", attempt=2)
    second(h).rescore(h.groups[5], old)
    fourth(h).batch = [old, h.groups[7]]
    fourth(h).replace(ev.Trained(3, (5, 7), 2), ev.Trained(3, (5, 7), 3))


def of_the_future(h: History) -> None:
    fourth(h).rescore(h.groups[7], group(7, 3, "h", attempt=2))


def changed_seventh(**changes: Any) -> Falsify:
    def falsify(h: History) -> None:
        seventh = group_of(h.groups[7])
        fourth(h).rescore(seventh, dataclasses.replace(seventh, **changes))

    return falsify


def seventh(*versions: list[int], **changes: Any) -> tuple[Episode, ...]:
    return tuple(episode(i, sampled(7, i, v, **changes)) for i, v in enumerate(versions))


OTHER_TOTAL = changed_seventh(scores=(Score(0.0, (0.0,)), Score(1.0, (3.0,))))  # weight: 0.5
MIXED = changed_seventh(episodes=seventh([2, 2], [1, 2, 2]))
BACKWARDS = changed_seventh(episodes=seventh([2, 2], [2, 1, 2]))


def in_batch(change: Callable[[ScoredGroup], ScoredGroup]) -> Falsify:
    """Changes group 3, scored in segment 1, in the file of the batch that it trains in."""

    def falsify(h: History) -> None:
        second(h).batch = [change(group_of(h.groups[3])), h.groups[4]]

    return falsify


def other_tokens(g: ScoredGroup) -> ScoredGroup:
    tokens = np.array([4, 5, 9], np.int32)
    last = episode(1, sampled(3, 1, [0, 0, 0], tokens=tokens))
    return dataclasses.replace(g, episodes=(g.episodes[0], last))


def a_sample_less(g: ScoredGroup) -> ScoredGroup:
    return dataclasses.replace(g, episodes=g.episodes[:1], scores=g.scores[:1])


def unfinished(g: ScoredGroup) -> ScoredGroup:
    last = episode(1, sampled(3, 1, [0, 0, 0], finish=None))
    return dataclasses.replace(g, episodes=(g.episodes[0], last))


def other_token_rewards(g: ScoredGroup) -> ScoredGroup:
    paid = dataclasses.replace(g.scores[1], token_rewards=(np.array([0.0, 0.0, 0.5]),))
    return dataclasses.replace(g, scores=(g.scores[0], paid))


def other_side_channel(g: ScoredGroup) -> ScoredGroup:
    last = episode(1, sampled(3, 1, [0, 0, 0], side={"experts": np.ones((3, 2), np.int16)}))
    return dataclasses.replace(g, episodes=(g.episodes[0], last))


def cell(segment: Callable[[History], Draft], group_id: int, column: str, value: Any) -> Falsify:
    """Another value in all rows of a group."""

    def falsify(h: History) -> None:
        segment(h).change = cells(column, {group_id: value})

    return falsify


def replace(segment: Callable[[History], Draft], old: ev.Event, *new: ev.Event) -> Falsify:
    return lambda h: segment(h).replace(old, *new)


def say(segment: Callable[[History], Draft], *events: ev.Event) -> Falsify:
    """At the segment's end."""
    return lambda h: segment(h).events.extend(events)


def snapshot(index: int, **changes: Any) -> Falsify:
    def falsify(h: History) -> None:
        document = h.segments[index].snapshot
        assert document is not None
        document["run_state"].update(changes)

    return falsify


def without_generated(h: History) -> None:
    generated, _ = scored(h.groups[1])
    first(h).events.remove(generated)


def kept_twice(h: History) -> None:
    second(h).others.append(h.groups[4])


def fewer_groups(h: History) -> None:
    second(h).replace(ev.Trained(2, (3, 4), 2), ev.Trained(2, (3,), 2))
    second(h).batch, second(h).others = [h.groups[3]], [h.groups[4], h.groups[5]]


def other_batch(h: History) -> None:
    second(h).batch, second(h).others = [h.groups[3], h.groups[5]], [h.groups[4]]


def too_old(h: History) -> None:
    fourth(h).rescore(h.groups[7], group(7, 0, "h", attempt=2))


def of_a_version_to_come(h: History) -> None:
    """A group that never trains."""
    old = h.groups[9]
    h.segments[4].rescore(old, group(9, 4, "b"))


def seed_of_another(h: History) -> None:
    (first_of_fifth, *_) = group_of(h.groups[5]).sampled
    (first, *_) = group_of(h.groups[7]).episodes
    last = episode(1, sampled(7, 1, [2, 2, 2], seed=first_of_fifth.seed))
    changed_seventh(episodes=(first, last))(h)


# What is false, the rule it breaks, and the segment, step and group of the first violation.
FALSIFIED = [
    ("a version older than asked for", too_old, Rule.TOO_OLD, 4, None, 7),
    ("a version that no step has produced", of_a_version_to_come, Rule.UNPRODUCED, None, None, 9),
    ("generated twice at once", lambda h: first(h).replace(g := scored(h.groups[3])[0], g, g),
     Rule.GENERATED_TWICE, 1, None, 3),
    ("a seed of another group", seed_of_another, Rule.REPEATED_SEED, None, None, 7),
    ("a group trains at steps 2 and 3", trained_twice, Rule.TRAINED_TWICE, 4, 3, 4),
    ("an open group is overtaken", overtaken, Rule.LOST_GROUP, 2, 2, 4),
    ("three versions old at two allowed", too_stale, Rule.TOO_STALE, 4, 3, 5),
    ("version 3 trains at step 3", of_the_future, Rule.FUTURE_VERSION, 4, 3, 7),
    ("two versions in a sample", MIXED, Rule.MIXED_VERSIONS, 4, None, 7),
    ("dropped for no reason", replace(fourth, ev.Dropped(6, REASON), ev.Dropped(6, " ")),
     Rule.DROPPED_WITHOUT_REASON, 4, None, 6),
    ("trained, then dropped", say(second, ev.Dropped(0, REASON)), Rule.ENDED_TWICE, 2, None, 0),
    ("dropped while it could still train", say(fifth, ev.Dropped(10, REASON)),
     Rule.WRONG_ORDER, 5, None, 10),
    ("dropped between its turns", say(fifth, scored(group(8, 1, "a", attempt=2))[0],
                                      ev.Dropped(8, REASON)), Rule.WRONG_ORDER, 5, None, 8),
    ("rejected, then accepted", say(second, *scored(group(2, 0, "c"))[1:]),
     Rule.ENDED_TWICE, 2, None, 2),
    ("samples change before they train", in_batch(other_tokens), Rule.SAMPLES_CHANGED, 2, 2, 3),
    ("a sample is missing", in_batch(a_sample_less), Rule.BATCH_DIFFERS, 2, 2, 3),
    ("an unfinished sample trains", in_batch(unfinished), Rule.BATCH_DIFFERS, 2, 2, 3),
    ("another group is in the batch", other_batch, Rule.BATCH_DIFFERS, 2, 2, 4),
    ("a batch too small", fewer_groups, Rule.WRONG_BATCH, 2, 2, None),
    ("a group is in the batch and beside it", kept_twice, Rule.SAMPLES_DIFFER, 2, None, 4),
    ("staleness is made small", replace(second, ev.Trained(2, (3, 4), 2), ev.Trained(2, (3, 4), 1)),
     Rule.STALENESS_DIFFERS, 2, 2, None),
    ("a step is left out", replace(second, ev.Trained(2, (3, 4), 2), ev.Trained(3, (3, 4), 3)),
     Rule.STEP_ORDER, 2, 3, None),
    ("a batch that nobody trains", lambda h: second(h).events.pop(), Rule.STEP_ORDER, 2, 2, None),
    ("an id is left out", replace(first, ev.Issued(3, ("d", "e", "f"), 0),
                                  ev.Issued(4, ("d", "e", "f"), 0)), Rule.ISSUE_ORDER, 1, None, 4),
    ("a group from nowhere", say(second, ev.Dropped(77, REASON)), Rule.UNKNOWN_GROUP, 2, None, 77),
    ("attempt 3 follows 1", replace(second, ev.Reissued(5, 2, "worker lost", Ending.WORKER_LOST),
                                    ev.Reissued(5, 3, "worker lost", Ending.WORKER_LOST)),
     Rule.UNKNOWN_ATTEMPT, 2, None, 5),
    ("generated at an attempt that never was", lambda h: second(h).events.pop(3),
     Rule.UNKNOWN_ATTEMPT, 2, None, 5),
    ("scored and never generated", without_generated, Rule.WRONG_ORDER, 1, None, 1),
    ("scored twice", say(first, *scored(group(3, 0, "d"))[1:]),
     Rule.WRONG_ORDER, 1, None, 3),
    ("another prompt", changed_seventh(prompt=group(7, 2, "z").prompt),
     Rule.GENERATION_DIFFERS, 4, None, 7),
    ("token rewards change before they train", in_batch(other_token_rewards),
     Rule.SAMPLES_CHANGED, 2, 2, 3),
    ("a side channel changes before it trains", in_batch(other_side_channel),
     Rule.SAMPLES_CHANGED, 2, 2, 3),
    ("a batch without advantages", cell(second, 4, "advantage", None),
     Rule.BATCH_DIFFERS, 2, 2, 4),
    ("an accepted group is said to train", cell(first, 3, "state", "trained"),
     Rule.BATCH_DIFFERS, 1, 1, 3),
    ("a group of the batch is said not to train", cell(second, 4, "state", "accepted"),
     Rule.BATCH_DIFFERS, 2, 2, 4),
    ("a rejected group is said to be accepted", cell(first, 2, "state", "accepted"),
     Rule.JUDGEMENT_DIFFERS, 1, None, 2),
    ("another reason on disk",
     lambda h: first(h).others.__setitem__(0, rejected(2, 0, "c", "too hard")),
     Rule.JUDGEMENT_DIFFERS, 1, None, 2),
    ("a reward that is not the sum of its parts", OTHER_TOTAL,
     Rule.JUDGEMENT_DIFFERS, 4, None, 7),
    ("one seed for two samples", changed_seventh(episodes=seventh([2, 2], [2, 2, 2], seed=1)),
     Rule.REPEATED_SEED, 4, None, 7),
    ("a version before its step", say(first, ev.Published(2, "d2")),
     Rule.PUBLISHED_EARLY, 1, 2, None),
    ("a version twice in one life", say(second, ev.Published(0, "d0")),
     Rule.PUBLISHED_TWICE, 2, 0, None),
    ("resumed where nothing was", replace(fourth, ev.Resumed(2), ev.Resumed(3)),
     Rule.RESUMED_AHEAD, 4, 3, None),
    ("the snapshot forgets an open group", snapshot(2, open=[]),
     Rule.SNAPSHOT_DIFFERS, 3, 2, 6),
    ("the snapshot looks in another file", snapshot(2, ready={"5": 1}),
     Rule.SNAPSHOT_DIFFERS, 3, 2, 5),
    ("the snapshot goes on elsewhere", snapshot(4, next_id=12),
     Rule.SNAPSHOT_DIFFERS, 5, 3, None),
]  # fmt: skip
