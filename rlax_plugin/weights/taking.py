"""Taking up a weight version: the engine loads it, it is verified, then the engine uses it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.errors import WeightsError, WeightsMismatchError
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

_DECODED = 8  # tokens at most behind the canary's first ones
# Of a worker's time, what verifying its decoding may take: one part in so many. With small models
# it would otherwise cost a tenth of each step, and what is wrong with it hardly ever heals itself.
_DECODING_SHARE = 50


@dataclass(slots=True)
class Reading:
    """How long the newest version took; all 0 before the first.

    Attributes:
      read_s: until the engine had it.
      verify_s: the checks behind that.
      size: bytes that were read.
      decoding_s: how long decoding was last verified.
      decoded_at_s: when that had ended, of time.perf_counter.
    """

    read_s: float = 0.0
    verify_s: float = 0.0
    size: int = 0
    decoding_s: float = 0.0
    decoded_at_s: float = -math.inf

    @property
    def decodes(self) -> bool:
        """Whether decoding is verified with the next version."""
        since_s = time.perf_counter() - self.decoded_at_s
        return since_s >= _DECODING_SHARE * self.decoding_s

    def figures(self) -> dict[str, float]:
        """What a worker's heartbeats tell besides its engine's ``health``."""
        return {
            "read_s": self.read_s,
            "read_bytes": float(self.size),
            "verify_s": self.verify_s,
        }


async def take_version(
    engine: WeightLoader,
    version: WeightVersion,
    *,
    max_new_tokens: int = _DECODED,
    reading: Reading | None = None,
) -> None:
    """Has an engine load a version and, once it is proved to be what was published, use it.

    What is verified follows from the engine's abilities: the canary of a ``TokenScorer``, and its
    decoding if it is a ``GreedyDecoder`` too.

    Args:
      max_new_tokens: that a sample of the engine may have.
      reading: gets how long it took, and knows how long earlier versions took; None: none did.

    Raises:
      WeightsMismatchError: the weights are readable and fit, and are not what was published.
      WeightsUnreadableError: they could not be read.
      WeightsError: they belong to another model, or are damaged. In all three cases the engine goes
        on with those that it has.
    """
    reading = Reading() if reading is None else reading
    began_s = time.perf_counter()
    loaded = await engine.load(version)
    try:
        reading.read_s = time.perf_counter() - began_s
        reading.size = _size(loaded.read)
        await _verify(engine, version, loaded)
        if reading.decodes:
            decodes_s = time.perf_counter()
            await _verify_decoding(engine, version, loaded, max_new_tokens)
            reading.decoded_at_s = time.perf_counter()
            reading.decoding_s = reading.decoded_at_s - decodes_s
        reading.verify_s = time.perf_counter() - began_s - reading.read_s
        await engine.use(loaded)
    except BaseException:
        loaded.discard()
        raise


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
    """Decodes behind the canary's first tokens.

    As many tokens as the whole canary has, at most: that many the engine can score, and a compiled
    program for them exists already.
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
    """Bytes. Shapes and dtypes are all that arrays must have."""
    return sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in arrays.values())
