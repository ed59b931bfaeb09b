"""What ``benchmarks/curation.py`` counts and where a curve reaches its target, by numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rlax_plugin.pass_rates.files import About, MeasuredRates, measured
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.seals import sealed
from rlax_plugin.types import SamplingParams

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from curation import summary
from curation_figures import Cost, Point, crossing, curve, generated, measured_cost, shares
from curation_task import PARTS, Sizes, parts_by_id, write


def group(number: int, tokens: int, **more: Any) -> ev.Generated:
    return ev.Generated(number, 1, ("w",), 0, 0, 8, tokens, **more)


FIRST = (
    ev.Published(0, "x"),
    ev.Issued(0, ("a", "b"), 0),
    group(0, 24),
    ev.Scored(0, 0, 8, "all rewards equal"),  # counts as well
    group(1, 30),
    ev.Scored(1, 3, 8, None),
    ev.Trained(1, (1,), 1),
)
SECOND = (
    group(2, 32),
    ev.Dropped(2, "too stale"),
    ev.Reissued(3, 2, "worker lost"),
    group(3, 40),
    group(3, 5, sample=0, turn=1),  # tokens of the same sample
    ev.Trained(2, (3,), 1),
)


def segments(*found: tuple[int | None, tuple[ev.Event, ...]]) -> list[journal.Segment]:
    return [journal.Segment(i, "", step, (), some) for i, (step, some) in enumerate(found, 1)]


def test_all_that_was_generated_counts_for_the_step_whose_batch_came_next() -> None:
    found = generated(segments((1, FIRST), (None, (group(9, 7),)), (2, SECOND)))
    assert found == {0: Cost(0, 0, 0), 1: Cost(1, 16, 54), 2: Cost(2, 40, 138)}


def test_a_step_that_is_committed_again_counts_as_at_first() -> None:
    again = (ev.Resumed(0), group(4, 20), ev.Trained(1, (4,), 1))
    found = generated(segments((1, FIRST), (1, again), (2, SECOND)))
    assert found[1] == Cost(1, 16, 54)
    assert found[2] == Cost(2, 40, 151)  # what was generated again was paid for


def point(steps: int, rollouts: int, tokens: int, passed: float) -> Point:
    return Point(Cost(steps, rollouts, tokens), {"learnable": passed})


CURVE = [point(0, 0, 0, 0.3), point(10, 1000, 4000, 0.5), point(20, 3000, 9000, 0.9)]


@pytest.mark.parametrize(
    ("target", "spent"),
    [
        (0.2, Cost(0, 0, 0)),
        (0.3, Cost(0, 0, 0)),
        (0.35, Cost(2.5, 250, 1000)),
        (0.5, Cost(10, 1000, 4000)),
        (0.6, Cost(12.5, 1500, 5250)),
        (0.9, Cost(20, 3000, 9000)),
    ],
)
def test_a_crossing_lies_on_the_line_between_two_evaluations(target: float, spent: Cost) -> None:
    found = crossing(CURVE, "learnable", target)
    assert found is not None
    assert (found.steps, found.rollouts, found.tokens) == pytest.approx(
        (spent.steps, spent.rollouts, spent.tokens)
    )


def test_a_target_above_every_evaluation_is_not_reached() -> None:
    assert crossing(CURVE, "learnable", 0.91) is None
    assert crossing([], "learnable", 0.1) is None


def test_the_first_of_two_crossings_counts() -> None:
    falling = [*CURVE, point(30, 5000, 13000, 0.5), point(40, 7000, 17000, 0.7)]
    found = crossing(falling, "learnable", 0.6)
    assert found is not None and found.rollouts == pytest.approx(1500)


def test_the_curve_of_a_run_begins_with_what_was_measured_before_it(tmp_path: Path) -> None:
    files, previous = RunFiles(tmp_path), journal.START
    for number, (step, some) in enumerate([(1, FIRST), (2, SECOND)], 1):
        head = {"format": journal.FORMAT, "segment": number, "previous": previous}
        events = [json.loads(ev.encode(one)) for one in some]
        data = sealed(json.dumps(head | {"step": step, "samples": [], "events": events}))
        files.put(journal.segment_name(number), data)
        previous = journal.checksum(data)
    for name, version, passed in [
        ("before", 0, 0.25),
        ("step-00000001", 1, 0.5),
        ("after", 2, 0.75),
        ("eval-00000002", 2, 0.1),  # of rlax eval, perhaps with other settings
    ]:
        value = {"value": passed, "n": 4, "problems": 8, "ci95": [0.0, 1.0]}
        sets = {"learnable": {"pass_at_1": value, "pass_at_8": value | {"value": 1.0}}}
        files.put_json(f"evaluation/{name}.json", {"version": version, "sets": sets})
    assert curve(tmp_path, Cost(0, 100, 300)) == [
        point(0, 100, 300, 0.25),
        point(1, 116, 354, 0.5),
        point(2, 132, 431, 0.75),
    ]


def rates() -> MeasuredRates:
    about = About("x", None, 0, SamplingParams(), 0.5)
    columns = {
        "id": ["a", "b", "c", "d"],
        "passed": [8, 7, 0, 1],
        "failed": [0, 1, 8, 6],
        "errored": [0, 0, 0, 1],
        "tokens": [24, 25, 40, 41],
    }
    return measured(columns, about)


def test_a_measurement_costs_all_its_samples() -> None:
    assert measured_cost(rates()) == Cost(0, 32, 130)


def test_shares_by_pass_rate_of_each_part_and_of_all() -> None:
    found = shares(rates(), {"a": "easy", "b": "easy", "c": "hard", "d": "hard"})
    names = ("prompts", "high", "between", "low")
    assert {part: tuple(one[n] for n in names) for part, one in found.items()} == {
        "easy": (2, 0.5, 0.5, 0.0),
        "hard": (2, 0.0, 0.5, 0.5),
        "all": (4, 0.25, 0.5, 0.25),
    }
    assert found["easy"]["pass_rate"] == pytest.approx(0.9375)


def test_a_method_with_a_run_that_missed_the_target_has_no_mean() -> None:
    cost = {"rollouts": 10.0, "tokens": 30.0, "steps": 2.0}
    reached = {"to_target": {"0.4": cost, "0.5": None}}
    assert summary([reached, reached], 0.4) == {
        "seeds": 2, "reached": 2, "rollouts": [10.0, 10.0], "tokens": [30.0, 30.0],
        "steps": [2.0, 2.0],
    }  # fmt: skip
    missed = summary([reached, {"to_target": {"0.4": None}}], 0.4)
    assert (missed["seeds"], missed["reached"], missed["rollouts"]) == (2, 1, [])


def test_no_problem_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    sizes = {"trivial": 860, "learnable": 50, "hopeless": 40}
    write(tmp_path, Sizes(sizes, {"trivial": 130, "learnable": 300, "hopeless": 20}, 60))

    def operands(name: str) -> list[tuple[int, ...]]:
        """Of each question, in ascending order, and 0 or 1 for its operation."""
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        questions = [json.loads(line)["question"] for line in lines]
        return [(*sorted((int(q[:2]), int(q[3:5]))), q[2] == "*") for q in questions]

    asked, warm = operands("train"), operands("warm_train")
    of = {part: operands(part) for part in (*PARTS, "warm_validation")}
    assert [len(of[part]) for part in PARTS] == pytest.approx([130, 300, 20], abs=1)
    held_out = {one for some in of.values() for one in some}
    assert not held_out & {*asked, *warm}
    assert not set(of["learnable"]) & set(of["warm_validation"])
    assert (len(asked), len(warm)) == (950, 8 * 860 + 60)
    assert len(parts_by_id(tmp_path)) == 950  # each is there once
    first = json.loads((tmp_path / "trivial.jsonl").read_text().splitlines()[0])
    a, b = int(first["question"][:2]), int(first["question"][3:5])
    assert first["answer"] == str(a + b) and a % 10 + b % 10 < 10 and min(a, b) < 10
