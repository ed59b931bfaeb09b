"""Continuous batching: many slots, one jitted loop, weights as arguments.

A prompt is prefilled once and its caches are copied to n slots; a ``lax.while_loop`` then decodes
until a slot is free, without Python per token. Settings, seeds and limits are per slot.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maxtext_overrides import int8_weights, layer_major
from maxtext_overrides.sampler import buckets
from maxtext_overrides.sampler.combined_model import CombinedModel
from maxtext_overrides.sampler.kept_contexts import Ended, KeptContexts, Match
from maxtext_overrides.sampler.maxengine_model import FASTEST_LAYOUT, MaxEngineModel, Weights
from maxtext_overrides.sampler.ring import collect
from maxtext_overrides.sampler.sampling import empty_settings
from maxtext_overrides.sampler.slot_programs import SlotPrograms, State
from rlax_plugin.base.types import SamplingParams
from rlax_plugin.rollout.batching.decode_engine import MAX_STOP_IDS, Prefill, SlotOutput

__all__ = ["FASTEST_LAYOUT", "MAX_STOP_IDS", "DecodeEngine", "Prefill", "SlotOutput"]

_SCORED = 16  # tokens that the compiled ``logprobs`` scores at least, where prompts hold as many


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
      prefill_kept_total: tokens of prompts that were not prefilled, because a slot kept them.

    Args:
      config: MaxText's config. Prompts hold ``max_prefill_predict_length`` tokens at most,
        completions ``max_target_length`` minus that. MaxEngine's cache of new tokens is a ring of
        that length, shared by all slots. A sample writes at most max_new_tokens - 1 entries from
        the ring's current position, so it never overwrites its own.
      group_size: samples that usually share a prompt.
      prompt_tokens: the longest prompt without the tokens of a continued sample; None: as long as
        fits. This and ``group_size`` shape the prefill programs (``buckets.plan``).
      keeps: True if free slots keep the contexts of their last samples, for the next turns of
        episodes; without effect where MaxText's model does not allow it. A token's log-prob then
        depends, in its last bits, on whether its context was kept.
      rounds, quantizes, devices: see ``MaxEngineModel``.
      combine: makes the model to drive of that of ``config``, and arrays that its programs get
        beside each version's; those that a version itself has win. None: it is driven alone.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
      ConfigError: see ``int8_weights.kernels``.
    """

    def __init__(
        self,
        config: Any,
        *,
        group_size: int = 1,
        prompt_tokens: int | None = None,
        keeps: bool = False,
        rounds: bool = False,
        quantizes: bool = False,
        devices: Sequence[Any] | None = None,
        combine: Callable[[MaxEngineModel], tuple[CombinedModel, Mapping[str, Any]]] | None = None,
    ):
        own = MaxEngineModel(config, devices, rounds=rounds, quantizes=quantizes)
        self.model: MaxEngineModel | CombinedModel = own
        self._beside: Mapping[str, Any] = {}
        if combine is not None:
            self.model, self._beside = combine(own)
        self._dtype, self.kernels = config.dtype, own.kernels
        self.slots = self.model.slots
        self.max_prompt_tokens = int(config.max_prefill_predict_length)
        self.max_new_tokens = int(config.max_target_length) - self.max_prompt_tokens
        self.vocabulary = int(config.vocab_size)
        self.rounds_caches = bool(config.quantize_kvcache)
        value_of, longest = functools.partial(getattr, config), self.max_prompt_tokens
        fits = self._fits = functools.partial(buckets.fitting, value_of=value_of)
        most, rows = fits(prompt_tokens or longest), self.model.row_shards
        self._buckets = buckets.plan(self.slots, longest, most, group_size, rows, fits)
        self._reaches = buckets.reaches(self.max_prompt_tokens)
        keeps = keeps and self.model.joins
        self._behind = buckets.behind(self._buckets, self.slots, rows) if keeps else ()
        self._kept = KeptContexts(self.max_prompt_tokens, self.max_new_tokens)
        self.forget_totals()
        replicated = jax.sharding.NamedSharding(self.model.mesh, jax.sharding.PartitionSpec())
        programs = SlotPrograms(self.model, self.max_prompt_tokens, self.max_new_tokens)
        self._empty = programs.empty
        self._shardings = jax.tree.map(lambda _: replicated, jax.eval_shape(programs.empty))
        self._shardings["cache"] = {p: x.sharding for p, x in self.model.caches_like.items()}
        outputs = (self._shardings, replicated)
        fills = functools.partial(jax.jit, out_shardings=self._shardings, donate_argnums=0)
        self._insert = fills(programs.insert_step)
        self._insert_behind = fills(programs.insert_behind, static_argnums=10)
        self._keep = fills(programs.keep_tokens)
        self._decode = jax.jit(
            programs.decode_loop, out_shardings=outputs, donate_argnums=0, static_argnums=5
        )
        self._collect = jax.jit(collect, out_shardings=replicated)
        self._score = jax.jit(programs.score_prefixes, out_shardings=replicated)
        self._clear = jax.jit(programs.empty, out_shardings=self._shardings)
        self.reset()

    def variables_like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shape, dtype and sharding of every array that ``weights`` must hold, by name."""
        return dict(self.model.variables_like)

    def lay_out(self, arrays: dict[str, Any]) -> None:
        """Replaces a version's arrays by the layout the programs read fastest, one after the other.

        The programs also accept ``arrays`` without this, but compile again for them.
        """
        layer_major.lay_out(arrays, self.model.layer_axes)

    def convert(self, arrays: dict[str, Any]) -> None:
        """Replaces laid-out arrays by what is generated with, see ``int8_weights``; idempotent.

        The programs accept both, so that a version is verified before it is converted.
        """
        int8_weights.convert(arrays, self.kernels, self._dtype)

    def fingerprints(self, arrays: Any, made_by: Callable[[Any], Any]) -> dict[str, Any]:
        """Returns uint32 fingerprints of laid-out arrays by name, copying one array at a time."""
        parts = (jax.block_until_ready(made_by(p)) for p in layer_major.published(arrays))
        return {name: found for part in parts for name, found in part.items()}

    @property
    def converts(self) -> bool:
        """True if samples are generated with other arrays than the published ones."""
        return bool(self.kernels)

    def _whole(self, weights: Weights) -> dict[str, Any]:
        return {**self._beside, **weights}

    @property
    def free_slots(self) -> list[int]:
        """The slots without a sample; what they keep is lost in this order, see ``kept_for``."""
        return self._kept.order([int(slot) for slot in np.flatnonzero(~self._occupied)])

    def kept_for(self, context: np.ndarray) -> int | None:
        """Returns the free slot that a sample behind a context should have; None if any will do.

        It keeps the first tokens of the context, which then need no prefill.
        """
        found = self._match(context)
        return found.slot if found and self._kept.goes_on(found) else None

    def forget_contexts(self) -> None:
        """Forgets what free slots keep; called when the weights change, while all are free."""
        self._kept.forget()

    def reset(self) -> None:
        """Empties all slots and clears the caches."""
        self._occupied = np.zeros(self.slots, bool)
        # Tokens of each slot's sample: when it was inserted, and now.
        self._earlier = np.zeros(self.slots, np.int32)
        self._prompt = np.zeros(self.slots, np.int32)  # tokens in its cache of the prompt
        self._generated = np.zeros(self.slots, np.int32)
        self._state: State = self._clear()
        self._kept.forget()

    def release(self, slots: Sequence[int]) -> None:
        """Frees slots, even if their samples have not ended."""
        self._occupied[list(slots)] = False
        if self._behind:
            self._keep_contexts(self._kept.released(slots, self.steps_total))

    def _keep_contexts(self, ended: Sequence[Ended]) -> None:
        """Copies the tokens of samples that have ended to where they are not overwritten."""
        if not ended:
            return
        columns = np.zeros((4, self.slots), np.int32)
        columns[:, : len(ended)] = np.transpose(ended)
        slots, *others = columns
        self._state = self._keep(self._state, slots, np.int32(len(ended)), *others)

    def insert(self, weights: Weights, requests: Sequence[Prefill]) -> None:
        """Prefills every prompt once and generates each slot's next token.

        It makes one jitted call or, if the prompts need several programs or rows, a few.

        Raises:
          ValueError: a prompt, a limit or the stop ids do not fit, or a slot is taken.
        """
        self._check(requests)
        # Nothing runs: starting the rings anew makes the result independent of the past.
        fresh = not self._occupied.any()
        taken = {slot for r in requests for slot in r.slots}
        found = [self._match(r.tokens, taken - set(r.slots)) for r in requests]
        behind = [(r, match) for r, match in zip(requests, found, strict=True) if match]
        lengths = [len(r.tokens) - match.count for r, match in behind]
        for bucket, indices in buckets.calls(self._behind, lengths):
            self._prefill_behind(weights, bucket, [behind[i] for i in indices], fresh)
            fresh = False
        others = [r for r, match in zip(requests, found, strict=True) if not match]
        for bucket, indices in buckets.calls(self._buckets, [len(r.tokens) for r in others]):
            some = [others[i] for i in indices]
            arguments = self._arguments(bucket, some, [0] * len(some))
            self._state = self._insert(
                self._state, self._whole(weights), *arguments, np.bool_(fresh)
            )
            fresh = False

    def _match(self, context: np.ndarray, taken: Collection[int] = ()) -> Match | None:
        """Returns the kept first tokens of a context, if computing the others takes less.

        Args:
          taken: slots that are about to be filled with something else.
        """
        if not self._behind or (found := self._kept.find(context, taken)) is None:
            return None
        rest = len(context) - found.count
        if rest > self._behind[-1].length or len(context) > self.max_prompt_tokens:
            return None
        # Calls are full where it matters, so that a row's length is its cost.
        computed = buckets.of(self._behind, rest).length
        return found if 2 * computed <= buckets.of(self._buckets, len(context)).length else None

    def _prefill_behind(
        self,
        weights: Weights,
        bucket: buckets.Bucket,
        found: Sequence[tuple[Prefill, Match]],
        fresh: bool,
    ) -> None:
        slots, counts = np.zeros((2, bucket.rows), np.int32)
        for i, (_, match) in enumerate(found):
            slots[i], counts[i] = match
        reach = self._reach(counts.max())
        some = [request for request, _ in found]
        arguments = self._arguments(bucket, some, [match.count for _, match in found])
        self._state = self._insert_behind(
            self._state, self._whole(weights), *arguments, np.bool_(fresh), slots, counts, reach
        )

    def _arguments(
        self, bucket: buckets.Bucket, requests: Sequence[Prefill], kept: Sequence[int]
    ) -> tuple[Any, ...]:
        """Returns what a prefill program is called with, and notes what the slots hold from now on.

        Args:
          kept: number of first tokens of each request that are not prefilled.
        """
        tokens = np.zeros((bucket.rows, bucket.length), np.int32)
        lengths = np.ones(bucket.rows, np.int32)
        source = np.full(self.slots, -1, np.int32)
        settings = empty_settings(self.slots)
        for i, (r, count) in enumerate(zip(requests, kept, strict=True)):
            slots, new = list(r.slots), r.tokens[count:]
            tokens[i, : len(new)] = new
            lengths[i] = len(new)
            source[slots] = i
            self._earlier[slots], self._prompt[slots] = r.generated, len(r.tokens)
            settings["seed"][slots] = [(seed >> 32, seed & 0xFFFFFFFF) for seed in r.seeds]
            settings["temperature"][slots] = r.sampling.temperature
            settings["top_k"][slots] = r.sampling.top_k
            settings["top_p"][slots] = r.sampling.top_p
            settings["limit"][slots] = r.sampling.max_new_tokens
            settings["stop"][slots, : len(r.sampling.stop_ids)] = r.sampling.stop_ids
            if self._behind:
                self._kept.inserted(slots, r.tokens, self.steps_total)
            self.prefill_tokens_total += len(new)
            self.prefill_kept_total += count
        self._occupied |= source >= 0
        self._generated = np.where(source >= 0, self._earlier + 1, self._generated)
        self.tokens_total += int(np.sum(source >= 0))
        self.prefill_computed_total += tokens.size
        # A call returns before it has read its arguments.
        return tokens, lengths, source, self._earlier.copy(), settings

    def decode(self, weights: Weights, max_steps: int, stop_when_free: bool) -> list[SlotOutput]:
        """Runs up to ``max_steps`` decode steps and returns the samples that have ended.

        It ends early when every occupied slot has finished, or, with ``stop_when_free``, as soon as
        any slot has. Finished slots are free afterwards.
        """
        if not self._occupied.any():
            return []
        self._state, status = self._decode(
            self._state,
            self._whole(weights),
            self._occupied,
            np.int32(max_steps),
            np.bool_(stop_when_free),
            self._reach(self._prompt[self._occupied].max()),
        )
        (steps, new), self._generated, done = np.split(np.asarray(status), [2, 2 + self.slots])
        self.steps_total += int(steps)
        self.slot_steps_total += int(new)
        self.tokens_total += int(new)
        ended = np.flatnonzero(self._occupied & (done != 0)).tolist()
        finished = self.read(ended)
        self.release(ended)
        return finished

    def _reach(self, longest: int) -> int:
        """Returns how many places of the prompts' caches a program attends to."""
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
            self._kept.read(slot, tokens)
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
        size = self._fits(max(count, min(_SCORED, self.max_prompt_tokens)))
        padded = np.zeros(size + 1, np.int32)
        padded[: count + 1] = tokens
        return np.asarray(self._score(self._whole(weights), padded))[:count]

    def warm_up(self) -> None:
        """Compiles all programs with zero weights, and leaves all slots empty."""
        weights = {
            name: jnp.zeros(like.shape, like.dtype, device=like.sharding)
            for name, like in self.variables_like().items()
        }
        self.lay_out(weights)
        if self.converts:
            self.logprobs(weights, np.zeros(2, np.int32))  # of weights that are verified
            self.convert(weights)
        for bucket in self._buckets:
            tokens = np.zeros(bucket.length, np.int32)
            self.insert(weights, [Prefill(tokens, (0,), (0,), SamplingParams(max_new_tokens=1))])
            self.release([0])
            self.forget_contexts()  # or the next, longer prompt would be prefilled behind this one
        for bucket, reach in itertools.product(self._behind, self._reaches):
            fills = np.zeros((2, bucket.rows), np.int32)
            rest = Prefill(np.zeros(1, np.int32), (0,), (0,), SamplingParams(max_new_tokens=1))
            arguments = self._arguments(bucket, [rest], [0])
            self._state = self._insert_behind(
                self._state, self._whole(weights), *arguments, np.bool_(True), *fills, reach
            )
        if self._behind:
            self._keep_contexts([Ended(0, 0, 0, 0)])
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
        self.prefill_tokens_total = self.prefill_computed_total = self.prefill_kept_total = 0

    def _counts_read(self) -> list[int]:
        """Returns the slot counts ``read`` is compiled for: powers of two below all, and all."""
        return [1 << i for i in range((self.slots - 1).bit_length())] + [self.slots]

    def _check(self, requests: Sequence[Prefill]) -> None:
        taken = self._occupied.copy()
        for r in requests:
            if why := r.misfit(self.max_prompt_tokens, self.max_new_tokens):
                raise ValueError(why)
            for slot in r.slots:
                if taken[slot]:
                    raise ValueError(f"slot {slot} is taken")
                taken[slot] = True
