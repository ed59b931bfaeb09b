"""What of a log trains, and which logs are refused."""

import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from objective_harness import slots_of
from sections import section_with

from rlax_plugin.base.errors import ConfigError, DeadlineError
from rlax_plugin.base.types import NO_VERSION
from rlax_plugin.run.state.logged_samples import LoggedSamples, LogOrder, read_logged
from rlax_plugin.testing.task import Numbers, NumbersConfig

INTS, FLOATS = pa.list_(pa.int64()), pa.list_(pa.float32())
TYPES = {
    "group": pa.int64(),
    "prompt": pa.string(),
    "prompt_tokens": INTS,
    "tokens": INTS,
    "logprobs": FLOATS,
    "reward": pa.float64(),
}
STOP = 1
# Two groups, of three samples and of one.
ROWS: list[dict[str, Any]] = [
    {"group": 7, "tokens": [5, STOP], "logprobs": [-0.5, -1.0], "reward": 0.5},
    {"group": 7, "tokens": [6, STOP], "logprobs": [-2.0, -0.25], "reward": 1.0},
    {"group": 7, "tokens": [7, 8, 9], "logprobs": [-1.0, -1.0, -1.0], "reward": 1.0},
    {"group": 3, "tokens": [9, STOP], "logprobs": [-0.5, -0.125], "reward": 0.0},
]


def table(path: Path, rows: list[dict[str, Any]] = ROWS, **types: pa.DataType) -> str:
    """Writes a table with the prompt 4 2; a column is there if a row has it."""
    rows = [{"prompt_tokens": [6, 4]} | row for row in rows]
    names = [name for name in TYPES if any(name in row for row in rows)]
    columns = {n: pa.array([row.get(n) for row in rows], types.get(n, TYPES[n])) for n in names}
    pq.write_table(pa.table(columns), path)
    return str(path)


def read(
    path: str,
    preset: str = "awr",
    vocabulary: int = 64,
    most: int = 3,
    deadline_s: float = 120,
    **options: Any,
) -> LoggedSamples:
    section = section_with(
        rollouts={"group_size": 3, "max_prompt_tokens": 2, "max_new_tokens": most},
        deadlines={"prompts_s": deadline_s},
        logged_samples={"path": path, **options},
        objective={"preset": preset},
    )
    maxtext = {"vocab_size": vocabulary, "steps": 4}
    return read_logged(section, Numbers(NumbersConfig()), slots_of(preset), maxtext)


def test_a_large_table_is_read_a_few_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(Numbers, "decode", lambda *_: "")  # it knows no such ids
    rows = [{"tokens": [1000] * 500, "reward": float(i % 2)} for i in range(400)]
    path, tokens = table(tmp_path / "log.parquet", rows), 400 * 500
    tracemalloc.start()
    try:
        read(path, "behaviour_cloning", 1024, most=500)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 * tokens  # all of them as objects of Python: 78


def test_a_log_that_does_not_answer_ends_at_a_deadline(tmp_path, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(Numbers, "decode", lambda *_: ended.wait())
    path = table(tmp_path / "log.parquet")
    with pytest.raises(DeadlineError, match=r"rlax\.deadlines\.prompts_s"):
        read(path, deadline_s=0.05)
    ended.set()


def rewards(logged: LoggedSamples) -> list[list[float]]:
    return [group.rewards.tolist() for group in logged.groups]


def test_a_table_keeps_its_order_and_its_numbers(tmp_path):
    logged = read(table(tmp_path / "log.parquet"))
    assert rewards(logged) == [[0.5, 1, 1], [0]]
    assert logged.note == "training on 4 of 4 logged samples in 2 groups; 16 epochs"
    first = logged.group(0, 12, 2)
    assert (first.id, first.attempt, first.prompt.text) == (12, 2, "42")
    assert first.prompt.tokens.tolist() == [6, 4]
    one, _, cut = first.sampled
    assert one.tokens.tolist() == [5, STOP] and one.logprobs.tolist() == [-0.5, -1]
    assert one.versions.tolist() == [NO_VERSION] * 2 and one.workers == ()
    assert (one.finish, cut.finish) == ("stop", "length")
    assert [episode.text for episode in first.episodes] == ["3", "4", "567"]


def test_samples_are_kept_by_their_reward(tmp_path):
    path = table(tmp_path / "log.parquet")
    assert rewards(read(path, min_reward=0.5)) == [[0.5, 1, 1]]
    best = read(path, "behaviour_cloning", keep="best")
    assert rewards(best) == [[1], [0]]
    assert best.groups[0].episodes[0].text == "4"  # the first of two
    high = read(path, "behaviour_cloning", min_reward=1)
    assert [episode.index for episode in high.groups[0].episodes] == [0, 1]
    with pytest.raises(ConfigError, match="has no sample to train on, of 4"):
        read(path, min_reward=2)


def test_the_text_of_a_prompt_is_made_harmless(tmp_path):
    logged = read(table(tmp_path / "log.parquet", [r | {"prompt": "\x1b[2J42"} for r in ROWS]))
    assert "\x1b" not in logged.group(0, 0, 1).prompt.text and logged.prompts[0].text.endswith("42")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_prompt_may_be_a_text_and_a_row_its_own_group(tmp_path, kind):
    def path(*prompts: str | None) -> str:
        columns = {
            "prompt": pa.array(prompts, kind),
            "tokens": pa.array([[5]] * len(prompts), INTS),
            "reward": pa.array([1.0, 0.5][: len(prompts)], TYPES["reward"]),
        }
        pq.write_table(pa.table(columns), tmp_path / "log.parquet")
        return str(tmp_path / "log.parquet")

    for nothing in ("", None):
        with pytest.raises(ConfigError, match="row 2, column prompt: is null, or empty"):
            read(path("42", nothing))
    logged = read(path("42", "42"), "behaviour_cloning")
    assert [prompt.tokens.tolist() for prompt in logged.prompts] == [[6, 4]] * 2
    assert len({prompt.id for prompt in logged.prompts}) == 2


def test_every_number_of_a_sample_is_in_the_id_that_a_resume_compares(tmp_path):
    ids = {tuple(p.id for p in read(table(tmp_path / "log.parquet")).prompts)}
    changes = {"tokens": [10, STOP], "logprobs": [-0.5, -1.5], "reward": 0.25}
    for name, value in changes.items():
        path = table(tmp_path / "log.parquet", [ROWS[0] | {name: value}, *ROWS[1:]])
        ids.add(tuple(prompt.id for prompt in read(path).prompts))
    assert len(ids) == 4


def test_samples_that_an_objective_compares_must_differ_in_a_group(tmp_path):
    path = table(
        tmp_path / "log.parquet", [{n: v for n, v in r.items() if n != "group"} for r in ROWS]
    )
    for preset, options in (("awr", {}), ("aipo", {}), ("awr", {"keep": "best"})):
        with pytest.raises(
            ConfigError, match=f"has no group whose samples differ.*, which {preset}"
        ):
            read(path, preset, **options)
    read(path, "reinforce_plus_plus")  # normalises over the batch
    assert len(read(path, "behaviour_cloning").groups) == 4


def changed(row: int, **values: Any) -> list[dict[str, Any]]:
    return [one | values if number == row else one for number, one in enumerate(ROWS, 1)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(2, reward=float("nan")), "row 2, column reward: is nan, must be finite"),
        (changed(2, reward=None), "row 2, column reward: is null"),
        (changed(3, logprobs=[-1.0]), "row 3, column logprobs: has 1 log-probs for 3 tokens"),
        (changed(3, logprobs=None), "row 3, column logprobs: is null"),
        (changed(4, logprobs=[-1.0, 0.5]), "row 4, .*logprobs: has log-probs above 0"),
        (changed(4, logprobs=[-1.0, float("nan")]), "row 4, .* log-probs that are not finite"),
        (changed(1, tokens=[64, STOP]), "row 1, column tokens: has token id 64, .* 0 to 63"),
        (changed(1, tokens=[2**40, STOP]), "row 1, column tokens: has a number beyond int32"),
        (changed(1, tokens=[]), "row 1, column tokens: is empty"),
        (changed(1, tokens=[STOP, 5]), "row 1, column tokens.*: has stop id 1 and did not end"),
        (changed(4, prompt_tokens=[-1]), "row 4, column prompt_tokens: has token id -1"),
        (changed(1, prompt_tokens=[-1]), "row 2, column group: has another prompt"),
        (changed(4, group=None), "row 4, column group: is null"),
        ([ROWS[0], ROWS[3], ROWS[1]], "row 3, column group: has 7 again"),
        ([{"reward": 1.0}], "has no column tokens"),
        ([{"tokens": [5]}], "has no column reward"),
    ],
)
def test_a_wrong_table_is_refused_by_row_and_column(tmp_path, rows, message):
    path = table(tmp_path / "log.parquet", rows)
    with pytest.raises(ConfigError, match=message) as error:
        read(path)
    assert (error.value.key, error.value.value) == ("rlax.logged_samples.path", path)


def test_a_wrong_kind_of_column_or_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="column reward: has int64, expected floats"):
        read(table(tmp_path / "log.parquet", [ROWS[0] | {"reward": 1}], reward=pa.int64()))
    (tmp_path / "other.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ConfigError, match="is no Parquet file"):
        read(str(tmp_path / "other.parquet"))
    with pytest.raises(ConfigError, match="does not exist"):
        read(str(tmp_path / "missing.parquet"))
    with pytest.raises(ConfigError, match=r"is not a run directory.*ends in \.parquet"):
        read(str(tmp_path))


@pytest.mark.parametrize(
    ("values", "key", "least"),
    [
        ({"tokens": [5, 5, 5, STOP], "logprobs": [-1.0] * 4}, "max_new_tokens", 4),
        ({"prompt_tokens": [2, 2, 2], "group": 1}, "max_prompt_tokens", 3),
        ({"group": 7}, "group_size", 4),
    ],
)
def test_a_log_that_does_not_fit_names_the_key(tmp_path, values, key, least):
    with pytest.raises(ConfigError, match=f"must be at least {least}") as error:
        read(table(tmp_path / "log.parquet", [*ROWS[:3], ROWS[3] | values]))
    assert error.value.key == f"rlax.rollouts.{key}"


@pytest.mark.parametrize("preset", ["aipo", "decoupled_ppo", "grpo", "cispo"])
def test_an_objective_that_reads_log_probs_needs_their_column(tmp_path, preset):
    read(table(tmp_path / "log.parquet"), preset)
    without = [{n: v for n, v in row.items() if n != "logprobs"} for row in ROWS]
    path = table(tmp_path / "without.parquet", without)
    with pytest.raises(ConfigError, match="has no column logprobs, but the objective reads"):
        read(path, preset)
    for imitating in ("behaviour_cloning", "awr"):
        unknown = [sampled.logprobs for sampled in read(path, imitating).groups[0].sampled]
        assert np.isnan(np.concatenate(unknown)).all()


def test_a_token_beyond_a_vocabulary_that_is_known_later_is_refused_then(tmp_path):
    logged = read(table(tmp_path / "log.parquet"), vocabulary=0)
    logged.check_vocabulary(0, 10)
    with pytest.raises(ConfigError, match="has token id 9, which must be from 0 to 8"):
        logged.check_vocabulary(0, 9)


def test_the_order_of_the_log_begins_again_and_goes_on_where_it_was():
    order, rng = LogOrder(), np.random.default_rng(0)

    def choose(count):
        return order.choose([None] * 3, None, rng, count)  # pyright: ignore[reportArgumentType]

    assert choose(2) + choose(3) == [0, 1, 2, 0, 1]
    state = order.state()
    order = LogOrder()
    order.restore(state)
    assert choose(2) == [2, 0]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"staleness": {"max_staleness": 2}}, "staleness.max_staleness"),
        ({"curation": {"sampler": {"name": "learnability"}}}, "curation.sampler"),
        ({"environment": {"name": "calculator"}}, "environment"),
        (
            {"rollouts": {"temperature": {"from": 1.0, "to": 0.5, "steps": 4}}},
            "rollouts.temperature",
        ),
    ],
)
def test_keys_without_effect_are_refused(values, key):
    with pytest.raises(ConfigError, match=r"with rlax\.logged_samples") as error:
        section_with(logged_samples={"path": "x"}, **values)
    assert error.value.key == f"rlax.{key}"
    with pytest.raises(ConfigError, match="no effect without"):
        section_with(logged_samples={"min_reward": 1.0})
