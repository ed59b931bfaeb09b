"""Compiles a worker's programs for a slice of TPUs: a prefill and the decode loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides import int8_weights
from maxtext_overrides.compiling.measured import bytes_per_device, compile_measured, flops_per_token
from maxtext_overrides.sampler.decode import DecodeEngine
from rlax_plugin.ports.compiling import CompiledProgram


class _DescribedEngine(DecodeEngine):
    """The slots of devices that are only described: nothing is allocated."""

    def reset(self) -> None:
        """Does nothing, as there is no state to clear."""

    def compiled(
        self, progress: Callable[[str], None], flops_per_token: float
    ) -> Iterator[CompiledProgram]:
        """Compiles the largest prefill, and the two largest loops of decode steps.

        Args:
          flops_per_token: operations of one chip for a token.
        """
        weights: dict[str, Any] = self.variables_like()
        beside = {"new weights, while they are loaded": bytes_per_device(weights)}
        quantised = self.kernels.items()
        weights |= {name: int8_weights.like(weights[name], axes) for name, axes in quantised}
        state = jax.tree.map(
            lambda like, sharding: jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding),
            jax.eval_shape(self._empty),
            self._shardings,
        )
        bucket = max(self._buckets, key=lambda one: (one.rows * one.length, one.length))
        settings = {name: state[name] for name in _SETTINGS}
        numbers = _like((self.slots,))
        arguments = (
            _like((bucket.rows, bucket.length)),
            _like((bucket.rows,)),
            numbers,
            numbers,
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), settings),
            _like((), bool),
        )
        rows = f"{bucket.rows:,} prompt{'s' * (bucket.rows > 1)} x {bucket.length:,} tokens"
        progress("prefill")
        yield compile_measured(
            "prefill",
            rows,
            lambda: self._insert.lower(state, weights, *arguments).compile(),
            flops=bucket.rows * bucket.length * flops_per_token,
            beside=beside,
        )
        arguments_of_loop = (_like((self.slots,), bool), _like(()), _like((), bool))
        # The program for shorter prompts copies a part of their caches.
        for reach, name in zip(reversed(self._reaches), _DECODES, strict=False):
            progress(name)
            yield compile_measured(
                name,
                f"one token in each of {self.slots:,} slots",
                lambda reach=reach: self._decode.lower(
                    state, weights, *arguments_of_loop, reach
                ).compile(),
                flops=self.slots * flops_per_token,
                beside=beside,
            )


_DECODES = ("decode", "decode, short prompts")
_SETTINGS = ("seed", "temperature", "top_k", "top_p", "limit", "stop")


def _like(shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def compile_worker(
    config: Any,
    devices: Sequence[Any],
    progress: Callable[[str], None],
    *,
    group_size: int,
    prompt_tokens: int,
    rounds: bool,
    quantizes: bool = False,
) -> Iterator[CompiledProgram]:
    """Compiles the programs of a worker.

    Args:
      config: a worker's config, loaded with the keys of ``topology.keys``.
      devices: see ``topology.devices``.
      progress: see ``CompileTarget``.
      group_size: see ``DecodeEngine``; so are ``prompt_tokens``, ``rounds`` and ``quantizes``.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    engine = _DescribedEngine(
        config,
        group_size=group_size,
        prompt_tokens=prompt_tokens,
        rounds=rounds,
        quantizes=quantizes,
        devices=devices,
    )
    yield from engine.compiled(progress, flops_per_token(config) / len(devices))
