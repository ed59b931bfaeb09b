"""Verification of weights: what every worker checks before it generates a sample with a version.

Names, shapes, checksums, fingerprints, canary, in this order, from cheap to dear. Each finds what
those before it cannot: checksums what a disk or network damaged, fingerprints what was mixed up
between disk and device (swapped, stale, renamed), the canary what is right in memory and used
wrongly. Numpy only: an engine brings its own ``fingerprint`` and ``logprobs``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.errors import (
    RlaxError,
    WeightsError,
    WeightsMismatchError,
    WeightsUnreadableError,
)
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.types import Prompt, WeightVersion

_CANARY_TOKENS = 16
# Nats. Logits of that size are rounded by more than a tolerance for small ones, so log-probs of a
# model with very large logits may differ in proportion.
_ROUNDED_FROM = 16.0


def canary_tokens(prompts: Sequence[Prompt], max_prompt_tokens: int) -> np.ndarray:
    """int32 [at most 16]: the first prompts, one behind the other, cut to what fits a prompt."""
    limit = min(_CANARY_TOKENS, max_prompt_tokens)
    found = np.zeros(0, np.int32)
    for prompt in prompts:
        if found.size >= limit:
            break
        found = np.concatenate((found, prompt.tokens))
    return found[:limit].astype(np.int32)


@dataclass(slots=True)
class Reading:
    """How long the newest version took to be read, the checks behind that left out.

    Attributes:
      seconds: 0: nothing was read yet.
      size: bytes.
    """

    seconds: float = 0.0
    size: int = 0

    def figures(self) -> dict[str, float]:
        """For an engine's ``health``."""
        return {"read_s": self.seconds, "read_bytes": float(self.size)}


def load_verified(
    version: WeightVersion,
    store: WeightStore,
    like: Arrays,
    *,
    fingerprint: Callable[[Arrays], Mapping[str, Any]],
    logprobs: Callable[[Arrays, np.ndarray], np.ndarray],
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Reads a version and proves that it is what the trainer published.

    Args:
      like: name -> shape, dtype (and sharding) of every variable of the engine's model.
      fingerprint: name -> uint32, of arrays where the engine will use them.
      logprobs: (arrays, tokens [n + 1]) -> float32 [n], as ``types.Canary`` defines them, computed
        by the code that will generate. It may raise a ValueError for tokens that it cannot take.
      reading: gets how long the store took.

    Raises:
      WeightsMismatchError: the arrays are readable and fit, and are not what was published.
      WeightsUnreadableError: they could not be read, whatever the store raised for that.
      WeightsError: they belong to another model, or are damaged.
      DeadlineError: reading them took too long.
    """
    check_variables(version, like)
    began_s = time.perf_counter()
    arrays = _read(version, store, like)
    if reading is not None:
        reading.seconds = time.perf_counter() - began_s
        reading.size = sum(int(array.nbytes) for array in arrays.values())
    check_variables(version, arrays)
    check_fingerprints(version, fingerprint(arrays))
    if version.canary is not None:
        try:
            found = logprobs(arrays, version.canary.tokens)
        except ValueError as error:
            reason = f"version {version.version}: its canary cannot be computed: {error}"
            raise WeightsError(reason) from error
        check_canary(version, found)
    return arrays


def _read(version: WeightVersion, store: WeightStore, like: Arrays) -> dict[str, Any]:
    try:
        return store.load(version.path, like)
    except RlaxError:
        raise
    except Exception as error:  # of a file system or a client library: it says nothing of the bytes
        reason = f"{type(error).__name__}: {error}"
        raise WeightsUnreadableError(f"{version.path} cannot be read: {reason}") from error


def check_variables(version: WeightVersion, found: Arrays) -> None:
    """Compares names, shapes and dtypes with the published ones.

    Args:
      found: name -> anything with a shape and a dtype.

    Raises:
      WeightsError: they differ; names the first.
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


def check_fingerprints(version: WeightVersion, found: Mapping[str, Any]) -> None:
    """Compares fingerprints, name by name.

    Args:
      found: name -> uint32, see ``rlax_plugin.weights.host_fingerprint``.

    Raises:
      WeightsMismatchError: one differs.
    """
    for name, spec in version.tensors.items():
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
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - published)
    apart[~np.isfinite(apart)] = np.inf
    size = np.where(np.isfinite(published), np.abs(published), 0.0)
    allowed = canary.tolerance * np.maximum(1.0, size / _ROUNDED_FROM)
    worst = int((apart / allowed).argmax())
    if apart[worst] > allowed[worst]:
        raise WeightsMismatchError(
            f"version {version.version}: the canary's log-prob at position {worst} is "
            f"{found[worst]:.6g}, but {published[worst]:.6g} was published: the difference is "
            f"{apart[worst]:.3g} nats, the tolerance {allowed[worst]:.3g}"
        )
