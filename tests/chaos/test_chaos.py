"""``make chaos``: a seed decides the blows, events are counted, and a bad end is a finding."""

from pathlib import Path

from sections import section_with

from chaos.blows import AT_A_RESTORE, EVENTS, STEP_ENDED, Blow, EventLog, blows
from chaos.command import Fallen, Verdict, events_of, examine
from rlax_plugin.base.files.faults import FaultPoint
from rlax_plugin.base.files.run_files import RunFiles

ROLES = ("worker", "trainer")
STEP = FaultPoint.STEP_TRAINED


def test_a_seed_decides_the_blows() -> None:
    first, again, other = blows(3, 50, ROLES), blows(3, 50, ROLES), blows(4, 50, ROLES)
    assert first == again != other and first[:8] == blows(3, 8, ROLES)
    assert {one.target for one in first} == set(ROLES)
    assert {one.kind for one in first} == {"kill", "freeze"}
    assert all(one.event in EVENTS[one.moment] and 0.5 <= one.for_s <= 4 for one in first)
    assert all(one.times == 1 for one in first if one.event in AT_A_RESTORE)
    calm = blows(3, 50, ROLES, {"training": [STEP_ENDED]})
    assert {(one.moment, one.event) for one in calm} == {("training", "metrics-written")}


def test_events_are_counted_from_now_on(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    assert log.take() == [] and not log.wait(STEP, 1, 0.05, lambda: True)
    log.path.write_text("step-trained\nrecovered\nstep-tr")
    assert log.take() == ["step-trained", "recovered"]
    with log.path.open("a") as file:
        file.write("ained\nstep-trained\n")
    assert log.wait(STEP, 2, 60, lambda: True)
    with log.path.open("a") as file:
        file.write("step-trained\n")
    # What was reached before the run has ended counts.
    assert log.wait(STEP, 1, 60, lambda: False) and not log.wait(STEP, 1, 60, lambda: False)


def test_a_bad_end_is_a_finding(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    (late,) = examine(files, None, "said", [], None)
    assert late == "the run did not end in time: said"
    left, failed = examine(files, 1, "why", ["7 rlax serve"], None)
    assert left == "a process was left over: 7 rlax serve"
    assert failed == "the run ended with status 1: why"
    (unreadable,) = examine(files, 0, "", [], None)
    assert unreadable.startswith("the records cannot be read: ")
    blow = Blow("worker", "kill", STEP, 2, 0.5, 1.0)
    fallen = [Fallen(blow, "worker w (pid 7)", 1.25), Fallen(blow)]
    assert [str(each) for each in fallen] == [
        "worker: SIGKILL at step-trained:2 (training): worker w (pid 7), a step 1.2 s later",
        "worker: SIGKILL at step-trained:2 (training): not reached",
    ]
    assert str(Verdict(5, fallen, {"trainer": 1}, [late])) == (
        "seed 5: FAILED in 0 s; 1 of 2 blows fell (training); the next step ended at most 1.2 s "
        f"after one; started again by the supervisor: trainer 1\n  {late}"
    )


def test_only_events_that_a_run_announces_are_waited_for() -> None:
    toy = events_of(section_with(trainer={"name": "rlax_plugin.testing:bigram"}))
    maxtext = events_of(section_with(trainer={"name": "maxtext"}))
    assert toy["training"] == ["step-trained", "metrics-written"]
    assert toy.keys() - maxtext.keys() == {"after a checkpoint"}
    assert maxtext["training"] == ["metrics-written"]
