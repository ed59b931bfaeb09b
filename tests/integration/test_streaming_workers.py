"""Workers that receive their weights from the parameter server, in this process and in a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import command_line
import processes
import pytest
from processes import python_path
from runs import DEADLINE_S, HELPERS, Run, digests, free_port, held
from toy_versions import publish, scripted
from worker_harness import Worker, run, section, trainer, until

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.config import RlaxSection, Weights
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.parameter_server import ParameterServer


def streaming(root: Path, **deadlines: float) -> RlaxSection:
    weights = Weights(transfer="stream", stream_dir=str(root / "copies"))
    return section(deadlines).model_copy(update={"weights": weights})


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


def test_a_worker_loads_its_copies_and_keeps_those_in_use_alone(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_damage_on_the_way_is_repaired_and_damage_at_the_source_quarantines(
    tmp_path: Path, short_pauses: None
) -> None:
    class Damaging(Places):
        """Its disk damages the first copy that it is given."""

        def load(self, path: str, like: Any) -> dict[str, Any]:
            if not self.loaded:
                file = Path(path) / "weights.npz"
                file.write_bytes(file.read_bytes()[:-9])
            return super().load(path, like)

    async def main() -> None:
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

    run(main)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    Run.end_all()


@pytest.mark.long
def test_samples_do_not_depend_on_how_the_weights_came(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deterministic run whose workers stream and read, beside one whose workers read."""

    def trained(name: str, *transfers: str) -> tuple[dict[int, set[str]], list[Any], set[str]]:
        here = tmp_path / name
        here.mkdir()
        port, ready = free_port(), here / "ready"
        made = Run(
            here,
            *("steps=4", "rlax.deterministic=true", "rlax.launcher={name: static}"),
            *("rlax.evaluation.problems=0", f"rlax.network.port={port}"),
            *held({1: ready}),
        )
        workers, logs = [], [here / f"w{number}.log" for number in range(len(transfers))]
        for number, transfer in enumerate(transfers):
            elsewhere = here / f"machine{number}"
            elsewhere.mkdir()
            joins = ("serve", "--controller", f"127.0.0.1:{port}", "--name", f"w{number}")
            local = (f"rlax.weights.transfer={transfer}", "rlax.weights.stream_dir=copies")
            process = processes.process(logs[number], *joins, *local, cwd=elsewhere)
            workers.append(stack.enter_context(process))
        told = "serving version 0"
        made.until(lambda: all(told in log.read_text() for log in logs), "loading by all workers")
        ready.touch()
        status, out = made.end()
        assert status == 0, out
        assert [worker.wait(DEADLINE_S) for worker in workers] == [0] * len(workers)
        rows = made.trained()
        samples = [(row["group"], row["sample"], row["tokens"], row["logprobs"]) for row in rows]
        assert command_line.rlax("audit", str(made.dir)).exit_code == 0
        return digests(made.dir), samples, {name for row in rows for name in row["workers"]}

    monkeypatch.setenv("PYTHONPATH", python_path(HELPERS))
    versions, samples, workers = trained("mixed", "stream", "path")
    assert workers == {"w0", "w1"}
    assert trained("read", "path")[:2] == (versions, samples)
    assert max(versions) == 4 and len(samples) == 64
    copied = list((tmp_path / "mixed").glob("machine*/*"))
    assert copied == [tmp_path / "mixed/machine0/copies"] and not list(copied[0].iterdir())
