"""What ``maxtext_overrides/models`` relies on."""

from __future__ import annotations

from maxtext_overrides.upstream.override import Override

_TO_MAXTEXT = "maxtext.checkpoint_conversion.to_maxtext"
_UTILS = "maxtext.checkpoint_conversion.utils"
_DELETE_WHEN = "to_maxtext writes one variable at a time, and checks all of them before"

NAMED_MODELS = (
    Override(
        symbol=f"{_TO_MAXTEXT}._get_hf_loading_function",
        use="called",
        signature="(hf_source_keys_or_key, tensor_getter, hook_fn, mt_target_shape_or_shapes, "
        "config, mt_key='')",
        sha256="57a50f81222599b4c81390a627d2afa7042176f21c04225cc7f38797e733beba",
        why="puts one variable of a model that MaxText has by name together from tensors; its "
        "command keeps all of them in memory",
        delete_when=_DELETE_WHEN,
        relies_on="its result takes nothing and returns an array of the given shape",
    ),
    Override(
        symbol=f"{_UTILS}.hf_model_configs",
        use="read",
        why="the config.json of each model that MaxText has by name",
        delete_when=_DELETE_WHEN,
        relies_on="model name -> config with to_dict()",
        names=("HF_MODEL_CONFIGS",),
    ),
    Override(
        symbol=f"{_UTILS}.param_mapping",
        use="called",
        why="which tensors a variable of such a model consists of, and what is done with them",
        delete_when=_DELETE_WHEN,
        relies_on="model name -> (config, MaxText's config, scanned) -> variable -> tensors; the "
        "same with saving_to_hf -> functions",
        names=("PARAM_MAPPING", "HOOK_FNS"),
    ),
    Override(
        symbol=f"{_UTILS}.hf_shape",
        use="called",
        why="names and shapes of the tensors of such a model",
        delete_when=_DELETE_WHEN,
        relies_on="model name -> (config) -> tensor -> shape",
        names=("HF_SHAPE",),
    ),
)

NAMED_EXPORTS = (
    Override(
        symbol=f"{_UTILS}.utils.process_maxtext_param",
        use="called",
        signature="(maxtext_param_key, maxtext_param_weight, param_map, hook_fn_map, hf_shape_map, "
        "maxtext_config)",
        sha256="4cceb20abb4960ddc1af70423a2bb130e306490a85746cb507efbf1db62dd3b5",
        why="takes one variable of a model that MaxText has by name apart into tensors; its "
        "command keeps all of them in memory",
        delete_when="to_huggingface reads and writes one variable at a time",
        relies_on="with the tables of NAMED_MODELS it returns (name, array) of each tensor",
    ),
)
