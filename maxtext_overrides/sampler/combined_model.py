"""Several of MaxEngine's models in step: they read the same tokens, and their logits are combined.

Decoding-time methods are such combinations, as contrastive decoding (arXiv 2210.15097), proxy
tuning (2401.08565) and RAST (2506.15710).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides.sampler.maxengine_model import Caches, MaxEngineModel, Weights

Combine = Callable[[Mapping[str, jax.Array], Mapping[str, Any]], jax.Array]


class CombinedModel:
    """What a decode engine drives in place of one ``MaxEngineModel``, whose members it has.

    The models have one vocabulary, the same slots and lengths, and one mesh.

    Args:
      main: its weights are those of the versions that an engine loads.
      others: name -> model, whose weights stand under its name beside those of ``main``.
      combine: (logits, weights) -> logits float32 [n, vocab]; a pure function that JAX traces.
        ``logits`` has those of each model, float32, under its name; of ``main`` under "".
        ``weights`` is what the engine's programs are called with.
    """

    def __init__(
        self, main: MaxEngineModel, others: Mapping[str, MaxEngineModel], combine: Combine
    ):
        self._models, self._combine = {"": main, **others}, combine
        self.slots, self.mesh, self.row_shards = main.slots, main.mesh, main.row_shards
        self.variables_like, self.layer_axes = main.variables_like, main.layer_axes
        self.joins = all(model.joins for model in self._models.values())
        self.caches_like = self._joined({n: m.caches_like for n, m in self._models.items()})

    def prefill(self, weights: Weights, *prompts: jax.Array) -> tuple[jax.Array, Caches]:
        return self._run(weights, lambda m, own, _: m.prefill(own, *prompts), {})

    def prefill_behind(
        self, weights: Weights, caches: Caches, *prompts: Any
    ) -> tuple[jax.Array, Caches]:
        return self._run(weights, lambda m, *own: m.prefill_behind(*own, *prompts), caches)

    def step(
        self, weights: Weights, caches: Caches, *tokens: jax.Array
    ) -> tuple[jax.Array, Caches]:
        return self._run(weights, lambda m, *own: m.step(*own, *tokens), caches)

    def out_of_the_ring(self, caches: Caches, *ended: jax.Array) -> Caches:
        return self._each(lambda m, own: m.out_of_the_ring(own, *ended), caches)

    def prompt_caches(self, caches: Caches, length: int) -> Caches:
        return self._each(lambda m, own: m.prompt_caches(own, length), caches)

    def fan_out(self, caches: Caches, prefix: Caches, *filled: jax.Array) -> Caches:
        return self._each(lambda m, *own: m.fan_out(*own, *filled), caches, prefix)

    def _run(
        self, weights: Mapping[str, Any], call: Callable[..., tuple[jax.Array, Caches]], caches: Any
    ) -> tuple[jax.Array, Caches]:
        logits, after = dict[str, jax.Array](), dict[str, Caches]()
        for name, model in self._models.items():
            own = weights[name] if name else weights
            found, after[name] = call(model, own, _of(name, caches))
            logits[name] = found.astype(jnp.float32)
        return self._combine(logits, weights), self._joined(after)

    def _each(self, call: Callable[..., Caches], *caches: Caches) -> Caches:
        """Calls it with each model, and its part of each of the caches."""
        return self._joined(
            {n: call(m, *(_of(n, one) for one in caches)) for n, m in self._models.items()}
        )

    @staticmethod
    def _joined(parts: Mapping[str, Mapping[Any, Any]]) -> dict[Any, Any]:
        return {(n, *path): one for n, part in parts.items() for path, one in part.items()}


def _of(name: str, caches: Caches) -> Caches:
    return {path[1:]: one for path, one in caches.items() if path[0] == name}
