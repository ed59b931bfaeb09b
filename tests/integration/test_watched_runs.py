"""A run seen from outside: its status here and over gRPC, and the doctor at two troubles.

The processes are real, because the doctor looks at processes: stopped, killed, and their stacks.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import rlax
from runs import DEADLINE_S, TWO_WORKERS, Run, kill_group, plugins
from waiting import wait_until

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.marks import lives, marks
from rlax_plugin.base.liveness.run_status import ControllerStatus
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.rpc.security.secret import read_secret
from rlax_plugin.run.state.endpoints import endpoints
from rlax_plugin.tools.commands.doctor.evidence import Evidence, gather
from rlax_plugin.tools.commands.doctor.findings import Finding, findings
from rlax_plugin.tools.commands.doctor.stacks_shown import ask
from rlax_plugin.tools.commands.status.source import seen_here, seen_there

STEPS = 100_000


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        one = Run(
            directory,
            plugins("blocked_reward"),
            f"rlax.rewards=[{{name: blocked, file: {directory / 'block'}}}]",
            "rlax.trainer={name: bigram, learning_rate: 0.001, train_s: 0.1}",  # not done early
            f"steps={STEPS}",
            TWO_WORKERS,
        )
    Run.keep(one)  # it lives as long as all tests of this module
    try:
        one.until(lambda: len(one.steps()) > 3, "the first steps")
        yield one
    finally:
        kill_group(one.process)
        one.process.communicate(timeout=60)


def known(run: Run) -> ControllerStatus | None:
    """The controller as the run last wrote it: once a second, so maybe nothing so far."""
    status = seen_here(run.dir).status
    return status and status.controller


def seen(run: Run) -> ControllerStatus:
    controller = known(run)
    assert controller is not None
    return controller


def evidence(run: Run) -> Evidence:
    section = of_yaml(RunFiles(run.dir).config(), "config").section
    return gather(RunFiles(run.dir), section, run.dir)


def found(run: Run, what: str) -> Callable[[], Finding | None]:
    return lambda: next((one for one in findings(evidence(run)) if what in one.what), None)


def test_the_status_is_the_same_here_and_over_grpc(watched: Run) -> None:

    def two() -> ControllerStatus | None:
        now = known(watched)
        return now if now and now.step >= 3 and len(now.workers) == 2 else None

    here = wait_until(two, "two workers", limit_s=DEADLINE_S)
    token = read_secret(watched.dir / "client-token.json", "")
    at = endpoints(watched.dir)
    assert at is not None
    there = seen_there(at.controller, token, 60).status
    assert there is not None and there.controller is not None
    assert there.pid == watched.process.pid and there.controller.step >= here.step >= 3
    assert there.controller.steps == STEPS and there.controller.version >= here.version
    assert sorted(one.name for one in there.controller.workers) == ["local-0", "local-1"]
    assert 0.99 < sum(here.shares.values()) < 1.2  # publishing goes on beside the waits
    worker = read_secret(watched.dir / "worker-token.json", "")
    with pytest.raises(RlaxError, match=f"the controller at {at.controller} gives no status"):
        seen_there(at.controller, worker, 60)
    assert {mark.role for mark in marks(watched.dir)} == {"trainer", "worker", "rewards"}
    assert findings(evidence(watched)) == []


def test_a_reward_that_blocks_is_named_with_its_line(watched: Run) -> None:
    block = watched.dir.parent.parent / "block"
    block.touch()
    try:
        finding = wait_until(found(watched, "a reward of prompt "), "the finding")
        assert finding is not None and finding.process is not None
        assert "rlax.deadlines.reward_s = 60 s" in finding.ends
        mark = finding.process.mark
        assert "in blocks_while_a_file_exists" in ask([mark], 60)[mark]
    finally:
        block.unlink()
    step = seen(watched).step
    watched.until(lambda: seen(watched).step > step + 1, "two more steps")


def test_a_frozen_trainer_is_no_run_that_goes_on(watched: Run) -> None:
    watched.process.send_signal(signal.SIGSTOP)
    try:
        stopped = f"the trainer (pid {watched.process.pid}) is stopped"
        wait_until(lambda: seen_here(watched.dir).problem.startswith(stopped), "the stop")
        status = rlax("status", str(watched.dir), "--once")
        assert status.exit_code == 1 and stopped in " ".join(status.stdout.split())
        assert "bottleneck" not in status.stdout
        as_json = rlax("status", str(watched.dir), "--json")
        document = json.loads(as_json.stdout)
        assert as_json.exit_code == 1 and document["bottleneck"] == "" and not document["ended"]
    finally:
        watched.process.send_signal(signal.SIGCONT)
    step = seen(watched).step
    watched.until(lambda: seen(watched).step > step + 1, "two more steps")


def test_a_killed_trainer_leaves_a_post_mortem(watched: Run) -> None:
    as_json = rlax("status", str(watched.dir), "--json")
    document = json.loads(as_json.stdout)
    assert as_json.exit_code == 0 and document["status"]["controller"]["steps"] == STEPS
    assert any(step.get("machine/workers_cpu", 0) > 0 for step in watched.steps())
    (trainer,) = [mark for mark in marks(watched.dir) if mark.role == "trainer"]
    os.kill(trainer.pid, signal.SIGKILL)
    wait_until(lambda: not lives(trainer), "the end")
    bundle: Path = watched.dir / "evidence.tar.gz"
    done = rlax("doctor", str(watched.dir), "--bundle", str(bundle))
    said = " ".join(done.stdout.split())
    assert done.exit_code == 1 and "has ended without a word: it was killed" in said, done.stderr
    assert "the same rlax train command continues the run" in said and bundle.exists()
    ended = rlax("status", str(watched.dir))
    said = " ".join(ended.stdout.split())
    assert ended.exit_code == 1 and "the process of the trainer was killed" in said
