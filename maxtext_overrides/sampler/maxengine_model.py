"""MaxEngine's model as pure functions: every variable an argument, caches in and out.

MaxEngine closes over all variables that are not ``nnx.Param`` (router biases), prefills one prompt
per call and computes logits for all its positions. Here its two abstract models, its cache layout
and the meaning of its caches are used unchanged; only the calls around them are ours.

The upstream symbols are in ``OVERRIDES``; tested with MaxText 0.2.5 and flax 0.12.8. Delete when
MaxEngine takes all variables as arguments and inserts several prompts at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.core.spmd import logical_axis_rules

from maxtext_overrides import adapters, int8_weights, tied_head
from maxtext_overrides.int8_weights import Int8
from maxtext_overrides.layer_major import LayerMajor, layer_axes
from maxtext_overrides.models import rope_scaling
from maxtext_overrides.rounding import version_like
from maxtext_overrides.sampler import joined_prefill, windows
from maxtext_overrides.upstream import jetstream_compat
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from maxtext_overrides.variables import UNPUBLISHED, published

jetstream_compat.prepare()  # before MaxEngine, which looks for JetStream when it is imported

from maxtext.common.common_types import (  # noqa: E402
    DECODING_ACTIVE_SEQUENCE_INDICATOR,
    MODEL_MODE_AUTOREGRESSIVE,
    MODEL_MODE_PREFILL,
)
from maxtext.inference.maxengine import maxengine  # noqa: E402
from maxtext.utils import sharding  # noqa: E402

FASTEST_LAYOUT = {
    # [batch, heads, sequence, head_dim] is how both attention products read the caches.
    "prefill_cache_axis_order": "0,2,1,3",
    "ar_cache_axis_order": "0,2,1,3",
    "compute_axis_order": "0,2,1,3",
}

OVERRIDES = BY_MODULE["maxtext_overrides/sampler/maxengine_model.py"]

Weights = Mapping[str, jax.Array | LayerMajor | Int8]
Path = tuple[Any, ...]
Caches = dict[Path, jax.Array]

_KEPT = ("cached_ar_key", "cached_ar_value", "cached_ar_key_scale", "cached_ar_value_scale")
_CLEARED = ("cache_ar_segment_id", "cached_ar_lengths")


class MaxEngineModel:
    """Abstract models, shardings and the three functions that a decode engine jits.

    Attributes:
      slots: number of sequences decoded at once, ``per_device_batch_size`` times devices.
      vocabulary: number of logits.
      mesh: MaxEngine's mesh.
      row_shards: number of parts into which the rows of a prefill are divided, one per device or
        fewer.
      variables_like: name -> shape, dtype and sharding of what ``weights`` must hold.
      layer_axes: name -> axis of its layers, where that is not the first; see ``layer_major``.
      caches_like: path -> shape, dtype and sharding of the decode caches.
      joins: True if ``prefill_behind`` can be used.
      kernels: see ``int8_weights.kernels``; empty unless ``quantizes``.

    Args:
      config: MaxText's.
      devices: the devices of the mesh; None: those of this process.
      rounds: see ``rounding.version_dtypes``.
      quantizes: True if weights may be ``Int8``.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
      ConfigError: see ``int8_weights.kernels``.
    """

    def __init__(
        self,
        config: Any,
        devices: Sequence[Any] | None = None,
        *,
        rounds: bool = False,
        quantizes: bool = False,
    ):
        allow_untested = getattr(config, "allow_untested", False)
        check(OVERRIDES, allow_untested)
        tied_head.install(allow_untested)
        rope_scaling.install(allow_untested)
        adapters.install(allow_untested)
        windows.install(allow_untested)
        joined_prefill.install(allow_untested)
        engine = maxengine.MaxEngine(config, devices)
        self.slots = int(engine.max_concurrent_decodes)
        self.vocabulary = int(config.vocab_size)
        self.mesh = engine.mesh
        self._rules = config.logical_axis_rules
        self.row_shards = self._shards("activation_batch")
        self._prefill_graph, self._prefill_state = nnx.split(engine.model)
        self._decode_graph, self._decode_state = nnx.split(engine.model_ar)
        with logical_axis_rules(self._rules):
            shardings = sharding.nnx_construct_named_sharding(self._decode_state, self.mesh)
        where = published(shardings)
        like = version_like(published(self._decode_state), config, rounds)
        self.variables_like = {
            name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=where[name])
            for name, one in like.items()
        }
        where = dict(nnx.to_flat_state(shardings))
        self.caches_like: dict[Path, jax.ShapeDtypeStruct] = {}
        self._axes: dict[Path, tuple[str, ...]] = {}
        self._rng: dict[Path, jax.Array] = {}
        names: dict[str, tuple[str, ...]] = {}
        for path, variable in nnx.to_flat_state(self._decode_state):
            like = variable.get_value()
            if isinstance(variable, nnx.Cache):
                self.caches_like[path] = jax.ShapeDtypeStruct(
                    like.shape, like.dtype, sharding=where[path].get_value()
                )
                self._axes[path] = _axis_names(variable)
            elif isinstance(variable, nnx.RngState):
                self._rng[path] = _resting(like)
            elif not isinstance(variable, UNPUBLISHED):
                names[".".join(map(str, path))] = _axis_names(variable)
        self.layer_axes = layer_axes(names)
        self.kernels = int8_weights.kernels(engine.model_ar, config) if quantizes else {}
        self._longest = int(config.max_prefill_predict_length)
        self.joins = joined_prefill.possible(config, self._axes)

    def prefill(
        self, weights: Weights, tokens_nl: jax.Array, lengths_n: jax.Array
    ) -> tuple[jax.Array, Caches]:
        """Runs n prompts, padded on the right.

        The computed caches replace the prefill caches entirely, so the model that MaxEngine builds
        for one prompt accepts a batch of them.

        Returns:
          Logits after each prompt's last token [n, vocab], and the caches of all prompts.
        """
        return self._prefill(weights, tokens_nl, lengths_n, {}, jnp.zeros_like(lengths_n))

    def prefill_behind(
        self,
        weights: Weights,
        caches: Caches,
        slots_n: jax.Array,
        counts_n: jax.Array,
        reach: int,
        tokens_nl: jax.Array,
        lengths_n: jax.Array,
    ) -> tuple[jax.Array, Caches]:
        """Runs n prompts whose first tokens are in slots' caches, where ``joins`` is True.

        Args:
          caches: those of all slots.
          slots_n: int32 [n], the slot of each prompt's first tokens.
          counts_n: int32 [n], number of these, at most ``reach``.
          reach: places of the caches that are attended to.
          tokens_nl, lengths_n: the other tokens of each prompt, padded on the right.

        Returns:
          As ``prefill``, of the whole prompts.
        """
        axes, active = self._axes, DECODING_ACTIVE_SEQUENCE_INDICATOR
        before = joined_prefill.earlier_parts(caches, axes, slots_n, counts_n, reach, active)
        logits_nv, after = self._prefill(weights, tokens_nl, lengths_n, before, counts_n)
        return logits_nv, joined_prefill.whole_prompts(
            after, axes, counts_n, lengths_n, reach, self._longest, active
        )

    def out_of_the_ring(self, caches: Caches, *ended: jax.Array) -> Caches:
        """See ``joined_prefill.out_of_the_ring``."""
        return joined_prefill.out_of_the_ring(caches, self._axes, *ended)

    def _prefill(
        self,
        weights: Weights,
        tokens_nl: jax.Array,
        lengths_n: jax.Array,
        before: Caches,
        counts_n: jax.Array,
    ) -> tuple[jax.Array, Caches]:
        empty = {
            path: jnp.zeros(variable.get_value().shape, variable.get_value().dtype)
            for path, variable in nnx.to_flat_state(self._prefill_state)
            if isinstance(variable, nnx.Cache)
        }
        model = self._merge(self._prefill_graph, self._prefill_state, weights, empty | before)
        places_nl = jax.lax.broadcasted_iota(jnp.int32, tokens_nl.shape, 1)
        inside_nl = (places_nl < lengths_n[:, None]).astype(jnp.int32)
        with self._scope(), joined_prefill.joined(model) if before else nullcontext():
            outputs = model.decoder(
                shared_embedding=model.token_embedder,
                decoder_input_tokens=tokens_nl,
                decoder_positions=places_nl + counts_n[:, None],
                decoder_segment_ids=inside_nl * DECODING_ACTIVE_SEQUENCE_INDICATOR,
                deterministic=True,
                model_mode=MODEL_MODE_PREFILL,
            )
            hidden_nle = outputs[1]  # outputs[0], logits of every position, is never computed
            last_n1e = jnp.take_along_axis(hidden_nle, (lengths_n - 1)[:, None, None], axis=1)
            logits_n1v = model.decoder.apply_output_head(
                model.token_embedder, last_n1e, True, MODEL_MODE_PREFILL
            )
        return logits_n1v[:, 0], _caches(model)

    def step(
        self, weights: Weights, caches: Caches, token_b: jax.Array, position_b: jax.Array
    ) -> tuple[jax.Array, Caches]:
        """Runs one decode step of all slots; returns logits [slots, vocab] and the new caches."""
        model = self._merge(self._decode_graph, self._decode_state, weights, caches)
        with self._scope():
            logits_b1v = model(
                token_b[:, None],
                position_b[:, None],
                enable_dropout=False,
                model_mode=MODEL_MODE_AUTOREGRESSIVE,
            )
        return logits_b1v[:, 0], _caches(model)

    def prompt_caches(self, caches: Caches, length: int) -> Caches:
        """Returns the first ``length`` places of the prompts' caches, to which ``step`` may attend.

        Without the others, ``step`` computes the same, up to rounding, for prompts that are not
        longer.
        """
        found = {}
        for path, full in caches.items():
            if path[-1] == "cache_prefill_segment_id":
                found[path] = jax.lax.slice_in_dim(full, 0, length, axis=full.ndim - 1)
            # Recurrent layers keep their state, which ``step`` changes, under these names too.
            elif path[-1].startswith("cached_prefill_") and (axes := self._sequence_axes(path)):
                for axis in axes:
                    full = jax.lax.slice_in_dim(full, 0, length, axis=axis)
                found[path] = full
        return found

    def _sequence_axes(self, path: Path) -> list[int]:
        return joined_prefill.places(self._axes[path])

    def fan_out(
        self, caches: Caches, prefix: Caches, source_b: jax.Array, fresh: jax.Array
    ) -> Caches:
        """Writes each prompt's caches into its slots; the rules are those of MaxEngine's insert.

        It writes slot after slot, so that the cost depends on the filled slots only.

        Args:
          caches: caches of all slots.
          prefix: returned by ``prefill``.
          source_b: int32 [slots], the prompt that a slot receives; -1 leaves the slot unchanged.
          fresh: True restarts the ring of generated tokens; allowed only if no slot is in use.
        """
        filled = {path: full for path, full in caches.items() if path[-1] not in _KEPT}
        kept = {path: full for path, full in caches.items() if path[-1] in _KEPT}
        for path in [path for path in filled if path[-1] == "cache_ar_index"]:
            full = filled.pop(path)
            kept[path] = jnp.where(fresh, jnp.zeros_like(full), full)
        order_b = jnp.argsort(source_b < 0, stable=True)  # the slots that receive come first

        def fill(i: jax.Array, filled: Caches) -> Caches:
            slot = order_b[i]
            return {
                path: self._filled(path, full, prefix[path], slot, source_b[slot])
                for path, full in filled.items()
            }

        return kept | jax.lax.fori_loop(0, jnp.sum(source_b >= 0), fill, filled)

    def _filled(
        self, path: Path, full: jax.Array, prefix: jax.Array, slot: jax.Array, row: jax.Array
    ) -> jax.Array:
        """Returns a cache in which one slot's part is a row of the prefill's result, or cleared."""
        name, axes = path[-1], self._axes[path]
        batch = axes.index("cache_batch" if "cache_batch" in axes else "cache_scale_batch")
        shape = list(full.shape)
        shape[batch] = 1
        if name in _CLEARED:
            update = jnp.zeros(shape, full.dtype)
        else:
            update = jax.lax.dynamic_slice_in_dim(prefix, row, 1, batch).astype(full.dtype)
        if name == "cache_prefill_segment_id":  # what is behind the prompt belongs to nothing
            missing = full.shape[-1] - update.shape[-1]
            update = jnp.pad(update, [(0, 0)] * (update.ndim - 1) + [(0, missing)])
        elif name.startswith("cached_prefill_"):
            for axis in self._sequence_axes(path):
                shape[axis] = update.shape[axis]
        if list(update.shape) != shape:
            raise ValueError(
                f"{'.'.join(map(str, path))}: prefill computes {prefix.shape}, but MaxText "
                f"allocates {full.shape}; MLA with head sizes other than head_dim needs "
                "mla_naive_kvcache=false"
            )
        return jax.lax.dynamic_update_slice_in_dim(full, update, slot, batch)

    def _shards(self, logical_axis: str) -> int:
        (axes,) = linen.logical_to_mesh_axes((logical_axis,), self._rules)
        names = (axes,) if isinstance(axes, str) else axes or ()
        return math.prod(self.mesh.shape[name] for name in names)

    def _merge(self, graph: Any, abstract: nnx.State, weights: Weights, caches: Caches) -> Any:
        flat, scales = [], {}
        for path, variable in nnx.to_flat_state(abstract):
            if isinstance(variable, nnx.Cache):
                value = caches[path]
            elif isinstance(variable, nnx.RngState):
                value = self._rng[path]
            elif isinstance(variable, UNPUBLISHED):
                continue
            else:
                value = weights[name := ".".join(map(str, path))]
                if isinstance(value, Int8):
                    scales[name], value = _published(value.scales), value.values
                value = _published(value)
            flat.append((path, variable.replace(value)))
        # copy=True: each trace needs variables of its own.
        model = nnx.merge(graph, nnx.from_flat_state(flat), copy=True)
        int8_weights.attach(model, scales)
        return model

    @contextmanager
    def _scope(self) -> Iterator[None]:
        with self.mesh, logical_axis_rules(self._rules):
            yield


def _published(value: jax.Array | LayerMajor) -> jax.Array:
    return value.published() if isinstance(value, LayerMajor) else value


def _caches(model: Any) -> Caches:
    state = nnx.state(model, nnx.Cache)
    return {path: variable.get_value() for path, variable in nnx.to_flat_state(state)}


def _resting(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns a placeholder RNG state, which a model without dropout never uses."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), like.shape)
    return jnp.zeros(like.shape, like.dtype)


def _axis_names(variable: nnx.Variable) -> tuple[str, ...]:
    names = variable.get_metadata().get("out_sharding") or ()
    return (names,) if isinstance(names, str) else tuple(name or "" for name in names)
