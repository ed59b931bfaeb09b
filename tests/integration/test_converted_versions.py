"""Workers whose engine reads weights in another format than the trainer's, in a real run."""

import json
import signal
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import command_line
import numpy as np
import processes
import pytest
from runs import DEADLINE_S, Run, free_port

from rlax_plugin.base.files import faults
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import SAFETENSORS, WeightVersion
from rlax_plugin.testing import policy
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.kept_versions import listed_versions
from rlax_plugin.weights.verification import stored_arrays

CONVERTED = "rlax.rollouts.engine.weights_format=safetensors"


def listed(run: Run) -> list[WeightVersion]:
    return list(listed_versions(RunFiles(run.dir), str(run.dir / "weights")).versions)


def check(version: WeightVersion) -> None:
    """Compares the converted part, its description and the native part of a version."""
    (part,) = version.converted
    assert (part.name, part.format) == ("huggingface", SAFETENSORS)
    tensors = policy.read_converted(Path(part.path))
    native = stored_arrays(version, NpzStore())
    assert tensors.keys() == part.tensors.keys() == {f"model.{name}" for name in native}
    for name, spec in part.tensors.items():
        assert tensors[name].tobytes() == native[name.removeprefix("model.")].tobytes()
        assert (tensors[name].shape, tensors[name].dtype) == (spec.shape, np.dtype(spec.dtype))
        assert int(fingerprint_numpy(tensors)[name]) == spec.fingerprint


def leftovers(run: Run) -> set[str]:
    """Names of directories of weights that belong to no listed version."""
    paths = {Path(path).name for version in listed(run) for path in version.all_paths}
    return {path.name for path in (run.dir / "weights").iterdir()} - paths


def test_versions_are_converted_while_a_worker_reads_them_so(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        "steps=4000",
        "rlax.launcher={name: static}",
        "rlax.evaluation.problems=0",
        "rlax.weights.keep=2",
        "rlax.trainer.learning_rate=1e-6",  # or the task would become too easy for its filter
        "rlax.rollouts.engine.token_s=0.01",
        f"rlax.network.port={(port := free_port())}",
    )

    def generated() -> dict[str, int]:
        """Worker -> groups that trained."""
        groups = {(name, row["group"]) for row in run.trained() for name in row["workers"]}
        return Counter(name for name, _ in groups)

    with ExitStack() as stack:

        def worker(name: str, *local: str) -> subprocess.Popen[bytes]:
            serve = ("serve", "--controller", f"127.0.0.1:{port}", "--name", name, *local)
            return stack.enter_context(
                processes.process(tmp_path / f"{name}.log", *serve, cwd=tmp_path)
            )

        # It is the only worker, and the trainer waits for samples of the version that is there.
        run.until(lambda: listed(run), "a version")
        assert not any(version.converted for version in listed(run))
        other = worker("other", CONVERTED)
        run.until(lambda: generated()["other"] >= 3, "three groups of it")
        plain = worker("plain")
        run.until(lambda: min(generated()[name] for name in ("other", "plain")) >= 3, "both")
        other.terminate()
        assert other.wait(DEADLINE_S) == 0
        left = len(run.steps())
        run.until(lambda: len(run.steps()) >= left + 6, "six steps without it")
        kept = listed(run)
        assert not any(version.converted for version in kept)
        other = worker("again", CONVERTED)
        run.until(lambda: generated()["again"] >= 1, "a group of another one")
        run.process.send_signal(signal.SIGINT)
        status, out = run.end()
        assert status == 130, out
        assert plain.wait(DEADLINE_S) == other.wait(DEADLINE_S) == 0
    converted = [version for version in listed(run) if version.converted]
    assert converted
    for version in converted:
        check(version)
    assert not leftovers(run)
    audited = command_line.rlax("audit", str(run.dir))
    assert audited.exit_code == 0, audited.output


@pytest.mark.parametrize(
    "point", ["weights-listed:6", pytest.param("weights-published:3", marks=pytest.mark.long)]
)
def test_a_trainer_that_is_killed_while_it_converts_leaves_nothing(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth path is that of the third version converted, or of another one nearby."""
    port = free_port()

    def start() -> Run:
        return Run(
            tmp_path,
            "steps=4000",
            "rlax.launcher={name: static}",
            "rlax.evaluation.problems=0",
            "rlax.weights.keep=2",
            "rlax.trainer={name: bigram, learning_rate: 1e-6, checkpoint_every: 2}",
            f"rlax.network.port={port}",
        )

    monkeypatch.setenv(faults.VARIABLE, point)
    run = start()
    monkeypatch.delenv(faults.VARIABLE)
    serve = ("serve", "--controller", f"127.0.0.1:{port}", "--name", "other", CONVERTED)
    with processes.process(tmp_path / "other.log", *serve, cwd=tmp_path) as other:
        status, out = run.end()
        assert status == -signal.SIGKILL, out
        before = len(run.steps())
        run = start()
        run.until(lambda: len(run.steps()) >= before + 4, "four more steps")
        run.process.send_signal(signal.SIGINT)
        status, out = run.end()
        assert status == 130, out
        assert other.wait(DEADLINE_S) == 0
    assert not leftovers(run)
    for version in listed(run):
        if version.converted:
            check(version)
    audited = command_line.rlax("audit", str(run.dir))
    assert audited.exit_code == 0, audited.output


def test_a_version_and_a_checkpoint_are_evaluated_by_such_a_worker(tmp_path: Path) -> None:
    run = Run(tmp_path, "steps=3", "rlax.evaluation.problems=4")
    status, said = run.end()
    assert status == 0, said
    for weights in ("--version=2", "--step=3"):
        results = []
        for options in ((), (CONVERTED,)):
            out = tmp_path / f"{len(results)}{weights}.json"
            evaluated = command_line.rlax("eval", str(run.dir), weights, f"--out={out}", *options)
            assert evaluated.exit_code == 0, evaluated.output
            results.append(json.loads(out.read_text())["sets"])
        native, converted = results
        assert native == converted
