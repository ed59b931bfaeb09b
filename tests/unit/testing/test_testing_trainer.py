"""Trainer ``bigram``: checkpoints that lose no bit."""

from pathlib import Path
from typing import Any

import numpy as np
import object_store  # noqa: F401  it makes objects:// known
import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import load_section, resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.testing import FakeTrainerPort, policy
from rlax_plugin.testing.task import Numbers, NumbersConfig
from rlax_plugin.testing.trainer import BigramConfig, BigramTrainer, Checkpoints


def batch(step: int) -> dict[str, np.ndarray]:
    """A batch that belongs to its step."""
    rng = np.random.default_rng(step)
    shape = (4, 6)
    mask = np.ones(shape, np.int32)
    mask[0, 3:] = 0
    return {
        "inputs": rng.integers(2, 64, shape, dtype=np.int32),
        "targets": rng.integers(1, 64, shape, dtype=np.int32),
        "targets_segmentation": np.array([[1] * 6] * 3 + [[1, 1, 2, 2, 2, 3]], np.int32),
        "targets_position": np.tile(np.arange(6, dtype=np.int32), (4, 1)),
        "rl_mask": mask,
        "rl_advantages": rng.standard_normal(shape).astype(np.float32),
        "rl_behaviour_logprobs": np.full(shape, -4.0, np.float32),
        "rl_staleness": np.ones(shape, np.int32),
        "rl_group": np.repeat(np.int32([[1], [1], [2], [255]]), 6, axis=1),
    }


def train(
    run: Path | str, steps: int, port: FakeTrainerPort | None = None, **options: Any
) -> FakeTrainerPort:
    port = port or FakeTrainerPort(batch)
    trainer = BigramTrainer(
        BigramConfig(**options), RunFiles(run), steps=steps, seed=3, temperature=0.8
    )
    trainer.run(port)
    port.close()
    return port


def same_bits(one: policy.Weights, other: policy.Weights) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in policy.SHAPES)


def test_checkpoints_are_written_when_due_and_at_a_stop(tmp_path: Path) -> None:
    train(tmp_path / "due", 3, checkpoint_every=2)
    assert RunFiles(tmp_path / "due").names("checkpoints") == ["2.npz", "3.npz"]
    port = train(tmp_path / "stop", 9, FakeTrainerPort(batch, stop_after=2))
    assert port.calls[-2:] == [("decide", 2), ("before_checkpoint", 2)]
    assert RunFiles(tmp_path / "stop").names("checkpoints") == ["2.npz"]


@pytest.mark.parametrize("where", ["disk", "objects"])
def test_a_continued_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path, where: str) -> None:
    prefix = str(tmp_path) if where == "disk" else f"objects:/{tmp_path}"
    whole = train(f"{prefix}/whole", 12)
    train(f"{prefix}/parts", 12, FakeTrainerPort(batch, stop_after=4))
    with pytest.raises(IndexError):
        train(f"{prefix}/parts", 12, FakeTrainerPort([batch(n) for n in range(9)].__getitem__))
    rest = train(f"{prefix}/parts", 12)
    assert rest.calls[:2] == [("publish", 5), ("next_batch", 6)]
    assert same_bits(rest.published[12], whole.published[12])
    assert not same_bits(whole.published[11], whole.published[12])
    again = train(f"{prefix}/parts", 12)
    assert again.calls == [("publish", 12)]
    assert same_bits(again.published[12], whole.published[12])


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    port = train(tmp_path, 10)
    for damage in (lambda data: data[:-10], lambda data: data[:500] + b"x" + data[501:]):
        newest = tmp_path / "checkpoints/10.npz"
        newest.write_bytes(damage(newest.read_bytes()))
        said: list[str] = []
        found = Checkpoints(RunFiles(tmp_path)).newest(said.append)
        assert len(said) == 1 and said[0].startswith("the checkpoint of step 10 cannot be read: ")
        assert found is not None and found[0] == 5
        assert same_bits(found[1], port.published[5])


@pytest.mark.parametrize("key", ["epochs", "mini_batches"])
def test_it_updates_once_per_step(key: str, tmp_path: Path) -> None:
    section = RlaxSection.model_validate(
        {"prompt_source": {"name": "x"}, "rewards": [{"name": "x"}], "objective": {key: 2}}
    )
    context = BuildContext(run_dir=tmp_path, seed=0, section=section)
    with pytest.raises(ConfigError, match=rf"rlax\.objective\.{key} = 2: must be 1 with"):
        BigramTrainer.build(BigramConfig(), context)


@pytest.mark.parametrize("override", ["setps=3", "learning_rate=1"])
def test_it_rejects_keys_that_it_does_not_read(override: str, tmp_path: Path) -> None:
    path = str(Path(__file__).parents[2] / "configs/testing.yml")
    section, _ = load_section(path)

    def context(*argv: str) -> BuildContext:
        return BuildContext(
            run_dir=tmp_path,
            seed=0,
            section=section,
            config=resolve(path, argv),
            part=lambda *_: Numbers(NumbersConfig()),
        )

    for function in (BigramTrainer.build, BigramTrainer.check):
        function(BigramConfig(), context("steps=3", "run_name=other"))
        with pytest.raises(ConfigError, match="trainer bigram reads no such key") as rejected:
            function(BigramConfig(), context(override))
        assert rejected.value.key == override.partition("=")[0]
        assert ("did you mean 'steps'?" in str(rejected.value)) == (override == "setps=3")
