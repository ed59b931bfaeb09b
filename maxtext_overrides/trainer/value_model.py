"""A model of MaxText's with a value head, on the mesh of a running loop: a critic.

Its trunk is a model that MaxText builds, without the output layer. The value of a position is
``features @ kernel + bias`` in float32, where the features are what the output layer would get. All
parameters are trained by AdamW of ``training.signals.learner``; a variable that is not a parameter,
such as a router bias, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from maxtext_overrides import adapters
from maxtext_overrides.config.memory import creation_of, without_output_layer
from maxtext_overrides.trainer import kept_weights, output_head
from maxtext_overrides.trainer.events import Loop
from maxtext_overrides.trainer.model_outputs import input_sharding, padded
from maxtext_overrides.trainer.train_loop import MAXTEXT_ARRAYS
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from maxtext_overrides.variables import published, restore
from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.training.signals.value_model import ValueLoss, ValueModelChoice

if TYPE_CHECKING:
    from maxtext_overrides.config.loading import Config

OVERRIDES = BY_MODULE["maxtext_overrides/trainer/model_outputs.py"] + tuple(
    override
    for override in BY_MODULE["maxtext_overrides/config/memory.py"]
    if override.symbol.endswith(".create_nnx_abstract_model")
)

_HEAD = "head"


class Trained(NamedTuple):
    """The state that updates change: trees of the same structure, and a count.

    Attributes:
      params: the parameters of trunk and head.
      mean: decaying mean of their gradients.
      square: decaying mean of the squares.
      count: number of updates, int32.
    """

    params: Any
    mean: Any
    square: Any
    count: jax.Array


class MaxTextValueModel:
    """See ``rlax_plugin.training.signals.value_model.ValueModel``.

    Args:
      config: MaxText's, of this model; without vocabulary tiling.
      loop: the loop of the policy; its mesh is used.
      choice: the model that the signal wants.

    Raises:
      ConfigError: the first weights are missing, or another model's.
      OverrideError: MaxText is not a tested version.
    """

    def __init__(self, config: Config, loop: Loop, choice: ValueModelChoice):
        check(OVERRIDES, config.allow_untested)
        self.rows: int = config.micro_batch_size_to_train_on
        self._config, self._mesh, self._optimizer = config, loop.mesh, choice.optimizer
        create, like = creation_of(config, loop.mesh, "train")
        self._graph, abstract = nnx.split(without_output_layer(like))
        state = self._first(create, abstract, loop, choice)
        params, self._rest = nnx.split_state(state, nnx.Param, ...)
        width = int(config.emb_dim)
        head = {"kernel": np.zeros(width, np.float32), "bias": np.zeros((), np.float32)}
        params = {"trunk": params, _HEAD: jax.device_put(head, self._everywhere)}
        self._trained = Trained(
            params,
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(jnp.zeros_like, params),
            jax.device_put(np.int32(0), self._everywhere),
        )

    @property
    def _everywhere(self) -> jax.sharding.NamedSharding:
        return jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())

    @contextmanager
    def _shardings(self) -> Iterator[None]:
        from flax.core.spmd import logical_axis_rules

        with jax.set_mesh(self._mesh), logical_axis_rules(self._config.logical_axis_rules):
            yield

    def _first(
        self, create: Callable[[], Any], abstract: nnx.State, loop: Loop, choice: ValueModelChoice
    ) -> nnx.State:
        """Returns the variables of the trunk, before any update."""
        shardings = jax.tree.map(lambda like: like.sharding, abstract)

        def made() -> nnx.State:
            return nnx.state(without_output_layer(create()))

        with self._shardings():
            state = jax.jit(made, out_shardings=shardings)()
        if choice.start == "scratch":
            return state
        if choice.start == "policy":
            found = dict(published(loop.model_state))
            if adapters.enabled(loop.config):
                found = _merged(found, loop.config)
        else:
            found = self._read(choice, abstract)
        return restore(state, self._matching(found, state, choice))

    def _matching(
        self, found: Mapping[str, Any], state: nnx.State, choice: ValueModelChoice
    ) -> dict[str, Any]:
        """Returns copies of the weights that the trunk has, with its shardings."""
        copies = {}
        for name, own in published(state).items():
            given = found.get(name)
            if given is None or given.shape != own.shape:
                has = "lacks" if given is None else f"has with shape {list(given.shape)}"
                reason = (
                    f"gives other weights than this critic's: it {has} {name}, which is "
                    f"{list(own.shape)} here; change {choice.keys_key}, or start from scratch"
                )
                raise ConfigError(choice.key, choice.start, reason)
            copies[name] = jnp.copy(jax.device_put(given, own.sharding).astype(own.dtype))
        return copies

    def _read(self, choice: ValueModelChoice, abstract: nnx.State) -> dict[str, Any]:
        loop = Loop(self._config, 0, 0, self._mesh, self._graph, abstract)
        return dict(kept_weights.load(choice.start, loop, False, choice.key).on_devices(loop))

    def _values_bt(self, params: Any, rest: Any, data: Mapping[str, jax.Array]) -> jax.Array:
        """Returns float32 [rows, length]; traced by JAX."""
        model = nnx.merge(self._graph, params["trunk"], rest, copy=True)
        with output_head.hidden_states(True, heads=False) as hidden:
            model(
                decoder_input_tokens=data["inputs"],
                decoder_positions=data["inputs_position"],
                decoder_segment_ids=data["inputs_segmentation"],
                enable_dropout=False,
                decoder_target_tokens=data["targets"],
                decoder_target_mask=data["targets_segmentation"],
            )
        (hidden_bte,) = hidden
        features_bte = output_head.features(model, hidden_bte).astype(jnp.float32)
        head = params[_HEAD]
        return jnp.einsum("bte,e->bt", features_bte, head["kernel"]) + head["bias"]

    def _parts(self, batch: Mapping[str, np.ndarray], names: set[str]) -> Iterator[dict[str, Any]]:
        """Yields micro-batches on the devices; rows that are missing in the last one are empty."""
        sharding = input_sharding(self._config, self._mesh)
        for start in range(0, len(batch["inputs"]), self.rows):
            part = {name: batch[name][start : start + self.rows] for name in names}
            yield jax.device_put(padded(part, self.rows), sharding)

    @cached_property
    def _compiled_values(self) -> Callable[..., jax.Array]:
        return jax.jit(self._values_bt)

    def values(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """See ``ValueModel``."""
        found = []
        for part in self._parts(batch, set(MAXTEXT_ARRAYS)):
            with self._shardings():
                found.append(self._compiled_values(self._trained.params, self._rest, part))
        return np.concatenate(jax.device_get(found))[: len(batch["inputs"])]

    def update(
        self, batch: Mapping[str, np.ndarray], loss: ValueLoss, weight: float
    ) -> tuple[float, dict[str, float]]:
        """See ``ValueModel``."""
        total: Any = None
        for part in self._parts(batch, set(batch)):
            with self._shardings():
                found = self._gradient(self._trained.params, self._rest, part, loss)
                total = found if total is None else _added(total, found)
        (loss_sum, sums), slope = total
        with self._shardings():
            norm = float(_norm(slope)) / weight
        if not np.isfinite([norm, float(loss_sum)]).all():
            raise TrainingError(
                f"the loss of the values is {float(loss_sum) / weight:g}, and the norm of its "
                f"gradient {norm:g}"
            )
        with self._shardings():
            scale = np.float32(self._optimizer.scale(norm) / weight)
            self._trained = self._moved(self._trained, slope, scale)
        return float(loss_sum), {name: float(total) for name, total in sums.items()}

    @cached_property
    def _gradient(self) -> Callable[..., Any]:
        def of_part(params: Any, rest: Any, data: Any, loss: ValueLoss) -> Any:
            def sums(params: Any) -> Any:
                return loss(self._values_bt(params, rest, data), data)

            return jax.value_and_grad(sums, has_aux=True)(params)

        return jax.jit(of_part, static_argnames="loss")

    @cached_property
    def _moved(self) -> Callable[..., Trained]:
        def moved(trained: Trained, slope: Any, scale: jax.Array) -> Trained:
            count = trained.count + 1
            leaves, structure = jax.tree.flatten(trained.params)
            others = (jax.tree.leaves(tree) for tree in (trained.mean, trained.square, slope))
            found = [
                self._optimizer.moved(
                    count.astype(jnp.float32),
                    param,
                    mean,
                    square,
                    grad * scale.astype(param.dtype),
                    jnp.sqrt,
                )
                for param, mean, square, grad in zip(leaves, *others, strict=True)
            ]
            columns = zip(*found, strict=True)
            params, mean, square = (jax.tree.unflatten(structure, column) for column in columns)
            return Trained(params, mean, square, count)

        return jax.jit(moved, donate_argnums=0)

    def save(self, path: str) -> None:
        """See ``ValueModel``; the format is Orbax's."""
        from orbax import checkpoint as ocp

        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, _named(self._trained), force=True)

    def restore(self, path: str) -> None:
        """See ``ValueModel``."""
        from orbax import checkpoint as ocp

        own = _named(self._trained)
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, own)
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                found = checkpointer.restore(path, like)
        except (ValueError, KeyError, OSError) as error:
            raise TrainingError(
                f"{path} cannot be read as the state of this critic: {error}"
            ) from error
        structure = jax.tree.structure(self._trained)
        self._trained = jax.tree.unflatten(structure, [found[name] for name in own])


def _merged(variables: Mapping[str, jax.Array], config: Config) -> dict[str, jax.Array]:
    """Returns a policy's variables with its adapters added."""
    alpha, axis = config.lora.lora_alpha, config.param_scan_axis
    found = {name: array for name, array in variables.items() if not adapters.is_adapter(name)}
    for name, kernel in found.items():
        if (a := variables.get(f"{name}_lora_a")) is not None:
            b = variables[f"{name}_lora_b"]
            found[name] = adapters.updated(kernel, a, b, alpha, axis).astype(kernel.dtype)
    return found


def _named(trained: Trained) -> dict[str, jax.Array]:
    """Returns name -> array, in the order of the tree's leaves."""
    flat, _ = jax.tree_util.tree_flatten_with_path(trained)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


@partial(jax.jit, donate_argnums=0)
def _added(total: Any, found: Any) -> Any:
    return jax.tree.map(jnp.add, total, found)


@jax.jit
def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum((x.astype(jnp.float32) ** 2).sum() for x in jax.tree.leaves(tree)))
