"""Compiles one program, and reads its figures."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax

from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.ports.compiling import CompiledProgram

OVERRIDES = BY_MODULE["maxtext_overrides/compiling/measured.py"]

# What JAX and its kernels raise for a program that they cannot compile.
REJECTIONS = (
    jax.errors.JaxRuntimeError,
    AssertionError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
# %name = <shape> opcode(operands), attributes; the start of an asynchronous one counts for it.
_COLLECTIVE = re.compile(
    r'(?m)^\s+(?:ROOT )?%?[\w.-]+ = [^"\n]*? (all-gather|all-reduce|all-to-all'
    r"|collective-broadcast|collective-permute|ragged-all-to-all|reduce-scatter)(?:-start)?\("
)
_LONGEST = 600  # characters of the compiler's message
_STATUS = re.compile(r"^(?:[A-Z_]{4,}|[A-Za-z.]*Error): (?:E\d+: )?")
_SEE = re.compile(r"\s*See https?://\S+ for more details\.?")


def compile_measured(
    name: str,
    work: str,
    compile_it: Callable[[], jax.stages.Compiled],
    *,
    flops: float,
    beside: Mapping[str, int],
) -> CompiledProgram:
    """Compiles a program, and reads the compiler's figures.

    Args:
      name: see ``CompiledProgram``; so are ``work``, ``flops`` and ``beside``.
      compile_it: traces and compiles the program.
    """
    began_s = time.monotonic()
    empty = CompiledProgram(name=name, work=work, seconds=0.0, beside=beside)
    try:
        compiled = compile_it()
    except REJECTIONS as error:
        return replace(empty, seconds=time.monotonic() - began_s, rejected=shortened(error))
    return replace(
        empty,
        seconds=time.monotonic() - began_s,
        memory=_memory(compiled.memory_analysis()),
        flops=flops,
        collectives=collectives(compiled.as_text() or ""),
    )


def collectives(text: str) -> dict[str, int]:
    """Returns kind -> number of collective operations in the text of a compiled program."""
    return dict(Counter(_COLLECTIVE.findall(text)))


def flops_per_token(config: Any) -> float:
    """Returns the operations of one forward pass for one token: 2 per weight that it meets.

    MaxText counts these weights for every family, with those experts that a token is sent to, and
    without the attention to other tokens.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, config.allow_untested)
    from maxtext.utils import maxtext_utils

    _, weights, _ = maxtext_utils.calculate_tflops_training_per_device(config, log=False)
    passes = 3  # forward, and backward for inputs and for weights
    tokens = config.per_device_batch_size * config.max_target_length
    return weights * 1e12 / (passes * tokens * config.gradient_accumulation_steps)


def _memory(stats: Any) -> dict[str, int]:
    return {
        "arguments": int(stats.argument_size_in_bytes),
        "outputs": int(stats.output_size_in_bytes),
        "temporaries": int(stats.temp_size_in_bytes),
        "aliased": int(stats.alias_size_in_bytes),
        "code": int(stats.generated_code_size_in_bytes),
    }


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
