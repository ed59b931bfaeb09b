"""Loads a weight version into an engine, verifies it, and then puts it into use.

Every worker compares, before it generates with a version: names, shapes, checksums, fingerprints,
canary, decoding, in this order, from cheap to expensive. Each finds faults that the earlier ones
cannot: checksums find damage by a disk or network, fingerprints find tensors mixed up between disk
and device (swapped, stale, renamed), the canary finds weights that are right in memory and used
wrongly, and decoding finds faults of the decoding programs that prefill does not have. Numpy only:
an engine computes fingerprints and log-probs.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.base.errors import (
    RlaxError,
    WeightsError,
    WeightsMismatchError,
    WeightsUnreadableError,
)
from rlax_plugin.base.types import Prompt, VersionPart, WeightVersion
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.protocols import Arrays, RolloutEngine, WeightStore
from rlax_plugin.weights import memory_copies
from rlax_plugin.weights.fingerprint import fingerprint_numpy

LOADING, LOAD_FAILURES = "loading_s", "load_failures_total"
"""Figures of a heartbeat: the seconds of a loading under way, and the number of failed ones."""

_CANARY_TOKENS = 16
_DECODED = 8  # tokens at most behind the canary's first ones
# Of a worker's time, what verifying its decoding may take: one fiftieth. With small models
# it would otherwise cost a tenth of each step, and what is wrong with it hardly ever heals itself.
_DECODING_SHARE = 50
# Nats. Logits of that size are rounded by more than a tolerance for small ones, so log-probs of a
# model with very large logits may differ in proportion.
_ROUNDED_FROM = 16.0


def canary_tokens(prompts: Sequence[Prompt], max_prompt_tokens: int) -> np.ndarray:
    """int32 [at most 16]: the first prompts, concatenated and cut to the maximum prompt length."""
    limit = min(_CANARY_TOKENS, max_prompt_tokens)
    found = np.zeros(0, np.int32)
    for prompt in prompts:
        if found.size >= limit:
            break
        found = np.concatenate((found, prompt.tokens))
    return found[:limit].astype(np.int32)


def read_weights(
    version: WeightVersion,
    store: WeightStore,
    like: Arrays,
    *,
    fingerprint: Callable[[Arrays], Mapping[str, Any]] | None,
    held: Loaded | None = None,
) -> Loaded:
    """Reads a version and checks it as the ``load`` of most engines does. Blocking.

    Args:
      like: name -> shape, dtype (and sharding) of every variable of the engine's model.
      fingerprint: (name -> array) to name -> uint32; None: see ``Loaded``.
      held: the weights in use; parts that they share with the version are not read again. None: all
        parts are read.

    Raises:
      WeightsUnreadableError: they could not be read, for any reason that the store gave.
      WeightsError: they belong to another model, or are damaged.
      DeadlineError: reading them took too long.
    """
    check_variables(version, like)
    fresh: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    unread = set()
    for part in version.parts:
        if held is not None and part in held.parts:  # from its path, or from its copy in memory
            unread.add(part.name)
            shared |= {name: held.arrays[name] for name in part.tensors}
        else:
            wanted = {name: like[name] for name in part.tensors}
            fresh |= _read_part(version, part, store, wanted)
    computed = None if fingerprint is None else functools.partial(fingerprint, dict(fresh))
    return Loaded(version.version, fresh | shared, computed, parts=version.parts, held=unread)


def stored_arrays(version: WeightVersion, store: WeightStore) -> dict[str, np.ndarray]:
    """Reads a version into host memory, as the trainer published it. Blocking.

    Raises:
      WeightsMismatchError: the arrays are not the published ones.
      WeightsError: see ``read_weights``.
    """
    like = {
        name: np.broadcast_to(np.zeros((), np.dtype(spec.dtype)), spec.shape)
        for name, spec in version.tensors.items()
    }
    loaded = read_weights(version, store, like, fingerprint=None)
    check_fingerprints(version, fingerprint_numpy(loaded.arrays))
    return dict(loaded.arrays)


def _read_part(
    version: WeightVersion, part: VersionPart, store: WeightStore, like: Arrays
) -> dict[str, Any]:
    try:
        if part.memory is not None:
            return memory_copies.on_devices(memory_copies.read(part.memory, part.tensors), like)
        return store.load(part.path, like)
    except RlaxError:
        raise
    except Exception as error:  # of a file system or a client library: it says nothing of the bytes
        reason = f"{type(error).__name__}: {error}"
        if part.memory is not None:  # perhaps nothing is at the path yet
            raise WeightsUnreadableError(f"its copy in memory cannot be read: {reason}") from error
        raise WeightsUnreadableError(f"{part.path} cannot be read: {reason}") from error


def check_variables(version: WeightVersion, found: Arrays) -> None:
    """Compares names, shapes and dtypes with the published ones.

    Args:
      found: name -> anything with a shape and a dtype.

    Raises:
      WeightsError: they differ; the message names the first difference.
    """
    if unequal := sorted(found.keys() ^ version.tensors.keys()):
        raise WeightsError(
            f"version {version.version}: variable {unequal[0]!r} was "
            f"{'not published' if unequal[0] in found else 'published but is missing'} "
            f"({len(unequal)} names differ)"
        )
    for name, spec in version.tensors.items():
        shape, dtype = tuple(found[name].shape), np.dtype(found[name].dtype).name
        if (shape, dtype) != (spec.shape, spec.dtype):
            raise WeightsError(
                f"version {version.version}: variable {name!r} was published as "
                f"{spec.dtype}{list(spec.shape)}, but is {dtype}{list(shape)} here"
            )


def check_fingerprints(
    version: WeightVersion, found: Mapping[str, Any], held: Collection[str] = ()
) -> None:
    """Compares fingerprints, name by name.

    Args:
      found: name -> uint32, see ``rlax_plugin.weights.fingerprint``.
      held: names of parts that were verified with an earlier version.

    Raises:
      WeightsMismatchError: one differs.
    """
    read = (part.tensors.items() for part in version.parts if part.name not in held)
    for name, spec in itertools.chain.from_iterable(read):
        if (number := int(found[name])) != spec.fingerprint:
            raise WeightsMismatchError(
                f"version {version.version}: variable {name!r} has fingerprint {number:#010x}, "
                f"but {spec.fingerprint:#010x} was published"
            )


def check_canary(version: WeightVersion, found: np.ndarray) -> None:
    """Compares the canary's log-probs; a version without a canary passes.

    Args:
      found: float32 [n], nats.

    Raises:
      WeightsMismatchError: one differs by more than the tolerance, or is not a number.
      WeightsError: the canary's own arrays do not fit each other.
    """
    canary = version.canary
    if canary is None:
        return
    published = np.asarray(canary.logprobs, np.float32)
    found = np.asarray(found, np.float32)
    if published.shape != found.shape:
        raise WeightsError(
            f"version {version.version}: its canary has {published.size} log-probs for "
            f"{len(canary.tokens)} tokens"
        )
    if (worst := _beyond(published, found, canary.tolerance)) is not None:
        place, difference = worst
        raise WeightsMismatchError(
            f"version {version.version}: the canary's log-prob at position {place} is "
            f"{found[place]:.6g}, but {published[place]:.6g} was published: {difference}"
        )


def check_decoding(
    version: WeightVersion, tokens: np.ndarray, decoded: np.ndarray, scored: np.ndarray
) -> None:
    """Compares the log-probs of decoded tokens with those that prefill computes for them.

    Args:
      tokens: int [n], tokens decoded after the canary's first tokens.
      decoded, scored: float32 [n], nats at temperature 1.

    Raises:
      WeightsMismatchError: they differ by more than the canary's tolerance, or there are not as
        many as tokens.
    """
    if version.canary is None:
        return
    decoded, scored = np.asarray(decoded, np.float32), np.asarray(scored, np.float32)
    if not 1 <= len(tokens) == decoded.size == scored.size:
        raise WeightsMismatchError(
            f"version {version.version}: decoding behind the canary gave {len(tokens)} tokens, "
            f"{decoded.size} log-probs and, by prefill, {scored.size}"
        )
    if (worst := _beyond(scored, decoded, version.canary.tolerance)) is not None:
        place, difference = worst
        raise WeightsMismatchError(
            f"version {version.version}: decoding behind the canary gives its token {place} "
            f"(id {int(tokens[place])}) the log-prob {decoded[place]:.6g}, but prefill gives it "
            f"{scored[place]:.6g}: {difference}"
        )


def _beyond(expected: np.ndarray, found: np.ndarray, tolerance: float) -> tuple[int, str] | None:
    """The index and size of the largest difference; None if all are within the tolerance."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - expected)
    apart[~np.isfinite(apart)] = np.inf
    size = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    allowed = tolerance * np.maximum(1.0, size / _ROUNDED_FROM)
    worst = int((apart / allowed).argmax())
    if apart[worst] <= allowed[worst]:
        return None
    return worst, (f"the difference is {apart[worst]:.3g} nats, the tolerance {allowed[worst]:.3g}")


@dataclass(slots=True)
class Reading:
    """Durations of the newest version's loading; all 0 before the first.

    Attributes:
      read_s: time until the engine had read it.
      verify_s: duration of the checks after that.
      size: bytes that were read.
      stream_s: time until its files had arrived, if the worker streams weights.
      stream_bytes: bytes of files that were received.
      decoding_s: duration of the last verification of decoding.
      decoded_at_s: end of that verification, of time.perf_counter.
      since_s: beginning of a loading under way, of time.perf_counter; None: there is none.
      failures: number of times that a version could not be read.
    """

    read_s: float = 0.0
    verify_s: float = 0.0
    size: int = 0
    stream_s: float = 0.0
    stream_bytes: int = 0
    decoding_s: float = 0.0
    decoded_at_s: float = -math.inf
    since_s: float | None = None
    failures: int = 0

    @property
    def decodes(self) -> bool:
        """True if decoding is verified with the next version."""
        since_s = time.perf_counter() - self.decoded_at_s
        return since_s >= _DECODING_SHARE * self.decoding_s

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Takes the time of a loading while it goes on, and counts it if it fails to read."""
        self.since_s = time.perf_counter()
        try:
            yield
        except WeightsUnreadableError:
            self.failures += 1
            raise
        finally:
            self.since_s = None

    def figures(self) -> dict[str, float]:
        """Figures that a worker's heartbeats report besides its engine's ``health``."""
        found = {
            "read_s": self.read_s,
            "read_bytes": float(self.size),
            "verify_s": self.verify_s,
            LOAD_FAILURES: float(self.failures),
        }
        if (since_s := self.since_s) is not None:
            found[LOADING] = time.perf_counter() - since_s
        if self.stream_s:
            found |= {"stream_s": self.stream_s, "stream_bytes": float(self.stream_bytes)}
        return found


async def take_version(
    engine: RolloutEngine,
    version: WeightVersion,
    *,
    max_new_tokens: int = _DECODED,
    reading: Reading | None = None,
) -> None:
    """Makes an engine load a version, verifies it, and puts it into use.

    The checks depend on the engine: the canary if it scores tokens, and decoding too if it has
    ``decode_greedy``.

    Args:
      max_new_tokens: maximum number of tokens of the engine's samples.
      reading: receives the durations, and has those of earlier versions; None: there are none.

    Raises:
      WeightsMismatchError: the weights are readable and of the right shapes, but are not the
        published ones.
      WeightsUnreadableError: they could not be read.
      WeightsError: they belong to another model, or are damaged. In all three cases the engine
        continues with the weights in use.
    """
    for part in version.parts:
        if part.format != (readable := engine.capabilities.weights_format):
            raise WeightsError(
                f"version {version.version}: its part {part.name} has format {part.format}, and "
                f"the engine reads {readable}"
            )
    reading = Reading() if reading is None else reading
    with reading.under_way():
        began_s = time.perf_counter()
        loaded = await engine.load(version)
        reading.read_s = time.perf_counter() - began_s
    try:
        with reading.under_way():
            await _verify_loaded(engine, version, loaded, reading, max_new_tokens)
        await engine.use(loaded)  # it may wait for running samples, as long as they take
    except BaseException:
        loaded.discard()
        raise


async def _verify_loaded(
    engine: RolloutEngine,
    version: WeightVersion,
    loaded: Loaded,
    reading: Reading,
    max_new_tokens: int,
) -> None:
    began_s = time.perf_counter()
    reading.size = _size(loaded.read)
    await _verify(engine, version, loaded)
    if reading.decodes and not _known(engine, version):
        decodes_s = time.perf_counter()
        await _verify_decoding(engine, version, loaded, max_new_tokens)
        reading.decoded_at_s = time.perf_counter()
        reading.decoding_s = reading.decoded_at_s - decodes_s
    reading.verify_s = time.perf_counter() - began_s


async def _verify(engine: RolloutEngine, version: WeightVersion, loaded: Loaded) -> None:
    if loaded.version != version.version:
        raise WeightsMismatchError(
            f"the engine has loaded version {loaded.version} instead of {version.version}"
        )
    check_variables(version, loaded.arrays)
    if (compute := loaded.fingerprints) is not None:
        await asyncio.to_thread(lambda: check_fingerprints(version, compute(), loaded.held))
    if version.canary is None or not engine.capabilities.scores or _known(engine, version):
        return
    try:
        found = await engine.score(version.canary.tokens, loaded)
    except ValueError as error:
        reason = f"version {version.version}: its canary cannot be computed: {error}"
        raise WeightsError(reason) from error
    check_canary(version, found)


def _known(engine: RolloutEngine, version: WeightVersion) -> bool:
    """True if a version has the trainer's own arrays, and the engine has passed a canary before.

    Nothing was written or read on the way to it, and its programs are the same.
    """
    return version.by_reference and engine.version >= 0


async def _verify_decoding(
    engine: RolloutEngine, version: WeightVersion, loaded: Loaded, max_new_tokens: int
) -> None:
    """Decodes after the canary's first tokens, and compares the log-probs.

    Decodes no more tokens than the whole canary has: the engine can score that many, and a
    compiled program for them exists already.
    """
    if version.canary is None or not engine.capabilities.scores:
        return
    tokens = np.asarray(version.canary.tokens, np.int32)
    count = min(_DECODED, len(tokens) - 1, max_new_tokens)
    context = tokens[: len(tokens) - count]
    if (answer := await engine.decode_greedy(context, count, loaded)) is None:
        return
    decoded, logprobs = (np.asarray(array) for array in answer)
    scored = await engine.score(np.concatenate([context, decoded]).astype(np.int32), loaded)
    check_decoding(version, decoded, logprobs, scored[len(context) - 1 :])


def _size(arrays: Mapping[str, Any]) -> int:
    """Total bytes, computed from the arrays' shapes and dtypes only."""
    return sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in arrays.values())
