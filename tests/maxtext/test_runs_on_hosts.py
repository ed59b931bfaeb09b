"""Whole runs whose trainer is spread over two hosts: killed, frozen, stopped, and continued.

With workers of their own, and with hosts that generate themselves.

A run is killed twice, each time at another host and in the middle of a weight version; its weights
are then those of a run that nothing has disturbed. Every start pays for two processes with MaxText
in them and a worker, so one run is disturbed in as many ways as it takes.
"""

import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import runs
from runs import ROOT, Run, digests, lines

from rlax_plugin.base.files.faults import VARIABLE, FaultPoint
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

CONFIG = "tests/configs/maxtext.yml"
STEPS, HOST_S = 6, 10.0
KEYS = (
    "per_device_batch_size=2",  # of 8 devices
    f"steps={STEPS}",
    f"rlax.deadlines.host_s={HOST_S:g}",
    "rlax.objective.kl={coefficient: 0.04, placement: loss}",
)

# Each host generates on its four devices, two of which share each head; training has fsdp over all.
COLOCATED = (
    "rlax.launcher={name: colocated}",
    "rlax.rollouts.engine.maxtext={ici_tensor_parallelism: 2, ici_fsdp_parallelism: 2}",
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


def started(base: Path, name: str, *more: str, hosts: tuple[str, ...] = ("--hosts", "2")) -> Run:
    where = (f"base_output_directory={base}", f"run_name={name}")
    run = Run(ROOT, *where, *KEYS, *more, *hosts, config=CONFIG)
    run.dir = base / name
    return run


def host(run: Run, index: int) -> list[psutil.Process]:
    """The process of a host, alone; none if the run has ended."""
    found: list[psutil.Process] = []
    for child in psutil.Process(run.process.pid).children():
        line = runs.command(child)
        if "--host" in line and line[line.index("--host") + 1] == str(index):
            found.append(child)
    return found


def ends_in_time(run: Run, began_s: float) -> str:
    """Returns the printed end of a run that has lost a host."""
    status, said = run.end()
    assert status == 1, said
    # 1.2 times at most on a machine that does not stall.
    assert time.monotonic() - began_s < 4 * HOST_S, said
    assert "the run can be continued with:" in said and "--hosts 2" in said
    return said


@pytest.fixture(autouse=True, scope="module")
def patience():
    """Each start has two processes with MaxText in them and a worker, beside other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "DEADLINE_S", 500)
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def undisturbed(base):
    run = started(base, "undisturbed")
    status, said = run.end()
    assert status == 0, said
    return run


def test_a_killed_run_goes_on_as_if_it_had_not_been(base, undisturbed, monkeypatch):
    # Host 1 dies with its chunks of a version on disk and host 0 waiting for its word; then host 0
    # dies between its own chunks and the commit of a version.
    for point, number, lost in (
        (FaultPoint.FOLLOWER_CHUNKS_WRITTEN, 3, 1),
        (FaultPoint.OWN_CHUNKS_WRITTEN, 3, 0),
    ):
        monkeypatch.setenv(VARIABLE, f"{point}:{number}")
        status, said = started(base, "killed").end()
        assert status == 1
        assert re.search(rf"host {lost} was lost: process \d+ was ended by SIGKILL", said)
        assert f"host {1 - lost} was lost" not in said
    monkeypatch.delenv(VARIABLE)

    # A frozen host 1 counts as lost.
    run = started(base, "killed")
    run.until(lambda: len(lines(run.dir / "metrics.jsonl")) >= 3, "step 3")
    began_s = time.monotonic()
    (frozen,) = host(run, 1)
    frozen.send_signal(signal.SIGSTOP)
    said = ends_in_time(run, began_s)
    assert "host 1 was lost" in said and "did not end by itself and had to be killed" in said

    # A signal at host 1 stops both, with a checkpoint.
    run = started(base, "killed")
    run.until(
        lambda: "step 4/6" in (run.dir / "logs/host-1.log").read_text() or _steps(run) >= 4, "4"
    )
    for one in host(run, 1):
        with suppress(psutil.NoSuchProcess):  # the run may have ended by now
            one.send_signal(signal.SIGTERM)
    status, said = run.end()
    assert status in (0, 130), said

    status, said = started(base, "killed").end()
    assert status == 0, said
    assert digests(base / "killed") == digests(undisturbed.dir)
    report = audit(RunFiles(str(base / "killed")))
    assert report.clean, report


def _steps(run: Run) -> int:
    return len(lines(run.dir / "metrics.jsonl"))


def test_bytes_of_a_run_on_hosts(undisturbed):
    steps = undisturbed.steps()
    sent = [step["train/sent_bytes"] for step in steps]
    # Half of the rows of 22 arrays for the update, of 6 arrays for the reference; 4 bytes each.
    of_a_step = 8 * 16 * 4 * (22 + 6)
    assert sent[1:] == [of_a_step] * (STEPS - 1)


def test_hosts_score_the_rows_that_their_samples_came_with(undisturbed):
    """A row that another host's arrays were put beside would have other log-probs."""
    steps = undisturbed.steps()
    assert max(step["logprob_gap/p95"] for step in steps) < 1e-4
    assert steps[0]["objective/reference_kl_k3"] == pytest.approx(0, abs=1e-9)
    assert steps[-1]["objective/reference_kl_k3"] > 1e-6


def test_a_run_goes_on_with_another_number_of_hosts(base, undisturbed):
    """On one host, which has the eight devices alone; the last test of the undisturbed run."""
    status, said = started(base, "undisturbed", f"steps={STEPS + 1}", hosts=()).end()
    assert status == 0, said
    steps = undisturbed.steps()
    assert len(steps) == STEPS + 1 and steps[-1]["logprob_gap/p95"] < 1e-4


@pytest.fixture(scope="module")
def colocated(base):
    run = started(base, "colocated", *COLOCATED)
    status, said = run.end()
    assert status == 0, said
    return run


@pytest.mark.ci
def test_hosts_generate_with_their_own_arrays(colocated):
    names = {name for row in colocated.trained() for name in row["workers"]}
    assert names == {"colocated", "colocated-1"}
    assert max(step["logprob_gap/p95"] for step in colocated.steps()) < 5e-6
    # Only the first version is read from files, and only checkpoints need others.
    log = (colocated.dir / "logs/trainer.log").read_text()
    begun = re.findall(r"weights/(\d+)-\w+\.orbax-checkpoint-tmp", log)
    assert {int(number) for number in begun} == {0, 4, STEPS}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_generates_is_killed_and_the_run_goes_on(base, colocated, lost, monkeypatch):
    name, keys = f"colocated-killed-{lost}", (*COLOCATED, "rlax.evaluation={problems: 8}")
    run = started(base, name, *keys)
    run.until(lambda: len(lines(run.dir / "metrics.jsonl")) >= 4, "step 4")
    began_s = time.monotonic()
    (killed,) = host(run, lost)
    killed.kill()
    said = ends_in_time(run, began_s)
    assert re.search(rf"host {lost} was lost: process \d+ was ended by SIGKILL", said)
    # Once more, where no more than the evaluation after training is left.
    monkeypatch.setenv(VARIABLE, f"{FaultPoint.SUMMARY_WRITTEN}:1")
    status, said = started(base, name, *keys).end()
    assert status == 1 and "host 0 was lost" in said and _steps(run) == STEPS
    monkeypatch.delenv(VARIABLE)
    status, said = started(base, name, *keys).end()
    assert status == 0 and "after training: pass@1" in said and _steps(run) == STEPS, said
    assert digests(base / name) == digests(colocated.dir)
    report = audit(RunFiles(str(base / name)))
    assert report.clean, report
