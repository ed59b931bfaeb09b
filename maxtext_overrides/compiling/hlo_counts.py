"""Counts the floating-point operations and the collectives of a compiled program. No JAX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maxtext_overrides.compiling.hlo import Array, Computation, Instruction, Program

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")
_CONTRACTED = re.compile(r"\blhs_contracting_dims=\{([\d,]*)\}")


@dataclass(frozen=True, slots=True)
class Counts:
    """The work of one call of a program, on one device.

    Attributes:
      flops: floating-point operations of all matrix products; kernels (custom calls) are opaque.
      collectives: kind -> how often one runs.
      collective_bytes: kind -> bytes of their results.
      unknown_loops: loops whose number of rounds depends on data; their bodies count once.
    """

    flops: float
    collectives: Mapping[str, int]
    collective_bytes: Mapping[str, int]
    unknown_loops: tuple[str, ...]


def count(program: Program) -> Counts:
    """Counts a program; what a loop runs n times counts n times."""
    runs, unknown = program.runs()
    flops = 0.0
    number = dict.fromkeys(COLLECTIVES, 0)
    nbytes = dict.fromkeys(COLLECTIVES, 0)
    for name, times in runs.items():
        if not times:
            continue
        computation = program.computations[name]
        for one in computation.instructions.values():
            if one.opcode in ("dot", "convolution"):
                flops += times * _flops(computation, one)
            elif (kind := one.opcode.removesuffix("-start")) in number:
                number[kind] += times
                nbytes[kind] += times * _result_bytes(one)
    return Counts(
        flops,
        {kind: n for kind, n in number.items() if n},
        {kind: nbytes[kind] for kind, n in number.items() if n},
        unknown,
    )


def _result_bytes(collective: Instruction) -> int:
    """Returns the bytes of a collective's result.

    The start of an asynchronous one returns its operand, its result, and further handles.
    """
    sizes = [_nbytes(array) for array in collective.arrays]
    if collective.opcode.endswith("-start") and len(sizes) > 1:
        return sizes[1]
    return sum(sizes)


def _nbytes(array: Array) -> int:
    digits = re.search(r"\d+", array.dtype)
    bits = _BITS.get(array.dtype, int(digits[0]) if digits else 8)
    return math.prod(array.dims) * bits // 8


def _flops(holder: Computation, one: Instruction) -> float:
    operands = [holder.instructions[name].arrays[0].dims for name in one.operands[:2]]
    out = one.arrays[0].dims
    if one.opcode == "dot":
        found = _CONTRACTED.search(one.attributes)
        axes = [int(n) for n in found[1].split(",") if n] if found else []
        return 2.0 * math.prod(out) * math.prod(operands[0][axis] for axis in axes)
    return _of_convolution(one, operands[0], operands[1], out)


def _of_convolution(
    one: Instruction, left: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]
) -> float:
    """Counts a convolution, into which a TPU's compiler turns every matrix product.

    Products with padding do not count: a product of several axes becomes a convolution most of
    whose window lies outside.
    """
    labels = _LABELS.search(one.attributes)
    if labels is None:
        return 0.0
    of_left, of_kernel, of_out = labels.groups()
    window = _window(one.attributes, sum(label.isdigit() for label in of_left))
    valid = 1
    for axis, (size, stride, low, dilation, kernel_dilation) in enumerate(window):
        label = str(axis)
        reached = _valid_pairs(
            left[of_left.index(label)],
            out[of_out.index(label)],
            size,
            stride,
            low,
            dilation,
            kernel_dilation,
        )
        valid *= reached
    groups = _GROUPS.search(one.attributes)
    batch = left[of_left.index("b")] // (int(groups[1]) if groups else 1)
    features = kernel[of_kernel.index("i")] * out[of_out.index("f")]
    return 2.0 * batch * features * valid


def _window(attributes: str, axes: int) -> list[tuple[int, int, int, int, int]]:
    """Returns size, stride, padding before, dilation and the kernel's dilation of each axis."""
    found = _WINDOW.search(attributes)
    said = dict(part.split("=", 1) for part in found[1].split() if "=" in part) if found else {}

    def values(name: str, default: str) -> list[str]:
        return said[name].split("x") if name in said else [default] * axes

    return [
        (int(size), int(stride), int(pad.split("_")[0]), int(dilation), int(kernel))
        for size, stride, pad, dilation, kernel in zip(
            values("size", "1"),
            values("stride", "1"),
            values("pad", "0_0"),
            values("lhs_dilate", "1"),
            values("rhs_dilate", "1"),
            strict=True,
        )
    ]


def _valid_pairs(
    inputs: int, outputs: int, size: int, stride: int, low: int, dilation: int, kernel: int
) -> int:
    """Returns how many pairs of an output and a place in the window meet an input."""
    if size == 1 and low == 0 and dilation == 1:
        return min(outputs, -(-inputs // stride))
    places = np.arange(outputs)[:, None] * stride - low + np.arange(size)[None, :] * kernel
    inside = (places >= 0) & (places < (inputs - 1) * dilation + 1) & (places % dilation == 0)
    return int(inside.sum())
