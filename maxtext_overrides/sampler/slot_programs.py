"""The programs of the slots, as pure functions that the decode engine compiles."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides.sampler.combined_model import CombinedModel
from maxtext_overrides.sampler.maxengine_model import Caches, MaxEngineModel, Weights
from maxtext_overrides.sampler.ring import packed
from maxtext_overrides.sampler.sampling import empty_settings, ends, sample_next

State = dict[str, Any]


class SlotPrograms:
    """The functions that a decode engine compiles.

    Args:
      longest: places of a slot's cache of the prompt.
      max_new_tokens: the longest completion.
    """

    def __init__(self, model: MaxEngineModel | CombinedModel, longest: int, max_new_tokens: int):
        self._model, self._longest, self._max_new_tokens = model, longest, max_new_tokens

    def insert_step(
        self,
        state: State,
        weights: Weights,
        tokens_nl: jax.Array,
        lengths_n: jax.Array,
        *others: Any,
    ) -> State:
        """Prefills n prompts and fills slots with them; see ``_filled``."""
        logits_nv, prefix = self._model.prefill(weights, tokens_nl, lengths_n)
        return self._filled(state, logits_nv, prefix, lengths_n, *others)

    def insert_behind(
        self,
        state: State,
        weights: Weights,
        tokens_nl: jax.Array,
        lengths_n: jax.Array,
        source_b: jax.Array,
        earlier_b: jax.Array,
        settings: State,
        fresh: jax.Array,
        slots_n: jax.Array,
        counts_n: jax.Array,
        reach: int,
    ) -> State:
        """As ``insert_step``, of prompts whose first tokens slots keep.

        See ``MaxEngineModel.prefill_behind``.
        """
        logits_nv, prefix = self._model.prefill_behind(
            weights, state["cache"], slots_n, counts_n, reach, tokens_nl, lengths_n
        )
        whole_n = counts_n + lengths_n
        return self._filled(state, logits_nv, prefix, whole_n, source_b, earlier_b, settings, fresh)

    def keep_tokens(self, state: State, *ended: jax.Array) -> State:
        """Copies generated tokens of slots into the caches of prompts; see ``joined_prefill``."""
        return state | {"cache": self._model.out_of_the_ring(state["cache"], *ended)}

    def _filled(
        self,
        state: State,
        logits_nv: jax.Array,
        prefix: Caches,
        lengths_n: jax.Array,
        source_b: jax.Array,
        earlier_b: jax.Array,
        settings: State,
        fresh: jax.Array,
    ) -> State:
        """Samples each slot's first token, and copies the caches of its prompt.

        Args:
          source_b: int32 [slots], the prompt that a slot receives; -1 leaves the slot unchanged.
          earlier_b: int32 [slots], tokens of a continued sample at the end of its prompt.
          settings: of the slots, see ``empty_settings``.
          fresh: True restarts the rings; allowed only if no slot is in use.
        """
        from_b, generated_b = jnp.maximum(source_b, 0), earlier_b + 1
        generated = sample_next(logits_nv[from_b], settings, earlier_b)
        row = jnp.where(fresh, 0, state["row"])
        news = settings | {
            "token": generated[0],
            "position": lengths_n[from_b],
            "generated": generated_b,
            "done": ends(generated[0], generated_b, settings),
            "born": jnp.broadcast_to(row, source_b.shape),
            "first": packed(*generated),
        }
        for name, new in news.items():
            takes = jnp.reshape(source_b >= 0, (-1,) + (1,) * (new.ndim - 1))
            news[name] = jnp.where(takes, new, state[name])
        cache = self._model.fan_out(state["cache"], prefix, source_b, fresh)
        return state | news | {"row": row, "cache": cache}

    def decode_loop(
        self,
        state: State,
        weights: Weights,
        occupied_b: jax.Array,
        max_steps: jax.Array,
        stop_when_free: jax.Array,
        reach: int,
    ) -> tuple[State, jax.Array]:
        """Attends to ``reach`` places of the prompts' caches, which hold all prompts in use.

        Returns the state and int32 [2 + 2 * slots]: steps, tokens; per slot length and done.
        """
        names = ("token", "position", "generated", "done", "row", "record", "cache")
        fixed = {name: value for name, value in state.items() if name not in names}
        # Top-k and top-p of samples that are gone would cost a sort of the vocabulary each step.
        fixed["top_k"] = jnp.where(occupied_b, state["top_k"], 0)
        fixed["top_p"] = jnp.where(occupied_b, state["top_p"], 1.0)

        def goes_on(carry: tuple[jax.Array, State]) -> jax.Array:
            step, s = carry
            running = jnp.any(occupied_b & ~s["done"])
            freed = jnp.any(occupied_b & s["done"])
            return (step < max_steps) & running & ~(stop_when_free & freed)

        def one_step(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
            step, s = carry
            logits_bv, cache = self._model.step(weights, s["cache"], s["token"], s["position"])
            generated = sample_next(logits_bv, fixed, s["generated"])
            live_b = occupied_b & ~s["done"]
            generated_b = s["generated"] + live_b
            record = jax.lax.dynamic_update_index_in_dim(
                s["record"], packed(*generated).T, s["row"], 0
            )
            return step + 1, {
                "token": jnp.where(live_b, generated[0], s["token"]),
                "position": s["position"] + live_b,
                "generated": generated_b,
                "done": s["done"] | (live_b & ends(generated[0], generated_b, fixed)),
                "row": (s["row"] + 1) % record.shape[0],
                "record": record,
                "cache": cache,
            }

        whole = state["cache"]
        near = {}
        if reach < self._longest:
            near = self._model.prompt_caches(whole, reach)
        start = {name: state[name] for name in names} | {"cache": whole | near}
        steps, moved = jax.lax.while_loop(goes_on, one_step, (jnp.int32(0), start))
        moved["cache"] |= {path: whole[path] for path in near}
        head = jnp.stack([steps, jnp.sum(moved["generated"] - state["generated"])])
        return fixed | moved, jnp.concatenate([head, moved["generated"], moved["done"]])

    def score_prefixes(self, weights: Weights, tokens_l: jax.Array) -> jax.Array:
        """Returns float32 [l - 1]: log-prob of each token but the first, given those before it."""
        count = tokens_l.shape[0] - 1
        prefixes_nl = jnp.broadcast_to(tokens_l[:-1], (count, count))
        logits_nv, _ = self._model.prefill(weights, prefixes_nl, jnp.arange(1, count + 1))
        logprobs_nv = jax.nn.log_softmax(logits_nv.astype(jnp.float32))
        return jnp.take_along_axis(logprobs_nv, tokens_l[1:, None], axis=1)[:, 0]

    def empty(self) -> State:
        """Returns the state of all slots when empty.

        ``record`` is a ring over decode steps, shared as MaxEngine's cache is: one row a step,
        [step, 3, slot]; a slot's rows start at ``born``. It holds twice the longest sample, as a
        sample that ends early in a call is read only after the call.
        """
        slots = self._model.slots
        zeros = {name: jnp.zeros(slots, jnp.int32) for name in ("token", "position", "generated")}
        rows = 2 * max(self._max_new_tokens - 1, 1)
        return (
            zeros
            | jax.tree.map(jnp.asarray, empty_settings(slots))
            | {
                "done": jnp.ones(slots, bool),
                "born": jnp.zeros(slots, jnp.int32),
                "first": jnp.zeros((slots, 3), jnp.int32),
                "row": jnp.int32(0),
                "record": jnp.zeros((rows, 3, slots), jnp.int32),
                "cache": {
                    path: jnp.zeros(like.shape, like.dtype)
                    for path, like in self._model.caches_like.items()
                },
            }
        )
