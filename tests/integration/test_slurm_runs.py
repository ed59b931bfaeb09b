"""Runs by the scripts of ``configs/slurm`` on a SLURM cluster of this machine, disturbed by it.

Each run is one job. It is told to stop before its time ends, or preempted, or a host of it is
killed; it goes back into the queue, and ends with the weights of a run that nothing disturbed.
"""

import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import runs
from runs import CONFIG, ROOT, Run, digests, free_port, lines
from slurm_nodes import SlurmNodes, needs_slurm, slurm_nodes
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

STEPS = 16
SLOW = "rlax.rollouts.engine.token_s=0.25"
TOY = (
    "rlax.deterministic=true",
    "rlax.trainer.checkpoint_every=3",
    "rlax.evaluation.problems=2",
    f"steps={STEPS}",
)
MAXTEXT = ("per_device_batch_size=2", "steps=6", "rlax.deadlines.host_s=10")  # 8 devices
START_S = 400  # of a trainer with MaxText on two hosts, beside other tests

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400), needs_slurm]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmNodes]:
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as own,
        slurm_nodes(Path(own)) as cluster,
    ):
        yield cluster


class Job:
    """A run that was submitted as the page says, in a directory with ``configs``."""

    def __init__(
        self, cluster: SlurmNodes, base: Path, options: str, *words: str, hosts: int, more: int
    ):
        (base / "configs").symlink_to(ROOT / "configs")
        settings = {"HOSTS": str(hosts), "MORE": str(more), "PORT": str(free_port())}
        settings |= {"SHARED": str(base / "shared"), "STATE": str(base / "state")}
        settings |= {"PATH": f"{ROOT / '.venv/bin'}:{cluster.environment['PATH']}"}
        settings["SECONDS"] = "60"  # bash counts on from it; within a minute no job is put back
        command = ("sbatch", "--parsable", *options.split(), "configs/slurm/run.sh", *words)
        self.cluster, self.dir = cluster, base / "shared/demo"
        self.number = cluster.call(*command, environment=settings, cwd=base)
        self.log = base / f"demo-{self.number}.log"

    @property
    def step(self) -> int:
        steps = lines(self.dir / "metrics.jsonl")
        return int(steps[-1]["step"]) if steps else 0

    def until(self, state: str, restarts: int, limit_s: float = 120) -> None:
        def seen() -> bool:
            time.sleep(0.2)  # each look is a program
            job = self.cluster.job(self.number)
            return (job["JobState"], int(job["Restarts"])) == (state, restarts)

        self.wait(seen, f"{state} after {restarts} restarts", limit_s)

    def until_step(self, step: int, limit_s: float = 120) -> None:
        def seen() -> bool:
            time.sleep(0.05)
            return self.step >= step

        self.wait(seen, f"step {step}", limit_s)

    def wait(self, look: Callable[[], bool], what: str, limit_s: float) -> None:
        try:
            wait_until(look, what, limit_s=limit_s)
        except AssertionError as late:
            said = self.log.read_text() if self.log.exists() else "no log"
            raise AssertionError(f"{late}\n{self.cluster.jobs()}\n{said[-6000:]}") from None

    def preempt(self, *nodes: str) -> None:
        """A job of a partition that goes first takes these nodes, or all, for a second."""
        urgent = ("--partition=urgent", "--exclusive", "--output=/dev/null")
        self.cluster.call("sbatch", *urgent, *(nodes or ("--nodes=3",)), "--wrap=sleep 1")


def is_host_1(job: Job, process: psutil.Process) -> bool:
    line = runs.command(process)
    ours = f"base_output_directory={job.dir.parent}" in line
    return ours and "--host" in line and line[line.index("--host") + 1] == "1"


def assert_same_run(job: Job, undisturbed: Path, starts: int) -> None:
    expected = digests(undisturbed)
    assert all(len(versions) == 1 for versions in expected.values())
    assert digests(job.dir) == expected
    report = audit(RunFiles(job.dir))
    assert report.clean, report
    # On a machine that other work slows down, the first start may end before it records anything.
    assert 1 <= report.figures.restarts <= starts - 1
    assert "resuming after step" in job.log.read_text()
    assert not job.cluster.jobs()  # no worker waits for a run that is over


def test_a_run_that_slurm_disturbs_ends_as_if_it_had_not(cluster, tmp_path):
    plain = Run(tmp_path, *TOY)
    # Two thirds of a minute before its end, and SLURM may be a minute early.
    options = "--nodes=2 --time=1 --signal=TERM@40"
    job = Job(cluster, tmp_path, options, CONFIG, *TOY, SLOW, hosts=1, more=1)
    # Its next node has an empty disk.
    job.until("PENDING", 1)
    shutil.rmtree(tmp_path / "state")
    job.until("RUNNING", 1)
    assert re.search(r"^(interrupted after step \d+|interrupted)$", job.log.read_text(), re.M)
    cluster.call("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")
    stopped = job.step
    job.until_step(stopped + 2)
    job.preempt()
    job.until("RUNNING", 2)
    assert job.step < STEPS
    job.until("COMPLETED", 2)
    status, said = plain.end()
    assert status == 0, said
    assert_same_run(job, tmp_path / "runs/testing", starts=3)


def test_a_preempted_worker_comes_back_and_a_cancelled_run_does_not(cluster, tmp_path):
    options = "--nodes=2 --time=30 --signal=TERM@40"
    job = Job(cluster, tmp_path, options, CONFIG, *TOY, "steps=1000", SLOW, hosts=1, more=1)
    job.until_step(1)
    wait_until(lambda: "demo-worker RUNNING" in cluster.jobs(), "the job of the worker")
    node = cluster.call("squeue", "--noheader", "--name=demo-worker", "--format=%N")
    job.preempt("--nodes=1", f"--nodelist={node}")
    wait_until(lambda: worker(cluster, "Restarts") == "1", "the worker's preemption")
    wait_until(lambda: worker(cluster, "JobState") == "RUNNING", "its return", limit_s=120)
    job.until_step(job.step + 2)  # with the worker of its own job all the time
    cluster.call("scancel", job.number)
    job.until("CANCELLED", 0)
    wait_until(lambda: not cluster.jobs(), "the end of all jobs")
    assert "continue with:" in job.log.read_text()


def worker(cluster: SlurmNodes, name: str) -> str:
    """A field of the job of the only further worker."""
    time.sleep(0.2)
    number = cluster.call("squeue", "--noheader", "--name=demo-worker", "--format=%A")
    return cluster.job(number)[name]


def test_a_trainer_over_two_hosts_comes_back_when_one_is_killed(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "DEADLINE_S", START_S)
    config = str(ROOT / "tests/configs/maxtext.yml")
    more = ("rlax.prompt_source={name: synthetic, prompt_tokens: 8, vocab_size: 64, count: 64}",)
    options = "--nodes=3 --time=60"
    words = (config, f"tokenizer_path={ROOT}/plugins/rlax_arithmetic/tokenizer_files")
    job = Job(cluster, tmp_path, options, *words, *MAXTEXT, *more, hosts=2, more=0)
    job.until_step(2, START_S)
    (killed,) = [process for process in psutil.process_iter() if is_host_1(job, process)]
    killed.send_signal(signal.SIGKILL)
    job.until("RUNNING", 1, START_S)
    job.until("COMPLETED", 1, START_S)
    plain = Run(tmp_path, *words[1:], *MAXTEXT, *more, "--hosts", "2", config=config)
    status, said = plain.end()
    assert status == 0, said
    assert_same_run(job, tmp_path / "runs/maxtext", starts=2)
