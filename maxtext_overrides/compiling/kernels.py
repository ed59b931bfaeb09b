"""Counts the floating-point operations of Pallas kernels, which a compiled program hides.

In the compiled text a kernel is an opaque custom call. Here it is counted in the traced program:
its author's own estimate if it has one, otherwise the matrix products of one grid step times the
steps of the grid. Kernels run inside ``shard_map``, so the numbers are those of one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """The kernels of a traced program.

    Attributes:
      flops: floating-point operations of one call of the program; a step of a grid that a mask
        skips counts as well.
      calls: name of a kernel -> how often it runs.
      uncounted: names of kernels whose grid is not known before they run.
    """

    flops: float
    calls: dict[str, int]
    uncounted: tuple[str, ...]


def count(jaxpr: Any) -> KernelCounts:
    """Counts the kernels of a ``jax.core.ClosedJaxpr``; the body of a while loop counts once."""
    flops, calls, uncounted = 0.0, {}, []
    for kernel, times in _kernels(jaxpr, 1):
        name = _name(kernel)
        calls[name] = calls.get(name, 0) + times
        found = _flops_of(kernel)
        if found is None:
            uncounted.append(name)
        else:
            flops += times * found
    return KernelCounts(flops, calls, tuple(dict.fromkeys(uncounted)))


def _kernels(jaxpr: Any, times: int) -> Iterator[tuple[Any, int]]:
    for equation in _equations(jaxpr):
        name = equation.primitive.name
        if name == "pallas_call":
            yield equation, times
            continue
        rounds = equation.params["length"] if name == "scan" else 1
        for inner in _inner(equation):
            yield from _kernels(inner, times * rounds)


def _flops_of(kernel: Any) -> float | None:
    """Returns the operations of one call of a kernel; None if its grid is unknown."""
    estimate = kernel.params.get("cost_estimate")
    if estimate is not None and estimate.flops:
        return float(estimate.flops)
    grid = kernel.params["grid_mapping"].grid
    if not all(isinstance(size, int) for size in grid):
        return None
    return math.prod(grid) * _products(kernel.params["jaxpr"])


def _products(jaxpr: Any) -> float:
    """Returns the operations of all matrix products; of a conditional's branches, the largest."""
    total = 0.0
    for equation in _equations(jaxpr):
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            out = equation.outvars[0].aval.shape
            total += 2.0 * math.prod(out) * math.prod(left[axis] for axis in contracted)
            continue
        combined: Callable[..., float] = max if name == "cond" else sum
        inner = [_products(one) for one in _inner(equation)]
        rounds = equation.params["length"] if name == "scan" else 1
        total += rounds * combined(inner) if inner else 0.0
    return total


def _equations(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr).eqns


def _inner(equation: Any) -> Iterator[Any]:
    """Yields the programs that an equation runs."""
    for value in equation.params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns"):
                yield one


def _name(kernel: Any) -> str:
    info = kernel.params.get("name_and_src_info")
    return str(getattr(info, "name", None) or kernel.params.get("name") or "a kernel")
