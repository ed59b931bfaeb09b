"""A checkpoint in which bits have flipped: never trained on, named, and the one before is taken."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_trainer_plugin import FakePort, saving, trainer

from maxtext_overrides.trainer.checkpoint_fingerprints import DamagedCheckpointError
from rlax_plugin.base.files.run_files import RunFiles

FLIPS = 2

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def flip(checkpoint: Path, seed: int) -> None:
    """Flips a bit of the checkpoint's data, as a disk may."""
    rng = random.Random(seed)
    files = sorted(p for p in checkpoint.rglob("d/*") if p.is_file())
    sizes = [p.stat().st_size for p in files]
    (path,) = rng.choices(files, sizes)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakePort]:
    """The directory of a run with the checkpoints of steps 2 and 3, and its port."""
    directory = tmp_path_factory.mktemp("run")
    for stop in (2, 3):
        port = FakePort(stop_after=stop, canary=False)
        trainer((*saving(directory), "steps=4")).run(port)
    return directory, port


@pytest.fixture
def run(two_checkpoints: tuple[Path, FakePort], tmp_path: Path) -> Path:
    shutil.copytree(two_checkpoints[0], tmp_path, dirs_exist_ok=True)
    assert {p.name for p in (tmp_path / "tiny/checkpoints").iterdir()} >= {"1", "2"}
    return tmp_path


@pytest.mark.parametrize("seed", range(FLIPS))
def test_a_flipped_bit_is_not_trained_on(seed: int, run: Path, two_checkpoints) -> None:
    flip(run / "tiny/checkpoints/2", seed)
    port = FakePort(stop_after=3, canary=False)
    trainer((*saving(run), "steps=4")).run(port)
    begun = port.calls[0][1]
    if begun == 3:  # of a place that nothing reads
        for name, value in two_checkpoints[1].weights[3].items():
            np.testing.assert_array_equal(port.weights[3][name], value)
        return
    assert begun == 2
    assert sorted(p.name for p in (run / "tiny/damaged").iterdir()) == ["2"]
    assert any("is damaged: " in said for said in port.waited_for)
    (said,) = port.damaged
    assert "is damaged: " in said and said.endswith("damaged/, and the one before it counts")


def test_data_that_cannot_be_decoded_is_damage(run: Path) -> None:
    files = [p for p in (run / "tiny/checkpoints/2").rglob("d/*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    half = len(content) // 2
    content[:half] = bytes(half)
    largest.write_bytes(content)
    port = FakePort(stop_after=3, canary=False)
    trainer((*saving(run), "steps=4")).run(port)
    assert port.calls[0][1] == 2
    (said,) = port.damaged
    assert "checkpoints/2 is damaged: " in said and "the one before it counts" in said


def test_a_damaged_checkpoint_is_named_where_it_is_only_read(run: Path, tmp_path: Path) -> None:
    fingerprints = RunFiles(run / "tiny").get_json("fingerprints/1.json")
    name = "optimizer.opt_state.0.mu.decoder.decoder_norm.scale.value"
    RunFiles(run / "tiny").put_json("fingerprints/1.json", fingerprints | {name: 1})
    reader = trainer((*saving(run), "steps=4"), tmp_path / "scratch")
    message = rf"checkpoints/1 is damaged: {name} of \d+ tensors differ from what was saved"
    with pytest.raises(DamagedCheckpointError, match=message):
        reader.publish_checkpoint(FakePort(stop_after=0), "1")


def test_a_checkpoint_of_another_name_is_restored(run: Path, tmp_path: Path) -> None:
    """One that is no run's has no fingerprints."""
    (run / "tiny/checkpoints/2").rename(tmp_path / "mine")
    port = FakePort(stop_after=4, canary=False)
    path = f"load_full_state_path={tmp_path}/mine/items"
    trainer((*saving(run), "steps=4", "run_name=new", path)).run(port)
    assert port.calls[0] == ("publish", 3)


def test_fingerprints_go_with_their_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "tiny/checkpoints/1")  # as max_num_checkpoints_to_keep does
    trainer((*saving(run), "steps=4")).run(FakePort(stop_after=4, canary=False))
    assert sorted(RunFiles(run / "tiny").names("fingerprints")) == ["2.json", "3.json"]


def test_a_checkpoint_without_fingerprints_counts(run: Path) -> None:
    shutil.rmtree(run / "tiny/fingerprints")
    port = FakePort(stop_after=4, canary=False)
    trainer((*saving(run), "steps=4")).run(port)
    assert port.calls[0] == ("publish", 3)
