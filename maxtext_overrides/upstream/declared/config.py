"""The symbols that ``maxtext_overrides/config``, the plug-ins and the docs rely on."""

from __future__ import annotations

from maxtext_overrides.upstream.override import Override

_TRAIN = "maxtext.trainers.pre_train.train"

LOADING = (
    Override(
        symbol="maxtext.configs.pyconfig._initialize_pydantic",
        use="called",
        signature="(argv=None, config_class=<class 'maxtext.configs.types.MaxTextConfig'>, "
        "**kwargs)",
        sha256="c6dd5bb109e42f3505a54d9a7c6f4f394f8f891473474937bde58b40675940e7",
        why="pyconfig.initialize turns every error into sys.exit(2)",
        delete_when="pyconfig.initialize lets errors through",
        relies_on="argv[0] stands for the program; base_config; keywords win; what it raises, as "
        "``'key' not in`` the keys",
    ),
    Override(
        symbol="maxtext.configs.pyconfig.HyperParameters",
        use="called",
        sha256="02ed9edce604c097918816cee8575d9bbc6fd8619d214a70cab3490e97e0567d",
        why="subclassed, for ``rlax``; built once more where one function is to see another value",
        delete_when="MaxText hands out copies of a config with other values",
        relies_on="built from the pydantic model alone, kept as _pydantic_config; get_keys() is "
        "the dict that attributes are read from",
        names=("_pydantic_config", "get_keys"),
    ),
    Override(
        symbol=f"{_TRAIN}.initialize",
        use="read",
        signature="(argv)",
        sha256="e96958cf98459b7785266164aca23129ae7aa1f71428ef105a9f5534e6488236",
        why="its steps are repeated in ``initialize``: it takes no config class",
        delete_when="train.initialize takes a config_class or a config",
    ),
    Override(
        symbol="maxtext.utils.train_utils.validate_train_config",
        use="called",
        signature="(config)",
        sha256="36279bc2083b2b7d73cbf6f1a370a09363a32712e952d73df67c58c708bddbe5",
        why="a step of train.initialize",
        delete_when="train.initialize takes a config_class or a config",
        relies_on="AssertionError or ValueError where the config does not suit it",
    ),
    Override(
        symbol="maxtext.utils.max_utils.print_system_information",
        use="called",
        signature="()",
        sha256="9b18a3ae41b07bfa802de83f8f925731d2ef8e0743244ccae5fc610af7f7b603",
        why="a step of train.initialize",
        delete_when="train.initialize takes a config_class or a config",
    ),
    Override(
        symbol="maxtext.utils.max_utils.bootstrap_transformer_engine_cgemm",
        use="called",
        signature="(config)",
        sha256="44bfffe7e870626b4af6ee0e737a9d086512df282ad2f450a2487d3dd9054fd1",
        why="a step of train.initialize",
        delete_when="train.initialize takes a config_class or a config",
    ),
    Override(
        symbol="maxtext.utils.mllog_utils.init_start",
        use="called",
        sha256="4596538f9f6361bc5f5307fe8087cd11893e894aa7145b9b69b802c2c15c8f7a",
        why="a step of train.initialize",
        delete_when="train.initialize takes a config_class or a config",
        relies_on="argument config",
    ),
    Override(
        symbol="maxtext.configs.types.TeCommGemmOverlapPolicy",
        use="read",
        why="a step of train.initialize depends on it",
        delete_when="train.initialize takes a config_class or a config",
        names=("DISABLED",),
    ),
)

VERTEX = (
    Override(
        symbol="maxtext.common.vertex_tensorboard.VertexTensorboardManager",
        use="called",
        why="a step of train.initialize",
        delete_when="train.initialize takes a config_class or a config",
        names=("configure_vertex_tensorboard",),
    ),
)

MEMORY = (
    Override(
        symbol="maxtext.utils.model_creation_utils.create_nnx_abstract_model",
        use="called",
        sha256="3406ddbdfcbc2049fced395d94fbc93c2d8c5fdeeb363fdfc8f617ec7bfaca68",
        why="shapes of a model's variables without its arrays",
        delete_when="MaxText estimates what a config needs of memory",
        relies_on="arguments config, mesh, model_mode; position 1 of its result: the model",
    ),
    Override(
        symbol="maxtext.optimizers.optimizers.get_optimizer",
        use="called",
        sha256="cc6c85a6e9c9e15cd3a28bf353460e20299aaf3eedb8d0dcc126a322edba7b79",
        why="shapes of the optimizer's state",
        delete_when="MaxText estimates what a config needs of memory",
        relies_on="arguments config, schedule, model; init(parameters) of its result",
    ),
    Override(
        symbol="maxtext.utils.maxtext_utils.create_learning_rate_schedule",
        use="called",
        sha256="ac43c5c1fa3d976784515ca73d5ccfdcdebcfdcc752ca7b3e80080b71d51ff95",
        why="the optimizer wants it",
        delete_when="MaxText estimates what a config needs of memory",
        relies_on="argument config",
    ),
)

BASE_FILES = (
    Override(
        symbol="maxtext.configs",
        use="read",
        why="a run's ``base_config`` may name a file in this folder, such as base.yml",
        delete_when="MaxText says where its config files are",
    ),
)

DOCS = (
    Override(
        symbol="maxtext.utils.globals.HF_IDS",
        use="read",
        why="docs/serving.md: the models that MaxText converts",
        delete_when="the page no longer names them",
        names=("qwen3-0.6b",),
    ),
    Override(
        symbol="maxtext.utils.generate_param_only_checkpoint",
        use="called",
        why="docs/serving.md: a command that leaves the optimizer's state out",
        delete_when="the page no longer shows it",
        names=("main",),
    ),
    Override(
        symbol="maxtext.checkpoint_conversion.to_huggingface",
        use="called",
        why="docs/serving.md: a command that writes safetensors",
        delete_when="the page no longer shows it",
        names=("main",),
    ),
)
