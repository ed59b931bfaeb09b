"""The table by which a model's tensors become MaxText's variables, and the reverse.

A tensor is called as in Hugging Face checkpoints, ``model.layers.3.self_attn.q_proj.weight``, and a
variable as in weight versions (``maxtext_overrides.variables``), ``decoder.layers.self_attention.
query.kernel``. A matrix is [out, in] there and [in, out] here, with heads as an axis of their own.
The experts of a layer are tensors of their own there, and the first axis of one variable here. With
scanned layers a variable holds all layers, stacked along axis 1.

Five things have different values in MaxText than in the source, and so are always stored as
float32:

- the query kernel may hold the factor of the attention logits (``Architecture.query_factor``);
- Gemma's embedding is sqrt(width) times as large: MaxText does not multiply what it looks up;
- the weights of Gemma's norms count from 0 in the source, and from 1 here;
- the last norm of a model that divides its logits by sqrt(width) is sqrt(width) times as large;
- where the rotary positions are those of Llama 3.1, MaxText rotates neighbours (0 1, 2 3, ...), and
  Hugging Face halves (0 d/2, 1 d/2+1, ...): the heads' entries are reordered (without rounding).

Facts read in MaxText 0.2.5: ``layers/attentions.py``, ``layers/embeddings.py``, ``layers/moe.py``,
``models/gemma2.py``, ``models/gemma3.py``, ``checkpoint_conversion/utils/param_mapping.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from maxtext_overrides.models.architecture import GEMMA3_PERIOD, Architecture

SCAN_AXIS = 1  # MaxText's ``param_scan_axis``


@dataclass(frozen=True, slots=True)
class _Rule:
    """The rule for one tensor of a layer, or of the model.

    Attributes:
      variable: name below the layer, or of the whole variable.
      tensor: name below ``model.layers.N``, or of the whole tensor; ``{expert}`` stands for the
        number of an expert, which is the first axis of the variable.
      shape: shape of MaxText's variable, for one layer.
      inputs: number of the leading axes of ``shape`` that are inputs of a matrix, after the axis of
        experts; 0: the tensor is no matrix, or it is not transposed.
      rotary: True if the last axis is that of a head which is rotated by its position.
      factor: MaxText's value is the tensor times this factor,
      offset: plus this offset.
    """

    variable: str
    tensor: str
    shape: tuple[int, ...]
    inputs: int = 0
    rotary: bool = False
    factor: float = 1.0
    offset: float = 0.0

    @property
    def experts(self) -> int:
        """The number of expert tensors per layer; 0 for a single tensor without an experts axis."""
        return self.shape[0] if "{expert}" in self.tensor else 0

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of the part of the variable that one tensor becomes."""
        return self.shape[1:] if self.experts else self.shape

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        if not self.inputs:
            # Biases have the heads as an axis in MaxText only; the embedding stays as it is.
            return (math.prod(self.part),) if self.variable.endswith(".bias") else self.part
        return math.prod(self.part[self.inputs :]), math.prod(self.part[: self.inputs])

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors, one for each expert if there are any."""
        if not self.experts:
            return (self.tensor,)
        return tuple(self.tensor.format(expert=number) for number in range(self.experts))


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of MaxText and the tensors that it consists of.

    Attributes:
      name: name of the variable, such as ``decoder.layers.mlp.wo.kernel``.
      shape: shape of the variable, all layers of a scanned one included.
      tensors: names of the tensors, in their order: layer by layer, and expert by expert.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    _rule: _Rule
    _interleaved: bool
    _scanned: bool

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of each of the tensors."""
        return self._rule.tensor_shape

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor by name."""
        return dict.fromkeys(self.tensors, self.tensor_shape)

    @property
    def is_rescaled(self) -> bool:
        """True if its values differ from those of the source, so that bfloat16 would round them."""
        return self._rule.factor != 1.0 or self._rule.offset != 0.0

    def of_tensors(self, read: Callable[[str], np.ndarray], dtype: np.dtype) -> np.ndarray:
        """Returns the variable's value, made from the tensors.

        Args:
          read: returns a tensor of ``tensor_shape`` by name; called for one after the other.
          dtype: dtype of the result; arithmetic, where there is any, is float32.

        Returns:
          Array of ``shape``, in a buffer of its own.
        """
        value = np.empty(self.shape, dtype)
        for name, part in self._parts(value):
            part[...] = self._to_variable(read(name)).reshape(part.shape)
        return value

    def tensor_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype of its tensors in a directory of ``dtype``.

        A norm that counts from 0 in the source stays float32: w has other bits than 1 + w, which
        alone is stored here and is what the model multiplies by.
        """
        return np.dtype(np.float32) if self._rule.offset else dtype

    def to_tensors(self, value: np.ndarray, dtype: np.dtype) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (name, tensor) for each of ``tensors``; the inverse of ``of_tensors``.

        Args:
          value: array of ``shape``.
          dtype: see ``tensor_dtype``.
        """
        for name, part in self._parts(value):
            yield name, np.ascontiguousarray(self._to_tensor(part), self.tensor_dtype(dtype))

    def adapter(self, rank: int) -> tuple[Variable, Variable]:
        """Returns the variables A and B of a low-rank adapter of this matrix.

        Their tensors are PEFT's, ``lora_A`` [rank, inputs] and ``lora_B`` [outputs, rank]. What a
        rule does to the axes of outputs, and a factor, is done to B; the inputs are A's.

        Returns:
          Variables as ``maxtext_overrides.adapters`` names them, of shape
          [inputs, (layers,) rank] and [rank, (layers,) outputs].

        Raises:
          ValueError: it is no matrix, or one of experts, which have no adapters.
        """
        rule, layers = self._rule, self.shape[SCAN_AXIS : SCAN_AXIS + 1] * self._scanned
        if not rule.inputs or rule.experts or rule.offset:
            raise ValueError(f"{self.name} can have no adapter")
        outputs = rule.shape[rule.inputs :]
        inputs = math.prod(rule.shape[: rule.inputs])
        a = replace(rule, shape=(inputs, rank), inputs=1, rotary=False, factor=1.0)
        b = replace(rule, shape=(rank, *outputs), inputs=1)
        shapes = (inputs, *layers, rank), (rank, *layers, math.prod(outputs))

        def half(letter: str, shape: tuple[int, ...], rule: _Rule) -> Variable:
            tensors = tuple(
                f"base_model.model.{name.removesuffix('.weight')}.lora_{letter}.weight"
                for name in self.tensors
            )
            name = f"{self.name}_lora_{letter.lower()}"
            return replace(self, name=name, shape=shape, tensors=tensors, _rule=rule)

        return half("A", shapes[0], a), half("B", shapes[1], b)

    def _parts(self, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (tensor name, view of its part of ``value``) for each tensor."""
        layers = np.moveaxis(value, SCAN_AXIS, 0) if self._scanned else (value,)
        names = iter(self.tensors)
        for layer in layers:
            for part in layer if self._rule.experts else (layer,):
                yield next(names), part

    def _to_variable(self, tensor: np.ndarray) -> np.ndarray:
        rule = self._rule
        value = (tensor.T if rule.inputs else tensor).reshape(rule.part)
        if rule.rotary and self._interleaved:
            halves = value.reshape(*rule.part[:-1], 2, -1)
            value = halves.swapaxes(-1, -2).reshape(rule.part)
        if self.is_rescaled:
            value = value.astype(np.float32) * np.float32(rule.factor) + np.float32(rule.offset)
        return value

    def _to_tensor(self, value: np.ndarray) -> np.ndarray:
        rule = self._rule
        value = value.reshape(rule.part)
        if self.is_rescaled:
            value = (value.astype(np.float32) - np.float32(rule.offset)) / np.float32(rule.factor)
        if rule.rotary and self._interleaved:
            pairs = value.reshape(*rule.part[:-1], -1, 2)
            value = pairs.swapaxes(-1, -2).reshape(rule.part)
        if not rule.inputs:
            return value.reshape(self.tensor_shape)
        return value.reshape(self.tensor_shape[::-1]).T


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers of the source model whose variables MaxText keeps under one name.

    Attributes:
      prefix: prefix of their variables' names.
      suffix: suffix of the first part of a variable's name.
      numbers: numbers of the layers in the source.
      scanned: True if their variables are stacked.
    """

    prefix: str
    suffix: str
    numbers: Sequence[int]
    scanned: bool


def variables(architecture: Architecture, scanned: bool) -> tuple[Variable, ...]:
    """Returns all variables of a model, those outside of layers first.

    Args:
      architecture: the model's architecture.
      scanned: MaxText's ``scan_layers``.
    """
    interleaved = architecture.rope == "llama3"
    found = [
        Variable(rule.variable, rule.shape, rule.tensors, rule, interleaved, False)
        for rule in _model_rules(architecture)
    ]
    for layers in _places(architecture, scanned):
        for rule in _layer_rules(architecture):
            first, _, rest = rule.variable.partition(".")
            name = f"{layers.prefix}.{first}{layers.suffix}.{rest}"
            tensors = tuple(f"model.layers.{n}.{t}" for n in layers.numbers for t in rule.tensors)
            shape = rule.shape
            if layers.scanned:
                shape = (*shape[:SCAN_AXIS], len(layers.numbers), *shape[SCAN_AXIS:])
            found.append(Variable(name, shape, tensors, rule, interleaved, layers.scanned))
    return tuple(found)


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor that a checkpoint of the model must have."""
    return {
        name: variable.tensor_shape
        for variable in variables(architecture, scanned=True)
        for name in variable.tensors
    }


def _places(a: Architecture, scanned: bool) -> Iterator[_Layers]:
    """Yields the groups of layers as MaxText keeps them."""
    whole, numbers = "decoder.layers", range(a.layers)
    if a.block == "gemma2":  # MaxText's layer is a pair
        kinds = ("_local", numbers[::2]), ("_global", numbers[1::2])
        for suffix, those in kinds:
            if scanned:
                yield _Layers(whole, suffix, those, True)
            else:
                yield from (
                    _Layers(f"{whole}_{n}", suffix, (layer,), False)
                    for n, layer in enumerate(those)
                )
    elif a.block == "gemma3" and scanned:  # whole periods are scanned, the rest stands behind them
        rest = a.layers % GEMMA3_PERIOD
        periodic = numbers[: a.layers - rest]
        if periodic:
            for place in range(GEMMA3_PERIOD):
                those = periodic[place::GEMMA3_PERIOD]
                yield _Layers(f"{whole}.layers_{place}", "", those, True)
        for place, layer in enumerate(numbers[len(periodic) :]):
            yield _Layers(f"{whole}_remainder.layers_{place}", "", (layer,), False)
    elif scanned:
        yield _Layers(whole, "", numbers, True)
    else:
        yield from (_Layers(f"{whole}_{layer}", "", (layer,), False) for layer in numbers)


def _model_rules(a: Architecture) -> Iterator[_Rule]:
    embedding, tensor = (a.vocab_size, a.width), "model.embed_tokens.weight"
    yield _Rule("token_embedder.embedding", tensor, embedding, factor=a.embedding_factor)
    yield _Rule(
        "decoder.decoder_norm.scale",
        "model.norm.weight",
        (a.width,),
        factor=a.last_norm_factor,
        offset=float(a.is_gemma),
    )
    if not a.tied:
        head = (a.width, a.vocab_size)
        yield _Rule("decoder.logits_dense.kernel", "lm_head.weight", head, inputs=1)


_NORMS = {
    "pre_self_attention_layer_norm": "input_layernorm",
    "post_self_attention_layer_norm": "post_attention_layernorm",
}
_GEMMA_NORMS = {
    "pre_self_attention_norm": "input_layernorm",
    "post_self_attention_norm": "post_attention_layernorm",
    "pre_ffw_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _layer_rules(a: Architecture) -> Iterator[_Rule]:
    offset = float(a.is_gemma)
    for name, tensor in (_GEMMA_NORMS if a.is_gemma else _NORMS).items():
        yield _Rule(f"{name}.scale", f"{tensor}.weight", (a.width,), offset=offset)
    for name, letter, heads in (
        ("query", "q", a.heads),
        ("key", "k", a.kv_heads),
        ("value", "v", a.kv_heads),
    ):
        variable, tensor = f"self_attention.{name}", f"self_attn.{letter}_proj"
        rotary, factor = letter != "v", a.query_factor if letter == "q" else 1.0
        kernel = (a.width, heads, a.head_dim)
        yield _Rule(f"{variable}.kernel", f"{tensor}.weight", kernel, 1, rotary, factor)
        if a.qkv_bias:
            bias = (heads, a.head_dim)
            yield _Rule(f"{variable}.bias", f"{tensor}.bias", bias, 0, rotary, factor)
        if a.qk_norm and rotary:
            norm, tensor = f"self_attention.{name}_norm.scale", f"self_attn.{letter}_norm.weight"
            yield _Rule(norm, tensor, (a.head_dim,), 0, rotary, offset=offset)
    out = (a.heads, a.head_dim, a.width)
    yield _Rule("self_attention.out.kernel", "self_attn.o_proj.weight", out, 2)
    yield from _expert_rules(a) if a.experts else _mlp_rules(a)


def _mlp_rules(a: Architecture) -> Iterator[_Rule]:
    yield _Rule("mlp.wi_0.kernel", "mlp.gate_proj.weight", (a.width, a.mlp_width), 1)
    yield _Rule("mlp.wi_1.kernel", "mlp.up_proj.weight", (a.width, a.mlp_width), 1)
    yield _Rule("mlp.wo.kernel", "mlp.down_proj.weight", (a.mlp_width, a.width), 1)


def _expert_rules(a: Architecture) -> Iterator[_Rule]:
    variable = "MoeBlock_0" if a.block == "mixtral" else "moe_block"
    tensor, inner = "mlp", ("gate_proj", "up_proj", "down_proj")
    if a.family == "MixtralForCausalLM":
        tensor, inner = "block_sparse_moe", ("w1", "w3", "w2")
    yield _Rule(f"{variable}.gate.kernel", f"{tensor}.gate.weight", (a.width, a.experts), 1)
    up, down = (a.experts, a.width, a.mlp_width), (a.experts, a.mlp_width, a.width)
    for name, part, shape in zip(("wi_0", "wi_1", "wo"), inner, (up, up, down), strict=True):
        yield _Rule(f"{variable}.{name}", f"{tensor}.experts.{{expert}}.{part}.weight", shape, 1)
