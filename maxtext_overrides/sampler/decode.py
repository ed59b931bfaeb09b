"""Continuous batching: many slots, one jitted loop, weights as arguments.

A prompt is prefilled once and its caches are copied to n slots; a ``lax.while_loop`` then decodes
until a slot is free, without Python per token. Settings, seeds and limits are per slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maxtext_overrides.sampler import buckets, layer_major
from maxtext_overrides.sampler.maxengine_model import FASTEST_LAYOUT, MaxEngineModel, Weights
from maxtext_overrides.sampler.ring import collect, packed
from maxtext_overrides.sampler.sampling import empty_settings, ends, sample_next
from rlax_plugin.batching.decode_engine import MAX_STOP_IDS, Prefill, SlotOutput
from rlax_plugin.types import SamplingParams

__all__ = ["FASTEST_LAYOUT", "MAX_STOP_IDS", "DecodeEngine", "Prefill", "SlotOutput"]

_SCORED = 16  # tokens that the compiled ``logprobs`` scores at least, where prompts hold as many

State = dict[str, Any]


class DecodeEngine:
    """The slots, their caches and the jitted programs, with NumPy inputs and outputs.

    For one thread. A sample may stop anywhere and continue in any slot of any engine: inserted with
    its tokens so far, it continues with the same random numbers, under whatever weights.

    Attributes:
      slots: number of sequences decoded at once.
      max_prompt_tokens, max_new_tokens: longest prompt (with the tokens of a continued sample) and
        longest completion.
      rounds_caches: True if MaxText quantises the caches.
      steps_total, tokens_total, slot_steps_total: decode steps run and tokens generated so far; of
        these the tokens that decode steps generated, one per step and slot in use.
      prefill_tokens_total, prefill_computed_total: tokens of the prompts prefilled so far, and the
        tokens computed for them, which include the padding of rows and lengths.

    Args:
      config: MaxText's config. Prompts hold ``max_prefill_predict_length`` tokens at most,
        completions ``max_target_length`` minus that. MaxEngine's cache of new tokens is a ring of
        that length, shared by all slots. A sample writes at most max_new_tokens - 1 entries from
        the ring's current position, so it never overwrites its own.
      group_size: samples that usually share a prompt.
      prompt_tokens: the longest prompt without the tokens of a continued sample; None: as long as
        fits. This and ``group_size`` shape the prefill programs (``buckets.plan``).
      devices: see ``MaxEngineModel``.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """

    def __init__(
        self,
        config: Any,
        *,
        group_size: int = 1,
        prompt_tokens: int | None = None,
        devices: Sequence[Any] | None = None,
    ):
        self.model = MaxEngineModel(config, devices)
        self.slots = self.model.slots
        self.max_prompt_tokens = int(config.max_prefill_predict_length)
        self.max_new_tokens = int(config.max_target_length) - self.max_prompt_tokens
        self.vocabulary = int(config.vocab_size)
        self.rounds_caches = bool(config.quantize_kvcache)
        most, rows = prompt_tokens or self.max_prompt_tokens, self.model.row_shards
        self._buckets = buckets.plan(self.slots, self.max_prompt_tokens, most, group_size, rows)
        self._reaches = buckets.reaches(self.max_prompt_tokens)
        self.forget_totals()
        replicated = jax.sharding.NamedSharding(self.model.mesh, jax.sharding.PartitionSpec())
        self._shardings = jax.tree.map(lambda _: replicated, jax.eval_shape(self._empty))
        self._shardings["cache"] = {p: x.sharding for p, x in self.model.caches_like.items()}
        outputs = (self._shardings, replicated)
        self._insert = jax.jit(self._insert_step, out_shardings=self._shardings, donate_argnums=0)
        self._decode = jax.jit(
            self._decode_loop, out_shardings=outputs, donate_argnums=0, static_argnums=5
        )
        self._collect = jax.jit(collect, out_shardings=replicated)
        self._score = jax.jit(self._score_prefixes, out_shardings=replicated)
        self._clear = jax.jit(self._empty, out_shardings=self._shardings)
        self.reset()

    def variables_like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shape, dtype and sharding of every array that ``weights`` must hold, by name."""
        return dict(self.model.variables_like)

    def lay_out(self, arrays: dict[str, Any]) -> None:
        """Replaces a version's arrays by the layout the programs read fastest, one after the other.

        The programs also accept ``arrays`` without this, but compile again for them.
        """
        layer_major.lay_out(arrays, self.model.layer_axes)

    def fingerprints(self, arrays: Weights, made_by: Callable[[Any], Any]) -> dict[str, Any]:
        """Returns uint32 fingerprints of laid-out arrays by name, copying one array at a time."""
        parts = (jax.block_until_ready(made_by(p)) for p in layer_major.published(arrays))
        return {name: found for part in parts for name, found in part.items()}

    @property
    def free_slots(self) -> list[int]:
        return [int(slot) for slot in np.flatnonzero(~self._occupied)]

    def reset(self) -> None:
        """Empties all slots and clears the caches."""
        self._occupied = np.zeros(self.slots, bool)
        # Tokens of each slot's sample: when it was inserted, and now.
        self._earlier = np.zeros(self.slots, np.int32)
        self._prompt = np.zeros(self.slots, np.int32)  # tokens in its cache of the prompt
        self._generated = np.zeros(self.slots, np.int32)
        self._state: State = self._clear()

    def release(self, slots: Sequence[int]) -> None:
        """Frees slots, even if their samples have not ended."""
        self._occupied[list(slots)] = False

    def insert(self, weights: Weights, requests: Sequence[Prefill]) -> None:
        """Prefills every prompt once and generates each slot's next token.

        It makes one jitted call or, if the prompts need several programs or rows, a few.

        Raises:
          ValueError: a prompt, a limit or the stop ids do not fit, or a slot is taken.
        """
        self._check(requests)
        # Nothing runs: starting the rings anew makes the result independent of the past.
        fresh = not self._occupied.any()
        for bucket, indices in buckets.calls(self._buckets, [len(r.tokens) for r in requests]):
            self._prefill(weights, bucket, [requests[i] for i in indices], fresh)
            fresh = False

    def _prefill(
        self, weights: Weights, bucket: buckets.Bucket, requests: Sequence[Prefill], fresh: bool
    ) -> None:
        tokens = np.zeros((bucket.rows, bucket.length), np.int32)
        lengths = np.ones(bucket.rows, np.int32)
        source = np.full(self.slots, -1, np.int32)
        settings = empty_settings(self.slots)
        for i, r in enumerate(requests):
            slots = list(r.slots)
            tokens[i, : len(r.tokens)] = r.tokens
            lengths[i] = len(r.tokens)
            source[slots] = i
            self._earlier[slots], self._prompt[slots] = r.generated, len(r.tokens)
            settings["seed"][slots] = [(seed >> 32, seed & 0xFFFFFFFF) for seed in r.seeds]
            settings["temperature"][slots] = r.sampling.temperature
            settings["top_k"][slots] = r.sampling.top_k
            settings["top_p"][slots] = r.sampling.top_p
            settings["limit"][slots] = r.sampling.max_new_tokens
            settings["stop"][slots, : len(r.sampling.stop_ids)] = r.sampling.stop_ids
        self._state = self._insert(
            self._state,
            dict(weights),
            tokens,
            lengths,
            source,
            self._earlier.copy(),  # the call returns before it has read its arguments
            settings,
            np.bool_(fresh),
        )
        self._occupied |= source >= 0
        self._generated = np.where(source >= 0, self._earlier + 1, self._generated)
        self.tokens_total += int(np.sum(source >= 0))
        self.prefill_tokens_total += sum(len(r.tokens) for r in requests)
        self.prefill_computed_total += tokens.size

    def decode(self, weights: Weights, max_steps: int, stop_when_free: bool) -> list[SlotOutput]:
        """Runs up to ``max_steps`` decode steps and returns the samples that have ended.

        It ends early when every occupied slot has finished, or, with ``stop_when_free``, as soon as
        any slot has. Finished slots are free afterwards.
        """
        if not self._occupied.any():
            return []
        self._state, status = self._decode(
            self._state,
            dict(weights),
            self._occupied,
            np.int32(max_steps),
            np.bool_(stop_when_free),
            self._reach(),
        )
        (steps, new), self._generated, done = np.split(np.asarray(status), [2, 2 + self.slots])
        self.steps_total += int(steps)
        self.slot_steps_total += int(new)
        self.tokens_total += int(new)
        ended = np.flatnonzero(self._occupied & (done != 0)).tolist()
        finished = self.read(ended)
        self.release(ended)
        return finished

    def _reach(self) -> int:
        """Returns how many places of the prompts' caches the slots in use need."""
        longest = self._prompt[self._occupied].max()
        return next(reach for reach in self._reaches if reach >= longest)

    def read(self, slots: Sequence[int]) -> list[SlotOutput]:
        """Returns the tokens so far of occupied slots, which continue, in one transfer."""
        if not slots:
            return []
        count = next(n for n in self._counts_read() if n >= len(slots))
        padded = [*slots, *[0] * (count - len(slots))]
        rows = np.asarray(self._collect(self._state, np.array(padded, np.int32)))
        generated = []
        for slot, row in zip(slots, rows, strict=False):  # the padding's rows are left out
            tokens, *bits = row[:, : self._generated[slot] - self._earlier[slot]].copy()
            generated.append(SlotOutput(slot, tokens, *(b.view(np.float32) for b in bits)))
        return generated

    def logprobs(self, weights: Weights, tokens: np.ndarray) -> np.ndarray:
        """Returns log-probs of tokens[1:] at temperature 1, by the prefill that sampling uses.

        Every prefix is a prompt of one batch. The slots' state is neither read nor donated, so
        another thread may call it while this engine decodes.

        Args:
          tokens: int32 [n + 1], n at most ``max_prompt_tokens``.

        Returns:
          float32 [n]; element t belongs to ``tokens[t + 1]`` given ``tokens[: t + 1]``.

        Raises:
          ValueError: too many tokens, or fewer than two.
        """
        count = len(tokens) - 1
        if not 1 <= count <= self.max_prompt_tokens:
            raise ValueError(f"{count + 1} tokens; 2 to {self.max_prompt_tokens + 1} can be scored")
        size = max(count, min(_SCORED, self.max_prompt_tokens))
        padded = np.zeros(size + 1, np.int32)
        padded[: count + 1] = tokens
        return np.asarray(self._score(dict(weights), padded))[:count]

    def warm_up(self) -> None:
        """Compiles all programs with zero weights, and leaves all slots empty."""
        weights = {
            name: jnp.zeros(like.shape, like.dtype, device=like.sharding)
            for name, like in self.variables_like().items()
        }
        self.lay_out(weights)
        for bucket in self._buckets:
            tokens = np.zeros(bucket.length, np.int32)
            self.insert(weights, [Prefill(tokens, (0,), (0,), SamplingParams(max_new_tokens=1))])
            self.release([0])
        for reach in self._reaches:
            self._prompt[0], self._occupied[0] = reach, True
            self.decode(weights, 1, True)
        for count in self._counts_read():
            self._collect(self._state, np.zeros(count, np.int32))
        self.logprobs(weights, np.zeros(2, np.int32))
        self.forget_totals()
        self.reset()

    def forget_totals(self) -> None:
        self.steps_total = self.slot_steps_total = self.tokens_total = 0
        self.prefill_tokens_total = self.prefill_computed_total = 0

    def _counts_read(self) -> list[int]:
        """Returns the slot counts ``read`` is compiled for: powers of two below all, and all."""
        return [1 << i for i in range((self.slots - 1).bit_length())] + [self.slots]

    def _insert_step(
        self,
        state: State,
        weights: Weights,
        tokens_nl: jax.Array,
        lengths_n: jax.Array,
        source_b: jax.Array,
        earlier_b: jax.Array,
        settings: State,
        fresh: jax.Array,
    ) -> State:
        logits_nv, prefix = self.model.prefill(weights, tokens_nl, lengths_n)
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
        cache = self.model.fan_out(state["cache"], prefix, source_b, fresh)
        return state | news | {"row": row, "cache": cache}

    def _decode_loop(
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
            logits_bv, cache = self.model.step(weights, s["cache"], s["token"], s["position"])
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
        if reach < self.max_prompt_tokens:
            near = self.model.prompt_caches(whole, reach)
        start = {name: state[name] for name in names} | {"cache": whole | near}
        steps, moved = jax.lax.while_loop(goes_on, one_step, (jnp.int32(0), start))
        moved["cache"] |= {path: whole[path] for path in near}
        head = jnp.stack([steps, jnp.sum(moved["generated"] - state["generated"])])
        return fixed | moved, jnp.concatenate([head, moved["generated"], moved["done"]])

    def _score_prefixes(self, weights: Weights, tokens_l: jax.Array) -> jax.Array:
        """Returns float32 [l - 1]: log-prob of each token but the first, given those before it."""
        count = tokens_l.shape[0] - 1
        prefixes_nl = jnp.broadcast_to(tokens_l[:-1], (count, count))
        logits_nv, _ = self.model.prefill(weights, prefixes_nl, jnp.arange(1, count + 1))
        logprobs_nv = jax.nn.log_softmax(logits_nv.astype(jnp.float32))
        return jnp.take_along_axis(logprobs_nv, tokens_l[1:, None], axis=1)[:, 0]

    def _empty(self) -> State:
        """Returns the state of all slots when empty.

        ``record`` is a ring over decode steps, shared as MaxEngine's cache is: one row a step,
        [step, 3, slot]; a slot's rows start at ``born``. It holds twice the longest sample, as a
        sample that ends early in a call is read only after the call.
        """
        zeros = {
            name: jnp.zeros(self.slots, jnp.int32) for name in ("token", "position", "generated")
        }
        rows = 2 * max(self.max_new_tokens - 1, 1)
        return (
            zeros
            | jax.tree.map(jnp.asarray, empty_settings(self.slots))
            | {
                "done": jnp.ones(self.slots, bool),
                "born": jnp.zeros(self.slots, jnp.int32),
                "first": jnp.zeros((self.slots, 3), jnp.int32),
                "row": jnp.int32(0),
                "record": jnp.zeros((rows, 3, self.slots), jnp.int32),
                "cache": {
                    path: jnp.zeros(like.shape, like.dtype)
                    for path, like in self.model.caches_like.items()
                },
            }
        )

    def _check(self, requests: Sequence[Prefill]) -> None:
        taken = self._occupied.copy()
        for r in requests:
            if why := r.misfit(self.max_prompt_tokens, self.max_new_tokens):
                raise ValueError(why)
            for slot in r.slots:
                if taken[slot]:
                    raise ValueError(f"slot {slot} is taken")
                taken[slot] = True
