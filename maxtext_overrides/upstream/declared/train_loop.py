"""The symbols of MaxText's stock loop that ``trainer/train_loop.py`` relies on."""

from __future__ import annotations

from maxtext_overrides.upstream.override import Override

_TRAIN = "maxtext.trainers.pre_train.train"
_CHECKPOINTING = "maxtext.common.checkpointing"

TRAIN_LOOP = (
    Override(
        symbol="maxtext.input_pipeline.input_pipeline_interface.create_data_iterator",
        use="replaced",
        signature="(config, mesh)",
        sha256="a9232500346700b48e580e79d34c93c5ce778252f5fa2233eb845c3fa886a6d4",
        why="batches come from the controller",
        delete_when="train_loop takes a data iterator",
        relies_on="returns (training iterator, evaluation iterator or None)",
    ),
    Override(
        symbol="maxtext.utils.maxtext_utils.get_shaped_batch",
        use="replaced",
        signature="(config, batch_sharding=None, is_eval=False)",
        sha256="1a3c9e1cc8c240adcbb3395636be75fd3940f18a42887c5b799aea954854f1bd",
        why="batches hold more arrays than MaxText's six",
        delete_when="train_loop takes the shapes of a batch",
        relies_on="returns name -> jax.ShapeDtypeStruct; the six names",
        names=(
            *("inputs", "inputs_position", "inputs_segmentation"),
            *("targets", "targets_position", "targets_segmentation"),
        ),
    ),
    Override(
        symbol="maxtext.utils.train_utils.setup_train_loop",
        use="wrapped",
        signature="(config, recorder, devices=None)",
        sha256="206fd13e03738e5b518eea297a03b9eb4372c77e11d489b18f1201b8b7d32e96",
        why="the weights exist when it returns, seconds before the first step",
        delete_when="train_loop calls back once its state is there",
        relies_on="positions 3, 4 and -1 of its result: model, mesh, train state; the state's "
        "``model``",
    ),
    Override(
        symbol="maxtext.utils.train_utils.validate_completed_steps",
        use="replaced",
        signature="(completed_steps, config_steps)",
        sha256="5af1a7fbf5f5e9690e25a7536b6b31c193a58098ce17b224ffb2f88b5953d0be",
        why="a run that was killed behind its last checkpoint is finished, not rejected",
        delete_when="train_loop returns when nothing is left to train",
    ),
    Override(
        symbol=f"{_TRAIN}.train_step",
        use="wrapped",
        signature="(model, config, state_mesh_shardings, params_shardings, state, data, "
        "dropout_rng=None)",
        sha256="e68464f0c15a65b7227e5c0f28d09cc1feecd94b9b5f90e06eb649cc8e7f9412",
        why="metrics of the loss leave it only with record_internal_nn_metrics, which would also "
        "make every layer of the model compute statistics",
        delete_when="train_step returns metrics that a loss puts into aux",
        relies_on="it reads record_internal_nn_metrics from its argument config",
    ),
    Override(
        symbol=f"{_TRAIN}.record_activation_metrics",
        use="wrapped",
        signature="(output_metrics, intermediate_outputs, config)",
        sha256="06a340c8b174173a6fd52e01321e42840d118281c3efd53d0ce7abadf8f5d415",
        why="puts the loss's metrics where the loop's caller finds them",
        delete_when="train_step returns metrics that a loss puts into aux",
        relies_on="intermediate_outputs is aux['intermediate_outputs']; output_metrics leaves the "
        "step as its metrics",
    ),
    Override(
        symbol=f"{_TRAIN}.training_loop_iteration",
        use="wrapped",
        signature="(jax_device_state, python_vars, immutable_data)",
        sha256="d649a852204a918a0a0f95f545655faccd420dcff55c6a8322a3ff60bb7048c6",
        why="something happens after every step",
        delete_when="train_loop calls back after a step",
        relies_on="keys of jax_device_state: state, the new one when it returns; of python_vars: "
        "step, checkpoint_manager, data_iterator; of its result: scalar",
        names=("state", "step", "checkpoint_manager", "data_iterator"),
    ),
    Override(
        symbol=f"{_CHECKPOINTING}.save_checkpoint",
        use="wrapped",
        signature="(checkpoint_manager, step, state, config=None, data_iterator=None, force=False)",
        sha256="251902bcdd93f422a0a6b7125e06b093e4be8a861f4e6d3c9164b44c2bd33d29",
        why="the controller's state is saved before each checkpoint, and none is saved inside an "
        "RL step; called for a checkpoint at the end of one",
        delete_when="train_loop calls back before it saves",
        relies_on="labels count from 0; False where nothing is saved",
    ),
    Override(
        symbol=f"{_TRAIN}.train_loop",
        use="called",
        signature="(config, recorder, state=None)",
        sha256="d4c7c722db956cb6efa8150bb497da1f9e80182fd2b4db3e6a07533ee6375515",
        why="runs as it is; the above relies on which of them it calls, and when",
        delete_when="all of the above are gone",
    ),
    Override(
        symbol=f"{_TRAIN}.get_first_step",
        use="called",
        signature="(model, state)",
        sha256="5eb7d88df7fe137efb16e0f8eb4e25b332145b9dc5c2e2e0c8bed7cabb443699",
        why="how many train steps a restored state has behind it",
        delete_when="train_loop calls back once its state is there",
    ),
    Override(
        symbol="maxtext.utils.exceptions.StopTraining",
        use="called",
        sha256="1690f400447b6ed651d1ff0c975e20dd2ff209b1cb0eff9b8735ac7cc5575589",
        why="raised in a step, it ends the loop with status 0",
        delete_when="train_loop asks its caller whether to go on",
    ),
    Override(
        symbol=f"{_CHECKPOINTING}.wait_until_finished",
        use="called",
        sha256="aed3317bcaffbbbee6b609151cd0aa584498bccf3a36c2728b2b6f02c8b5ba4f",
        why="the last checkpoint is on disk when a run ends",
        delete_when="train_loop saves and waits when a stop is requested",
    ),
    Override(
        symbol=f"{_CHECKPOINTING}.all_steps",
        use="called",
        sha256="4c98c67fe6f8bf2466ba6a3d706ccc538bd8f2048f4fa2e51b1a943b89fcfe87",
        why="whether the loop has saved the last checkpoint already",
        delete_when="train_loop saves and waits when a stop is requested",
    ),
    Override(
        symbol="maxtext.utils.max_utils.maybe_get_transformer_engine_context",
        use="called",
        sha256="43172367e7669e6c8ef3d8c88a4f4f64fb9df0ecb144ceac9a526de50ead60d9",
        why="a step of train.run",
        delete_when="train.run takes a config",
    ),
    Override(
        symbol="maxtext.common.goodput",
        use="called",
        why="steps of train.run: the goodput recorder",
        delete_when="train.run takes a config",
        names=(
            *("RECORD_JOB_START_TIME", "create_goodput_recorder", "maybe_monitor_goodput"),
            "record_goodput",
        ),
    ),
    Override(
        symbol=_TRAIN,
        use="read",
        why="what it imports is reached through it; without TensorFlow it is imported in half the "
        "time",
        delete_when="MaxText imports TensorFlow and Vertex AI where it uses them",
        names=(
            *("_TF_AVAILABLE", "VertexTensorboardManager", "checkpointing", "exceptions"),
            *("max_utils", "mllog_utils", "train_utils"),
        ),
    ),
    Override(
        symbol="maxtext.common.gcloud_stub.vertex_tensorboard_modules",
        use="read",
        signature="()",
        sha256="59471b35db85aa3d6a59c5c5fb102873d096170b578e3bb5243fb16fe381cd71",
        why="answers with a stub where google.cloud.aiplatform cannot be imported",
        delete_when="MaxText imports TensorFlow and Vertex AI where it uses them",
    ),
)
