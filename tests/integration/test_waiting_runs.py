"""The lines of a run that starts, in a pipe."""

from __future__ import annotations

from finished_run import FinishedRun

PHASES = (
    "reading the prompts",
    "starting the controller",
    "waiting for the first worker with weights",
    "evaluating before training",
    "generating the first batch",
    "the first train step, which the trainer compiles",
    "evaluating after training",
)


def test_a_pipe_has_a_line_for_each_phase_in_order(finished_run: FinishedRun) -> None:
    lines = finished_run.said.splitlines()
    assert lines[0].startswith("rlax train ") and "typically about 3 s" in lines[0]
    begun = [next(p for p in PHASES if line.startswith(p)) for line in lines if _phase(line)]
    assert tuple(dict.fromkeys(begun)) == PHASES
    # A phase has further lines only if it takes 15 s.
    assert len(begun) < 3 * len(PHASES)
    assert "\x1b" not in finished_run.said


def _phase(line: str) -> bool:
    return line.startswith(PHASES)
