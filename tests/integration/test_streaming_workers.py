"""Workers that receive their weights from the parameter server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sections import section_with
from toy_versions import CANARY_TOKENS, publish, scripted
from worker_harness import Worker, section, trainer, until

from rlax_plugin.base.errors import ConfigError, WeightsError
from rlax_plugin.base.types import SAFETENSORS, VersionPart
from rlax_plugin.config import RlaxSection, Weights
from rlax_plugin.testing import policy
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.converting import Converter
from rlax_plugin.weights.parameter_server import ParameterServer


def streaming(root: Path) -> RlaxSection:
    weights = Weights(transfer="stream", stream_dir=str(root / "copies"))
    return section().model_copy(update={"weights": weights})


def converted_engine() -> ScriptedEngine:
    return ScriptedEngine(ScriptedConfig(weights_format=SAFETENSORS), NpzStore(), section_with())


def copies(root: Path) -> list[Path]:
    """The parts that workers have at the moment."""
    return sorted((root / "copies").glob("worker-*/*"))


class Places(NpzStore):
    """Notes the directories that are read."""

    def __init__(self) -> None:
        self.loaded: list[Path] = []

    def load(self, path: str, like: Any) -> dict[str, Any]:
        self.loaded.append(Path(path))
        return super().load(path, like)


async def test_a_worker_loads_its_copies_and_keeps_those_in_use_alone(tmp_path: Path) -> None:
    settings, read = streaming(tmp_path), Places()
    parameters = ParameterServer(NpzStore(), keep=1, lease_s=60)
    async with trainer(settings, parameters=parameters) as one:
        worker = Worker("w", scripted(read), settings, one.address)
        for number in range(3):
            published = publish(tmp_path / "weights", number)
            await parameters.publish(published)
            one.fleet.newest.number = number
            await until(lambda number=number: one.held("w") == number)
            await until(lambda: copies(tmp_path) == [read.loaded[-1]])
            assert Path(published.paths[0]) not in read.loaded
        assert len(set(read.loaded)) == 3
        size = (tmp_path / "weights/v2/weights.npz").stat().st_size
        await until(lambda: one.fleet.workers["w"].figures.get("stream_bytes") == size)
        assert one.fleet.workers["w"].figures["stream_s"] > 0
        assert parameters.streams.sent_bytes == 3 * size
        await worker.leave()
        assert not list((tmp_path / "copies").iterdir())


async def test_damage_on_the_way_is_repaired_and_damage_at_the_source_quarantines(
    tmp_path: Path, short_pauses: None
) -> None:
    class Damaging(Places):
        """Its disk damages the first copy that it is given."""

        def load(self, path: str, like: Any) -> dict[str, Any]:
            if not self.loaded:
                file = Path(path) / "weights.npz"
                file.write_bytes(file.read_bytes()[:-9])
            return super().load(path, like)

    settings, read = streaming(tmp_path), Damaging()
    parameters = ParameterServer(NpzStore(), keep=1, lease_s=60)
    async with trainer(settings, parameters=parameters) as one:
        worker = Worker("w", scripted(read), settings, one.address)
        await parameters.publish(publish(tmp_path / "weights", 0))
        one.fleet.newest.number = 0
        await until(lambda: one.held("w") == 0)
        assert len(read.loaded) == 2 and one.quarantined == []

        damaged = publish(tmp_path / "weights", 1)
        file = Path(damaged.paths[0]) / "weights.npz"
        file.write_bytes(file.read_bytes()[:-9])
        await parameters.publish(damaged)
        one.fleet.newest.number = 1
        with pytest.raises(WeightsError, match="is damaged"):
            await worker.life
        ((name, reason),) = one.quarantined
        assert name == "w" and "is damaged" in reason and len(read.loaded) == 5
        assert not list((tmp_path / "copies").iterdir())


async def test_a_worker_receives_converted_weights_as_files(tmp_path: Path) -> None:
    settings = streaming(tmp_path)
    parameters = ParameterServer(NpzStore(), keep=1, lease_s=60)
    engine = converted_engine()
    converter = Converter(lambda: policy.write_converted, NpzStore(), pytest.fail)
    async with trainer(settings, parameters=parameters) as one:
        worker = Worker("w", engine, settings, one.address)
        for number in range(2):
            published = publish(tmp_path / "weights", number)
            await parameters.publish(published)
            one.fleet.newest.number = number
            await until(lambda: "w" in one.fleet.workers)
            assert one.held("w") == number - 1  # it waits
            path = f"{tmp_path}/weights/v{number}-huggingface"
            tensors = converter.write(published, None, path)
            part = VersionPart("huggingface", path, tensors, SAFETENSORS)
            await parameters.publish(replace(published, converted=(part,)))
            await until(lambda number=number: one.held("w") == number)
        size = Path(path, policy.FILE).stat().st_size
        assert parameters.streams.sent_bytes == 2 * size
        assert await engine.score(CANARY_TOKENS) == pytest.approx(published.canary.logprobs)
        await worker.leave()


async def test_a_worker_whose_format_is_not_made_is_rejected(tmp_path: Path) -> None:
    engine = converted_engine()
    async with trainer(section()) as one:
        worker = Worker("w", engine, section(), one.address)
        await until(lambda: "w" in one.fleet.workers)
        one.fleet.unmakes(SAFETENSORS, "the model has none")
        for life in (worker.life, Worker("other", engine, section(), one.address).life):
            with pytest.raises(ConfigError, match="format safetensors, and the model has none"):
                await life
