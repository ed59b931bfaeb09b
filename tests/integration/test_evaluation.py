"""Evaluation beside training and alone, in whole runs of real processes.

One run is disturbed in every way at once; then its numbers are measured again by ``rlax eval``. The
toy engine's tokens follow from weights and seeds, so a single token of another version, or one that
is counted twice, would make them differ.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import command_line
import psutil
import pytest
from runs import DEADLINE_S, HELPERS, Run, alive, command, held, kill_group, plugins
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

EVERY, STEPS, PROBLEMS = 15, 40, 24
RESULTS = Path("runs/testing/evaluation")
FIRST, SECOND, GO = RESULTS / "step-00000015.json", RESULTS / "step-00000030.json", Path("go")
ASKED, KILLED = Path("asked"), Path("killed")
SETTINGS = (
    f"steps={STEPS}",
    # The second evaluation begins when the first has ended, and the run ends after everything.
    *held({29: FIRST, 39: GO}, "learning_rate: 3", "checkpoint_every: 1"),
    plugins("held", "faulty_parts"),
    "rlax.launcher.workers=3",
    # The first evaluation is held until the worker that is asked for it has been killed.
    f"rlax.rollouts.engine={{name: held, latency_s: 0.1, evaluation_of: {EVERY}, asked: {ASKED}, "
    f"waits_for: {KILLED}, reads_memory: true}}",
    f"rlax.evaluation.every={EVERY}",
    f"rlax.evaluation.problems={PROBLEMS}",
    "rlax.evaluation.majority_k=[3]",
    "rlax.evaluation.sets={hard: {split: validation, problems: 5, "
    "rewards: [{name: faulty, raise_on: '1003'}]}}",
)


def rlax_eval(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rlax_plugin", "eval", *arguments, "rlax.launcher.workers=1"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out + error
    return json.loads(out)


class Disturbed(NamedTuple):
    """A run whose first evaluation lost its worker, and which was measured while it went on."""

    run: Run
    out: str
    live: dict[str, Any]

    def evaluation(self, name: str) -> dict[str, Any]:
        return json.loads((self.run.dir / f"evaluation/{name}.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory) -> Disturbed:
    directory = tmp_path_factory.mktemp("evaluation")
    run = Run(directory, *SETTINGS)

    run.until(lambda: len(run.steps()) >= 2, "two steps")
    # Its own worker is never the one that is asked below, even if it measures that version.
    live = rlax_eval(directory, "runs/testing", "--json", "rlax.rollouts.engine.evaluation_of=-1")
    try:
        run.until((directory / ASKED).exists, "an evaluation during training")
        name = (directory / ASKED).read_text()
        (measuring,) = [worker for worker in run.workers() if name in command(worker)]
        measuring.send_signal(signal.SIGKILL)
        assert not (directory / FIRST).exists()
        (directory / KILLED).touch()
        measured = result(live)
    finally:
        if live.poll() is None:
            kill_group(live)
    run.until((directory / SECOND).exists, "the second evaluation")
    (directory / GO).touch()
    status, out = run.end()
    assert status == 0, out
    return Disturbed(run, out, measured)


def test_training_goes_on_while_it_is_evaluated(disturbed):
    run, steps = disturbed.run, disturbed.run.steps()
    assert [m["step"] for m in steps] == list(range(1, STEPS + 1))
    ended = {m["evaluation/version"]: m for m in steps if "evaluation/version" in m}
    assert list(ended) == [15, 30]
    for version, metrics in ended.items():
        assert metrics["step"] >= version + 2  # steps that ended meanwhile
        document = disturbed.evaluation(f"step-{int(version):08d}")
        assert document["version"] == document["step"] == version
        for stage, name in (("evaluation", "test"), ("evaluation_hard", "hard")):
            for measure, estimate in document["sets"][name].items():
                assert metrics[f"{stage}/{measure}"] == estimate["value"]
    summary = run.summary()
    assert summary["evaluation"]["during"] == 2 and summary["evaluation"]["skipped"] == 0
    assert summary["worker_restarts"] == 1  # the one that was killed, and none that was distrusted
    assert disturbed.out.count(" lost: ") == 1
    assert summary["max_staleness_seen"] == 1
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
    assert min(row["group"] for row in run.samples()) == 0  # no evaluation is recorded as generated


def test_evaluation_of_a_checkpoint_alone_measures_the_same(disturbed):
    directory = disturbed.run.dir.parents[1]
    found = result(
        rlax_eval(directory, "runs/testing", "--step", "15", "--json", "--out", "alone.json")
    )
    during = disturbed.evaluation("step-00000015")
    assert found["version"] == 15 and found["sets"] == during["sets"]
    assert found["sets"]["hard"]["reward_errors"]["value"] == 1 / 5
    assert json.loads((directory / "alone.json").read_text()) == found
    # Two are kept, so this leased version was gone for everybody else before it was measured.
    assert "which is still training" in disturbed.live["measured"]
    assert disturbed.live["version"] < STEPS


def test_ctrl_c_leaves_nothing_behind(disturbed, tmp_path):
    directory = disturbed.run.dir.parents[1]
    before = sorted(disturbed.run.dir.rglob("*"))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rlax_plugin",
            "eval",
            "runs/testing",
            *("--problems", "60"),
            "rlax.rollouts.engine.latency_s=5",  # which its worker waits twice before it serves
            "rlax.deadlines.drain_s=1",
        ],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        # Everything has been started.
        assert any("60 problems" in line for line in iter(process.stdout.readline, ""))
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3  # workers and reward processes
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            kill_group(process)
    assert process.returncode == 130
    wait_until(lambda: not alive(family), "their end")  # which takes the system a moment
    assert not list(tmp_path.iterdir()) and sorted(disturbed.run.dir.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/testing@3"], "--version = 3: is no longer kept; available: "),
        (["runs/testing", "--step", "99"], "--step = 99: runs/testing has no such checkpoint"),
        (["runs/testing", "--set", "tset"], "--set = 'tset': no such set; did you mean 'test'?"),
        (["runs/testing", "--out", "/"], "--out = '/': must name a file, not a directory"),
    ],
)
def test_what_cannot_be_measured_is_rejected(disturbed, arguments, message):
    arguments = [word.replace("runs/", f"{disturbed.run.dir.parent}/", 1) for word in arguments]
    shown = command_line.rlax("eval", *arguments)
    assert shown.exit_code == 2
    said = " ".join(shown.output.replace(f"{disturbed.run.dir.parent}/", "runs/").split())
    assert message in said
