"""A damaged checkpoint: never trained on, named, and the one before is taken."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_trainer_plugin import FakePort, saving, trainer

from maxtext_overrides.trainer.checkpoint_fingerprints import DamagedCheckpointError
from rlax_plugin.base.files.run_files import RunFiles

NAME = "optimizer.opt_state.0.mu.decoder.decoder_norm.scale.value"

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def zero_half_of_a_file(run: Path) -> None:
    """What a disk may do; it can no longer be decoded."""
    files = [p for p in (run / "tiny/checkpoints/2").rglob("d/*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    half = len(content) // 2
    content[:half] = bytes(half)
    largest.write_bytes(content)


def falsify(run: Path, checkpoint: int = 2) -> None:
    """Its numbers are no longer those that were saved."""
    files, path = RunFiles(run / "tiny"), f"fingerprints/{checkpoint}.json"
    files.put_json(path, files.get_json(path) | {NAME: 1})


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with the checkpoints of steps 2 and 3."""
    directory = tmp_path_factory.mktemp("run")
    for stop in (2, 3):
        trainer((*saving(directory), "steps=4")).run(FakePort(stop_after=stop, canary=False))
    return directory


@pytest.fixture
def run(two_checkpoints: Path, tmp_path: Path) -> Path:
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    assert {p.name for p in (tmp_path / "tiny/checkpoints").iterdir()} >= {"1", "2"}
    return tmp_path


@pytest.mark.parametrize("damage", [zero_half_of_a_file, falsify])
def test_a_damaged_checkpoint_is_not_trained_on(damage: Callable[[Path], None], run: Path) -> None:
    damage(run)
    port = FakePort(stop_after=3, canary=False)
    trainer((*saving(run), "steps=4")).run(port)
    assert port.calls[0] == ("publish", 2)
    assert sorted(p.name for p in (run / "tiny/damaged").iterdir()) == ["2"]
    assert any("is damaged: " in said for said in port.waited_for)
    (said,) = port.damaged
    assert "checkpoints/2 is damaged: " in said
    assert said.endswith("damaged/, and the one before it counts")


def test_a_damaged_checkpoint_is_named_where_it_is_only_read(run: Path, tmp_path: Path) -> None:
    falsify(run, 1)
    reader = trainer((*saving(run), "steps=4"), tmp_path / "scratch")
    message = rf"checkpoints/1 is damaged: {NAME} of \d+ tensors differ from what was saved"
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
