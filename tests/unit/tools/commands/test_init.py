"""``rlax init``, and the command lines of docs/getting_started.md."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import yaml
from command_line import rlax
from data_sets import prepare_here, write_lines
from documents import ROOT
from installs import on_path, write
from small_tokenizers import byte_level

from rlax_plugin.base.text.command_lines import pasteable
from rlax_plugin.config.loading import load_section
from rlax_plugin.tools.commands.init import questions


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # of prepared prompts
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        "--yes",
        "--preset gspo --steps 7 --workers 3 --group-size 4 --groups-per-step 6",
        "--staleness 4 --preset grpo",
        "--staleness 2 --preset aipo --max-new-tokens 40",
        "--group-size 1 --preset reinforce_plus_plus",
        "--task rlax_synthetic --output-directory gs://bucket/runs",
        "--model llama3.1-8b --max-new-tokens 512",
        "--model llama3.1-8b --lora --max-new-tokens 512",
        f"--engine vllm --vllm-python {sys.executable}",
    ],
)
def test_what_init_writes_passes_the_check(options: str) -> None:
    written = rlax("init", "new.yml", *options.split())
    assert written.exit_code == 0, written.stderr
    check, train = (pasteable("rlax", what, "new.yml") for what in ("check", "train"))
    assert written.stdout == f"wrote new.yml\n\n  {check}\n  {train}\n"
    checked = rlax("check", "--fast", "new.yml")
    assert checked.exit_code == 0, checked.stderr
    assert "warning" not in checked.stdout
    assert max(map(len, Path("new.yml").read_text().splitlines())) <= 100


def test_answers_arrive() -> None:
    options = "--steps 7 --workers 3 --group-size 4 --groups-per-step 6"
    rlax("init", "a/new.yml", *options.split())
    section, maxtext = load_section("a/new.yml")
    assert (maxtext["run_name"], maxtext["steps"]) == ("new", 7)
    assert maxtext["per_device_batch_size"] == 24
    assert maxtext["max_target_length"] == section.row_tokens == 13
    assert section.launcher.options == {"workers": 3} and section.rollouts.slots == 8
    assert section.objective.preset == "dapo" and section.trainer.options["warm_start"]["enabled"]


def test_a_config_for_vllm_has_heads_that_it_takes() -> None:
    rlax("init", "new.yml", "--engine", "vllm", "--vllm-python", sys.executable)
    section, maxtext = load_section("new.yml")
    engine = section.rollouts.engine
    assert (engine.name, engine.options) == ("vllm", {"python": sys.executable})
    assert (maxtext["head_dim"], maxtext["base_num_query_heads"]) == (32, 2)
    assert "trainable_position_size" not in maxtext and section.launcher.name == "local"
    assert section.deadlines.startup_s == 600


def test_a_model_for_an_accelerator_is_generated_with_in_the_trainer_s_process() -> None:
    model = ("--model", "llama3.1-8b", "--max-new-tokens", "512")
    rlax("init", "one.yml", *model)
    section, maxtext = load_section("one.yml")
    assert maxtext["hardware"] == "tpu" and section.launcher.name == "colocated"
    rollouts = section.rollouts
    assert rollouts.slots == min(256, rollouts.groups_per_step * rollouts.group_size)
    assert section.evaluation.every == 0  # which needs a second worker
    rlax("init", "three.yml", *model, "--workers", "3")
    section, _ = load_section("three.yml")
    assert (section.launcher.name, section.launcher.options) == ("local", {"workers": 3})


def test_adapters_have_ten_times_the_learning_rate_and_ask_for_a_base() -> None:
    model = ("--model", "llama3.1-8b", "--max-new-tokens", "512")
    rlax("init", "full.yml", *model)
    rlax("init", "adapters.yml", *model, "--lora")
    (_, full), (_, adapters) = load_section("full.yml"), load_section("adapters.yml")
    assert adapters["learning_rate"] == pytest.approx(10 * full["learning_rate"], rel=5e-3)
    lora = adapters["lora"]
    assert (lora["enable_lora"], lora["lora_rank"], lora["lora_alpha"]) == (True, 16, 32)
    for path in (
        "decoder/layers/self_attention/query",
        "decoder/layers_3/mlp/wo",
        "decoder/layers/self_attention_local/out",  # of Gemma 2
        "decoder/layers/layers_0/mlp/wi_1",  # of Gemma 3
    ):
        assert re.fullmatch(lora["lora_module_path"], path)
    assert not re.fullmatch(lora["lora_module_path"], "decoder/logits_dense")
    assert 'load_parameters_path: ""  # MaxText checkpoint of the base: must be set' in (
        Path("adapters.yml").read_text()
    )
    for name, block in (("gpt-oss-20b", "gpt_oss"), ("deepseek2-16b", "deepseek")):
        refused = rlax("init", "other.yml", "--model", name, "--max-new-tokens", "512", "--lora")
        assert refused.exit_code == 2
        assert f"--lora = True: is not for decoder_block: {block} of {name}" in refused.stderr
    random = rlax("init", "tiny.yml", "--lora")
    assert random.exit_code == 2 and "--lora = True: needs a pretrained model" in random.stderr


def test_the_default_is_a_short_demo() -> None:
    rlax("init", "--yes")
    (ours, maxtext), (demo, _) = load_section("run.yml"), load_section(ROOT / "configs/demo.yml")
    assert ours.model_dump(exclude={"evaluation"}) == demo.model_dump(exclude={"evaluation"})
    assert not ours.plugins and ours.evaluation.problems == demo.evaluation.problems
    assert (maxtext["steps"], ours.evaluation.every) == (100, 25)


def test_old_samples_are_corrected_only_where_the_preset_does_not() -> None:
    rlax("init", "grpo.yml", "--preset", "grpo", "--staleness", "2")
    rlax("init", "aipo.yml", "--preset", "aipo", "--staleness", "2")
    section, _ = load_section("grpo.yml")
    assert section.objective.old_policy == "proximal" and len(section.objective.corrections) == 1
    assert load_section("aipo.yml")[0].objective.corrections == ()


def test_a_librarys_preset_has_its_sampling_too() -> None:
    rlax("init", "ours.yml", "--preset", "grpo")
    ours = load_section("ours.yml")[0].curation
    assert ours.sampler.name == "learnability" and [f.name for f in ours.filters] == [
        "mixed_outcome"
    ]
    for preset in ("trl/grpo", "verl/grpo", "rlax_objectives:trl/grpo"):
        rlax("init", "theirs.yml", "--preset", preset, "--force")
        theirs = load_section("theirs.yml")[0].curation
        assert theirs.sampler.name == "shuffled" and theirs.filters == ()


def test_every_key_is_explained() -> None:
    for model in ("tiny", "qwen3-0.6b"):
        rlax("init", "new.yml", "--model", model, "--staleness", "2", "--force")
        lines = Path("new.yml").read_text().splitlines()
        keys = [n for n, line in enumerate(lines) if re.match(r"\s*[\w-]+:", line)]
        unexplained = [
            lines[n].strip()
            for n in keys
            if "  # " not in lines[n] and not lines[n - 1].strip().startswith("# ")
        ]
        # There these have an option.
        named = {"name: maxtext", "name: local"} if model == "tiny" else set()
        assert set(unexplained) == {"rlax:", "name: arithmetic"} | named
        assert len(keys) > 50


TASK = """
    import numpy as np

    from rlax_plugin.api import Extension, NoOptions, Prompt, PromptSource, hookimpl

    class Source(PromptSource):
        stop_ids = (70,)

        def prompts(self, split):
            count = {"train": 5, "validation": 3, "test": 0}[split]
            lengths = range(3, 3 + count)
            return [Prompt(str(n), np.arange(n, dtype=np.int32), "", "") for n in lengths]

        def decode(self, tokens):
            return ""

    @hookimpl
    def rlax_register_prompt_source():
        return {"mine": Extension(NoOptions, lambda config, context: Source())}

    @hookimpl
    def rlax_register_reward():
        return {"ours": Extension(NoOptions, lambda config, context: None)}
"""


def test_a_task_of_ones_own_is_measured(folder: Path) -> None:
    write(folder, "ts_task", TASK)
    with on_path(folder):
        assert rlax("init", "new.yml", "--task", "ts_task").exit_code == 0
        section, maxtext = load_section("new.yml")
    assert (section.prompt_source.name, section.rewards[0].name) == ("mine", "ours")
    assert section.rollouts.max_prompt_tokens == 7 and maxtext["vocab_size"] == 71
    assert (section.evaluation.split, section.evaluation.problems) == ("validation", 3)
    assert section.trainer.options == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--engine vllm", "--vllm-python = '': --engine vllm and the path"),
        ("--engine sglang", "--engine = 'sglang': "),
        (
            "new.yml --model llama3.1-8b --engine vllm --vllm-python /opt/vllm/bin/python",
            "--engine = 'vllm': starts on CPUs and GPUs, and a config for a model of MaxText's own",
        ),
        ("there.yml", "FILE = 'there.yml': exists: choose another name, or --force replaces it"),
        ("new.yaml", "FILE = 'new.yaml': must end in .yml"),
        ("new.yml --preset dappo", "no plug-in offers this objective; did you mean 'dapo'?"),
        ("new.yml --model llama3.1-8", "--model = 'llama3.1-8': no such directory, and no such"),
        ("new.yml --task ts_nowhere", "'ts_nowhere': no plug-in or module of this name"),
        ("new.yml --task rlax_curation", "must offer exactly one prompt source to be a task"),
    ],
)
def test_what_cannot_be_written_is_one_message(options: str, expected: str) -> None:
    Path("there.yml").write_text("kept")
    result = rlax("init", *options.split())
    assert result.exit_code == 2 and expected in result.stderr
    assert Path("there.yml").read_text() == "kept" and not Path("new.yml").exists()


@pytest.fixture
def converted(folder: Path) -> Path:
    """What ``rlax convert`` writes, without weights."""
    directory = folder / "model"
    (directory / "0" / "items").mkdir(parents=True)
    (directory / "model.yml").write_text(
        "# A comment.\n"
        "base_emb_dim: 48  # width\n"
        "vocab_size: 4096  # number of tokens\n"
        f"load_parameters_path: {directory}/0/items\n"
    )
    return directory


def test_a_converted_model_brings_its_keys(folder: Path, converted: Path) -> None:
    assert rlax("init", "--model", "model", "--task", "rlax_synthetic").exit_code == 0
    text = Path("run.yml").read_text()
    keys = yaml.safe_load(text)
    assert (keys["base_emb_dim"], keys["vocab_size"]) == (48, 4096)
    assert keys["load_parameters_path"] == f"{converted}/0/items"
    assert "base_emb_dim: 48  # width" in text and "A comment" not in text
    assert "model_name" not in keys and "warm_start" not in keys["rlax"]["trainer"]
    load_section("run.yml")


def test_a_converted_model_learns_from_demonstrations_with_its_own_tokenizer(
    folder: Path, with_tokenizer: Path
) -> None:
    """Its template writes an earlier answer otherwise, so only the last one of each trains."""
    drops = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{% if m['role'] != 'assistant' or loop.last %}{{ m['content'] }}{% endif %}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    (with_tokenizer / "huggingface" / "chat_template.jinja").write_text(drops)
    turn = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    rows = [{"messages": [{"role": "system", "content": f"{n}"}, *turn, *turn]} for n in range(40)]
    write_lines(folder / "shown.jsonl", rows)
    questions = [{"question": f"{n}+1?", "answer": f"{n + 1}"} for n in range(40)]
    write_lines(folder / "mine.jsonl", questions)
    data = ("--data", "mine.jsonl", "--demonstrations", "shown.jsonl")
    result = rlax("init", "--model", "model", *data)
    assert result.exit_code == 0, result.output
    assert "turns: last, because with all turns" in result.stdout
    warm = load_section("run.yml")[0].trainer.options["warm_start"]
    assert (warm["turns"], warm["epochs"], warm["learning_rate"]) == ("last", 2, 1e-5)
    assert "tokenizer" not in warm["data"]


def test_experts_get_plain_products_on_a_processor(folder: Path, with_tokenizer: Path) -> None:
    assert rlax("init", "plain.yml", "--model", "model").exit_code == 0
    assert "sparse_matmul" not in load_section("plain.yml")[1]
    with (with_tokenizer / "model.yml").open("a") as file:
        file.write("num_experts: 8\n")
    assert rlax("init", "run.yml", "--model", "model").exit_code == 0
    assert load_section("run.yml")[1]["sparse_matmul"] is False


def test_a_converted_model_is_given_a_task_of_text_in_parts_of_256_mb(
    folder: Path, with_tokenizer: Path
) -> None:
    assert rlax("init", "--model", "model", "--max-new-tokens", "16").exit_code == 0
    section, keys = load_section("run.yml")
    assert section.prompt_source.name == "number_tasks"
    assert [one.name for one in section.rewards] == ["exact_answer"]
    rows, parts = keys["per_device_batch_size"], keys["gradient_accumulation_steps"]
    assert rows * parts == section.batch_rows == 128
    logits = keys["max_target_length"] * 4096 * 4  # bytes of a row's
    assert rows * logits <= 2**28 < 2 * rows * logits


@pytest.fixture
def with_tokenizer(converted: Path) -> Path:
    byte_level(converted / "huggingface")
    with (converted / "model.yml").open("a") as file:
        file.write("tokenizer_type: huggingface\n")
        file.write(f"tokenizer_path: {converted}/huggingface\n")
    return converted


@pytest.mark.parametrize(("answer", "reward"), [("{}", "numeric"), ("{} apples", "exact_match")])
def test_data_of_ones_own_is_read_for_its_lengths_splits_and_reward(
    answer: str, reward: str, folder: Path, with_tokenizer: Path
) -> None:
    # One in 200 is long: the others have 12 bytes, each a token, and 19 of the template.
    questions = [f"{n:04d} + 1 = ?" + "!" * (30 * (n % 200 == 0)) for n in range(1000)]
    rows = [{"question": q, "answer": answer.format(n)} for n, q in enumerate(questions)]
    write_lines(folder / "mine.jsonl", rows)
    result = rlax("init", "--model", "model", "--data", "mine.jsonl", "--max-new-tokens", "16")
    assert result.exit_code == 0, result.output
    section, keys = load_section("run.yml")
    path = str(folder / "mine.jsonl")
    source = {"name": "jsonl", "path": path, "held_out": {"test": 0.2}}
    assert section.prompt_source.model_dump() == source
    assert [one.name for one in section.rewards] == [reward]
    assert (section.rollouts.max_prompt_tokens, keys["max_target_length"]) == (32, 48)
    assert (section.evaluation.split, section.evaluation.problems) == ("test", 128)


def test_a_saved_data_set_is_read_by_its_own_source(
    folder: Path, with_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_here(monkeypatch)
    rows = [{"question": f"Say {n}.", "answer": str(n)} for n in range(60)]
    datasets.Dataset.from_list(rows).save_to_disk("saved")
    assert rlax("init", "--model", "model", "--data", "saved").exit_code == 0
    section, _ = load_section("run.yml")
    saved = str(Path("saved").absolute())
    assert section.prompt_source.options == {"dataset": saved, "held_out": {"test": 0.2}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--data mine.jsonl --model qwen3-0.6b", "--data = 'mine.jsonl': needs a tokenizer"),
        ("--reward numeric --model model", "--reward = 'numeric': needs --data"),
        ("--data mine.jsonl --model model --task rlax_synthetic", "must not be given together"),
        ("--data mine.jsonl --model model --reward numerical", "no plug-in offers this reward"),
    ],
)
def test_data_that_cannot_be_used_is_one_message(
    options: str, expected: str, folder: Path, with_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_here(monkeypatch)
    write_lines(folder / "mine.jsonl", [{"question": f"Say {n}."} for n in range(100)])
    result = rlax("init", *options.split())
    assert result.exit_code == 2 and expected in result.stderr
    assert not Path("run.yml").exists()


@pytest.mark.parametrize(
    ("line", "options", "expected"),
    [
        ("", "--task arithmetic", "--task = 'arithmetic': has an alphabet of its own"),
        ("", "", "tokenizer_path: must be the directory of the model's tokenizer"),
        ("vocab_size: 9", "--task rlax_synthetic", "and the model in model has only 9 tokens"),
        ("vocab_size: many", "--task rlax_synthetic", "vocab_size in model/model.yml = 'many'"),
        ("tokenizer_path: /nowhere", "--task rlax_synthetic", "= '/nowhere': does not exist"),
        ("base_emb_dim: [", "--task rlax_synthetic", "model/model.yml"),
    ],
)
def test_a_converted_model_must_suit(
    line: str, options: str, expected: str, converted: Path
) -> None:
    path = converted / "model.yml"
    key = line.partition(":")[0]
    others = [one for one in path.read_text().splitlines() if not key or not one.startswith(key)]
    path.write_text("\n".join([*others, line]))
    result = rlax("init", "--model", "model", *options.split())
    assert result.exit_code == 2 and expected in result.stderr
    assert not Path("run.yml").exists()


def test_on_a_terminal_it_asks(folder: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlax_plugin", "init", "asked.yml"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    answers = ["", "", "", "grpo", "12"]  # it waits for no sixth one
    try:
        os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
        stdout, _ = process.communicate(timeout=280)
    finally:
        process.kill()
        process.wait(60)
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0 and "rlax explain preset lists them [dapo]: " in stdout
    content = yaml.safe_load((folder / "asked.yml").read_text())
    assert (content["steps"], content["base_output_directory"]) == (12, "runs")
    assert content["rlax"]["objective"] == {"preset": "grpo"}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["model", "data", "task", "preset", "steps"]),
        ({"data": "mine.jsonl"}, ["model", "data", "reward", "preset", "steps"]),
        ({"model": "qwen3-0.6b"}, ["model", "task", "preset", "steps"]),
    ],
)
def test_at_most_five_questions_are_asked(given: dict[str, str], names: list[str]) -> None:
    answers: dict[str, object] = {}
    asked = []
    for question in questions(answers):
        asked.append(question.name)
        answers[question.name] = given.get(question.name, question.default)
    assert asked == names
