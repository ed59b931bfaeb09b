"""MaxText's own keys: what cannot work is one message with its key, before a worker is started."""

from pathlib import Path

import pytest
from command_line import rlax
from small_tokenizers import byte_level, characters
from tiny_loop import TINY

from maxtext_overrides.config import loading as rlax_config
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.loading import resolve

MAXTEXT = str(Path(__file__).parents[1] / "configs/maxtext.yml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rate=.nan", "learning_rate = nan: must be a finite number"),
        ("adam_eps=-.inf", "adam_eps = -inf: must be a finite number"),
    ],
)
def test_no_number_of_maxtext_is_nan_or_infinite(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        rlax_config.load(resolve(MAXTEXT, [override]))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("command", "key"), [("check", "load_parameters_path"), ("train", "load_full_state_path")]
)
def test_weights_to_start_from_must_be_there(command: str, key: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [command, MAXTEXT, f"{key}={tmp_path}/missing"]
    result = rlax(*words)
    assert result.exit_code == 2
    assert result.stderr == f"error: {key} = '{tmp_path}/missing': does not exist\n"
    assert not list(tmp_path.iterdir())  # nothing was started


def test_a_tokenizer_must_be_there() -> None:
    named = ("tokenizer_type=huggingface", "tokenizer_path=/nowhere")
    result = rlax("check", "--fast", MAXTEXT, *named)
    assert result.exit_code == 2
    assert result.stderr == "error: tokenizer_path = '/nowhere': does not exist\n"


def test_check_rejects_what_the_whole_config_cannot_be() -> None:
    for override, key in (
        ("run_name=../x", "run_name"),
        ("rlax.rollouts.max_new_tokens=9", "max_target_length"),
        ("vocab_size=16", "vocab_size"),
    ):
        result = rlax("check", MAXTEXT, override)
        assert result.exit_code == 2 and result.stderr.startswith(f"error: {key} = ")
        assert result.stderr.count("\n") == 1


def test_check_rejects_a_weight_that_micro_batches_do_not_know(tmp_path: Path) -> None:
    """A training would end at its first step, with the same sentence."""
    kept = "rlax.objective={preset: skyrl/grpo, aggregation: {count: kept}}"
    whole = rlax("check", MAXTEXT, kept)
    assert whole.exit_code == 0, whole.stderr
    parts = ("gradient_accumulation_steps=2", "per_device_batch_size=8")
    (data := tmp_path / "x.jsonl").write_text('{"prompt": "1", "completion": "2"}')
    source = f"{{name: jsonl, path: {data}, tokenizer: bytes}}"
    mixed = f"rlax.trainer.demonstrations={{data: {source}, rows: 2}}"
    no_terms = "rlax.objective={preset: grpo, aggregation: {name: token_mean, count: kept}}"
    for overrides in ((kept,), (no_terms, mixed)):
        halves = rlax("check", MAXTEXT, *overrides, *parts)
        assert halves.exit_code == 2, halves.stdout
        assert halves.stderr.startswith(
            "error: rlax.objective.aggregation.count = 'kept': cannot be combined with a term of "
            "the loss that has a weight of its own (of a signal, kl.aggregation, or rlax.trainer."
            "demonstrations) and gradient acc"
        )


def test_check_holds_the_tokenizer_of_a_prompt_source_against_the_models(tmp_path: Path) -> None:
    known, other = characters(tmp_path / "known"), byte_level(tmp_path / "other")
    chat = (
        "rlax.plugins=[chat_numbers]",
        "rlax.rollouts.max_prompt_tokens=60",
        "max_target_length=68",
        f"tokenizer_path={known}",
    )

    def check(*overrides: str) -> tuple[int, str]:
        result = rlax("check", MAXTEXT, *chat, *overrides)
        return result.exit_code, result.stderr

    models, own = "rlax.prompt_source={name: chat_numbers}", f"tokenizer: {other}"
    assert check(models)[0] == 0
    assert check(models, "vocab_size=63") == (
        2,
        f"error: vocab_size = 63: must be at least 64, the size of the tokenizer in {known} that "
        "rlax.prompt_source: chat_numbers uses\n",
    )
    mixed = f"rlax.prompt_source={{name: chat_numbers, {own}}}"
    assert check(
        mixed, "vocab_size=999", "rlax.rollouts.max_prompt_tokens=999", "max_target_length=1007"
    ) == (
        2,
        f"error: rlax.prompt_source = 'chat_numbers': uses the tokenizer in {other}, which is not "
        f"that of the model in tokenizer_path = {known}: id 0 is '!' in one and 'a' in the other\n",
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("dropout_rate=0.1", "dropout_rate = 0.1: must be 0"),
        ("training_objective=block_diffusion", "training_objective = 'block_diffusion'"),
        (
            "lora.enable_lora=true lora.lora_alpha=8",
            "lora.lora_rank = 0: must be above 0 with lora.enable_lora",
        ),
        (
            "lora.enable_lora=true lora.lora_rank=4 lora.lora_alpha=8 routed_bias=true "
            "routed_bias_update_rate=0.001",
            "routed_bias_update_rate = 0.001: must be 0 with lora.enable_lora",
        ),
        (
            "lora.enable_lora=true lora.lora_rank=4 lora.lora_alpha=8 use_qk_clip=true",
            "use_qk_clip = True: must be false with lora.enable_lora",
        ),
        ("lora.lora_rank=4", "lora.lora_rank = 4: has no effect unless lora.enable_lora is true"),
        (
            "lora.enable_lora=true lora.lora_rank=4 lora.lora_alpha=8 lora.lora_weight_qtype=nf4",
            "lora.lora_weight_qtype = 'nf4': must not be set",
        ),
        ("per_device_batch_size=0.5", "per_device_batch_size = 0.5"),
        ("base_emb_dimm=8", "base_emb_dimm = 8: no such key; did you mean 'base_emb_dim'"),
        ("steps=many", "steps = 'many': must be a whole number, at least 0"),
        ("learning_rate=-1", "learning_rate = -1: must be greater than or equal to 0"),
        ("scan_layers=maybe", "scan_layers = 'maybe': must be true or false"),
        ("mesh_axes=3", "mesh_axes = 3: must be a list"),
        ("dtype=float33", "dtype = 'float33': no such value; did you mean 'float32'? known: bf"),
        ("attention=flashy", "attention = 'flashy': did you mean 'flash'? known: autoselected"),
        ("attention=flash", "attention = 'flash': must be dot_product with hardware: cpu"),
        (
            "ici_fsdp_parallelism=-1 ici_tensor_parallelism=-1",
            "ici_tensor_parallelism = -1: only one of ici_fsdp_parallelism, ici_tensor",
        ),
        (
            "load_parameters_path=/a load_full_state_path=/b",
            "load_parameters_path = '/a': At most one of `load_parameters_path` or",
        ),
        (
            "model_name=llama3.1-8b vocab_size=32",
            "vocab_size = 32: Keys ['vocab_size'] are overridden by both model config and CLI",
        ),
        ("lora.rank=2", "lora.rank = 2: no such key; did you mean 'lora_rank'?"),
        ("opt_type=adam", "did you mean 'adamw'? known: adam_pax, adamw, muon, sgd ("),
        ("base_emb_dim=[1", "base_emb_dim = '[1': is not valid YAML: expected"),
    ],
)
def test_bad_values_are_config_errors_that_name_the_key(argv: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        rlax_config.load(resolve(TINY, argv.split()))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "argv",
    [
        "base_emb_dimm=8 dtype=x opt_type=adam base_mlp_dimm=3",
        "dropout_rate=0.1 enable_diloco=true use_dpo=true",
    ],
)
def test_all_keys_that_are_wrong_are_told_at_once(argv: str) -> None:
    with pytest.raises(ConfigError) as error:
        rlax_config.load(resolve(TINY, argv.split()))
    lines = str(error.value).splitlines()
    assert {line.removeprefix("also ").partition(" ")[0] for line in lines} == {
        word.partition("=")[0] for word in argv.split()
    }
