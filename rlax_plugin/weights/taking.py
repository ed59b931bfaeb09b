"""Loads a weight version into an engine, verifies it, and then puts it into use."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.errors import WeightsError, WeightsMismatchError, WeightsUnreadableError
from rlax_plugin.ports.engine_abilities import GreedyDecoder, TokenScorer
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.protocols import WeightLoader
from rlax_plugin.types import WeightVersion
from rlax_plugin.weights.verification import (
    check_canary,
    check_decoding,
    check_fingerprints,
    check_variables,
)

LOADING, LOAD_FAILURES = "loading_s", "load_failures_total"
"""Figures of a heartbeat: the seconds of a loading under way, and the number of failed ones."""

_DECODED = 8  # tokens at most behind the canary's first ones
# Of a worker's time, what verifying its decoding may take: one part in so many. With small models
# it would otherwise cost a tenth of each step, and what is wrong with it hardly ever heals itself.
_DECODING_SHARE = 50


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
    engine: WeightLoader,
    version: WeightVersion,
    *,
    max_new_tokens: int = _DECODED,
    reading: Reading | None = None,
) -> None:
    """Makes an engine load a version, verifies it, and puts it into use.

    The checks depend on the engine's abilities: the canary for a ``TokenScorer``, and decoding
    too if it is a ``GreedyDecoder``.

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
    engine: WeightLoader,
    version: WeightVersion,
    loaded: Loaded,
    reading: Reading,
    max_new_tokens: int,
) -> None:
    began_s = time.perf_counter()
    reading.size = _size(loaded.read)
    await _verify(engine, version, loaded)
    if reading.decodes:
        decodes_s = time.perf_counter()
        await _verify_decoding(engine, version, loaded, max_new_tokens)
        reading.decoded_at_s = time.perf_counter()
        reading.decoding_s = reading.decoded_at_s - decodes_s
    reading.verify_s = time.perf_counter() - began_s


async def _verify(engine: WeightLoader, version: WeightVersion, loaded: Loaded) -> None:
    if loaded.version != version.version:
        raise WeightsMismatchError(
            f"the engine has loaded version {loaded.version} instead of {version.version}"
        )
    check_variables(version, loaded.arrays)
    if (compute := loaded.fingerprints) is not None:
        await asyncio.to_thread(lambda: check_fingerprints(version, compute(), loaded.held))
    if version.canary is None or not isinstance(engine, TokenScorer):
        return
    try:
        found = await engine.score(version.canary.tokens, loaded)
    except ValueError as error:
        reason = f"version {version.version}: its canary cannot be computed: {error}"
        raise WeightsError(reason) from error
    check_canary(version, found)


async def _verify_decoding(
    engine: WeightLoader, version: WeightVersion, loaded: Loaded, max_new_tokens: int
) -> None:
    """Decodes after the canary's first tokens, and compares the log-probs.

    Decodes no more tokens than the whole canary has: the engine can score that many, and a
    compiled program for them exists already.
    """
    if version.canary is None or not isinstance(engine, TokenScorer):
        return
    if not isinstance(engine, GreedyDecoder):
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
