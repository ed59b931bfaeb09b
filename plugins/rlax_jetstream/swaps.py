"""What becomes of loaded weights: tried by the canary, used, or discarded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlax_plugin.api import Arrays, DecodeSlots, Loaded, Prefill, SamplingParams

TOTALS = ("steps_total", "tokens_total", "prefill_tokens_total", "prefill_computed_total")


@dataclass(frozen=True, slots=True)
class Swap:
    """What the engine thread is to do with loaded weights once no sample is in a slot.

    Attributes:
      greedy: (tokens, count) to decode with them, as they are not verified yet; None: use them.
      done: then, with what was decoded.
    """

    loaded: Loaded
    greedy: tuple[np.ndarray, int] | None
    done: Future[Any]


class Swaps:
    """The weights in use, and those that may follow. All but ``perform`` is guarded by the engine.

    Attributes:
      used: the weights in use; those of version -1 before the first.
      next: what waits until no sample is in a slot.
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
        """Whether no sample may be put into a slot: weights wait, or are being verified."""
        return self.next is not None or self._tried is not None

    def ask(self, loaded: Loaded, greedy: tuple[np.ndarray, int] | None) -> Future[Any]:
        """Replaces what waits."""
        if self.next is not None:
            self.next.done.cancel()
        self.next, self._tried = Swap(loaded, greedy, Future()), None
        return self.next.done

    def forget_cancelled(self) -> None:
        """Nobody waits for it any more."""
        if self.next is not None and self.next.done.cancelled():
            self.next = None

    def take(self) -> Swap | None:
        """What is to be performed, as no sample is in a slot; what was tried remains so."""
        swap, self.next = self.next, None
        if swap is None or not swap.done.set_running_or_notify_cancel():
            return None
        if swap.greedy is not None:
            self._tried = swap.loaded
        return swap

    def discard(self, arrays: Arrays) -> None:
        """They will not be used: generation goes on with the weights in use."""
        if self.next is not None and self.next.loaded.arrays is arrays:
            self.next.done.cancel()
            self.next = None
        if self._tried is not None and self._tried.arrays is arrays:
            self._tried = None

    def perform(self, swap: Swap, slots: DecodeSlots) -> None:
        """On the engine's thread, while all slots are free."""
        if swap.greedy is None:
            self.used = swap.loaded
            swap.done.set_result(None)
            return
        try:
            swap.done.set_result(_decode_greedy(slots, swap.loaded.arrays, *swap.greedy))
        except Exception as error:
            swap.done.set_exception(error)
            raise

    def fail(self, error: Exception) -> None:
        """Nothing is performed any more."""
        swap, self.next = self.next, None
        if swap is not None and swap.done.set_running_or_notify_cancel():
            swap.done.set_exception(error)


def laid_out(
    loaded: Loaded,
    slots: DecodeSlots,
    made_by: Callable[[Arrays], Arrays],
    discard: Callable[[Arrays], None],
) -> Loaded:
    """What was read, as the slots' programs read it fastest.

    Args:
      made_by: name -> array to name -> uint32.
      discard: gets the arrays.
    """
    arrays = loaded.arrays
    assert isinstance(arrays, dict)  # in place: a copy would keep each array as it was
    slots.lay_out(arrays)
    return replace(
        loaded,
        fingerprints=functools.partial(slots.fingerprints, loaded.read, made_by),
        discard=functools.partial(discard, arrays),
    )


def _decode_greedy(
    slots: DecodeSlots, weights: Arrays, tokens: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and log-probs, generated in the first slot; all slots are free, before and after.

    What the slots have counted stays as it was, as it tells of samples.
    """
    totals = {name: getattr(slots, name) for name in TOTALS}
    sampling = SamplingParams(temperature=0.0, max_new_tokens=count)
    slots.insert(weights, [Prefill(tokens, (0,), (0,), sampling)])
    (generated,) = slots.decode(weights, count, True)
    for name, total in totals.items():
        setattr(slots, name, total)
    return generated.tokens, generated.logprobs
