"""Compiles the RL train step for a slice of TPUs, with MaxText's own ``train_compile``.

``train_compile.main`` builds the abstract state, its shardings and the batch as a training does.
Under our extension points it takes our arrays and our loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax

from maxtext_overrides import adapters
from maxtext_overrides.compiling.measured import bytes_per_device, compile_measured, flops_per_token
from maxtext_overrides.config.memory import FIRST_BASE
from maxtext_overrides.kept_positions import logits_per_row
from maxtext_overrides.rounding import version_like
from maxtext_overrides.trainer import loss as rl_loss
from maxtext_overrides.trainer.train_loop import Events, extended
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.lean_imports import unavailable
from maxtext_overrides.upstream.signatures import check
from maxtext_overrides.variables import published
from rlax_plugin.ports.compiling import CompiledProgram
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import DEMONSTRATED

OVERRIDES = BY_MODULE["maxtext_overrides/compiling/train_step.py"]


class _Compiled(Exception):
    """Ends ``train_compile.main`` when the program is measured: what follows only prints."""


def compile_train_step(
    config: Any,
    *,
    arrays: Mapping[str, ArraySpec],
    update_arrays: Mapping[str, ArraySpec],
    objective: rl_loss.Objective,
    outputs: Collection[str],
    copies: Mapping[str, bool],
    rounds: bool,
    frozen_updates: int = 0,
) -> CompiledProgram:
    """Compiles one update of an RL step.

    Args:
      config: loaded with the keys of ``topology.keys``.
      arrays: see ``run_train_loop``; so are ``objective``, ``outputs`` and
        ``frozen_updates``.
      update_arrays: see ``Events``.
      copies: purpose of each copy of the weights that a trainer holds beside its state -> True if
        it is a weight version. Others have adapters only, if these are trained.
      rounds: see ``rounding.version_dtypes``.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, config.allow_untested)
    rows, length = int(config.global_batch_size_to_train_on), int(config.max_target_length)
    parts = config.gradient_accumulation_steps
    work = f"{rows:,} rows x {length:,} tokens" + (f", {parts} micro-batches" * (parts > 1))
    found: list[CompiledProgram] = []

    def measured(
        function: Any, arguments: Any, keywords: Any, mesh: Any, in_shardings: Any, *others: Any
    ) -> Any:
        state, shardings = arguments[0], in_shardings[0]
        version = first = _version(state, shardings, config, rounds)
        kept = _version(state, shardings, config, rounds=False)
        if adapters.enabled(config):
            version, kept = adapters.of_adapters(version), adapters.of_adapters(kept)
        sizes = {True: bytes_per_device(version), False: bytes_per_device(kept)}
        program = compile_measured(
            "train step",
            work,
            lambda: compile_it(function, arguments, keywords, mesh, in_shardings, *others),
            flops=3 * rows * _flops_per_row(config, DEMONSTRATED in arrays) / mesh.size,
            beside={purpose: sizes[is_version] for purpose, is_version in copies.items()},
        )
        base = bytes_per_device(first) - sizes[True]
        if program.memory and (beyond := base - program.memory["temporaries"]) > 0:
            program = replace(program, beside={**program.beside, FIRST_BASE: beyond})
        found.append(program)
        raise _Compiled

    events = Events(batches=_no_batch, on_step_end=lambda *_: None, update_arrays=update_arrays)
    extension = extended(config, events, arrays, objective, outputs, frozen_updates)
    compiler = _compiler(config, measured)
    with extension, compiler as (train_compile, compile_it), contextlib.suppress(_Compiled):
        train_compile.main([""])
    return found[0]


def _flops_per_row(config: Any, whole_rows: bool) -> float:
    """Returns the operations of one forward pass for one row.

    Args:
      whole_rows: True if logits are computed for all positions.
    """
    length = int(config.max_target_length)
    without_logits = 0 if whole_rows else length - (logits_per_row(config) or length)
    output_layer = 2 * int(config.emb_dim) * int(config.vocab_size)
    return length * flops_per_token(config) - without_logits * output_layer


def _no_batch(step: int) -> Mapping[str, Any]:
    raise AssertionError("a program is compiled without a batch")


@contextmanager
def _compiler(config: Any, measured: Any) -> Iterator[Any]:
    """Yields ``train_compile``, which takes this config and compiles with ``measured``.

    Yields:
      The module, and the function with which it compiles otherwise.
    """
    with unavailable("tensorflow", "google.cloud.aiplatform"):
        from maxtext.trainers.pre_train import train_compile
    stock = train_compile.pyconfig.initialize, train_compile.jit_and_compile
    train_compile.pyconfig.initialize = lambda argv: config
    train_compile.jit_and_compile = measured
    try:
        yield train_compile, stock[1]
    finally:
        train_compile.pyconfig.initialize, train_compile.jit_and_compile = stock


def _version(state: Any, shardings: Any, config: Any, rounds: bool) -> dict[str, Any]:
    """Returns the variables of a weight version by name, with their shardings."""
    where = published(shardings.model)
    return {
        name: jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=where[name])
        for name, like in version_like(published(state.model), config, rounds).items()
    }
