"""The supervised warm start: its rows, its window of pass@1, and the run that starts from it."""

from types import SimpleNamespace

import numpy as np
import pytest
from data_sets import jsonl, prepare_here, write_lines
from part_stubs import SourceStub
from rlax_maxtext import supervised
from rlax_maxtext.options import TrainerOptions
from tiny_loop import LENGTH, TINY, batch, policy_gradient

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer.train_loop import MAXTEXT_ARRAYS, Events, run_train_loop
from maxtext_overrides.variables import published
from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.base.tokens.byte_level import DIRECTORY
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.base.types import Prompt
from rlax_plugin.config.loading import resolve
from rlax_plugin.config.validation import validate
from rlax_plugin.training.objective.batches import ARRAYS


class Doubles(SourceStub):
    """ "a" asks for a + 1; a vocabulary of 64."""

    stop_ids, pad_id = (1,), 0

    def prompts(self, split):
        start = {"train": 2, "validation": 2}[split]
        return [
            Prompt(str(n), np.array([63, n], np.int32), str(n), str(n)) for n in range(start, 50)
        ]

    def decode(self, tokens):
        return " ".join(map(str, tokens))

    def answer_tokens(self, prompt):
        return np.array([prompt.tokens[1] + 1, 1], np.int32)


def warm_start(argv, on_progress=lambda *_: None, source=None):
    """The warm start that a command line asks for."""
    given = resolve(argv[0], argv[1:])
    config = rlax_config.initialize(given)
    options = validate(TrainerOptions, config.rlax.trainer.options, "rlax.trainer")
    return supervised.warm_start(
        given, config, options.warm_start, source or Doubles(), on_progress
    )


def test_supervised_rows_mark_the_answer():
    arrays = supervised.rows(Doubles(), Doubles().prompts("train")[:1], 5)
    assert arrays["inputs"].tolist() == [[63, 2, 3, 0, 0]]
    assert arrays["targets"].tolist() == [[2, 3, 1, 0, 0]]
    assert arrays["targets_segmentation"].tolist() == [[0, 1, 1, 0, 0]]
    assert arrays["inputs_segmentation"].tolist() == [[1, 1, 1, 0, 0]]


def test_prompts_whose_answers_are_too_long_are_left_out_and_counted(caplog):
    class Longer(Doubles):
        def answer_tokens(self, prompt):
            short = super().answer_tokens(prompt)
            return short if prompt.tokens[1] % 3 else np.array([5, *short], np.int32)

    prompts = Longer().prompts("train")  # 2 .. 49
    assert supervised.answered(Longer(), prompts, 3) == prompts and not caplog.records
    assert len(supervised.answered(Longer(), prompts, 2)) == 32
    assert "16 of 48 prompts are left out" in caplog.text and "max_new_tokens = 2" in caplog.text


def test_warm_start_stops_in_the_window_and_the_rl_run_starts_from_it(tmp_path):
    window = (
        "rlax.trainer.warm_start.pass_at_1_from=0.2",
        "rlax.trainer.warm_start.pass_at_1_to=0.9",
    )
    argv = (TINY, f"base_output_directory={tmp_path}", *window)
    looks = []
    path = warm_start(argv, lambda *look: looks.append(look))
    step, reached = looks[-1]
    assert 0.2 <= reached <= 0.9
    assert all(value < 0.2 for _, value in looks[:-1])
    made = tmp_path / "tiny" / "prepared" / "warm_start"
    assert path == str(made / "checkpoints" / str(step - 1) / "items")

    # The RL run's first version gives the same pass@1, with a fresh optimizer and step count.
    held_out = supervised.rows(Doubles(), Doubles().prompts("validation")[:16], LENGTH)
    measured = []
    events = Events(
        batches=batch,
        on_step_end=lambda loop, metrics: None,
        on_start=lambda loop: measured.append(
            (loop.completed, supervised.PassAt1(held_out, 1.0, 5)(loop))
        ),
    )
    config = rlax_config.initialize(resolve(argv[0], argv[1:]), load_parameters_path=path, steps=1)
    loop = run_train_loop(config, events, arrays=ARRAYS, objective=policy_gradient)
    assert measured == [(0, pytest.approx(reached, rel=1e-5))]
    assert loop.completed == 1
    assert set(published(loop.model_state))

    def again(*more):
        return warm_start((*argv, *more), lambda *_: pytest.fail("trained"))

    assert again() == path
    assert again("run_name=b", f"rlax.trainer.warm_start.directory={made}") == path
    with pytest.raises(ConfigError, match="no warm start has ended there"):
        again("run_name=b", f"rlax.trainer.warm_start.directory={tmp_path}/b/warm_start")


def test_a_warm_start_that_is_not_required_goes_on_below_the_range(tmp_path, monkeypatch):
    """Only the measurements; no model is trained."""
    argv = (TINY, f"base_output_directory={tmp_path}", "rlax.trainer.warm_start.steps=3")
    made = tmp_path / "tiny" / "prepared" / "warm_start" / "checkpoints" / "2" / "items"

    def loop(config, events):
        for step in range(1, 4):
            events.on_step_end(SimpleNamespace(completed=step), {})
            if events.decide(step) == (True, True):
                made.mkdir(parents=True)

    monkeypatch.setattr(supervised, "run_train_loop", loop)
    monkeypatch.setattr(supervised, "PassAt1", lambda *_: lambda loop: 0.01 * loop.completed)
    with pytest.raises(TrainingError, match=r"is 0.020 after rlax.trainer.warm_start.steps = 3"):
        warm_start(argv)
    overshot = (
        "rlax.trainer.warm_start.pass_at_1_from=0",
        "rlax.trainer.warm_start.pass_at_1_to=0",
    )
    with pytest.raises(TrainingError, match=r"above rlax.trainer.warm_start.pass_at_1_to = 0.0"):
        warm_start((*argv, *overshot))
    looks = []
    more = "rlax.trainer.warm_start.required=false"
    assert warm_start((*argv, more), lambda *look: looks.append(look)) == str(made)
    assert looks == [(2, 0.02), (3, 0.03)]


def test_held_out_rows_and_rows_without_a_fitting_answer_are_never_shown(tmp_path, monkeypatch):
    """The rows of many steps, of a data set that ``rlax init --data`` would split."""
    prepare_here(monkeypatch)
    rows = [{"question": f"{n:03d}", "answer": ("", "7" * 9, f"{n}")[n % 3]} for n in range(600)]
    tokens = Tokenizer.load(DIRECTORY, "tokenizer_path")
    shares = {"validation": 0.1, "test": 0.2}
    data = write_lines(tmp_path / "mine.jsonl", rows)
    source = jsonl(data, tokens=tokens, held_out=shares)
    shown = set()

    class Enough(Exception):
        pass

    def loop(config, events):
        for step in range(90):
            inputs = events.batches(step)["inputs"].tolist()
            shown.update(tokens.decode(row[:4]) for row in inputs)
        raise Enough

    monkeypatch.setattr(supervised, "run_train_loop", loop)
    with pytest.raises(Enough):
        half = "rlax.trainer.warm_start.train_every=2"
        warm_start((TINY, f"base_output_directory={tmp_path}", half), source=source)
    questions = {split: {one.text for one in source.prompts(split)} for split in ("train", *shares)}
    assert min(map(len, questions.values())) > 10
    every_second = [one.text for one in source.prompts("train")][::2]
    assert shown == {text for text in every_second if int(text) % 3 == 2}
    assert len(shown) > 40


def test_arrays_of_the_supervised_loop_are_maxtexts_own():
    assert set(MAXTEXT_ARRAYS) == {n for n in ARRAYS if not n.startswith("rl_")}
