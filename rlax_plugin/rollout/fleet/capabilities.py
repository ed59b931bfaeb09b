"""The capabilities that a run needs of its workers, and their form in messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlax_plugin.base.text.harmless import hidden_character, one_line
from rlax_plugin.base.types import NATIVE, SAFETENSORS, SideSpec
from rlax_plugin.config import INT32_MAX, RlaxSection
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rpc import rlax_pb2 as pb

_MOST_SLOTS = 1 << 20
_MOST_SIDE_CHANNELS = 64
_MOST_DIMENSIONS = 8
_MOST_SIDE_BYTES = 1 << 16  # per token and channel: replies may be that much larger
_LONGEST_NAME = 64
_OVER = ("sampled", "context+sampled")
_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Needs:
    """The abilities that every worker of a run must have, and those that it may have.

    Attributes:
      logprobs: True if samples must carry log-probs, as training needs.
      seeded: True if sampling must follow the seeds, as ``rlax.deterministic`` needs.
      at_once: samples of a group that must fit into the slots together; 0: any number may wait.
      new_tokens: ``rlax.rollouts.max_new_tokens``; the engine's longest context must exceed it.
      stop_strings: True if samples must end at stop strings, which the prompt source has.
      side: side channels that samples may have. They decide the memory that replies may take, so
        no worker adds to them; None: any.
    """

    logprobs: bool = False
    seeded: bool = False
    at_once: int = 0
    new_tokens: int = 0
    stop_strings: bool = False
    side: Mapping[str, SideSpec] | None = None

    @classmethod
    def of(
        cls,
        section: RlaxSection,
        *,
        trains: bool,
        stop_strings: bool = False,
        side: Mapping[str, SideSpec] | None = None,
    ) -> Needs:
        """Returns the needs of a training run, or of an evaluation if ``trains`` is False."""
        deterministic = section.deterministic
        return cls(
            logprobs=trains,
            seeded=deterministic,
            at_once=section.rollouts.group_size if deterministic and trains else 0,
            new_tokens=section.rollouts.max_new_tokens,
            stop_strings=stop_strings,
            side=side,
        )

    def lacking(self, has: Capabilities) -> str | None:
        """Returns the abilities that a worker lacks, in words; None if it lacks none."""
        reasons = {
            "its engine gives no log-probs, which training needs": self.logprobs
            and not has.logprobs,
            "its engine is not seeded, which rlax.deterministic needs": self.seeded
            and not has.seeded,
            f"it has {has.slots} slots, and with rlax.deterministic the {self.at_once} samples of "
            "a group are generated at once": has.slots < self.at_once,
            f"its engine takes at most {has.context_tokens} tokens, and a completion alone may "
            f"have {self.new_tokens} (rlax.rollouts.max_new_tokens)": 0
            < has.context_tokens
            <= self.new_tokens,
            "its engine does not end samples at stop strings, which the prompt source has": (
                self.stop_strings and not has.stop_strings
            ),
        }
        lacking = [reason for reason, is_so in reasons.items() if is_so]
        if self.side is not None and (why := _foreign(has.side, self.side)):
            lacking.append(why)
        return "; ".join(lacking) or None


def _foreign(side: Mapping[str, SideSpec], known: Mapping[str, SideSpec]) -> str | None:
    """Names the first side channel that a run does not take; None: it takes all."""
    names = sorted(name for name, spec in side.items() if known.get(name) != spec)
    if not names:
        return None
    name, more = names[0], f" and {len(names) - 1} more" if len(names) > 1 else ""
    takes = _described(known[name]) if name in known else f"only {', '.join(known) or 'none'}"
    return (
        f"its samples have the side channel '{name}' ({_described(side[name])}){more}, and the run "
        f"takes {takes}: the Extension of its rlax.rollouts.engine declares them (side)"
    )


def _described(spec: SideSpec) -> str:
    return f"{spec.dtype}{list(spec.trailing)} over {spec.over}"


def to_proto(has: Capabilities) -> pb.Capabilities:
    return pb.Capabilities(
        slots=has.slots,
        vocabulary=has.vocabulary,
        context_tokens=has.context_tokens,
        seeded=has.seeded,
        logprobs=has.logprobs,
        resumes=has.resumes,
        scores=has.scores,
        stop_strings=has.stop_strings,
        weights_format=has.weights_format,
        side={
            name: pb.SideChannel(dtype=one.dtype, trailing=one.trailing, over=one.over)
            for name, one in has.side.items()
        },
    )


def of_proto(message: pb.Capabilities) -> Capabilities:
    """Returns the capabilities that a worker declares in a message.

    Raises:
      ValueError: a value is impossible; the message names it.
    """
    if not 1 <= message.slots <= _MOST_SLOTS:
        raise ValueError(f"it offers {message.slots} slots")
    for name in ("vocabulary", "context_tokens"):
        if not 0 <= getattr(message, name) <= INT32_MAX:
            raise ValueError(f"its {name} is {getattr(message, name)}")
    if len(message.side) > _MOST_SIDE_CHANNELS:
        raise ValueError(f"it declares {len(message.side)} side channels")
    if (weights_format := message.weights_format or NATIVE) not in (NATIVE, SAFETENSORS):
        shown = one_line(weights_format, _LONGEST_NAME)
        raise ValueError(
            f"its engine reads weights in the format '{shown}', expected {NATIVE} or {SAFETENSORS}"
        )
    return Capabilities(
        slots=message.slots,
        vocabulary=message.vocabulary,
        context_tokens=message.context_tokens,
        seeded=message.seeded,
        logprobs=message.logprobs,
        resumes=message.resumes,
        scores=message.scores,
        stop_strings=message.stop_strings,
        weights_format=weights_format,
        side={name: _side(name, one) for name, one in message.side.items()},
    )


def _side(name: str, message: pb.SideChannel) -> SideSpec:
    printable = 0 < len(name) <= _LONGEST_NAME and not hidden_character(name)
    fits = message.dtype in _DTYPES and len(message.trailing) <= _MOST_DIMENSIONS
    fits = fits and all(1 <= size <= INT32_MAX for size in message.trailing)
    if not printable or not fits or message.over not in _OVER:
        raise ValueError(f"its side channel '{one_line(name, _LONGEST_NAME)}' is not a valid one")
    width = np.dtype(message.dtype).itemsize * math.prod(message.trailing)
    if width > _MOST_SIDE_BYTES:
        raise ValueError(
            f"its side channel '{name}' has {width:,} bytes for each token; at most "
            f"{_MOST_SIDE_BYTES:,} are allowed"
        )
    over = "sampled" if message.over == "sampled" else "context+sampled"
    return SideSpec(message.dtype, tuple(message.trailing), over)
