"""A run whose samples share their prompts in the rows of a batch trains what a plain run trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from command_line import rlax
from runs import Run

from rlax_plugin.base.files.packing import unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

SETTINGS = (
    "steps=4",
    "rlax.deterministic=true",
    "rlax.rollouts.group_size=6",
    "rlax.trainer.checkpoint_every=2",
    "rlax.trainer.running_value=0.5",
    "rlax.evaluation.problems=0",
)
# Six samples of a group lie in two rows: four of them share a prompt, and two.
SHARED = "rlax.batches={sequences_per_row: 4, shared_prompts: true}"


def weights(files: RunFiles) -> dict[str, np.ndarray]:
    (name,) = (name for name in files.names("checkpoints") if int(name.partition(".")[0]) == 4)
    return unpack(files.get(f"checkpoints/{name}"))


def test_the_same_samples_give_the_same_weights(tmp_path: Path, monkeypatch, capfd) -> None:
    runs = {}
    for name, layout in (("plain", ()), ("shared", (SHARED,))):
        (tmp_path / name).mkdir()
        runs[name] = Run(tmp_path / name, *SETTINGS, *layout)
        status, said = runs[name].end()
        assert status == 0, said
    trained = {name: run.trained() for name, run in runs.items()}
    assert [row["tokens"] for row in trained["shared"]] == [
        row["tokens"] for row in trained["plain"]
    ]
    plain, shared = (weights(RunFiles(run.dir)) for run in runs.values())
    for name, array in plain.items():
        np.testing.assert_allclose(shared[name], array, rtol=0, atol=1e-5, err_msg=name)

    steps = runs["shared"].steps()
    assert [step["batch/rows"] for step in steps] == [8.0] * 4
    for step, before in zip(steps, runs["plain"].steps(), strict=True):
        assert step["batch/tokens"] < before["batch/tokens"]
        assert step["train/tokens"] == before["train/tokens"]

    assert audit(RunFiles(runs["shared"].dir)).violation is None
    monkeypatch.chdir(tmp_path / "shared")
    done = rlax("replay", "runs/testing")
    said = done.output + "".join(capfd.readouterr())
    assert done.exit_code == 0 and "identical: 5 versions" in " ".join(said.split())
