"""A run over machines that share nothing but a network and the directory of the weights."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest
from namespaces import Machine, need_machines, network
from runs import CONFIG, Records
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(500)]

PORT = 4711
RLAX = (sys.executable, "-m", "rlax_plugin")
LIMIT_S = 200


@dataclass
class Spread:
    """A run on one machine, and workers on the others.

    Attributes:
      records: what the trainer has written, as this process sees it.
      process: the trainer.
      logs: directory of everybody's output.
    """

    records: Records
    process: Popen[bytes]
    logs: Path

    def said(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text()

    def until(self, look: Callable[[], object], what: str) -> None:
        """Fails at once if the trainer ends before a look is true."""

        def look_on() -> bool:
            time.sleep(0.2)  # a look reads files
            ended = self.process.poll() is not None
            seen = bool(look())
            assert seen or not ended, self.said("trainer")
            return seen

        wait_until(look_on, what, limit_s=LIMIT_S)

    def generated_by(self, name: str) -> int:
        return sum(name in row["workers"] for row in self.records.trained())

    def step(self) -> int:
        return len(self.records.steps())

    def audit(self) -> None:
        report = audit(RunFiles(self.records.dir))
        assert report.clean, report.violation


@contextmanager
def spread(machines: list[Machine], directory: Path, *overrides: str) -> Iterator[Spread]:
    """``rlax train`` on the first machine and ``rlax serve`` on each other one."""
    trainer, *workers = machines
    weights = directory / "weights"  # the only directory that all of them see
    keys = (
        "rlax.launcher={name: static}",
        f"rlax.network.host={trainer.address}",
        f"rlax.network.port={PORT}",
        f"base_output_directory={trainer.home}/runs",
        f"rlax.weights.path={weights}",
    )
    run_directory = trainer.home / "runs/testing"
    with ExitStack() as stack:
        train = (*RLAX, "train", CONFIG, *keys, *overrides)
        process = stack.enter_context(trainer.process(directory / "trainer.log", *train))
        token = trainer.seen(run_directory / "worker-token.json")
        wait_until(token.exists, "the token file", limit_s=LIMIT_S)
        for number, machine in enumerate(workers):
            copy = machine.home / "worker-token.json"
            # By a channel of the operator's, such as scp.
            machine.seen(copy).touch(0o600)
            machine.seen(copy).write_text(token.read_text())
            serve = (*RLAX, "serve", "--controller", f"{trainer.address}:{PORT}")
            serve += ("--token-file", str(copy), "--name", f"worker-{number}")
            serve += ("--host", machine.address, "--advertised-host", machine.address)
            log = directory / f"worker-{number}.log"
            stack.enter_context(machine.process(log, *serve))
        yield Spread(Records(trainer.seen(trainer.home)), process, directory)


def test_a_worker_that_is_cut_off_is_replaced_and_comes_back(tmp_path: Path) -> None:
    need_machines()
    patience = ("rlax.deadlines={heartbeats_lost: 10, heartbeat_s: 0.3, rpc_s: 20}",)
    endless = ("steps=10000", "rlax.trainer={name: bigram, learning_rate: 0.001}")
    with (
        network(3, tmp_path) as machines,
        spread(machines, tmp_path, *patience, *endless, "rlax.evaluation.problems=0") as run,
    ):
        run.until(
            lambda: run.generated_by("worker-0") and run.generated_by("worker-1"), "both at work"
        )
        machines[1].unplug()
        run.until(lambda: "worker worker-0 lost" in run.said("trainer"), "the loss")
        before = run.step()
        run.until(lambda: run.step() >= before + 5, "five more steps")
        machines[1].plug_in()
        again = run.generated_by("worker-0")
        run.until(lambda: run.generated_by("worker-0") > again, "its return")
        for child in machines[0].processes("train"):
            child.send_signal(signal.SIGINT)
        assert run.process.wait(LIMIT_S) == 130, run.said("trainer")
        assert "quarantined" not in run.said("trainer")
        run.audit()
