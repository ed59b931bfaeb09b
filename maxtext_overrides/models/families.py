"""The families that can be converted, and the treatment of each key of their config.json.

A key is either carried into the ``Architecture``, or must have one of a few values because MaxText
computes nothing else, or does not matter for what the model computes. A key in none of the three
lists is rejected by name, because its effect is unknown. The keys are those of ``transformers``'
config classes, and further ones found in published files.

Facts read in transformers 5.23 (``models/*/modeling_*.py``) and MaxText 0.2.5 (``models/*.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maxtext_overrides.models.architecture import GEMMA3_PERIOD, GEMMA_EPSILON, Block

_NOT = (False, None)
_CARRIED = frozenset(
    (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        # The three forms in which files describe rotary positions; transformers makes them one.
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
    )
)
IGNORED = frozenset(
    (
        # what the file is, and who wrote it
        "_name_or_path",
        "architectures",
        "model_type",
        "transformers_version",
        "transformers.js_config",
        "unsloth_fixed",
        "unsloth_version",
        "is_llama_config",
        # the dtype of the tensors: they say it themselves
        "dtype",
        "torch_dtype",
        # special tokens are the tokenizer's; an embedding of padding only has no gradient there
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "cls_token_id",
        "mask_token_id",
        "unk_token_id",
        "decoder_start_token_id",
        # training, which is done otherwise here
        "attention_dropout",
        "initializer_range",
        "router_aux_loss_coef",
        "router_jitter_noise",
        # how the same numbers are computed, and what is returned
        "pretraining_tp",
        "chunk_size_feed_forward",
        "use_cache",
        "cache_implementation",
        "_attn_implementation",
        "attn_implementation",
        "_attn_implementation_autoset",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "torchscript",
        # classification
        "id2label",
        "label2id",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
    )
)
# Of every family; what a file may say besides its class, and MaxText has not.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "auto_map": (None,),  # code of the model's own
    "is_encoder_decoder": _NOT,
    "is_decoder": (True, *_NOT),
    "add_cross_attention": _NOT,
    "tie_encoder_decoder": _NOT,
    "cross_attention_hidden_size": (None,),
    "pruned_heads": (None, {}),
    "partial_rotary_factor": (1.0, None),
    "rope_interleaved": _NOT,
    "use_mrope": _NOT,
    "use_bidirectional_attention": _NOT,
    "attention_bias": _NOT,
    "mlp_bias": _NOT,
}
_SILU = ("silu", "swish")
_GELU = ("gelu_pytorch_tanh",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The treatment of the keys in the config.json of one family.

    Attributes:
      model_type: ``model_type`` in ``transformers``.
      models: examples, for messages and the documentation.
      block: MaxText's decoder block.
      ropes: kinds of rotary positions that MaxText has for it.
      carried: keys that are read into the ``Architecture``.
      only: key -> the values that MaxText computes with; the first is named in messages.
      ignored: keys that do not matter.
      qkv_bias: True if query, key and value have biases.
      qk_norm: True if query and key are normalised.
    """

    model_type: str
    models: str
    block: Block
    ropes: tuple[str, ...] = ("default", "linear", "llama3")
    carried: frozenset[str] = _CARRIED
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = IGNORED
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def required(self) -> Mapping[str, tuple[Any, ...]]:
        """The values that MaxText computes with, by key."""
        return {**_ONLY, **self.only}

    def knows(self, key: str) -> bool:
        """True if a key is in one of the lists."""
        return key in self.carried or key in self.required or key in self.ignored


# What decides whether a layer has a window: these families of MaxText have none.
_WINDOW = _CARRIED | {"sliding_window"}
_WINDOWS = _WINDOW | {"use_sliding_window", "max_window_layers", "layer_types"}
_EXPERTS = {"num_experts_per_tok", "num_experts", "num_local_experts"}
_GEMMA: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": _GELU,
    "hidden_act": (*_GELU, None),
    "rms_norm_eps": (GEMMA_EPSILON,),
    "tie_word_embeddings": (True,),
}
_GEMMA_CARRIED = (_CARRIED - _GEMMA.keys()) | {
    "query_pre_attn_scalar",
    "sliding_window",
    "layer_types",
    "final_logit_softcapping",
}
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(
        model_type="llama",
        models="Llama 1, 2, 3, 3.1 and 3.2 (text), SmolLM2, TinyLlama and others",
        block="qwen2",
        only={"hidden_act": _SILU, "sliding_window": (None,)},
    ),
    "MistralForCausalLM": Family(
        model_type="mistral",
        models="Mistral, without sliding windows",
        block="qwen2",
        only={"hidden_act": _SILU},
        carried=_WINDOW,
    ),
    "MixtralForCausalLM": Family(
        model_type="mixtral",
        models="Mixtral, without sliding windows",
        block="qwen3_moe",
        only={"hidden_act": _SILU},
        carried=_WINDOW | _EXPERTS,
    ),
    "Qwen2ForCausalLM": Family(
        model_type="qwen2",
        models="Qwen2 and Qwen2.5",
        block="qwen2",
        only={"hidden_act": _SILU},
        carried=_WINDOWS,
        qkv_bias=True,
    ),
    "Qwen3ForCausalLM": Family(
        model_type="qwen3",
        models="Qwen3, dense",
        block="qwen3",
        only={"hidden_act": _SILU},
        carried=_WINDOWS,
        qk_norm=True,
    ),
    "Qwen3MoeForCausalLM": Family(
        model_type="qwen3_moe",
        models="Qwen3 with experts in every layer",
        block="qwen3_moe",
        only={
            "hidden_act": _SILU,
            "norm_topk_prob": (True,),
            "decoder_sparse_step": (1,),
            "mlp_only_layers": ([], None),
        },
        # Of layers without experts, which there are none of; and read by other classes only.
        ignored=IGNORED | {"intermediate_size", "max_window_layers"},
        carried=(_WINDOW - {"intermediate_size"})
        | _EXPERTS
        | {"moe_intermediate_size", "use_sliding_window"},
        qk_norm=True,
    ),
    "Gemma2ForCausalLM": Family(
        model_type="gemma2",
        models="Gemma 2",
        block="gemma2",
        ropes=("default", "linear"),
        only=_GEMMA,
        carried=_GEMMA_CARRIED | {"attn_logit_softcapping"},
    ),
    "Gemma3ForCausalLM": Family(
        model_type="gemma3_text",
        models="Gemma 3, text models such as 1B",
        block="gemma3",
        ropes=("default", "linear"),
        only={
            **_GEMMA,
            "sliding_window_pattern": (GEMMA3_PERIOD, None),
            "_sliding_window_pattern": (GEMMA3_PERIOD, None),
            "attn_logit_softcapping": (None,),
        },
        carried=_GEMMA_CARRIED | {"rope_local_base_freq"},
        qk_norm=True,
    ),
}
