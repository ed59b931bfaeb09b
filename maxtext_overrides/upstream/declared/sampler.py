"""The symbols that ``maxtext_overrides/sampler`` relies on."""

from __future__ import annotations

from maxtext_overrides.upstream.override import Override

MAXENGINE_MODEL = (
    Override(
        symbol="maxtext.inference.maxengine.maxengine.MaxEngine",
        use="called",
        signature="(config, devices=None)",
        sha256="128617ba10f6ce411d7d87f5e52328fed7df0628a2a2f33141d2cf5f7fea83b2",
        why="its two abstract models are used; prefill, insert and generate are repeated here",
        delete_when="it takes all variables as arguments and samples per slot",
        relies_on="attributes model, model_ar, mesh, max_concurrent_decodes; what _insert_jit does "
        "with each cache",
        names=("model", "model_ar", "mesh", "max_concurrent_decodes", "_insert_jit"),
    ),
    Override(
        symbol="maxtext.inference.kvcache.KVCache",
        use="read",
        signature="(*args, **kwargs)",
        sha256="4ec4780769182a1c4b8556ae2318aa78230ddfb89c8fe0413a2a24d6da2ed6e1",
        why="slots are filled by the names, axes and ring semantics of its variables",
        delete_when="MaxEngine inserts several prompts into several slots at once",
        relies_on="names of its variables, axes named cache_batch or cache_scale_batch and "
        "..._sequence",
        names=(
            *("cached_ar_key", "cached_ar_value", "cached_ar_key_scale", "cached_ar_value_scale"),
            *("cache_ar_segment_id", "cached_ar_lengths", "cache_ar_index"),
            *("cached_prefill_key", "cached_prefill_value", "cache_prefill_segment_id"),
        ),
    ),
    Override(
        symbol="maxtext.layers.nnx_decoders.NNXDecoder",
        use="called",
        signature="(*args, **kwargs)",
        sha256="e3d160c72e9784492b3ee679a888c0c2a0ae84aa37cde6668c11b1c055e9f641",
        why="prefill calls it and then its output head, on the last positions only",
        delete_when="the model's prefill returns only the logits of the last position",
        relies_on="arguments by name; position 1 of its result: hidden states; decoder_norm, "
        "logits_dense",
        names=(
            *("shared_embedding", "decoder_input_tokens", "decoder_positions"),
            *("decoder_segment_ids", "deterministic", "model_mode", "decoder_norm"),
            "logits_dense",
        ),
    ),
    Override(
        symbol="maxtext.utils.sharding.nnx_construct_named_sharding",
        use="called",
        sha256="a4f776d9de563b609761262213f1d91b22da56fc41e24115802dfc5e5c4224bd",
        why="where the variables of the decode model lie on the mesh",
        delete_when="MaxEngine says where its caches lie",
        relies_on="arguments abstract state, mesh; a state of the same structure",
    ),
    Override(
        symbol="maxtext.common.common_types",
        use="read",
        why="what a segment in use is marked with, and the modes of a model",
        delete_when="the model's prefill returns only the logits of the last position",
        names=(
            *("DECODING_ACTIVE_SEQUENCE_INDICATOR", "MODEL_MODE_AUTOREGRESSIVE"),
            "MODEL_MODE_PREFILL",
        ),
    ),
)

SAMPLING = (
    Override(
        symbol="maxtext.inference.inference_utils.sampling",
        use="read",
        signature="(logits, rng, algorithm, topk=0, nucleus_topp=0, temperature=1.0)",
        sha256="54cc959d472f8c36f392123d9c899beaf2cd6eecb1b1ee23efb22015accdc4fc",
        why="ours stands in its place: it has one key for all slots, and static settings",
        delete_when="it takes keys and settings per slot",
    ),
)

_JETSTREAM = {"versions": ("0.2.2",), "distribution": "google-jetstream"}

_NO_WINDOW = "MaxText decodes with windows over positions, not over places in its caches"
WINDOWS = (
    Override(
        symbol="maxtext.layers.attentions.Attention.update_kv_caches",
        use="wrapped",
        signature="(self, key, value, decoder_segment_ids, model_mode, previous_chunk)",
        sha256="7328d2cf7f954262b0432706b69b4b74d499864ed4e3d18833e35346b9b77946",
        why="while decoding, cache entries out of a sliding window lose their segment",
        delete_when=_NO_WINDOW,
        relies_on="returns (key, value, segments) of the prompt and (key, value, segments, "
        "lengths) of the ring, after KVCache_0.cache_ar_index has moved on",
    ),
    Override(
        symbol="maxtext.layers.attention_op.AttentionOp.generate_attention_mask",
        use="wrapped",
        signature="(self, query, key, decoder_segment_ids, model_mode, previous_chunk=None, "
        "bidirectional_mask=None, compressed_mask=None, segment_positions=None, pad_kv_total=0, "
        "decoder_segment_ids_kv=None, attention_type=None)",
        sha256="20d08342ccbfdc0b327c23f214679c35dfbf9cd93d0698da89c3814bd0894701",
        why="its window is over places in a cache as if the query stood at the end",
        delete_when=_NO_WINDOW,
        relies_on="with attention_type GLOBAL a decode step's mask is that of the segments",
    ),
    Override(
        symbol="maxtext.common.common_types.AttentionType",
        use="read",
        why="layers with a window, and those without",
        delete_when=_NO_WINDOW,
        names=("LOCAL_SLIDING", "GLOBAL"),
    ),
)
