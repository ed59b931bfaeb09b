"""What a publisher converts, when, and what it does if it cannot."""

import asyncio
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until

from maxtext_overrides.models.tensor_files import write_tensors
from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import ConfigError, DeadlineError
from rlax_plugin.base.types import BASE, SAFETENSORS, WeightVersion
from rlax_plugin.ports.training import Conversion, NewWeights
from rlax_plugin.testing import policy
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.converting import Converter
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.publisher import Publisher, WriteTimes, by_one_host

ARRAYS = {"w": np.arange(4, dtype=np.float32)}


def weights(step: int) -> NewWeights:
    return NewWeights(step, {BASE: ARRAYS})


class Announced:
    """A parameter server that notes what it is told."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.versions: list[WeightVersion] = []

    async def writing(self, path: str) -> None:
        self.listed.append(path)

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        self.versions.append(version)

    @property
    def converted(self) -> list[int]:
        return [version.version for version in self.versions if version.converted]


class Written(WriteTimes):
    """Notes the bytes of what was written."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def wrote(self, size: int, seconds: float) -> None:
        assert seconds > 0
        self.sizes.append(size)


class Run:
    """A publisher with the toy's conversion; ``fails`` are raised by it, one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path):
        self.fails: list[Exception] = []
        self.made, self.written = 0, Written()
        self.refused: list[str] = []
        self.server, self.failures, self.gained = Announced(), Supervision(), list[int]()
        self.converter = Converter(self.conversion, NpzStore(), self.refused.append)
        self.publisher = Publisher(
            loop=loop,
            write=by_one_host(NpzStore()),
            directory=str(directory),
            announcer=self.server,
            failures=self.failures,
            deadline_s=60.0,
            pace=self.written,
            on_converted=lambda version: self.gained.append(version.version),
        )
        self.publisher.converter = self.converter
        self.loop = loop

    def conversion(self) -> Conversion:
        self.made += 1

        def convert(arrays, directory, wrote) -> None:
            if self.fails:
                raise self.fails.pop(0)
            policy.write_converted(arrays, directory, wrote)

        return convert

    def publish(self, new: NewWeights) -> None:
        self.publisher.publish(new)
        self.publisher.wait()

    def ask(self) -> None:
        """As the heartbeat of a worker that reads the format."""
        self.converter.wanted = True
        self.loop.call_soon_threadsafe(self.publisher.convert_newest)


@pytest.fixture
def run(loop, tmp_path):
    one = Run(loop, tmp_path)
    yield one
    one.publisher.close()
    one.failures.check()


def check(version: WeightVersion, arrays=ARRAYS) -> None:
    (part,) = version.converted
    assert (part.name, part.format) == ("huggingface", SAFETENSORS)
    found = policy.read_converted(Path(part.path))
    assert found["model.w"].tobytes() == arrays["w"].tobytes()
    prints = fingerprint_numpy(found)
    assert {n: s.fingerprint for n, s in part.tensors.items()} == prints


def test_nothing_is_converted_until_it_is_wanted(run: Run, tmp_path) -> None:
    run.publish(weights(0))
    assert run.server.converted == [] and run.made == 0
    run.converter.wanted = True
    run.publish(weights(1))
    run.converter.wanted = False
    run.publish(weights(2))
    # Others hear of a version before it is converted.
    assert [(v.version, len(v.converted)) for v in run.server.versions] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 0),
    ]
    check(run.server.versions[2])
    assert run.server.versions[2].parts == run.server.versions[1].parts
    assert set(run.server.versions[2].all_paths) <= set(run.server.listed)
    assert len(list(tmp_path.iterdir())) == 4 and run.made == 1


def test_the_newest_version_is_converted_from_its_files_once(run: Run) -> None:
    run.ask()  # there is none
    run.publish(weights(7))
    run.publisher.forget()
    for _ in range(3):
        run.ask()
    wait_until(lambda: run.gained, "it is converted")
    run.ask()
    run.publish(weights(8))
    assert run.server.converted == [7, 8]
    check(run.server.versions[-1])


def test_parts_that_have_not_changed_are_read_from_their_files(run: Run) -> None:
    run.converter.wanted = True
    more = {"lora": np.full(3, 5, np.float32)}
    run.publish(NewWeights(0, {BASE: ARRAYS, "adapter": more}))
    run.publish(NewWeights(1, {BASE: None, "adapter": {"lora": 2 * more["lora"]}}))
    (part,) = run.server.versions[-1].converted
    found = policy.read_converted(Path(part.path))
    assert found["model.w"].tolist() == ARRAYS["w"].tolist()
    assert found["model.lora"].tolist() == [10.0] * 3
    # A conversion writes all of a version, whatever of it is new.
    wait_until(lambda: len(run.written.sizes) == 5, "the loop has heard of all")
    assert run.written.sizes == [16, 12, 28, 12, 28]


def test_files_that_are_damaged_are_not_converted_and_end_nothing(run: Run, caplog) -> None:
    run.publish(weights(7))
    (part,) = run.server.versions[0].parts
    shutil.rmtree(part.path)
    NpzStore().save(part.path, {"w": ARRAYS["w"] + 1})
    for _ in range(2):
        run.ask()
        wait_until(lambda: "version 7 is not converted" in caplog.text, "it is said")
    assert part.path in caplog.text
    run.publish(weights(8))
    wait_until(lambda: run.gained == [8], "the next version is converted")
    assert caplog.text.count("not converted") == 1


class Slow(Future[None]):
    """A publication at the end of each of whose deadlines another activity has begun."""

    def __init__(self, *follow: Callable[[], object]):
        super().__init__()
        self.follow, self.waited_s = list(follow), list[float | None]()

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> None:
        self.waited_s.append(timeout)
        if self.follow:
            self.follow.pop(0)()
        raise TimeoutError


def test_a_version_and_its_conversion_have_a_deadline_each(run: Run) -> None:
    begins = run.publisher.activity.begins
    begins("converting version 3")
    run.publisher._pending = slow = Slow(lambda: begins("writing"), lambda: begins("converting"))
    with pytest.raises(DeadlineError, match=r"rlax\.deadlines\.weights_s"):
        run.publisher.wait()
    assert slow.waited_s == [60.0] * 3
    run.publisher._pending = None


def test_a_full_disk_is_tried_again_elsewhere(run: Run) -> None:
    limits = [16]  # bytes of a file; of the first attempt

    def convert(arrays, directory, wrote) -> None:
        tensors = {f"model.{name}": array for name, array in arrays.items()}
        for name, tensor in tensors.items():
            wrote(name, tensor)
        shapes, dtypes = (
            {n: getattr(t, a) for n, t in tensors.items()} for a in ("shape", "dtype")
        )
        unlimited, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.pop() if limits else unlimited, most))
        try:
            write_tensors(directory, tensors.items(), shapes, dtypes, 1 << 20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, most))

    run.converter = run.publisher.converter = Converter(
        lambda: convert, NpzStore(), run.refused.append
    )
    run.converter.wanted = True
    run.publish(weights(0))
    assert "File too large" in str(run.publisher.unwritten.recent)
    (version,) = (version for version in run.server.versions if version.converted)
    check(version)
    first, again = (path for path in run.server.listed if "huggingface" in path)
    assert first != again == version.converted[0].path  # the first is on the list of what to delete


def test_a_model_that_cannot_be_converted_is_said_and_ends_nothing(run: Run) -> None:
    run.converter.wanted = True
    run.fails = [ConfigError("decoder_block", "gpt3", "has no counterpart")]
    run.publish(weights(0))
    wait_until(lambda: run.refused, "it is said")
    assert run.refused == ["decoder_block = 'gpt3': has no counterpart"]
    assert run.server.converted == []
