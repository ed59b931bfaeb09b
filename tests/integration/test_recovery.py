"""A trainer that is killed at any moment, and started again, ends as if nothing had happened.

Real processes, controller, ledger, gRPC and parameter server; the model is the toy of
``rlax_plugin.testing``. In deterministic mode an undisturbed run is the measure: same prompts in
the same order, same batches, same weights to the last bit. The worker of a chain of kills outlives
them, which saves its start.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import object_store  # noqa: F401  it makes objects:// known
import pytest
from command_line import rlax
from processes import finished, process
from runs import CONFIG, DEADLINE_S, HELPERS, free_port, plugins, rows

from rlax_plugin.base.files.faults import FaultPoint
from rlax_plugin.base.files.packing import unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit

STEPS = 8
SETTINGS = (
    "rlax.deterministic=true",
    "rlax.observers=[{name: tally}]",
    "rlax.trainer.checkpoint_every=3",
    "rlax.evaluation.problems=2",
    f"steps={STEPS}",
)
# The trainer has a state beside its weights. Prompts come again, so that it matters, and are chosen
# by draws from the posteriors of their pass rates. Some groups end after their first two samples.
SIGNAL = (
    "rlax.trainer.running_value=0.5",
    "rlax.prompt_source.count=12",
    "rlax.curation.sampler.name=learnability",
    "rlax.curation.screening.pilots=2",
)
# Batches of as many groups as have so many tokens, of a temperature and a reward that change.
# If all samples of a group fail, it gets a demonstration, so none ends after its first samples.
PACKED = (
    *("rlax.curation.screening.pilots=0", "rlax.objective.guidance={gamma: 0.1}"),
    *("rlax.batches.tokens=75", "rlax.batches.rows=18", "rlax.batches.sequences_per_row=3"),
    "rlax.rollouts.temperature={from: 1.2, to: 0.8, steps: 4}",
    "rlax.rewards=[{name: even, weight: {from: 1.0, to: 0.5, steps: 4}}]",
)

# Kills one after the other, each of what goes on from the last one: a point, and the time at which
# that process reaches it.
SHORT = ("segment-written:1", "checkpoint-written:1")
CI = (
    *("samples-written:2", "commit-ended:5", "weights-listed:1", "metrics-cut:1", "recovered:1"),
    *("step-trained:1", "pilots-scored:3", "weights-published:2", "metrics-written:1"),
    "run-finished:1",
)
LONG = (
    *("config-written:1", "evaluation-begun:1", "evaluation-written:1", "ledger-written:9"),
    *("commit-begun:1", "snapshot-begun:1", "snapshot-written:1", "signals-written:1"),
    *("weights-written:2", "metrics-copied:1", "weights-retired:1", "summary-written:1"),
)


def train(directory: Path, *overrides: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    command = ("train", CONFIG, *SETTINGS, *overrides)
    return finished(*command, cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)


def final_weights(files: RunFiles) -> dict[str, np.ndarray]:
    names = sorted(files.names("checkpoints"), key=lambda name: int(name.partition(".")[0]))
    return unpack(files.get(f"checkpoints/{names[-1]}"))


def running_values(files: RunFiles) -> dict[str, list[float]]:
    """The state of the trainer's signal at the last step; older ones went with the checkpoints."""
    steps = [int(name) for name in files.names("signals")]
    checkpoints = [int(name.partition(".")[0]) for name in files.names("checkpoints")]
    assert sorted(steps) == sorted(checkpoints)
    state = unpack(files.get(f"signals/{STEPS:08d}/running_value/state.npz"))
    assert len(state["prompts"]) > 1 and len(set(state["values"].tolist())) > 1
    return {name: array.tolist() for name, array in state.items()}


def prompt_order(files: RunFiles) -> list[str]:
    issued = (e for s, _ in journal.read(files) for e in s.events if isinstance(e, ev.Issued))
    return [prompt for event in issued for prompt in event.prompts]


def trained(files: RunFiles) -> list[dict]:
    """What every batch holds, but for who generated it and at which attempt."""
    return [
        {k: v for k, v in row.items() if k not in ("workers", "attempt")}
        for row in rows(Path(files.location("")))
        if row["state"] == "trained"
    ]


def tally(files: RunFiles) -> dict[str, Any]:
    """The observer's counts: of each scored group and each step, once."""
    return json.loads(files.get("tally.json"))


def assert_same_run(files: RunFiles, undisturbed: RunFiles) -> None:
    weights, expected = final_weights(files), final_weights(undisturbed)
    assert weights.keys() == expected.keys()
    for name, array in expected.items():
        assert weights[name].tobytes() == array.tobytes(), name
    assert running_values(files) == running_values(undisturbed)
    assert prompt_order(files) == prompt_order(undisturbed)
    assert trained(files) == trained(undisturbed)
    assert tally(files) == tally(undisturbed)
    report = audit(files)
    assert report.violation is None, report.violation
    lines = files.get("metrics.jsonl").decode().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> RunFiles:
    directory = tmp_path_factory.mktemp("undisturbed")
    done = train(directory, *SIGNAL)
    assert done.returncode == 0, done.stdout + done.stderr
    files = RunFiles(directory / "runs/testing")
    assert audit(files).violation is None
    metrics = [json.loads(line) for line in files.get("metrics.jsonl").decode().splitlines()]
    values = [m["objective/running_value"] for m in metrics]
    assert values[0] == 0 and min(values[STEPS // 2 :]) > 0
    counted = tally(files)
    assert counted["step"] == counted["counts"]["steps"] == STEPS
    assert counted["counts"]["accepted"] == STEPS * 4 and counted["rewards"] > 0
    return files


@pytest.fixture(scope="module")
def undisturbed_packed(tmp_path_factory) -> RunFiles:
    directory = tmp_path_factory.mktemp("packed")
    done = train(directory, *SIGNAL, *PACKED)
    assert done.returncode == 0, done.stdout + done.stderr
    return RunFiles(directory / "runs/testing")


def test_the_chains_of_kills_have_every_point():
    of_hosts = {FaultPoint.OWN_CHUNKS_WRITTEN, FaultPoint.FOLLOWER_CHUNKS_WRITTEN}  # MaxText's
    killed = {kill.partition(":")[0] for kill in SHORT + CI + LONG}
    of_episodes = {FaultPoint.TURN_SAMPLED}  # test_chaos_command.py kills there
    of_troubles = {FaultPoint.STORE_SLOWED, FaultPoint.STORE_FAILED, FaultPoint.STORE_HUNG}
    assert killed == set(FaultPoint) - of_hosts - of_episodes - of_troubles


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("chain", "packed"),
    [
        pytest.param(SHORT, True, id="packed"),
        pytest.param(CI, False, marks=pytest.mark.ci, id="ci"),
        pytest.param(LONG, False, marks=pytest.mark.long, id="long"),
    ],
)
def test_a_trainer_killed_again_and_again_ends_as_if_it_had_not_been(
    chain, packed, tmp_path, monkeypatch, capfd, request
):
    undisturbed = request.getfixturevalue("undisturbed_packed" if packed else "undisturbed")
    settings = (
        *SIGNAL,
        *(PACKED if packed else ()),
        "rlax.launcher={name: static}",
        f"rlax.network.port={(port := free_port())}",
    )
    files = RunFiles(tmp_path / "runs/testing")
    serve = ("serve", "--controller", f"127.0.0.1:{port}", "rlax.deadlines.startup_s=120")
    with process(tmp_path / "survivor.log", *serve, cwd=tmp_path) as worker:
        for kill in chain:
            killed = train(tmp_path, *settings, kill_at=kill)
            assert killed.returncode == -signal.SIGKILL, f"{kill} was not reached: {killed.stdout}"
            if any((tmp_path / "runs/testing/journal").rglob("*.json")):  # else it has just begun
                report = audit(files)
                assert report.violation is None, f"{kill}: {report.violation}"
        again = train(tmp_path, *settings)
        assert again.returncode == 0, again.stdout + again.stderr
        assert worker.wait(DEADLINE_S) == 0  # one process served all the trainers
    assert_same_run(files, undisturbed)

    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    replayed = rlax("replay", "runs/testing")
    said = replayed.output + "".join(capfd.readouterr())
    assert replayed.exit_code == 0 and f"identical: {STEPS + 1} versions" in said


def test_a_trainer_that_generates_itself_ends_as_one_with_workers(tmp_path, undisturbed_packed):
    files = RunFiles(tmp_path / "runs/testing")
    settings = (
        *(*SIGNAL, *PACKED, "rlax.launcher={name: colocated}"),
        "rlax.rollouts.engine.reads_memory=true",
    )
    for kill in ("segment-written:1", "step-trained:2"):
        killed = train(tmp_path, *settings, kill_at=kill)
        assert killed.returncode == -signal.SIGKILL, f"{kill} was not reached: {killed.stdout}"
    again = train(tmp_path, *settings)
    assert again.returncode == 0, again.stdout + again.stderr
    assert_same_run(files, undisturbed_packed)
    # By reference: only what a process begins with, checkpoints and the end were written.
    assert not list((tmp_path / "runs/testing/logs").glob("local-*"))
    assert {w for row in rows(tmp_path / "runs/testing") for w in row["workers"]} == {"colocated"}


def test_packed_batches_have_the_tokens_that_are_asked_for(undisturbed_packed):
    files = undisturbed_packed
    metrics = [json.loads(line) for line in files.get("metrics.jsonl").decode().splitlines()]
    assert len({m["batch/groups"] for m in metrics}) > 1
    for m in metrics:
        assert m["batch/rows"] == 18 and m["train/tokens"] >= 75
        assert m["objective/sequences"] == 4 * m["batch/groups"]
    assert max(m["objective/sequences"] for m in metrics) > 18  # more than one in some rows
    recorded = rows(Path(files.location("")))
    assert {row["step"]: row["temperature"] for row in recorded} == pytest.approx(
        {1: 1.2, 2: 1.1, 3: 1.0, 4: 0.9, 5: 0.8, 6: 0.8, 7: 0.8, 8: 0.8}
    )
    shown = [row for row in recorded if row["demonstration"]]
    assert shown and all(row["state"] == "trained" and not row["workers"] for row in shown)
    guided = [int(m["curation/groups_guided"]) for m in metrics]
    assert guided == [sum(row["step"] == m["step"] for row in shown) for m in metrics]
    weights = {1: 1.0, 2: 0.875, 3: 0.75, 4: 0.625, 5: 0.5, 6: 0.5, 7: 0.5, 8: 0.5}
    for row in recorded:
        assert row["reward"] == weights[row["step"]] * row["reward_parts"][0]
    assert {m["step"]: m["schedule/rewards.0.weight"] for m in metrics} == weights


@pytest.mark.ci
def test_an_object_store_is_enough_even_if_the_machine_is_lost(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    bucket = f"objects:/{tmp_path}/bucket"
    where = (
        *SIGNAL,
        plugins("object_store"),
        f"base_output_directory={bucket}",
        f"rlax.state_dir={tmp_path}/state",
    )
    killed = train(tmp_path, *where, kill_at="segment-written:5")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    shutil.rmtree(tmp_path / "state")
    again = train(tmp_path, *where)
    assert again.returncode == 0, again.stdout + again.stderr
    files = RunFiles(f"{bucket}/testing")
    weights, expected = final_weights(files), final_weights(undisturbed)
    assert {n: a.tobytes() for n, a in weights.items()} == {
        n: a.tobytes() for n, a in expected.items()
    }
    assert running_values(files) == running_values(undisturbed)
    assert prompt_order(files) == prompt_order(undisturbed)
    assert audit(files).violation is None
