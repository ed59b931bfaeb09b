"""The loaded weights until they are verified by the canary, used, or discarded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlax_plugin.base.types import SamplingParams
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.rollout.batching.decode_engine import DecodeSlots, Prefill

TOTALS = (
    "steps_total",
    "slot_steps_total",
    "tokens_total",
    "prefill_tokens_total",
    "prefill_computed_total",
    "prefill_kept_total",
)


@dataclass(frozen=True, slots=True)
class Swap:
    """An operation on loaded weights, which the engine thread performs once all slots are free.

    Attributes:
      greedy: (tokens, count) to decode with them, as they are not verified yet; None: use them.
      done: future of the operation, with the decoded tokens.
    """

    loaded: Loaded
    greedy: tuple[np.ndarray, int] | None
    done: Future[Any]


class Swaps:
    """The weights in use, and the next ones. All but ``perform`` is guarded by the engine.

    Attributes:
      used: the weights in use; those of version -1 before the first.
      next: the operation that waits until all slots are free.
    """

    def __init__(self) -> None:
        self.used = Loaded(-1, {}, None)
        self.next: Swap | None = None
        self._tried: Loaded | None = None

    @property
    def weights(self) -> Arrays:
        """The arrays in use."""
        return self.used.arrays

    @property
    def version(self) -> int:
        """The version in use; -1 before the first."""
        return self.used.version

    @property
    def paused(self) -> bool:
        """True if no sample may be put into a slot: weights wait, or are being verified."""
        return self.next is not None or self._tried is not None

    def ask(self, loaded: Loaded, greedy: tuple[np.ndarray, int] | None) -> Future[Any]:
        """Replaces the waiting operation."""
        if self.next is not None:
            self.next.done.cancel()
        self.next, self._tried = Swap(loaded, greedy, Future()), None
        return self.next.done

    def forget_cancelled(self) -> None:
        """Forgets the waiting operation if its future was cancelled."""
        if self.next is not None and self.next.done.cancelled():
            self.next = None

    def take(self) -> Swap | None:
        """Takes the waiting operation, to be performed while all slots are free; None without one.

        Weights that are being verified stay marked as such.
        """
        swap, self.next = self.next, None
        if swap is None or not swap.done.set_running_or_notify_cancel():
            return None
        if swap.greedy is not None:
            self._tried = swap.loaded
        return swap

    def discard(self, arrays: Arrays) -> None:
        """Drops weights that will not be used; generation continues with the weights in use."""
        if self.next is not None and self.next.loaded.arrays is arrays:
            self.next.done.cancel()
            self.next = None
        if self._tried is not None and self._tried.arrays is arrays:
            self._tried = None

    def perform(self, swap: Swap, slots: DecodeSlots, forget: Callable[[], None]) -> None:
        """Performs an operation on the engine's thread, while all slots are free.

        Args:
          forget: makes the slots forget the contexts that they keep, see ``DecodeSlots``.
        """
        forget()
        decoded, arrays = None, swap.loaded.arrays
        assert isinstance(arrays, dict)  # changed in place: the verifier scores with these
        try:
            slots.convert(arrays)
            if swap.greedy is not None:
                decoded = _decode_greedy(slots, arrays, *swap.greedy)
        except Exception as error:
            swap.done.set_exception(error)
            raise
        if swap.greedy is None:
            self.used = swap.loaded
        else:
            forget()  # these weights may be discarded
        swap.done.set_result(decoded)

    def fail(self, error: Exception) -> None:
        """Ends all operations with an error."""
        swap, self.next = self.next, None
        if swap is not None and swap.done.set_running_or_notify_cancel():
            swap.done.set_exception(error)


def laid_out(
    loaded: Loaded,
    slots: DecodeSlots,
    made_by: Callable[[Arrays], Arrays],
    discard: Callable[[Arrays], None],
    generating: Callable[[], AbstractContextManager[None]],
) -> Loaded:
    """The loaded weights in the layout that the slots' programs read fastest.

    Args:
      made_by: computes the fingerprint (uint32) of each array; returns name -> fingerprint.
      discard: called with the arrays to discard.
      generating: see ``BuildContext``; for the fingerprints, which are computed later.
    """
    arrays = loaded.arrays
    assert isinstance(arrays, dict)  # in place: a copy would keep each array as it was
    slots.lay_out(arrays)

    def fingerprints() -> Mapping[str, Any]:
        with generating():  # not before, or arrays that are converted would stay
            return slots.fingerprints(loaded.read, made_by)

    return replace(loaded, fingerprints=fingerprints, discard=functools.partial(discard, arrays))


def _decode_greedy(
    slots: DecodeSlots, weights: Arrays, tokens: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and log-probs, generated in the first slot; all slots are free, before and after.

    The counts of the slots stay unchanged, because they are about samples.
    """
    totals = {name: getattr(slots, name) for name in TOTALS}
    sampling = SamplingParams(temperature=0.0, max_new_tokens=count)
    slots.insert(weights, [Prefill(tokens, (0,), (0,), sampling)])
    (generated,) = slots.decode(weights, count, True)
    for name, total in totals.items():
        setattr(slots, name, total)
    return generated.tokens, generated.logprobs
