"""The records of a run that nobody ran: written by hand, so that every figure is known."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.files.seals import sealed
from rlax_plugin.base.types import (
    Episode,
    Judged,
    Prompt,
    Rejected,
    Sampled,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
    group_of,
)
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal, samples
from rlax_plugin.tools.commands.audit import Report

SIZE = 2  # samples of a group
REASON = "its worker was quarantined"
GIVEN = np.array([1, 2], np.int32)


def sampled(group: int, index: int, versions: Sequence[int], **changes: Any) -> Sampled:
    """A sample of as many tokens as it has versions."""
    count = len(versions)
    return Sampled(
        **{
            "seed": 2**63 + 100 * group + index,
            "tokens": np.arange(4, 4 + count, dtype=np.int32),
            "logprobs": np.full(count, -0.1, np.float32),
            "versions": np.array(versions, np.int32),
            "finish": "stop",
            "workers": ("w0",),
            **changes,
        }
    )


def episode(index: int, *samples: Sampled) -> Episode:
    """One trajectory, whose first turn was given the prompt and the others nothing."""
    given = [GIVEN, *[GIVEN[:0]] * (len(samples) - 1)]
    turns = tuple(Turn(one, sample) for one, sample in zip(given, samples, strict=True))
    return Episode(index, (Trajectory(turns),), text=f"answer {index}")


def group(number: int, version: int, prompt: str, attempt: int = 1, **changes: Any) -> ScoredGroup:
    """Samples of 2 and 3 tokens; reward 0.0 or 1.0 by index."""
    return ScoredGroup(
        **{
            "id": number,
            "attempt": attempt,
            "prompt": Prompt(prompt, GIVEN, f"text of {prompt}", "reference"),
            "episodes": tuple(
                episode(i, sampled(number, i, [version] * (2 + i))) for i in range(SIZE)
            ),
            "scores": tuple(Score(float(i), (2.0 * i,)) for i in range(SIZE)),
            "pass_rate_before": 0.25,
            **changes,
        }
    )


def rejected(number: int, version: int, prompt: str, reason: str) -> Rejected:
    return Rejected(group(number, version, prompt), reason)


def batch_of(step: int, judged: Sequence[Judged]) -> TrainBatch:
    """With advantages from -1 to 1 in each group."""
    groups = tuple(map(group_of, judged))
    return TrainBatch(step, groups, tuple(np.linspace(-1.0, 1.0, len(g.episodes)) for g in groups))


def scored(judged: Judged) -> list[ev.Event]:
    """What the controller says of a group that was generated and scored."""
    one, reason = group_of(judged), judged.reason if isinstance(judged, Rejected) else None
    rewards = one.rewards[~np.isnan(one.rewards)]
    first = [e.trajectories[0].turns[0].sampled for e in one.episodes]
    later = [
        _generated(one, [turn.sampled], sample=e.index, trajectory=number, turn=at)
        for e in one.episodes
        for number, trajectory in enumerate(e.trajectories)
        for at, turn in enumerate(trajectory.turns)
        if (number, at) != (0, 0)
    ]
    judgement = ev.Scored(one.id, int(np.sum(rewards >= 0.5)), len(rewards), reason)
    return [_generated(one, first), *later, judgement]


def _generated(one: ScoredGroup, samples: Sequence[Sampled], **where: int) -> ev.Generated:
    workers = tuple(dict.fromkeys(name for s in samples for name in s.workers))
    versions = np.concatenate([s.versions for s in samples])
    oldest, newest = int(versions.min()), int(versions.max())
    return ev.Generated(
        one.id, one.attempt, workers, oldest, newest, len(samples), len(versions), **where
    )


Change = Callable[[pa.Table], pa.Table]


def cells(column: str, values: Mapping[int, Any]) -> Change:
    """Writes something else into a column, for all rows of some groups: group -> value."""

    def change(rows: pa.Table) -> pa.Table:
        found = zip(rows["group"].to_pylist(), rows[column].to_pylist(), strict=True)
        new = pa.array([values.get(g, value) for g, value in found], rows[column].type)
        return rows.set_column(rows.column_names.index(column), column, new)

    return change


@dataclass
class Draft:
    """A segment before it is written.

    Attributes:
      batch: of ``step``; gets its advantages when it is written.
      others: the other samples.
      snapshot: the snapshot taken after it; segment and checksum are filled in unless given.
      change: what happens to the rows of the batch, and to those of the others, on their way to
        the file.
    """

    events: list[ev.Event]
    step: int | None = None
    batch: list[Judged] | None = None
    others: list[Judged] = field(default_factory=list)
    snapshot: dict[str, Any] | None = None
    change: Change = field(default=lambda rows: rows)

    def replace(self, old: ev.Event, *new: ev.Event) -> None:
        at = self.events.index(old)
        self.events[at : at + 1] = new

    def rescore(self, old: Judged, new: Judged) -> None:
        """Has another group generated in a group's place: in the events and in the files."""
        before, after = scored(old), scored(new)
        self.replace(before[0], *after[:-1])
        for event in before[1:-1]:
            self.events.remove(event)
        self.replace(before[-1], after[-1])
        for judged in (self.batch or [], self.others):
            for i, one in enumerate(judged):
                if one is old:
                    judged[i] = new


def snapshot(step: int, next_id: int, open_: list[tuple], ready: dict[int, int]) -> dict[str, Any]:
    names = ("group", "prompt", "min_version", "attempt")
    run_state = {
        "next_id": next_id,
        "next_step": step + 1,
        "open": [dict(zip(names, one, strict=True)) for one in open_],
        "ready": {str(one): segment for one, segment in ready.items()},
    }
    return {"step": step, "run_state": run_state}


class History:
    """Three steps of two groups, at most two versions stale, and one restart.

    Of eleven groups six train (0 1, 3 4, 5 7); 2 is rejected, 6 dropped, 8 and 10 are in flight at
    the end, and 9 is ready. 5 is generated by the second worker that was asked.

    Attributes:
      groups: all that were scored.
      segments: to be changed before they are written.
      config: of the run.
    """

    def __init__(self) -> None:
        g: dict[int, Judged] = {
            0: group(0, 0, "a"),
            1: group(1, 0, "b"),
            2: rejected(2, 0, "c", "too easy"),
            3: group(3, 0, "d"),
            4: group(4, 0, "e"),
            5: group(5, 1, "f", attempt=2),
            6: group(6, 1, "g", attempt=2),
            7: group(7, 2, "h", attempt=2),
            9: group(9, 2, "b"),
        }
        self.groups = g
        self.config: dict[str, Any] = {
            "staleness": {"max_staleness": 2},
            "rewards": [{"name": "half", "weight": 0.5}],
            "rollouts": {"group_size": SIZE, "groups_per_step": 2, "max_prompt_tokens": 2},
        }
        self.segments = [
            Draft(
                [
                    ev.Published(0, "d0"),
                    ev.Issued(0, ("a", "b", "c"), 0),
                    *scored(g[0]),
                    *scored(g[2]),
                    *scored(g[1]),
                    ev.Issued(3, ("d", "e", "f"), 0),
                    *scored(g[3]),
                    ev.Trained(1, (0, 1), 1),
                ],
                step=1,
                batch=[g[0], g[1]],
                others=[g[2], g[3]],
            ),
            Draft(
                [
                    ev.Published(1, "d1"),
                    *scored(g[4]),
                    ev.Reissued(5, 2, "worker lost", Ending.WORKER_LOST),
                    *scored(g[5]),
                    ev.Trained(2, (3, 4), 2),
                ],
                step=2,
                batch=[g[3], g[4]],
                others=[g[5]],
            ),
            Draft(
                [ev.Published(2, "d2"), ev.Issued(6, ("g", "h", "a"), 1)],
                snapshot=snapshot(
                    2, 9, [(6, "g", 1, 1), (7, "h", 1, 1), (8, "a", 1, 1)], {5: 2}
                ),
            ),
            Draft(
                [
                    ev.Resumed(2),
                    ev.Published(2, "d2"),
                    *(
                        ev.Reissued(
                            i, 2, "the trainer was restarted", Ending.TRAINER_RESTARTED
                        )
                        for i in (6, 7, 8)
                    ),
                    *scored(g[6]),
                    *scored(g[7]),
                    ev.Dropped(6, REASON),
                    ev.Trained(3, (5, 7), 2),
                ],
                step=3,
                batch=[g[5], g[7]],
                others=[g[6]],
            ),
            Draft(
                [ev.Issued(9, ("b", "c"), 2), *scored(g[9])],
                others=[g[9]],
                snapshot=snapshot(3, 11, [(8, "a", 1, 2), (10, "c", 2, 1)], {9: 5}),
            ),
        ]  # fmt: skip

    def write(self, files: RunFiles) -> None:
        """Puts it all into a run's directory, as the controller would."""
        files.put_json("config.yml", {"steps": 3, "rlax": self.config})  # JSON is YAML
        trained = [draft.step for draft in self.segments if draft.step]
        files.put("metrics.jsonl", b"".join(b'{"step": %d}\n' % step for step in trained))
        checksum = journal.START
        for number, draft in enumerate(self.segments, 1):
            checksum = journal.write(
                files,
                number=number,
                previous=checksum,
                step=draft.step or 4,
                batch=None
                if draft.batch is None
                else draft.change(samples.of_batch(batch_of(draft.step or 4, draft.batch))),
                others=draft.change(samples.to_table(draft.others)) if draft.others else None,
                events=[ev.encode(event) for event in draft.events],
            )
            if draft.snapshot is not None:
                document = {"segment": number, "checksum": checksum, **draft.snapshot}
                name = f"controller/{draft.snapshot['step']:08d}.json"
                files.put(name, sealed(json.dumps(document)))


def place(report: Report) -> tuple[Any, ...]:
    """The rule, segment, step and group of the first violation."""
    found = report.violation
    return (None,) if found is None else (found.rule, found.segment, found.step, found.group)


def bits(value: Any) -> Any:
    """Comparable, down to the sign of zero and the payload of NaN."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        fields = [bits(getattr(value, f.name)) for f in dataclasses.fields(value)]
        return [type(value).__name__, *fields]
    if isinstance(value, Mapping):
        return {name: bits(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(one) for one in value]
    return value.hex() if isinstance(value, float) else value
