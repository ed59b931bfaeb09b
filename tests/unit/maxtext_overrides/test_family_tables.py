"""Every key of a config.json is carried to MaxText, or rejected, or known not to matter."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from maxtext_overrides.models.families import FAMILIES, IGNORED
from maxtext_overrides.models.huggingface_config import architecture, content_of
from maxtext_overrides.models.maxtext_keys import maxtext_keys
from rlax_plugin.base.errors import ConfigError

PATH = Path("config.json")
SIZES: dict[str, Any] = dict(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    max_position_embeddings=64,
)
OTHER: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": dict(sliding_window=None),
    "MixtralForCausalLM": dict(num_local_experts=8, num_experts_per_tok=2),
    "Qwen3MoeForCausalLM": dict(
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True
    ),
    "Gemma2ForCausalLM": dict(sliding_window=8, query_pre_attn_scalar=24),
    "Gemma3ForCausalLM": dict(sliding_window=8, query_pre_attn_scalar=24),
}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
# Another value of each key. Where it is not MaxText's, it must be rejected by the name of the key.
FLIPS: dict[str, Any] = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=80,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=16,
    max_position_embeddings=32,
    rms_norm_eps=1e-4,
    tie_word_embeddings=...,  # the other one
    rope_parameters=LINEAR,
    rope_scaling={"rope_type": "dynamic", "factor": 2.0},
    rope_theta=12345.0,
    rope_local_base_freq=54321.0,
    hidden_act="relu",
    hidden_activation="gelu",
    attention_bias=True,
    mlp_bias=True,
    sliding_window=16,
    use_sliding_window=True,
    max_window_layers=1,
    layer_types=["full_attention", "sliding_attention"] * 6,
    query_pre_attn_scalar=16,
    attn_logit_softcapping=7.0,
    final_logit_softcapping=7.0,
    use_bidirectional_attention=True,
    sliding_window_pattern=3,
    _sliding_window_pattern=3,
    num_experts=4,
    num_local_experts=4,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    norm_topk_prob=False,
    decoder_sparse_step=2,
    mlp_only_layers=[1],
    quantization_config={"bits": 4},
    auto_map={"AutoModel": "model.Model"},
    is_encoder_decoder=True,
    is_decoder="yes",
    add_cross_attention=True,
    tie_encoder_decoder=True,
    cross_attention_hidden_size=64,
    pruned_heads={"0": [1]},
    partial_rotary_factor=0.5,
    rope_interleaved=True,
    use_mrope=True,
)
# Keys that describe only how far the others reach: read, and of no effect by themselves.
REACH = {"max_position_embeddings", "max_window_layers", "use_sliding_window"}


def content(family: str) -> dict[str, Any]:
    """A complete config.json of a small model, as transformers writes it."""
    kind = FAMILIES[family].model_type
    known = CONFIG_MAPPING[kind](**SIZES | OTHER.get(family, {})).to_dict()
    return known | {"architectures": [family], "model_type": kind}


def keys_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """MaxText's keys, and what stands in the weights for want of a key."""
    model = architecture(found, PATH)
    return maxtext_keys(model) | {"query_factor": model.query_factor}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_of_transformers_is_in_the_table(family: str) -> None:
    config = CONFIG_MAPPING[FAMILIES[family].model_type]
    names = {*config().to_dict(), *(f.name for f in fields(config)), *config.attribute_map}
    unknown = {name for name in names if not FAMILIES[family].knows(name)}
    assert not unknown, f"look at what they change in {family}, and add them to the table"


@pytest.mark.parametrize("family", FAMILIES)
def test_no_other_value_of_a_key_passes_in_silence(family: str) -> None:
    whole, table = content(family), FAMILIES[family]
    before = keys_of(whole)
    for key in sorted(table.carried | table.required.keys()):
        flip = FLIPS[key]
        changed = whole | {key: not whole[key] if flip is ... else flip}
        if key == "rope_parameters" and table.block == "gemma3":
            changed[key] = whole[key] | {"full_attention": LINEAR}
        if key in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
            del changed["rope_parameters"]  # files of older versions have these alone
        if key == "hidden_size":
            changed["head_dim"] = 24
        try:
            after = keys_of(changed)
        except ConfigError as error:
            assert key in str(error) or key in ("rope_scaling", "is_decoder"), (key, str(error))
        else:
            assert after != before or key in REACH or _is_off(key, whole), key


def _is_off(key: str, whole: Mapping[str, Any]) -> bool:
    """The class makes the key null, because use_sliding_window is false."""
    return key == "sliding_window" and whole.get("use_sliding_window") is False


@pytest.mark.parametrize("key", sorted(IGNORED - {"architectures", "model_type"}))
def test_what_does_not_matter_changes_nothing(key: str) -> None:
    whole = content("LlamaForCausalLM")
    other = {"dtype": "bfloat16", "torch_dtype": "bfloat16", "problem_type": "regression"}
    other |= {"id2label": {"0": "a"}, "label2id": {"a": 0}, "transformers_version": "9"}
    changed = whole | {key: other.get(key, 1)}
    try:
        assert keys_of(changed) == keys_of(whole)
    except ConfigError as error:
        assert "expected" in str(error), error  # of another type, as transformers says


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_key_is_rejected_by_its_name(family: str) -> None:
    with pytest.raises(ConfigError, match=r"dual_chunk in config\.json = 1: is not known"):
        architecture(content(family) | {"dual_chunk": 1}, PATH)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_read_as_the_same(family: str) -> None:
    found = architecture(content(family), PATH)
    assert architecture(content_of(found), PATH) == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 5000.0}, r"rope_theta in .* = 5000.0: contradicts rope_parameters"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            r"rope_scaling in .*: contradicts rope_parameters",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
    ids=["theta", "scaling", "part"],
)
def test_what_is_said_twice_must_be_the_same(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        architecture(content("LlamaForCausalLM") | changes, PATH)


FULL = {"layer_types": ["full_attention"] * 12}
WINDOWED: list[tuple[str, dict[str, Any]]] = [
    ("MistralForCausalLM", {"sliding_window": 4096}),  # beyond max_position_embeddings
    ("MistralForCausalLM", {"sliding_window": 0}),
    ("MistralForCausalLM", {"sliding_window": 4, "use_sliding_window": False}),
    ("MixtralForCausalLM", {"sliding_window": 4, **FULL}),
    (
        "Qwen2ForCausalLM",
        {
            "sliding_window": 64,
            "use_sliding_window": True,
            "max_window_layers": 0,
            "layer_types": None,
        },
    ),
    ("Qwen3MoeForCausalLM", {"sliding_window": 4, "use_sliding_window": True, **FULL}),
    ("LlamaForCausalLM", {"sliding_window": 4}),
]


@pytest.mark.parametrize(("family", "changes"), WINDOWED)
def test_a_window_is_found_as_transformers_finds_it(family: str, changes: dict[str, Any]) -> None:
    """Its classes differ in which keys they read: others do not switch a window off."""
    with pytest.raises(ConfigError, match="sliding_window in "):
        architecture(content(family) | changes, PATH)


@pytest.mark.parametrize("family", ["Gemma2ForCausalLM", "Gemma3ForCausalLM"])
def test_a_cap_of_0_is_not_none(family: str) -> None:
    with pytest.raises(ConfigError, match=r"final_logit_softcapping in .* above 0, or null"):
        architecture(content(family) | {"final_logit_softcapping": 0.0}, PATH)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_linear_factor_of_1_is_no_scaling(family: str) -> None:
    whole = content(family)
    one = LINEAR | {"factor": 1.0}
    rope = {**whole["rope_parameters"], "full_attention": one}
    scaled = whole | {"rope_parameters": rope if "Gemma3" in family else one}
    plain = whole | {"rope_theta": 10000.0, "rope_scaling": None}
    del plain["rope_parameters"]
    assert keys_of(scaled) == keys_of(plain)


@pytest.mark.parametrize("changes", [{"num_attention_heads": 0}, {"rope_theta": float("inf")}])
def test_every_reader_of_a_config_has_one_error_for_strange_values(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        architecture({**content("LlamaForCausalLM"), "rope_parameters": None} | changes, PATH)


def test_two_counts_of_experts_must_be_the_same() -> None:
    whole = content("Qwen3MoeForCausalLM") | {"num_local_experts": 8}
    assert keys_of(whole | {"num_experts": 8})["num_experts"] == 8
    with pytest.raises(ConfigError, match=r"num_experts in .* = 4: contradicts num_local_experts"):
        keys_of(whole | {"num_experts": 4})
