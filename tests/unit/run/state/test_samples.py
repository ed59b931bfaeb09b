"""Samples come back from a file bit for bit, whatever their episodes look like."""

import dataclasses
import io
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from examples import examples
from histories import bits, group, rejected
from hypothesis import given, settings
from hypothesis import strategies as st

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.types import (
    Episode,
    Judged,
    Prompt,
    Rejected,
    Sampled,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
)
from rlax_plugin.run.state import samples
from rlax_plugin.run.state.read_samples import RecordedGroup, as_batch, from_table, rows_of
from rlax_plugin.testing.builders import (
    make_batch,
    make_episode,
    make_group,
    make_prompt,
    make_sampled,
)

FILE = "samples/00000/00000001.parquet"


def read(data: bytes) -> list[RecordedGroup]:
    return from_table(rows_of(data, FILE))


def judged(recorded: list[RecordedGroup]) -> list[Judged]:
    return [one.judged for one in recorded]


def columns(data: bytes) -> set[str]:
    """Those that the file itself has."""
    return set(pq.ParquetFile(io.BytesIO(data)).schema_arrow.names)


# --- whatever there may be -----------------------------------------------------------------------

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32)  # with NaN, infinities, -0.0 and what is subnormal
FLOAT64 = st.floats(allow_nan=False)
TEXT = st.text(max_size=6)
FINITE = st.floats(-1e6, 1e6)
# Channel -> its dtype, the shape behind the tokens, and whether it covers the context as well.
SIDE: dict[str, tuple[str, tuple[int, ...], bool]] = {
    "kept": ("int16", (2, 3), False),
    "entropy": ("float32", (), False),
    "routes": ("uint8", (2,), True),
}


@st.composite
def side(draw: st.DrawFn, names: list[str], tokens: int, context: int) -> dict[str, np.ndarray]:
    found = {}
    for name in names:
        dtype, trailing, over_context = SIDE[name]
        shape = (tokens + (context if over_context else 0), *trailing)
        numbers = draw(st.integers(0, 2**32 - 1))
        random = np.random.default_rng(numbers).integers(0, 100, shape)
        found[name] = random.astype(dtype)
    return found


@st.composite
def turns(draw: st.DrawFn, first: np.ndarray, channels: list[str]) -> tuple[Turn, ...]:
    found, context = list[Turn](), 0
    for number in range(draw(st.integers(1, 3))):
        given = first if number == 0 else np.array(draw(st.lists(INT32, max_size=3)), np.int32)
        context += len(given)
        length = draw(st.integers(0 if number else 1, 4))
        per_token = {"min_size": length, "max_size": length}
        made = Sampled(
            seed=draw(st.integers(0, 2**64 - 1)),
            tokens=np.array(draw(st.lists(INT32, **per_token)), np.int32),
            logprobs=np.array(draw(st.lists(FLOAT32, **per_token)), np.float32),
            versions=np.array(draw(st.lists(st.integers(0, 9), **per_token)), np.int32),
            finish=draw(st.sampled_from(["stop", "length", None])),
            workers=tuple(draw(st.lists(st.sampled_from(["a", "b", "w+1"]), max_size=3))),
            side=draw(side(channels, length, context)),
        )
        found.append(Turn(given, made))
        context += length
    return tuple(found)


@st.composite
def scores(draw: st.DrawFn, episode: Episode) -> Score | Unscored:
    if draw(st.integers(0, 3)) == 0 or not episode.trajectories:
        return Unscored(draw(TEXT), draw(st.sampled_from([e for e in Ending if e.unscored])))
    paid = ()
    if draw(st.booleans()):
        paid = tuple(
            np.array(draw(st.lists(FLOAT64, min_size=len(s.tokens), max_size=len(s.tokens))))
            for s in episode.sampled
        )
    return Score(
        total=draw(FINITE),
        parts=tuple(draw(st.lists(FINITE, max_size=2))),
        metrics=draw(st.dictionaries(TEXT, FINITE, min_size=1, max_size=2) | st.just({})),
        token_rewards=paid,
        ending=draw(st.none() | st.sampled_from([e for e in Ending if e.by_reward])),
    )


@st.composite
def groups(draw: st.DrawFn, number: int, channels: list[str]) -> ScoredGroup:
    given = np.array(draw(st.lists(INT32, min_size=1, max_size=3)), np.int32)
    apart = np.array([9, 9], np.int32)  # a template stands around the prompt's own tokens
    prompt = Prompt(
        id=draw(TEXT),
        tokens=given if draw(st.booleans()) else apart,
        text=draw(TEXT),
        reference=draw(TEXT),
        metadata=draw(st.sampled_from([{}, {"level": 3, "tags": ["é", None]}])),
    )
    episodes = []
    for index in range(draw(st.integers(1, 3))):
        trajectories = tuple(
            Trajectory(draw(turns(given, channels))) for _ in range(draw(st.integers(0, 2)))
        )
        texts = tuple(draw(st.lists(TEXT, max_size=3)))
        ended = draw(st.sampled_from([Ending.DONE, Ending.CUT]))
        places = range(sum(len(one.turns) for one in trajectories))
        order = tuple(draw(st.permutations(places) | st.just(())))
        shown = draw(st.booleans())
        episodes.append(Episode(index, trajectories, draw(TEXT), ended, texts, order, shown))
    return ScoredGroup(
        id=number,
        attempt=draw(st.integers(1, 3)),
        prompt=prompt,
        episodes=tuple(episodes),
        scores=tuple(draw(scores(episode)) for episode in episodes),
        pass_rate_before=draw(st.none() | st.floats(0, 1)),
        temperature=draw(st.none() | st.floats(0.001, 1000)),
    )


@st.composite
def files(draw: st.DrawFn) -> tuple[TrainBatch, list[Judged]]:
    """A batch and what lies beside it."""
    channels = draw(st.lists(st.sampled_from(sorted(SIDE)), unique=True))
    first = draw(st.integers(0, 2))
    of_batch = [draw(groups(number, channels)) for number in range(first)]
    advantages = [
        np.array(draw(st.lists(FLOAT64, min_size=len(g.episodes), max_size=len(g.episodes))))
        for g in of_batch
    ]
    others: list[Judged] = []
    for number in range(first, first + draw(st.integers(0, 2))):
        found = draw(groups(number, draw(st.sampled_from([channels, []]))))
        others.append(Rejected(found, draw(TEXT)) if draw(st.booleans()) else found)
    repeats: tuple[np.ndarray, ...] = ()
    if draw(st.booleans()):
        repeats = tuple(np.arange(len(g.episodes), dtype=np.int32) % 3 for g in of_batch)
    return TrainBatch(7, tuple(of_batch), tuple(advantages), repeats), others


@pytest.mark.property
@settings(max_examples=examples(30))
@given(file=files())
def test_a_file_gives_back_what_was_put_into_it(file: tuple[TrainBatch, list[Judged]]) -> None:
    batch, others = file
    tables = [samples.of_batch(batch), samples.to_table(others)]
    rows = samples.joined([samples.from_arrow(samples.to_arrow(table)) for table in tables])
    data = samples.to_parquet(7, rows)
    recorded = read(data)
    assert bits(as_batch(7, recorded)) == bits(batch)
    beside = [one for one in recorded if one.advantages is None]
    assert bits(judged(beside)) == bits(others)
    again = [samples.of_batch(as_batch(7, recorded)), samples.to_table(judged(beside))]
    assert samples.to_parquet(7, samples.joined(again)) == data  # the same file, the same checksum
    said = [
        ending
        for g in (*batch.groups, *(one.group for one in beside))
        for episode, ending in zip(g.episodes, g.endings, strict=True)
        for _ in episode.trajectories or [None]
    ]
    assert rows.column("ending").to_pylist() == said
    trajectories = [
        t for g in (*batch.groups, *(one.group for one in beside)) for e in g.episodes
        for t in e.trajectories or [None]
    ]  # fmt: skip
    assert rows.num_rows == len(trajectories)


# --- what is easily lost -------------------------------------------------------------------------


JUDGED: list[Judged] = [group(4, 1, "e"), rejected(2, 1, "c", "too easy"), group(3, 1, "d")]


def test_a_table_is_made_of_nothing_as_well() -> None:
    empty = samples.to_table([])
    assert (empty.num_rows, from_table(empty)) == (0, [])
    assert read(samples.to_parquet(1, empty)) == []
    assert from_table(samples.joined([])) == []


def test_groups_are_selected_in_the_order_asked_for() -> None:
    table = samples.to_table(JUDGED)
    chosen = judged(from_table(samples.select(table, [3, 4])))
    assert bits(chosen) == bits([JUDGED[2], JUDGED[0]])
    assert samples.select(table, []).num_rows == 0
    assert samples.only(table, {3, 5}).column("group").to_pylist() == [3, 3]
    with pytest.raises(KeyError):
        samples.select(table, [3, 5])


def test_a_file_of_something_else_is_damaged() -> None:
    whole = samples.to_parquet(1, samples.to_table(JUDGED))
    lacking = samples.to_parquet(1, samples.to_table(JUDGED).drop(["versions"]))
    for data in (b"", b"PAR1", whole[: len(whole) // 2], lacking):
        with pytest.raises(RlaxError, match=r"samples/00000/00000001\.parquet is damaged"):
            rows_of(data, FILE)


# --- which columns a file has --------------------------------------------------------------------


def test_a_column_without_values_is_left_out() -> None:
    plain = make_group(id=0)
    data = samples.to_parquet(1, samples.to_table([plain]))
    assert columns(data) == set(samples.SCHEMA.names) - samples.OPTIONAL
    assert set(rows_of(data, FILE).column_names) == set(samples.SCHEMA.names)
    batch = samples.to_parquet(1, samples.of_batch(make_batch()))
    assert columns(batch) - columns(data) == {"advantage"}


def changed(**changes: Any) -> ScoredGroup:
    return dataclasses.replace(make_group(id=0), **changes)


def of_episode(episode: Episode) -> ScoredGroup:
    return make_group([1.0], id=0, prompt=make_prompt(), episodes=(episode,))


BEHIND = Turn(np.array([8], np.int32), make_sampled(2))
OPTIONAL = {
    "prompt_tokens": changed(prompt=Prompt("p", np.array([1, 2, 3], np.int32), "p", "p")),
    "metadata": changed(prompt=dataclasses.replace(make_group(id=0).prompt, metadata={"a": 1})),
    "texts": of_episode(make_episode(texts=("a", "b"))),
    "ended": of_episode(make_episode(ended="cut")),
    "demonstration": of_episode(make_episode(demonstration=True)),
    "given_lengths sampled_lengths worker_counts": of_episode(
        make_episode(make_sampled(2), BEHIND)
    ),
    "given_lengths sampled_lengths worker_counts turn_order": of_episode(
        make_episode(make_sampled(2), BEHIND, order=(1, 0))
    ),
    "reward_metrics": changed(scores=(Score(1.0, metrics={"a": 0.5}), Score(0.0))),
    "token_rewards": changed(scores=(Score(1.0, token_rewards=(np.ones(2),)), Score(0.0))),
    "reward_error": changed(scores=(Unscored("it raised"), Score(0.0))),
    "pass_rate_before": changed(pass_rate_before=0.5),
    "temperature": changed(temperature=0.75),
    "rejected": Rejected(make_group(id=0), "too easy"),
}


@pytest.mark.parametrize("names", OPTIONAL)
def test_a_column_is_there_for_the_one_value_it_has(names: str) -> None:
    found = OPTIONAL[names]
    data = samples.to_parquet(1, samples.to_table([make_group(id=1), found]))
    expected = set(samples.SCHEMA.names) - samples.OPTIONAL | set(names.split())
    assert columns(data) == expected
    assert bits(judged(read(data))) == bits([make_group(id=1), found])


def test_every_optional_column_is_shown_to_have_values() -> None:
    shown = {name for names in OPTIONAL for name in names.split()}
    # Advantages and repeats are a batch's. Advantages of tokens are not computed yet.
    assert samples.OPTIONAL - shown == {"advantage", "token_advantages", "repeats"}


def test_advantages_of_tokens_are_in_the_row_of_their_trajectory() -> None:
    later = Trajectory((Turn(np.array([8], np.int32), make_sampled(2)),))
    episode = make_episode(make_sampled(3))
    episode = dataclasses.replace(episode, trajectories=(*episode.trajectories, later))
    advantages = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    data = samples.to_parquet(
        1, samples.of_batch(TrainBatch(1, (of_episode(episode),), (advantages,)))
    )
    assert rows_of(data, FILE)["token_advantages"].to_pylist() == [[1, 2, 3], [4, 5]]
    (found,) = as_batch(1, read(data)).advantages
    assert found.tolist() == advantages.tolist()
