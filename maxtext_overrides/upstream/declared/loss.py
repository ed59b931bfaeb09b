"""The symbols that the loss, its output head, scores and kept weights rely on."""

from __future__ import annotations

from maxtext_overrides.upstream.override import Override

_CHECKPOINTING = "maxtext.common.checkpointing"
_TRAIN = "maxtext.trainers.pre_train.train"

LOSS = (
    Override(
        symbol=f"{_TRAIN}.loss_fn",
        use="replaced",
        signature="(model, config, data, dropout_rng, params, sparsity_state=None, is_train=True)",
        sha256="7a97c1cc3bd1b19ab90e7f36930dfc7e8187bb4ced227b2014488d213ba4253a",
        why="the objective needs log-probs of the targets; the stock loss is cross-entropy",
        delete_when="MaxText's train_loop takes a loss function",
        relies_on="returns (loss, aux); keys of aux: total_weights, xent_sum, "
        "intermediate_outputs, in it decoder, in it hidden_states",
        names=("total_weights", "xent_sum", "intermediate_outputs"),
    ),
    Override(
        symbol="maxtext.utils.max_utils.cross_entropy_with_logits",
        use="replaced",
        signature="(logits, targets, z_loss=0.0)",
        sha256="7ddc2f4ca57ab124252334bb78afecf505901bdbd5d4a25a10dde426c29b59ec",
        why="replaced while the stock loss_fn is traced: there the logits can be had",
        delete_when="MaxText's train_loop takes a loss function",
        relies_on="returns (loss, z loss), of the shape of the logits without their last axis",
    ),
    Override(
        symbol="maxtext.utils.gradient_accumulation.gradient_accumulation_loss_and_grad",
        use="read",
        signature="(_loss_fn, config, model, params, params_shardings, data, dropout_rng)",
        sha256="7807d0b23ab33c3cf629b1c9e15a967a1f9fb27683881629ce56c1264dcfd1fd",
        why="it sums losses and aux['total_weights'] and divides once",
        delete_when="MaxText documents what a loss returns under accumulation",
    ),
    Override(
        symbol=f"{_TRAIN}.vocab_tiling_nnx_loss",
        use="replaced",
        signature="(model, hidden_states, data, config, is_train)",
        sha256="bec30eccc6507cf1128dd00eb974d1b8f9e6558078b86b0b3ee47994dbabf862",
        why="replaced likewise: with num_vocab_tiling there are hidden states, and no logits",
        delete_when="MaxText's train_loop takes a loss function",
        relies_on="returns (loss, z loss), both scalars",
    ),
    Override(
        symbol="maxtext.models.models.Transformer",
        use="called",
        sha256="e5d6c919024ffa5673cd5672055e7905bb68b50bc2090b170a1d3397f74aaf16",
        why="a forward pass without a loss, for the canary and for scores under other weights",
        delete_when="MaxText scores given tokens",
        relies_on="arguments by name; attributes config, mesh, decoder, token_embedder; with "
        "num_vocab_tiling the intermediate decoder.hidden_states",
        names=(
            *("decoder_input_tokens", "decoder_positions", "decoder_segment_ids"),
            *("decoder_target_mask", "decoder_target_tokens", "enable_dropout", "model_mode"),
            *("config", "decoder", "mesh", "token_embedder"),
        ),
    ),
)

OUTPUT_HEAD = (
    Override(
        symbol="maxtext.layers.nnx_decoders.NNXDecoder.apply_output_head",
        use="wrapped",
        signature="(self, shared_embedding, y, deterministic, model_mode, normalize_y=True)",
        sha256="5476cfa81728072f4bd9cb54d6bc243954a972e91cad0329199e8439f4363314",
        why="called with a stand-in for the decoder that has one tile of the head's weights, and "
        "wrapped while a forward pass is traced that is to show its hidden states",
        delete_when="MaxText tiles its logits along the vocabulary, and returns hidden states",
        relies_on="of self it reads config, mesh, logits_dense and dropout",
    ),
    Override(
        symbol="maxtext.utils.sharding.create_sharding",
        use="called",
        sha256="e1bfacab0b50c415511bcdedb8d52240f63a719be2941a5ce71c7eba691af173",
        why="where a tile's logits lie on the mesh",
        delete_when="MaxText tiles its logits along the vocabulary",
        relies_on="arguments mesh, logical axes, rules, by position",
    ),
)

SCORING = (
    Override(
        symbol="maxtext.utils.sharding.get_input_data_sharding",
        use="called",
        sha256="00a4a059adbd3ede4e97098b34e9bf51bc936b319f0b126aabf682246ab85946",
        why="where the rows of a batch lie on the mesh",
        delete_when="MaxText scores given tokens",
        relies_on="arguments config, mesh",
    ),
)

KEPT_WEIGHTS = (
    Override(
        symbol=f"{_CHECKPOINTING}.load_params_from_path",
        use="called",
        signature="(load_parameters_from_path, abstract_unboxed_params, "
        "checkpoint_storage_concurrent_gb, use_ocdbt=True, use_zarr3=True, "
        "enable_single_replica_ckpt_restoring=False)",
        sha256="32d84fab51f02aae15d2f98d2df156ce7c9ae210c47e89f62aea2dae935a2c6f",
        why="nothing public loads a second set of parameters",
        delete_when="MaxText documents it",
        relies_on="ValueError or OSError where it cannot",
    ),
    Override(
        symbol=f"{_CHECKPOINTING}.save_params_to_path",
        use="called",
        signature="(checkpoint_dir, params, use_ocdbt=True, use_zarr3=True)",
        sha256="07b9bcff463bb3b818155154b31f31db16f1cd412563d94b89cb3e9f628ab8c4",
        why="what it writes is what the above reads",
        delete_when="MaxText documents it",
    ),
)

CHECKPOINTS = (
    Override(
        symbol=f"{_CHECKPOINTING}._raise_weight_problems",
        use="read",
        sha256="d9afceb9858154c929c93f6a2c4d57f9c0eb68a09387a115112c05d368c937fe",
        why="its message is taken apart, to name the first weight that differs",
        delete_when="it raises an error with the names of the weights",
        relies_on="the first line of the message, and '  - ' before each weight",
    ),
)
