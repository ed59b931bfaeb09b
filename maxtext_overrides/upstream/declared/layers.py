"""The symbols replaced inside MaxText's model: contractions with weights, and the tied head."""

from __future__ import annotations

from maxtext_overrides.upstream.override import Override

FOLDING = (
    Override(
        symbol="maxtext.layers.linears._compute_dot_general_nnx",
        use="replaced",
        signature="(inputs, kernel, axis, contract_ind, matmul_precision, quant_dot_general, "
        "initializing, out_sharding=None, kernel_scale=None, compute_dtype=None, "
        "native_fp8_compute=False, scale_block_size=None, act_calibration_method='absmax')",
        sha256="453c6e16647dd64a9d0415a76250805367dfefcfcc1c7b474b73fbf1e586e1cc",
        why="on CPU it is called with rows and length as one axis: otherwise XLA computes the "
        "gradient of a matrix up to five times as slowly",
        delete_when="XLA's CPU backend is as fast with [rows, length, features]",
        relies_on="DenseGeneral calls it by the name in linears; the first six arguments are by "
        "position; without quantisation, sharding and scale it is lax.dot_general",
    ),
)

TIED_HEAD = (
    Override(
        symbol="maxtext.layers.embeddings.attend_on_embedding",
        use="replaced",
        signature="(query, embedding_table, attend_dtype, config, out_sharding=None)",
        sha256="2a44f14ceb3b061a87f581a1d8674ff28b26172bc31b9c3214aff499ce69bdbb",
        why="replaced where the decoder calls it: float32 models keep a float32 "
        "table, and on CPU rows and length are one axis",
        delete_when="the table is cast to the dtype of the query, and XLA folds by itself",
        relies_on="nnx_decoders calls it by the name that it imports it under",
    ),
    Override(
        symbol="maxtext.layers.embeddings._maybe_move_embedding_to_device",
        use="called",
        signature="(embedding_table, config)",
        sha256="d5c03f98bb7780352bbc934a9681528fdd590d80da9a9ebad23a41911fa2c811",
        why="a step of attend_on_embedding",
        delete_when="the table is cast to the dtype of the query",
    ),
    Override(
        symbol="maxtext.common.common_types.ShardMode",
        use="read",
        why="with explicit sharding the stock function is left to do it",
        delete_when="the table is cast to the dtype of the query",
        names=("EXPLICIT",),
    ),
)

ROPE_SCALING = (
    Override(
        symbol="maxtext.layers.attentions.Attention.init_rotary_embedding",
        use="wrapped",
        signature="(self)",
        sha256="cabf9b8bd2f72822e1be73087350da39e6c0d4dbbcbd581b313dc80858a0148c",
        why="Llama 3's scaling of rotary positions gets the factor that the config says; MaxText "
        "has 8 in its code",
        delete_when="a key of MaxText's config is the factor of rope_type llama3.1",
        relies_on="Attention calls it once, and keeps what it returns as its rotary_embedding",
    ),
    Override(
        symbol="maxtext.layers.embeddings.LLaMARotaryEmbedding",
        use="called",
        sha256="0d65928a3c6168a0db10c1348699df89add283be07f73e81a9e7902aae9c4234",
        why="subclassed with another factor",
        delete_when="a key of MaxText's config is the factor of rope_type llama3.1",
        relies_on="_apply_scaling_factor is called for each frequency; the arguments of the "
        "constructor are attributes",
    ),
)
