"""Low-rank adapters (LoRA, arXiv 2106.09685): MaxText's keys ``lora.*``, for trainer and worker.

A module with the matrix W and adapters A and B computes ``x W + (alpha / rank) (x A) B``, in the
dtype of the module. W, the base, never changes. B is 0 at first, so that training starts from the
base. Names, shapes and initial values are those with which MaxText's own ``lora_utils`` leaves a
model: ``kernel_lora_a`` [inputs, (layers,) rank] and ``kernel_lora_b`` [rank, (layers,) outputs]
beside ``kernel``, of class ``nnx.LoRAParam``.

MaxText's optimizer and checkpoints know adapters, but nothing in its train loop makes them. Its
``lora_utils`` would, with qwix, which adds them while ``model.__call__`` runs and nowhere else: not
in a prefill that calls the decoder, and not in the dtype of the module. Here a ``DenseGeneral``
that has adapters applies them wherever it is called.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from maxtext_overrides import folding
from maxtext_overrides.rounding import is_cast
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check
from rlax_plugin.base.errors import ConfigError

OVERRIDES = BY_MODULE["maxtext_overrides/adapters.py"]

_A, _B, _SCALE = "kernel_lora_a", "kernel_lora_b", "lora_scale"
_KEY = "lora.lora_module_path"
_EXAMPLE = "decoder/layers.*/(self_attention/(query|key|value|out)|mlp/(wi_0|wi_1|wo))"
READ_DIRECTLY = ("wkv_b",)  # of latent attention, whose decoding reads the matrix itself


class Frozen(nnx.Variable):
    """A variable of the base while gradients are computed: it is no ``nnx.Param``."""


def enabled(config: Any) -> bool:
    """True if MaxText's config trains adapters."""
    return bool(config.lora.enable_lora)


def is_adapter(name: str) -> bool:
    """True if a variable of a weight version is part of an adapter, by its name."""
    return name.endswith((f".{_A}", f".{_B}"))


def of_adapters[T](variables: Mapping[str, T]) -> dict[str, T]:
    """Returns the variables that are parts of adapters."""
    return {name: variable for name, variable in variables.items() if is_adapter(name)}


def install(allow_untested: bool = False) -> None:
    """Makes MaxText's models have adapters if their config says so, for the rest of the process.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    wrappers = {"get_nnx_create_model_fn": _making, "__call__": _applying}
    for override in OVERRIDES:
        owner, name, stock = resolve(override.symbol)
        if override.use == "wrapped" and not hasattr(stock, "__wrapped__"):
            setattr(owner, name, wrappers[name](stock))


def module_path(config: Any) -> str:
    """The pattern of the paths of modules that get adapters.

    Raises:
      ConfigError: the config has none, and MaxText has none for this family of models.
    """
    from maxtext.utils import lora_utils

    families = [name for name in lora_utils._load_lora_module_configs() if name != "default"]
    model = str(config.model_name).lower()
    if not config.lora.lora_module_path and not model.startswith(tuple(families)):
        reason = (
            f"must be set: MaxText knows the modules of {', '.join(families)}, and not those of "
            f"model_name = {config.model_name}. Such as {_EXAMPLE}"
        )
        raise ConfigError(_KEY, "", reason)
    return lora_utils._get_lora_module_path(config)


def matched(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Returns the modules with adapters of a model, and the number of parameters of each.

    Args:
      shapes: name -> shape of each variable; see ``variables.published``.
    """
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        if is_adapter(name):
            module = name.rpartition(".")[0].replace(".", "/")
            found[module] = found.get(module, 0) + math.prod(shape)
    return found


def _making(stock: Any) -> Any:
    @functools.wraps(stock)
    def create_model_fn(config: Any, *args: Any, **kwargs: Any) -> Any:
        make = stock(config, *args, **kwargs)
        return (lambda: _adapted(make(), config)) if enabled(config) else make

    return create_model_fn


def _adapted(model: Any, config: Any) -> Any:
    """Puts adapters into the modules of a model that the config's pattern matches.

    Raises:
      ConfigError: it matches none, or one that can have no adapter.
    """
    from maxtext.layers.linears import DenseGeneral

    pattern = module_path(config)
    count = 0
    for place, module in nnx.iter_modules(model):
        path = "/".join(map(str, place))
        if isinstance(module, DenseGeneral) and re.fullmatch(pattern, path):
            _adapt(module, path, config)
            count += 1
    if not count:
        dense = [
            "/".join(map(str, place))
            for place, module in nnx.iter_modules(model)
            if isinstance(module, DenseGeneral)
        ]
        reason = f"matches no module of this model, which has {', '.join(dense[:20])}"
        raise ConfigError(_KEY, pattern, reason)
    return model


def _adapt(module: Any, path: str, config: Any) -> None:
    kernel, rank = module.kernel.get_value(), config.lora.lora_rank
    inputs, outputs = math.prod(module.in_features_shape), math.prod(module.out_features_shape)
    shape, axis = list(kernel.shape), config.param_scan_axis
    own = [*module.in_features_shape, *module.out_features_shape]
    layers = [shape.pop(axis)] if len(shape) == len(own) + 1 else []
    # A version of bfloat16 rounds adapters: the module must compute with rounded ones.
    casts = is_cast(f"{path.replace('/', '.')}.kernel")
    is_read = place_of(path) in READ_DIRECTLY
    if shape != own or module.quant is not None or is_read or not casts:
        reason = f"matches {path}, a {list(kernel.shape)} matrix to which no adapter can be added"
        raise ConfigError(_KEY, module_path(config), reason)
    # Of the path, so that an adapter does not depend on which others there are.
    key = jax.random.fold_in(jax.random.key(config.init_weights_seed), zlib.crc32(path.encode()))
    keys = jax.random.split(key, layers[0] if layers else 1)
    draw = jax.nn.initializers.he_uniform()
    # In float32 whatever W has: most entries would not move by a learning rate in bfloat16.
    a = jax.vmap(lambda one: draw(one, (inputs, rank), jnp.float32))(keys)
    a = jnp.moveaxis(a, 0, axis) if layers else a[0]
    b_shape = [rank, outputs]
    b_shape[axis:axis] = layers
    metadata = module.kernel.get_metadata() | {
        "sharding": jax.sharding.PartitionSpec(),
        "out_sharding": None,
        "sharding_names": None,
    }
    setattr(module, _A, nnx.LoRAParam(a, **metadata))
    setattr(module, _B, nnx.LoRAParam(jnp.zeros(b_shape, jnp.float32), **metadata))
    setattr(module, _SCALE, config.lora.lora_alpha / rank)


def updated(kernel: Any, a: Any, b: Any, alpha: float, axis: int) -> Any:
    """Returns W + (alpha / rank) A B in float32, of arrays of NumPy or of JAX.

    Args:
      kernel: W: [inputs..., outputs...], and the layers at ``axis`` if they are stacked.
      a, b: its adapter, [inputs, (layers,) rank] and [rank, (layers,) outputs].
      alpha: ``lora.lora_alpha``.
      axis: MaxText's ``param_scan_axis``.
    """
    arrays = kernel.__array_namespace__()
    kernel, a, b = (array.astype(arrays.float32) for array in (kernel, a, b))
    scale = arrays.float32(alpha / a.shape[-1])
    if a.ndim == 2:
        return kernel + scale * (a @ b).reshape(kernel.shape)
    a, b, kernel = (arrays.moveaxis(array, axis, 0) for array in (a, b, kernel))
    return arrays.moveaxis(kernel + scale * (a @ b).reshape(kernel.shape), 0, axis)


def place_of(path: str) -> str:
    """The last name of a module's path."""
    return path.rpartition("/")[2]


def _applying(stock: Any) -> Any:
    @functools.wraps(stock)
    def call(
        self: Any,
        inputs: jax.Array,
        _initializing: bool = False,
        out_sharding: Any = None,
        slice_bounds: tuple[int, int] | None = None,
    ) -> jax.Array:
        outputs = stock(self, inputs, _initializing, out_sharding, slice_bounds)
        if not hasattr(self, _A):
            return outputs
        axes = tuple(axis % inputs.ndim for axis in self.axis)
        a, b = (getattr(self, name).get_value().astype(self.dtype) for name in (_A, _B))
        rows, inputs = inputs.shape[: -len(axes)], inputs.astype(self.dtype)
        contract = functools.partial(
            jax.lax.dot_general, precision=jax.lax.Precision(self.matmul_precision)
        )
        if folding.pays() and axes == tuple(range(len(rows), inputs.ndim)):
            low = contract(inputs.reshape(-1, a.shape[0]), a, (((1,), (0,)), ((), ())))
        else:
            of_inputs = (axes, tuple(range(len(axes))))
            low = contract(inputs, a.reshape(*self.in_features_shape, -1), (of_inputs, ((), ())))
            rows = low.shape[:-1]
        added = contract(low, b, (((low.ndim - 1,), (0,)), ((), ())))
        added = added.reshape(*rows, *self.out_features_shape)
        if slice_bounds is not None:
            added = added[..., slice(*slice_bounds)]
        return outputs + (added * getattr(self, _SCALE)).astype(outputs.dtype)

    return call


def of_adapters_only(stock: Any) -> Any:
    """Returns ``gradient_accumulation_loss_and_grad`` with gradients of adapters only.

    MaxText's train step computes no others without accumulation, and all of them with it.
    """

    @functools.wraps(stock)
    def loss_and_grad(
        loss_fn: Any, config: Any, model: Any, params: Any, shardings: Any, *rest: Any
    ) -> Any:
        if not enabled(config):
            return stock(loss_fn, config, model, params, shardings, *rest)

        @functools.wraps(loss_fn)
        def thawed_loss(thawed: Any, *args: Any, **kwargs: Any) -> Any:
            with _retyped(thawed, Frozen, nnx.Param):  # a scan over layers divides them by class
                return loss_fn(thawed, *args, **kwargs)

        of_adapters = nnx.filter_state(shardings, nnx.LoRAParam)
        with _retyped(model, nnx.Param, Frozen):
            return stock(thawed_loss, config, model, params, of_adapters, *rest)

    return loss_and_grad


@contextmanager
def _retyped(model: Any, old: type[nnx.Variable], new: type[nnx.Variable]) -> Iterator[None]:
    """Makes a model's variables of exactly one class those of another inside the block."""
    changed = [
        (module, name, variable)
        for _, module in nnx.iter_modules(model)
        for name, variable in vars(module).items()
        if type(variable) is old
    ]
    for module, name, variable in changed:
        setattr(module, name, new(variable.get_value(), **variable.get_metadata()))
    try:
        yield
    finally:
        for module, name, variable in changed:
            setattr(module, name, variable)
