"""One table: how a Llama-shaped model's tensors become MaxText's variables, and back.

A tensor is called as in Hugging Face checkpoints, ``model.layers.3.self_attn.q_proj.weight``, and a
variable as in weight versions (``maxtext_overrides.variables``), ``decoder.layers.self_attention.
query.kernel``. A matrix is [out, in] there and [in, out] here, with heads as an axis of their own.
With scanned layers a variable holds all layers, stacked along axis 1.

Where the rotary positions are those of Llama 3.1, MaxText rotates neighbours (0 1, 2 3, ...), and
Hugging Face halves (0 d/2, 1 d/2+1, ...): the heads' entries are reordered.

Facts read in MaxText 0.2.5: ``layers/attentions.py``, ``layers/embeddings.py``,
``checkpoint_conversion/utils/param_mapping.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from maxtext_overrides.models.architecture import Architecture

SCAN_AXIS = 1  # MaxText's ``param_scan_axis``


@dataclass(frozen=True, slots=True)
class _Rule:
    """One tensor of a layer, or of the model.

    Attributes:
      variable: name below the layer, or of the whole variable.
      tensor: name below ``model.layers.N``, or of the whole tensor.
      shape: of MaxText's variable, of one layer.
      inputs: how many of the leading axes of ``shape`` are inputs of a matrix; 0: the tensor is no
        matrix, or it is not transposed.
      rotary: the last axis is that of a head which is rotated by its position.
      scaled: MaxText's has 1 / sqrt(head_dim) in it if the architecture says so.
    """

    variable: str
    tensor: str
    shape: tuple[int, ...]
    inputs: int = 0
    rotary: bool = False
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of MaxText and the tensors that it consists of.

    Attributes:
      name: of the variable, such as ``decoder.layers.mlp.wo.kernel``.
      shape: of the variable, all layers of a scanned one included.
      tensors: names of the tensors; several if layers are scanned, in their order.
      tensor_shape: of each of them.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    tensor_shape: tuple[int, ...]
    _rule: _Rule
    _architecture: Architecture
    _scanned: bool

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the tensors."""
        return dict.fromkeys(self.tensors, self.tensor_shape)

    def of_tensors(self, read: Callable[[str], np.ndarray], dtype: np.dtype) -> np.ndarray:
        """The variable's value.

        Args:
          read: name -> tensor of ``tensor_shape``; asked for one after the other.
          dtype: of the result; arithmetic, where there is any, is float32.

        Returns:
          Array of ``shape``, in a buffer of its own.
        """
        value = np.empty(self.shape, dtype)
        for layer, name in enumerate(self.tensors):
            self._layer(value, layer)[...] = self._to_variable(read(name))
        return value

    def to_tensors(self, value: np.ndarray, dtype: np.dtype) -> Iterator[tuple[str, np.ndarray]]:
        """(name, tensor) for each of ``tensors``; the inverse of ``of_tensors``.

        Args:
          value: array of ``shape``.
          dtype: of the tensors.
        """
        for layer, name in enumerate(self.tensors):
            tensor = self._to_tensor(self._layer(value, layer))
            yield name, np.ascontiguousarray(tensor, dtype)

    def _layer(self, value: np.ndarray, layer: int) -> np.ndarray:
        """A view of one layer."""
        return np.moveaxis(value, SCAN_AXIS, 0)[layer] if self._scanned else value

    def _to_variable(self, tensor: np.ndarray) -> np.ndarray:
        rule = self._rule
        value = (tensor.T if rule.inputs else tensor).reshape(rule.shape)
        if rule.rotary and self._architecture.rope == "llama3":
            halves = value.reshape(*rule.shape[:-1], 2, -1)
            value = halves.swapaxes(-1, -2).reshape(rule.shape)
        return value * self._scale(1) if self._scales() else value

    def _to_tensor(self, value: np.ndarray) -> np.ndarray:
        rule = self._rule
        if self._scales():
            value = value * self._scale(-1)
        if rule.rotary and self._architecture.rope == "llama3":
            pairs = value.reshape(*rule.shape[:-1], -1, 2)
            value = pairs.swapaxes(-1, -2).reshape(rule.shape)
        if not rule.inputs:
            return value.reshape(self.tensor_shape)
        return value.reshape(self.tensor_shape[::-1]).T

    def _scales(self) -> bool:
        return self._rule.scaled and self._architecture.scaled_query

    def _scale(self, sign: int) -> np.float32:
        return np.float32(self._architecture.head_dim ** (-0.5 * sign))


def variables(architecture: Architecture, scanned: bool) -> tuple[Variable, ...]:
    """All variables of a model, those outside of layers first.

    Args:
      scanned: MaxText's ``scan_layers``.
    """
    found = [_whole(rule, architecture) for rule in _model_rules(architecture)]
    layers = range(architecture.layers)
    for rule in _layer_rules(architecture):
        names = [f"model.layers.{layer}.{rule.tensor}" for layer in layers]
        if scanned:
            shape = (*rule.shape[:SCAN_AXIS], len(names), *rule.shape[SCAN_AXIS:])
            name = f"decoder.layers.{rule.variable}"
            found.append(
                Variable(name, shape, tuple(names), _tensor_shape(rule), rule, architecture, True)
            )
        else:
            found += [
                Variable(
                    f"decoder.layers_{layer}.{rule.variable}",
                    rule.shape,
                    (name,),
                    _tensor_shape(rule),
                    rule,
                    architecture,
                    False,
                )
                for layer, name in enumerate(names)
            ]
    return tuple(found)


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that a checkpoint of the model must have."""
    return {
        name: variable.tensor_shape
        for variable in variables(architecture, scanned=True)
        for name in variable.tensors
    }


def _whole(rule: _Rule, architecture: Architecture) -> Variable:
    shape = _tensor_shape(rule)
    return Variable(rule.variable, rule.shape, (rule.tensor,), shape, rule, architecture, False)


def _tensor_shape(rule: _Rule) -> tuple[int, ...]:
    if not rule.inputs:
        # Biases have the heads as an axis in MaxText only; the embedding stays as it is.
        flat = rule.variable.endswith(".bias")
        return (int(np.prod(rule.shape)),) if flat else rule.shape
    return (int(np.prod(rule.shape[rule.inputs :])), int(np.prod(rule.shape[: rule.inputs])))


def _model_rules(a: Architecture) -> Iterator[_Rule]:
    embedding = (a.vocab_size, a.width)
    yield _Rule("token_embedder.embedding", "model.embed_tokens.weight", embedding)
    yield _Rule("decoder.decoder_norm.scale", "model.norm.weight", (a.width,))
    if not a.tied:
        head = (a.width, a.vocab_size)
        yield _Rule("decoder.logits_dense.kernel", "lm_head.weight", head, inputs=1)


def _layer_rules(a: Architecture) -> Iterator[_Rule]:
    for variable, tensor in (
        ("pre_self_attention_layer_norm.scale", "input_layernorm.weight"),
        ("post_self_attention_layer_norm.scale", "post_attention_layernorm.weight"),
    ):
        yield _Rule(variable, tensor, (a.width,))
    for name, letter, heads in (
        ("query", "q", a.heads),
        ("key", "k", a.kv_heads),
        ("value", "v", a.kv_heads),
    ):
        variable, tensor = f"self_attention.{name}", f"self_attn.{letter}_proj"
        rotary, scaled = letter != "v", letter == "q"
        kernel = (a.width, heads, a.head_dim)
        yield _Rule(f"{variable}.kernel", f"{tensor}.weight", kernel, 1, rotary, scaled)
        if a.qkv_bias:
            bias = (heads, a.head_dim)
            yield _Rule(f"{variable}.bias", f"{tensor}.bias", bias, 0, rotary, scaled)
        if a.qk_norm and rotary:
            norm, tensor = f"self_attention.{name}_norm.scale", f"self_attn.{letter}_norm.weight"
            yield _Rule(norm, tensor, (a.head_dim,), 0, rotary)
    out = (a.heads, a.head_dim, a.width)
    yield _Rule("self_attention.out.kernel", "self_attn.o_proj.weight", out, 2)
    yield _Rule("mlp.wi_0.kernel", "mlp.gate_proj.weight", (a.width, a.mlp_width), 1)
    yield _Rule("mlp.wi_1.kernel", "mlp.up_proj.weight", (a.width, a.mlp_width), 1)
    yield _Rule("mlp.wo.kernel", "mlp.down_proj.weight", (a.mlp_width, a.width), 1)
