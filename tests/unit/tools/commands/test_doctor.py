"""``rlax doctor``: each rule by its sentence, on evidence made by hand."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_status import status, worker
from waiting import wait_until

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.ending import record_ending
from rlax_plugin.base.liveness.marks import Mark, Role, announced
from rlax_plugin.base.liveness.run_status import (
    SILENT,
    Doing,
    FailedAttempts,
    GroupStatus,
    JobStatus,
    LossStatus,
)
from rlax_plugin.config import Deadlines
from rlax_plugin.tools.commands.doctor.command import examine
from rlax_plugin.tools.commands.doctor.evidence import Disk, Evidence, Process, gather
from rlax_plugin.tools.commands.doctor.findings import findings
from rlax_plugin.tools.commands.doctor.fleet_findings import recent_losses
from rlax_plugin.tools.commands.doctor.stacks_shown import shortened
from rlax_plugin.tools.commands.status.show import lines_of
from rlax_plugin.tools.commands.status.source import Outcome, Seen
from rlax_plugin.weights.publisher import ASKING

NOW = 1000.0
DEADLINES = Deadlines(heartbeat_s=1.0, heartbeats_lost=20, reward_s=30.0, weights_s=120.0)


def process(role: Role = "trainer", state: str = "S", name: str = "", pid: int = 7, **mark: Any):
    return Process(Mark(role, name, pid, 1, "boot", "/none", **mark), state, rss=1 << 30)


def evidence(seen: Seen | None = None, **changes: Any) -> Evidence:
    values: dict[str, Any] = {
        "now": NOW,
        "seen": seen or Seen(status(0.05)),
        "deadlines": DEADLINES,
        "processes": [process(), process("worker", name="a", pid=8)],
        "disks": [Disk("/runs", 10 << 30, 100 << 30)],
        "available": 8 << 30,
        "memory": 16 << 30,
    }
    return Evidence(**values | changes)


def said(**changes: Any) -> list[tuple[str, str]]:
    return [(one.what, one.ends) for one in findings(evidence(**changes))]


def test_nothing_is_wrong_with_a_run_that_goes_on() -> None:
    assert findings(evidence()) == []
    ended = Seen(status(), "the process of the trainer has ended: the run is complete", "complete")
    assert findings(evidence(ended, processes=[])) == []


@pytest.mark.parametrize("outcome", ["failed", "interrupted", "unknown"])
def test_a_run_that_has_ended_before_its_time_is_not_healthy(outcome: Outcome) -> None:
    ended = Seen(status(), "the run ended before its last step: no groups", outcome)
    (found,) = findings(evidence(ended, processes=[]))
    assert found.what == "the run ended before its last step: no groups" and found.lost
    # The same command fails again if nobody has done what the error says.
    first = "do what the error says; " if outcome == "failed" else ""
    assert found.try_ == f"{first}the same rlax train command continues the run"


def test_a_machine_without_disk_or_memory() -> None:
    (what, ends), *more = said(disks=[Disk("/runs", 50 << 20, 100 << 30)])
    assert what == "the disk of /runs is full: 50 MiB of 100 GiB are free" and not more
    assert "rlax.deadlines.weights_s = 120 s" in ends
    small = [Disk("/a", 60 << 20, 60 << 20), Disk("/b", 16 << 20, 60 << 20)]  # new, and half full
    assert said(disks=small) == []
    assert len(said(disks=[Disk("/c", 14 << 20, 60 << 20)])) == 1
    (what, _), *more = said(available=100 << 20)
    assert what == "memory is short: 100 MiB of 16 GiB are available; trainer (pid 7) holds 1 GiB"


@pytest.mark.parametrize(
    ("one", "what", "ends"),
    [
        (
            process("worker", "T", "b", 9),
            "worker b (pid 9) is stopped by a signal or a debugger",
            "rlax.deadlines.heartbeats_lost x heartbeat_s = 20 s",
        ),
        (process("parameter server", "", pid=9), "parameter server (pid 9) was killed", ""),
        (
            process("worker", "S", "b", 9, still=(("the engine", 980.0),)),
            "the engine of worker b (pid 9) stands still since 20 s",
            "rlax.deadlines.group_s = 60 s: then its groups run elsewhere",
        ),
        (process("host", "T", "1", 9), "host 1 (pid 9) is stopped", "rlax.deadlines.host_s = 60 s"),
        (
            process("rewards", "S", pid=9, still=(("a reward", 988.0),)),
            "a reward of rewards (pid 9) stands still since 12 s",
            "rlax.deadlines.reward_s = 30 s, or episode_s = ",
        ),
    ],
)
def test_a_process_that_does_not_run(one: Process, what: str, ends: str) -> None:
    ((found, its_end),) = said(processes=[process(), one])
    assert found.startswith(what) and ends in its_end


def test_a_worker_whose_answers_are_odd() -> None:
    odd = worker("a", suspicion="the log-probs of its samples differ by 2 nats")
    ((what, _),) = said(seen=Seen(status(0.05, workers=(odd,))))
    name = "worker a is suspect: the log-probs of its samples differ by 2 nats"
    assert what == name


def test_a_worker_that_is_slower_than_the_others() -> None:
    workers = (worker("a", speed=0.1), worker("b", speed=0.5), worker("c"))
    ((what, _),) = said(seen=Seen(status(0.05, workers=workers)))
    assert what == "worker a decodes at 10% of the median worker's speed"


def test_a_worker_that_was_started_again_is_not_missed() -> None:
    before, now = process("worker", "", "a", 9), process("worker", "S", "a", 10)
    assert said(processes=[process(), before, now]) == []
    killed_by_its_owner = process("rewards", "", pid=11)
    assert said(processes=[process(), killed_by_its_owner]) == []


def test_a_killed_trainer() -> None:
    ended = Seen(status(), "the process of the trainer was killed", "killed")
    (found,) = findings(evidence(ended, processes=[process(state="")]))
    assert "has ended without a word" in found.what and found.lost
    assert found.try_ == "the same rlax train command continues the run"


def test_a_worker_that_is_killed_is_not_blamed_on_memory_alone_once_its_run_has_ended() -> None:
    gone = [process(), process("worker", "", "w", 9)]
    (running,) = findings(evidence(processes=gone))
    assert "was killed" in running.what and running.try_.startswith("the kernel does that")
    ended = Seen(status(), "the process of the trainer was killed", "killed")
    after = next(f for f in findings(evidence(ended, processes=gone)) if "worker w" in f.what)
    assert after.try_.startswith("a run kills at its end a worker that is stopped or stuck")


def test_silent_workers_and_none_at_all() -> None:
    silent = status(0.05, workers=(worker("a", silent_s=8.0, state=SILENT), worker("b")))
    ((what, ends),) = said(seen=Seen(silent))
    assert what == "worker a has sent no heartbeat for 8 s; it holds 8 samples"
    assert ends.startswith("20 s without one")
    ((what, _),) = said(seen=Seen(status(0.05, workers=(), samples=16)))
    assert what == "no worker is there for 16 samples"


def test_a_group_and_a_reward_that_take_long() -> None:
    group = GroupStatus(
        what="group 12", prompt="ab", worker="a", since=900.0, still_s=11.0, ends="group_s"
    )
    job = JobStatus(
        what="a reward", prompt="cd", used_s=6.0, limit_s=30.0, key="rlax.deadlines.reward_s", pid=9
    )
    slow = process("rewards", pid=9)
    found = findings(
        evidence(Seen(status(0.05, groups=(group,), jobs=(job,))), processes=[process(), slow])
    )
    assert [one.what for one in found] == [
        "a reward of prompt cd takes 6 s so far, in process 9",
        "group 12 (prompt ab) makes no progress on worker a since 11 s",
    ]
    assert found[0].process is slow and "rlax.deadlines.reward_s = 30 s" in found[0].ends
    usual = status(0.05, jobs=(job,), reward_s=1.0)  # others of this run take as long
    assert said(seen=Seen(usual)) == []


def test_rewards_that_fail_are_named_before_the_wait_for_them() -> None:
    waits = Doing(what="waiting for the batch of step 5", since=NOW - 60)
    error = "server_failed: rlax.rewards.0 (x): boom"
    failing = status(0.05, step_s=1.0, reward_error=error)
    processes = [process("rewards", state="", pid=9), process("rewards", pid=10)]
    seen = Seen(failing.model_copy(update={"trainer": waits}))
    first, second = findings(evidence(seen, processes=processes))
    words = f"rewards fail, such as: {error}; logs/rewards.log says more"
    assert first.what == words and "rlax score tries rewards" in first.try_
    assert first.process is not None and first.process.mark.log.name == "rewards.log"
    assert first.process.mark.pid == 10  # the other one has ended
    assert second.what.startswith("waiting for the batch of step 5")


def test_the_store_is_not_accused_of_what_the_parameter_server_does() -> None:
    asking = Doing(what=f"publishing version 7{ASKING}", since=NOW - 60)
    writing = Doing(what="publishing version 7", since=NOW - 60)
    workers = (worker("a", loading_s=60.0), worker("b", load_failures=2))

    def advice(doing: Doing, *more: Process) -> list[str]:
        one = status(0.05, step_s=2.0, workers=workers).model_copy(update={"publisher": doing})
        found = findings(evidence(Seen(one), processes=[process(), *more]))
        return [one.try_ for one in found if "weights" in one.what or "publishing" in one.what]

    assert "store of weights" in advice(writing)[-1] and len(advice(writing)) == 3
    assert advice(asking)[-1].startswith("look at the process of the parameter server")
    frozen = process("parameter server", "T", pid=9)
    killed = process("parameter server", "", pid=9)
    for one in (frozen, killed):
        words = "it waits for parameter server (pid 9), which is named above: the store may be all "
        assert advice(writing, one) == [f"{words}right"] * 3
    again = process("parameter server", pid=11)
    assert "store of weights" in advice(writing, killed, again)[-1]


def test_a_host_that_is_frozen_or_killed_is_blamed_and_not_the_first_one() -> None:
    doing = Doing(what="training step 5", since=NOW - 90)
    seen = Seen(status(0.05, step_s=2.0).model_copy(update={"trainer": doing}))
    for state, words in (
        ("T", "host 1 (pid 9) is stopped"),
        ("", "host 1 (pid 9) was killed: all"),
    ):
        processes = [process(), process("host", state, "1", 9)]
        ((what, _),) = said(seen=seen, processes=processes, hosts=2)
        assert what.startswith(words)
    frozen = [process(state="T")]
    first = Seen(status(0.05), "the trainer (pid 7) is stopped")
    assert said(seen=first, processes=frozen, hosts=2)[0][1] == (
        "rlax.deadlines.host_s = 60 s ends all hosts"
    )
    assert said(seen=first, processes=frozen)[0][1] == ""
    (elsewhere,) = findings(
        evidence(seen, hosts=2)
    )  # a host of another machine leaves no mark here
    assert "each of the 2 hosts waits for the slowest one" in elsewhere.try_
    ended = Seen(status(), "the run ended before its last step: host 1 was lost", "failed")
    (found,) = findings(evidence(ended, processes=[], hosts=2))
    assert found.try_.endswith("continues the run, once all hosts are started again")


def test_a_disk_that_is_read_only_or_has_no_inodes() -> None:
    """What ended processes left on it does not say that they were killed."""
    ended = process("worker", "", "b", 9), process("parameter server", "", pid=10)
    read_only = [Disk("/runs", 10 << 30, 100 << 30, read_only=True)]
    ((what, _),) = said(processes=[process(), *ended], disks=read_only)
    assert what.startswith("/runs is read-only: the run cannot go on there")
    few = [Disk("/runs", 10 << 30, 100 << 30, 6_553_600, 3)]
    ((what, _),) = said(disks=few)
    assert what == (
        "the disk of /runs can take only 3 more files: its inodes are used up (6,553,600)"
    )
    small = [Disk("/runs", 10 << 30, 100 << 30, 20, 6), Disk("/b", 10 << 30, 100 << 30, 0, 0)]
    assert said(disks=small) == []


def test_a_frozen_process_that_the_trainer_has_started_is_found(tmp_path: Path) -> None:
    """Such as the driver of Ray, which leaves no mark."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        child.send_signal(signal.SIGSTOP)
        with announced(tmp_path, "trainer"):

            def stopped() -> list[str]:
                found = findings(gather(RunFiles(tmp_path), None, tmp_path))
                return [one.what for one in found if "is stopped" in one.what]

            (what,) = wait_until(stopped, "the finding")
        command = f"{sys.executable} -c import time; time.sleep(600)"
        words = f"process {child.pid} of the trainer is stopped by a signal or a debugger: "
        assert what == f"{words}{command}"
    finally:
        child.kill()
        child.wait()


def test_clocks() -> None:
    ((what, _),) = said(seen=Seen(status(0.05, workers=(worker("a", clock_s=-90.0),))))
    assert what == "the clock of worker a is 90 s behind the trainer's"
    ((what, _),) = said(seen=Seen(status(0.05), ahead_s=90.0))
    assert what == "the clock of the trainer is 90 s ahead of this command's"


def test_a_lost_worker_is_missed_until_it_comes_back() -> None:
    lost = LossStatus(
        name="far", reason="no heartbeat for 3 s", at=992.0, count=1, away=True, silent_s=8.0
    )
    fresh = lost.model_copy(update={"silent_s": 4.0})
    assert said(seen=Seen(status(0.05, losses=(fresh,)))) == []
    missing = Seen(status(0.05, losses=(lost,)))
    ((what, _),) = said(seen=missing)
    assert what == (
        "worker far was lost (no heartbeat for 3 s) and has not come back, 8 s after its last "
        "heartbeat; its groups run elsewhere"
    )
    frozen = process("worker", "T", "far", 9)
    ((what, _),) = said(seen=missing, processes=[process(), frozen])
    assert what == "worker far (pid 9) is stopped by a signal or a debugger"
    before, now = process("worker", "", "far", 9), process("worker", "S", "far", 10)
    ((what, _),) = said(seen=missing, processes=[process(), before])
    assert what == "worker far (pid 9) was killed"
    ((what, _),) = said(seen=missing, processes=[process(), before, now])
    assert what.startswith("worker far was lost ")  # it was started again, and is not there yet


def test_a_ledger_that_another_process_has_locked() -> None:
    locked = Doing(what="the ledger /l is locked by another process (pid 9)", since=988.0)
    seen = Seen(status(0.05).model_copy(update={"ledger": locked}))
    ((what, ends),) = said(seen=seen)
    assert what == "the ledger /l is locked by another process (pid 9): since 12 s"
    assert ends.startswith("that time ends the run")
    assert f"ledger: {locked.what}, since 12 s" in lines_of(seen, NOW)
    starting = seen.status.model_copy(update={"phase": Doing(what="starting", since=988.0)})
    assert lines_of(Seen(starting), NOW)[0] == f"ledger: {locked.what}, since 12 s"


def test_recent_losses_are_said_although_the_worker_is_back(tmp_path, capsys) -> None:
    loss = LossStatus(name="far", reason="no heartbeat for 3 s", at=time.time() - 20, count=3)
    (tmp_path / "config.yml").write_bytes(Path("tests/configs/testing.yml").read_bytes())
    now = {"at": time.time(), "pid": os.getpid()}
    for losses, words in (((loss,), "worker far was lost 3 times"), ((), "nothing is stuck")):
        one = status(0.05, seen=now["at"], losses=losses).model_copy(update=now)
        with announced(tmp_path, "trainer"):
            (tmp_path / "status.json").write_text(one.model_dump_json())
            healthy, text = in_full(tmp_path, capsys)
        assert words in text and ("nothing is stuck" in text) is not bool(losses)
        assert healthy  # it goes on without a gap: preemptions are no fault
    assert recent_losses(evidence(Seen(status(losses=(loss,)), outcome="complete"))) == []


def test_a_store_of_weights_that_is_slow_or_fails() -> None:
    failed = FailedAttempts(what="writing version 6: [Errno 5] Input/output error", at=990, count=3)
    ((what, ends),) = said(seen=Seen(status(0.05).model_copy(update={"unwritten": failed})))
    assert what == (
        "weights could not be written 3 times in the last minute: writing version 6: [Errno 5] "
        "Input/output error"
    )
    assert "rlax.deadlines.weights_s = 120 s" in ends
    first_weights = worker("c", version=-1, loading_s=60.0)
    workers = (worker("a", loading_s=21.0), worker("b", load_failures=1), first_weights)
    first, second = said(seen=Seen(status(0.05, step_s=2.0, workers=workers)))
    assert first[0] == "worker a has been loading weights for 21 s; a step usually takes 2 s"
    assert second[0] == "worker b could not read weights once in the last minute"
    slower = status(0.05, step_s=2.5, workers=(worker("a", loading_s=21.0),))
    assert said(seen=Seen(slower)) == []


def test_a_publication_is_named_before_the_wait_for_it() -> None:
    waits = Doing(what="waiting for the batch of step 5", since=NOW - 11)
    publishes = Doing(what="publishing version 4", since=NOW - 12)
    both = {"trainer": waits, "publisher": publishes}
    found = said(seen=Seen(status(0.05, step_s=0.5).model_copy(update=both)))
    assert [what.partition(":")[0] for what, _ in found] == [
        "publishing version 4",
        "waiting for the batch of step 5",
    ]
    begun = publishes.model_copy(update={"since": NOW - 6})
    early = {"publisher": begun}
    assert len(said(seen=Seen(status(0.05, step_s=0.5).model_copy(update=early)))) == 1
    assert said(seen=Seen(status(0.05, step_s=None).model_copy(update=early))) == []


def test_an_old_status_says_nothing_about_workers() -> None:
    silent = status(0.05, workers=(worker("a", silent_s=80.0),))
    frozen = Seen(silent, "the trainer (pid 7) is stopped")
    ((what, _),) = said(seen=frozen, processes=[process(state="T")])
    assert what == "trainer (pid 7) is stopped by a signal or a debugger"
    ((what, _),) = said(seen=frozen)
    assert what == frozen.problem  # no other rule knows why


def in_full(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[bool, str]:
    healthy = on_daemon(lambda: examine(str(run)), "doctor").result(60)
    return healthy, capsys.readouterr().out


def test_damaged_files_are_findings_and_the_others_follow(tmp_path, capsys) -> None:
    (tmp_path / "config.yml").write_text("rlax: {of_another_version: 3}")
    (tmp_path / "status.json").write_text('{"at": "x\\n1. forged"')
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/trainer.log").write_text("the last words\n")
    with announced(tmp_path, "trainer") as mine:
        assert mine is not None
        mine.note((("the event loop", time.time() - 20),))
        healthy, text = in_full(tmp_path, capsys)
    assert not healthy
    assert "1. the config cannot be read, so that deadlines are the defaults: rlax" in text
    assert f"2. {tmp_path}/status.json holds no status of a run" in text
    assert "3. the event loop of trainer" in text and "the last words" in text
    record_ending(tmp_path, RlaxError("no groups"))
    healthy, text = in_full(tmp_path, capsys)
    assert not healthy and text.count("the run ended before its last step: no groups") == 1
    assert "the last words" in text and "nothing is stuck" not in text


STACKS = """Thread 0x00000002 (most recent call first):
  File "a.py", line 1 in inner
  File "a.py", line 2 in outer

Thread 0x00000003 (most recent call first):
  File "lib/threading.py", line 1 in wait

Current thread 0x00000001 (most recent call first):
  File "lib/threading.py", line 3 in wait
"""


def test_the_threads_that_matter_are_shown() -> None:
    names = {"0x00000001": "MainThread", "0x00000002": "engine", "0x00000003": "grpc"}
    assert shortened(STACKS, names) == [
        *("engine:", '  File "a.py", line 1 in inner', '  File "a.py", line 2 in outer'),
        *("MainThread:", '  File "lib/threading.py", line 3 in wait'),
    ]
    assert shortened(STACKS, {})[0] == "0x00000002:"
