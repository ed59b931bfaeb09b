"""Contract of weight stores: versions are complete or absent, and damage is detected."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rlax_plugin.base.errors import WeightsError, WeightsUnreadableError
from rlax_plugin.ports.protocols import WeightStore
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial

_ATOMIC = (
    "write into a temporary directory beside the path and rename it when all is there, or write a "
    "commit file last, without which load raises a WeightsError"
)
_DAMAGE = (
    "keep a checksum with every block of bytes, and verify it in load; raise a plain WeightsError "
    "only for bytes that were read and are wrong, and a WeightsUnreadableError (or let the OSError "
    "pass) where they could not be read: that is tried again until rlax.deadlines.weights_s, and "
    "wrong bytes quarantine the worker"
)
_STRUCTURE = "compare names, shapes and dtypes with those of like before returning anything"


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Every kind of array that a model may publish."""
    rng = np.random.default_rng(seed)
    return {
        "layer.kernel": rng.standard_normal((6, 5)).astype(np.float32),
        "embedding": rng.standard_normal((16, 4)).astype(ml_dtypes.bfloat16),
        "router.bias": np.zeros(3, np.float32),
        "counts": np.arange(4, dtype=np.int32),
        "mask": np.array([True, False]),
        "scalar": np.array(3.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "bytes": rng.integers(0, 256, 77, np.uint8),
    }


def check_weight_store(trial: Trial, part: Inspection) -> None:
    """Checks versions of host arrays, in the run's directory."""
    check_versions(trial.built(part), trial.run_dir, part)


def check_versions(store: WeightStore, directory: Path, part: Inspection) -> None:
    """Checks versions of host arrays.

    Args:
      directory: empty and local.
    """
    arrays = weights()

    def path(name: str) -> str:
        return str(directory / name)

    with part.rule(
        "what is saved is loaded, bit for bit, names, shapes and dtypes included",
        "keep raw bytes with shape and dtype; bfloat16, scalars and arrays without elements count",
    ):
        store.save(path("0"), arrays)
        _require_same(store.load(path("0"), arrays), arrays)
    if not part.sound:
        return
    with part.rule("a path that exists is rejected, and stays as it is", "look before writing"):
        _require_rejected(lambda: store.save(path("0"), weights(1)), "save to an existing path")
        _require_same(store.load(path("0"), arrays), arrays)
    with part.rule("a save that fails raises, and leaves nothing that can be loaded", _ATOMIC):
        _check_failed_save(store, path("failed"))
    with part.rule("wrong bytes are found, and outages raise another error", _DAMAGE):
        store.save(path("damaged"), arrays)
        files = sorted(
            (file for file in (directory / "damaged").rglob("*") if file.is_file()),
            key=lambda file: file.stat().st_size,
        )
        for file in files:
            _check_damage(store, path("damaged"), file, holds_weights=file == files[-1])
            _check_outage(store, path("damaged"), file)
    with part.rule("another structure is rejected: a WeightsError", _STRUCTURE):
        kernel = arrays["layer.kernel"]
        others: dict[str, dict[str, np.ndarray]] = {
            "a name more": {**arrays, "gate": kernel},
            "a name less": {k: v for k, v in arrays.items() if k != "layer.kernel"},
            "another shape": {**arrays, "layer.kernel": kernel.reshape(5, 6)},
            "another dtype": {**arrays, "layer.kernel": kernel.astype(ml_dtypes.bfloat16)},
        }
        for what, like in others.items():
            _require_rejected(lambda like=like: store.load(path("0"), like), what)
    with part.rule(
        "a missing version is a WeightsUnreadableError, and deleting it again is silent",
        "ignore what is gone in delete; in load a reader must hear that it came too late, which "
        "is no damage: turn FileNotFoundError into WeightsUnreadableError, or let it pass",
    ):
        _require_unreadable(store, path("never"), "what was not saved")
        store.delete(path("never"))
        store.save(path("1"), weights(1))
        store.delete(path("1"))
        store.delete(path("1"))
        _require_unreadable(store, path("1"), "what was deleted")
        _require_same(store.load(path("0"), arrays), arrays)
    if store.shared_writing:
        with part.rule(
            "hosts write a version together, which is visible once it has all chunks",
            "count the chunks, and compare the sum in commit before anything becomes visible",
        ):
            _check_shared_writing(store, path("shared"), arrays)


def _check_shared_writing(store: WeightStore, path: str, arrays: dict[str, np.ndarray]) -> None:
    directory = store.begin(path, arrays)
    chunks = store.write(directory, arrays)
    _require_unreadable(store, path, "what was not committed")
    more = chunks + 1
    _require_rejected(lambda: store.commit(path, directory, arrays, more), "commit of more chunks")
    store.commit(path, directory, arrays, chunks)
    _require_same(store.load(path, arrays), arrays)
    store.begin(f"{path}-abandoned", arrays)
    store.abandon(f"{path}-abandoned")
    _require_unreadable(store, f"{path}-abandoned", "what was abandoned")


def _require_same(found: Any, expected: dict[str, np.ndarray]) -> None:
    require(found.keys() == expected.keys(), f"names {sorted(found)} instead of {sorted(expected)}")
    for name, array in expected.items():
        got = np.asarray(found[name])
        require(
            (got.shape, got.dtype) == (array.shape, array.dtype),
            f"{name!r} is {got.dtype}{list(got.shape)} instead of {array.dtype}{list(array.shape)}",
        )
        require(got.tobytes() == array.tobytes(), f"{name!r} has other bits")


def _require_rejected(
    action: Callable[[], Any], what: str, kinds: tuple[type[Exception], ...] = (WeightsError,)
) -> None:
    try:
        action()
    except kinds:
        return
    require(False, f"{what} raised nothing")


def _require_unreadable(store: WeightStore, path: str, what: str) -> None:
    try:
        store.load(path, weights())
    except (WeightsUnreadableError, OSError):
        return
    except WeightsError as error:
        found = f"load of {what} raised {type(error).__name__}, which means wrong bytes: {error}"
        require(False, found)
    require(False, f"load of {what} raised nothing")


def _check_failed_save(store: WeightStore, path: str) -> None:
    good = {"a": np.ones(8, np.float32), "b": np.ones(8, np.float32)}
    bad = {**good, "c": np.array([object()], dtype=object)}  # no bytes to write
    try:
        store.save(path, bad)
    except Exception:  # noqa: BLE001  which error is not the point here
        pass
    else:
        require(False, "an array of Python objects was saved")
    for like in (bad, good, {"a": good["a"]}):
        names = ", ".join(like)
        load = functools.partial(store.load, path, like)
        _require_rejected(load, f"load of {names} after it", (WeightsError, OSError))
    store.save(path, good)  # a version is published once more after a restart
    _require_same(store.load(path, good), good)


def _check_damage(store: WeightStore, path: str, file: Path, *, holds_weights: bool) -> None:
    """Requires an error, or the right arrays, from a load after damage to one file."""
    whole, middle = file.read_bytes(), file.stat().st_size // 2
    flipped = bytearray(whole or b"x")
    flipped[middle] ^= 1
    for what, data in (("one bit flipped", bytes(flipped)), ("cut in half", whole[:middle])):
        file.write_bytes(data)
        try:
            loaded = store.load(path, weights())
        except WeightsUnreadableError as error:
            found = f"load of {file.name} with {what} raised a {type(error).__name__}"
            require(not holds_weights or what != "one bit flipped", found)
        except WeightsError:
            continue
        else:
            for name, array in weights().items():
                same = np.asarray(loaded[name]).tobytes() == array.tobytes()
                require(same, f"{file.name} with {what} was loaded, {name!r} with other values")
        finally:
            file.write_bytes(whole)


def _check_outage(store: WeightStore, path: str, file: Path) -> None:
    """Requires that a file that cannot be opened is not taken for damage."""
    aside = file.with_name(f"{file.name}-aside")
    file.rename(aside)
    file.symlink_to(file.name)  # opening it fails, whoever asks
    try:
        _require_same(store.load(path, weights()), weights())
    except (WeightsUnreadableError, OSError):
        pass
    except WeightsError as error:
        what = f"load raised {type(error).__name__}, which means wrong bytes, where"
        require(False, f"{what} the operating system denied access to {file.name}: {error}")
    finally:
        file.unlink()
        aside.rename(file)
