"""The arithmetic task: splits, dataset on disk, tokenizer, prompts, reward."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rlax_arithmetic
import rlax_rewards
from plugin_parts import built
from pydantic import ValidationError
from rlax_arithmetic import dataset, tokenizer
from rlax_arithmetic.problems import SPLITS, ProblemSet, operands
from sections import section_with

from rlax_plugin.api import BuildContext
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Prompt
from rlax_plugin.config.loading import resolve

SMALL = ProblemSet(digits=1, test=10, validation=10)


def source(data_dir: Path, **options):
    return built(rlax_arithmetic, "prompt_source", "arithmetic", data_dir=str(data_dir), **options)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The default task: two-digit sums."""
    return source(tmp_path_factory.mktemp("tfds"))


def prompt(reference: str = "46") -> Prompt:
    return Prompt(id="p", tokens=np.array([1], np.int32), text="12+34=", reference=reference)


# Splits.


@pytest.mark.parametrize("problems", [ProblemSet(), SMALL, ProblemSet(operation="multiply")])
def test_splits_partition_the_grid_and_keep_mirror_images_together(problems):
    parts = {split: [tuple(ab) for ab in part] for split, part in operands(problems).items()}
    low, high = 10 ** (problems.digits - 1), 10**problems.digits
    everything = [ab for part in parts.values() for ab in part]
    assert sorted(everything) == [(a, b) for a in range(low, high) for b in range(low, high)]
    for part in parts.values():
        assert {(b, a) for a, b in part} == set(part)
    assert len(parts["test"]) - problems.test in (0, 1)
    assert len(parts["validation"]) - problems.validation in (0, 1)


def test_the_default_problems_never_change():
    """A failure means that `Arithmetic.VERSION` has to go up with the intended change."""
    text = "\n".join(q + a for split in SPLITS for q, a in ProblemSet().split(split))
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == "47015f5eb423f371"


def test_training_problems_are_capped_and_answers_are_right():
    problems = ProblemSet(digits=3, train=500)
    rows = list(problems.split("train"))
    assert len(rows) == 500
    for question, answer in rows:
        a, b = question.removesuffix("=").split("+")
        assert len(a) == len(b) == 3 and int(a) + int(b) == int(answer)
    products = dict(row for split in SPLITS for row in ProblemSet(1, "multiply", 9, 9).split(split))
    assert products["7*8="] == "56" and len(products) == 81


# Dataset.


def test_dataset_on_disk_holds_the_splits_in_order(tmp_path):
    for split in SPLITS:
        assert dataset.read(SMALL, tmp_path, split) == list(SMALL.split(split))
    info = next(tmp_path.rglob("dataset_info.json"))
    assert info.parent.relative_to(tmp_path).parts == ("arithmetic", SMALL.name, "1.0.0")
    assert json.loads(info.read_text())["fileFormat"] == "array_record"


def test_prepared_data_is_read_again_not_made_again(tmp_path, monkeypatch):
    first = dataset.read(SMALL, tmp_path, "test")
    monkeypatch.setattr(dataset.Arithmetic, "_generate_examples", None)
    assert dataset.read(SMALL, tmp_path, "test") == first


def test_losing_the_race_to_prepare_uses_the_winners_data(tmp_path, monkeypatch):
    original = dataset.Arithmetic._split_generators
    winners = []

    def another_process_is_faster(self, dl_manager):
        if not winners:
            winners.append(None)
            winners[0] = os.stat(dataset.prepared(SMALL, tmp_path).data_dir).st_ino
        return original(self, dl_manager)

    monkeypatch.setattr(dataset.Arithmetic, "_split_generators", another_process_is_faster)
    builder = dataset.prepared(SMALL, tmp_path)
    assert os.stat(builder.data_dir).st_ino == winners[0]
    assert dataset.read(SMALL, tmp_path, "train") == list(SMALL.split("train"))
    assert [p.name for p in builder.data_path.parent.iterdir()] == ["1.0.0"]  # nothing left over


# Prompts.


def test_prompts_by_hand(task):
    by_text = {p.text: p for split in SPLITS for p in task.prompts(split)}
    assert len(by_text) == 90 * 90
    asked = by_text["12+34="]
    # <bos> 1 2 + 3 4 =, with digits from id 3 on
    assert asked.tokens.tolist() == [1, 4, 5, 13, 6, 7, 16] and asked.tokens.dtype == np.int32
    assert asked.reference == "46"
    assert asked.id == hashlib.blake2b(b"arithmetic\n12+34=", digest_size=16).hexdigest()
    answer = task.answer_tokens(asked)
    assert answer.tolist() == [7, 9, 2] and answer.dtype == np.int32
    assert task.stop_ids == (2,) and task.pad_id == 0
    assert task.decode(answer) == "46"
    assert len({p.id for p in by_text.values()}) == 8100


def test_the_right_answers_of_a_share_of_the_problems_are_worked(task, tmp_path):
    problems = task.prompts("train")

    def answers(share):
        made = source(tmp_path, worked=share)
        return {p.text: made.decode(made.right_answer(p)[0][1]) for p in problems}

    tenth, half, whole = answers(0.1), answers(0.5), answers(1.0)
    assert whole["12+34="] == "64=46" and whole["50+50="] == "001=100"
    few, more = ({q for q in found if found[q] == whole[q]} for found in (tenth, half))
    assert few < more and (len(few), len(more), len(problems)) == (601, 3041, 6099)
    assert {p.text for p in problems if half[p.text] == p.reference} == set(half) - more


def test_what_the_config_of_the_echo_chamber_records_of_a_completion():
    rewards = resolve(Path(__file__).parents[3] / "configs/echo_chamber.yml").section.rewards
    names = [one.metric_name for one in rewards]
    assert names == ["numeric", "direct", "worked", "direct_right", "worked_right"]
    parts = [built(rlax_rewards, "reward", one.name, **one.options) for one in rewards]
    by_hand = {
        "46": [1, 1, 0, 1, 0],
        "64=46": [1, 0, 1, 0, 1],
        "64=47": [0, 0, 1, 0, 0],
        "64": [0, 1, 0, 0, 0],
        "=46": [1, 0, 0, 0, 1],
        "46=": [1, 0, 0, 0, 0],
        "4-6": [0, 0, 0, 0, 0],
        "": [0, 0, 0, 0, 0],
    }
    for completion, expected in by_hand.items():
        assert [part(prompt(), completion) for part in parts] == expected, completion


def test_config_errors_name_the_key(task):
    with pytest.raises(ConfigError, match=r"worked = 0\.5: must be 0 with calculator"):
        source(Path(), calculator=True, worked=0.5)
    with pytest.raises(ConfigError, match=r"rlax\.prompt_source\.test_problems = 60.* 81 problems"):
        source(Path(), digits=1, test_problems=60, validation_problems=20)
    with pytest.raises(ValidationError, match="digits"):
        source(Path(), digits=4)
    with pytest.raises(ConfigError, match="did you mean 'validation'"):
        task.prompts("valid")


@pytest.mark.parametrize(
    ("options", "longest"),
    [({"worked": 0.5}, 8), ({"worked": 0.1, "operation": "multiply"}, 10), ({"worked": 0.0}, 1)],
)
def test_a_worked_answer_that_no_sample_could_have_is_refused(options, longest):
    """A warm start would silently train direct answers alone."""
    offered = rlax_arithmetic.rlax_register_prompt_source()["arithmetic"]

    def check(most):
        section = section_with(rollouts={"max_new_tokens": most})
        context = BuildContext(run_dir=Path("unused"), seed=0, section=section)
        offered.check_start(offered.config_class(**options), context)

    check(longest)
    if longest > 1:
        reason = (
            rf"rlax\.rollouts\.max_new_tokens = {longest - 1}: must be at least {longest}, .*worked"
        )
        with pytest.raises(ConfigError, match=reason):
            check(longest - 1)


# Tokenizer.


def test_decode_stops_at_the_end_token_and_shows_what_is_no_character():
    def decode(*ids):
        return tokenizer.decode(np.array(ids, np.int32))

    assert decode(7, 9, 2, 5, 0) == "46"
    assert decode(7, 9, 0, 0) == "46"
    assert decode(7, 0, 9, 2) == "4<pad>6"
    assert decode(7, 9, 0, 2) == "46<pad>"
    assert decode(1, 7, 31) == "<bos>4\ufffd"
    assert decode() == ""
    with pytest.raises(ValueError, match="'x'"):
        tokenizer.encode("1x")


def test_autotokenizer_gives_the_same_ids():
    """Called as MaxText calls it, which adds the two keywords."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(
        str(tokenizer.TOKENIZER_DIR), add_bos_token=True, add_eos_token=False
    )
    for text in ("12+34=", "1-2*3", tokenizer.CHARACTERS):
        assert theirs.encode(text) == [tokenizer.BOS_ID, *tokenizer.encode(text)]
        assert theirs.decode(tokenizer.encode(text)) == text
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (0, 1, 2)
    assert len(theirs) == tokenizer.VOCAB_SIZE == 17


# Reward.


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("46", 1.0),
        ("046", 1.0),
        ("47", 0.0),
        ("+46", 0.0),
        ("46<pad>", 0.0),
        ("\u0664\u0666", 0.0),  # Arabic-Indic 46
        ("", 0.0),
        ("9" * 5000, 0.0),  # longer than int() accepts
    ],
)
def test_exact_answer(completion, score):
    assert built(rlax_arithmetic, "reward", "exact_answer")(prompt(), completion) == score


def test_exact_answer_zero_and_a_broken_reference():
    reward = built(rlax_arithmetic, "reward", "exact_answer")
    assert [reward(prompt("0"), text) for text in ("0", "00", "")] == [1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="reference"):
        reward(prompt("many"), "46")


# Imports.

HEAVY = "tensorflow tensorflow_datasets jax maxtext transformers tokenizers"


def loaded_after(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after running ``code``."""
    check = f"import sys; print(*[m for m in {HEAVY.split()!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return set(result.stdout.split())


def test_reading_prompts_prints_nothing_and_needs_no_tensorflow(tmp_path):
    code = f"""
from rlax_arithmetic import ArithmeticConfig, ArithmeticSource
options = ArithmeticConfig(
    digits=1, test_problems=10, validation_problems=10, data_dir={str(tmp_path)!r}
)
assert len(ArithmeticSource(options).prompts("test")) in (10, 11)
"""
    assert loaded_after(code) == {"tensorflow_datasets"}
