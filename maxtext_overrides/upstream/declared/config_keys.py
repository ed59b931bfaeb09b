"""Keys of MaxText's config that this project reads, sets or rejects.

Some are also keys of config.json: ``chat_template``, ``partial_rotary_factor`` and
``original_max_position_embeddings`` are used only there, ``use_mrope`` as well.
"""

from __future__ import annotations

from maxtext_overrides.upstream.override import Override

_KEYS = """
ar_cache_axis_order async_checkpointing attention attention_bias attention_sink attention_type
attn_logits_soft_cap base_config base_emb_dim base_mlp_dim base_moe_mlp_dim base_num_decoder_layers
base_num_kv_heads base_num_query_heads base_output_directory capacity_factor chat_template
checkpoint_period checkpoint_storage_concurrent_gb checkpoint_storage_use_ocdbt
checkpoint_storage_use_zarr3 compiled_trainstep_file compute_axis_order dataset_path dataset_type
dcn_context_parallelism decoder_block dropout_rate dtype dump_hlo dump_hlo_xla_flags elastic_enabled
emb_dim enable_checkpointing enable_diloco enable_dropout enable_goodput_recording enable_lora
enable_rampup_batch_size engram_layers eval_interval expansion_factor_real_data
final_logits_soft_cap fused_mlp fused_qkv global_batch_size_to_load global_batch_size_to_train_on
gradient_accumulation_steps hardware head_dim ici_context_parallelism indexer_sparse_training
jax_cache_dir learning_rate learning_rate_final_fraction learning_rate_schedule_steps
load_full_state_path load_parameters_path local_rope_max_timescale logical_axis_rules
logits_via_embedding lora matmul_precision max_position_embeddings max_prefill_predict_length
max_target_length mesh_axes micro_batch_size_to_train_on mlp_activations mlp_bias mlp_dim model_name
moe_mlp_dim monitor_goodput norm_topk_prob normalization_layer_epsilon normalize_embedding_logits
num_decoder_layers num_experts num_experts_per_tok num_kv_heads num_query_heads num_target_devices
num_vocab_tiling opt_type original_max_position_embeddings override_model_config
parameter_memory_host_offload partial_rotary_factor per_device_batch_size prefill_cache_axis_order
quantization quantize_kvcache record_internal_nn_metrics remove_size_one_mesh_axis_from_type
reuse_example_batch rope_linear_scaling_factor rope_max_timescale rope_min_timescale rope_type
rope_use_scale routed_bias routed_score_func run_name save_checkpoint_on_completion
save_checkpoint_on_start scan_layers shard_mode shardy shared_experts skip_jax_distributed_system
sliding_window_size source_checkpoint_layout steps te_comm_gemm_overlap tokenizer_path
tokenizer_type trainable_position_size training_objective use_dpo use_indexer use_mrope
use_multimodal use_post_attn_norm use_post_ffw_norm use_qk_norm use_tunix_gradient_accumulation
use_untrainable_positional_embedding use_vertex_tensorboard using_pipeline_parallelism vocab_size
vocab_tiling_ag_once warmup_steps_fraction weight_dtype z_loss_multiplier
"""

CONFIG_KEYS = Override(
    symbol="maxtext.configs.types",
    use="read",
    why="keys that are read, set or rejected, and the class that ``rlax`` is added to",
    delete_when="a key is no longer read, set or rejected",
    relies_on="every key; unknown ones are rejected; validators of mode before run before those of "
    "MaxText",
    names=("MaxTextConfig", *_KEYS.split()),
)
