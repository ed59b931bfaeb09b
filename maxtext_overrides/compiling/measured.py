"""Compiles one program, and reads its figures."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from maxtext_overrides.compiling import hlo, hlo_counts, kernels
from rlax_plugin.ports.compiling import CompiledProgram
from rlax_plugin.text.harmless import one_line

# What JAX and its kernels raise for a program that they cannot compile.
REJECTIONS = (
    jax.errors.JaxRuntimeError,
    AssertionError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_LONGEST = 600  # characters of the compiler's message
_STATUS = re.compile(r"^(?:[A-Z_]{4,}|[A-Za-z.]*Error): (?:E\d+: )?")
_SEE = re.compile(r"\s*See https?://\S+ for more details\.?")


def compile_measured(
    name: str,
    work: str,
    jitted: Any,
    arguments: Sequence[Any],
    *,
    beside: Mapping[str, int],
    options: Mapping[str, str] | None = None,
) -> tuple[CompiledProgram, Any]:
    """Traces and compiles a jitted function for the devices of its shardings.

    Args:
      name: see ``CompiledProgram``; so are ``work`` and ``beside``.
      arguments: ``jax.ShapeDtypeStruct``s in place of arrays.
      options: of the compiler.

    Returns:
      The figures, and what JAX compiled; None if the compiler rejected.
    """
    began_s = time.monotonic()
    empty = CompiledProgram(name=name, work=work, seconds=0.0, beside=beside)
    try:
        traced = jitted.trace(*arguments)
        compiled = traced.lower().compile(compiler_options=dict(options) if options else None)
    except REJECTIONS as error:
        seconds = time.monotonic() - began_s
        return replace(empty, seconds=seconds, rejected=shortened(error)), None
    seconds = time.monotonic() - began_s
    counted = hlo_counts.count(hlo.parse(compiled.as_text()))
    found = kernels.count(traced.jaxpr)
    program = replace(
        empty,
        seconds=seconds,
        memory=_memory(compiled.memory_analysis()),
        flops=counted.flops + found.flops,
        collectives=counted.collectives,
        collective_bytes=counted.collective_bytes,
        notes=_notes(counted, found),
    )
    return program, compiled


def _memory(stats: Any) -> dict[str, int]:
    return {
        "arguments": int(stats.argument_size_in_bytes),
        "outputs": int(stats.output_size_in_bytes),
        "temporaries": int(stats.temp_size_in_bytes),
        "aliased": int(stats.alias_size_in_bytes),
        "code": int(stats.generated_code_size_in_bytes),
    }


def _notes(counted: hlo_counts.Counts, found: kernels.KernelCounts) -> tuple[str, ...]:
    notes = []
    if loops := len(counted.unknown_loops):
        many = f"{loops} loops run" if loops > 1 else "a loop runs"
        notes.append(f"{many} as often as the data require, and the figures count one round")
    if found.uncounted:
        names = ", ".join(found.uncounted)
        notes.append(f"the operations of these kernels are not counted: {names}")
    return tuple(notes)


def shortened(error: Exception) -> str:
    """Returns the part of a compiler's message that a user can act on, in one line."""
    text = str(error).strip() or type(error).__name__
    # The dump of a program or a list of buffers follows after a blank line.
    head = re.split(r"\n\s*\n", _SEE.sub("", text), maxsplit=1)[0]
    return one_line(_STATUS.sub("", head, count=1), _LONGEST)


def bytes_per_device(likes: Mapping[str, Any]) -> int:
    """Returns the bytes that sharded arrays have on one device.

    Args:
      likes: name -> ``jax.ShapeDtypeStruct`` with a sharding.
    """
    return sum(
        math.prod(like.sharding.shard_shape(like.shape)) * like.dtype.itemsize
        for like in likes.values()
    )
