"""A version is verified between ``load`` and ``use``, and decoding is compared with prefill."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from part_stubs import EngineStub

from rlax_plugin.base.errors import WeightsError, WeightsMismatchError, WeightsUnreadableError
from rlax_plugin.base.types import Canary, TensorSpec, WeightVersion
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.verification import Reading, take_version

CANARY = Canary(np.arange(16, dtype=np.int32), np.full(15, -2.0, np.float32), 1e-3)
TENSORS = {"w": TensorSpec((3,), "float32", 7)}
VERSION = make_version(4, "/4", TENSORS, CANARY)


class Engine(EngineStub):
    """Gives every token the log-prob -2 by prefill, and ``decoded`` where it decodes."""

    capabilities = Capabilities(slots=1, scores=True)

    def __init__(self, **changes: Any):
        self.loaded = Loaded(
            4,
            {"w": np.zeros(3, np.float32)},
            lambda: {"w": 7},
            lambda: self.calls.append("discard"),
        )
        self.loaded = replace(self.loaded, **changes)
        self.calls: list[str] = []
        self.decoded = np.full(8, -2.0, np.float32)
        self.asked: list[tuple[list[int], int]] = []
        self.scored: list[list[int]] = []

    async def load(self, version: WeightVersion) -> Loaded:
        self.calls.append("load")
        return self.loaded

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        assert loaded is self.loaded
        self.calls.append("score")
        self.scored.append(tokens.tolist())
        return np.full(len(tokens) - 1, -2.0, np.float32)

    async def decode_greedy(self, tokens: np.ndarray, count: int, loaded: Loaded) -> Any:
        self.calls.append("decode")
        self.asked.append((tokens.tolist(), count))
        return np.arange(100, 100 + count, dtype=np.int32), self.decoded[:count]

    async def use(self, loaded: Loaded) -> None:
        assert loaded is self.loaded
        self.calls.append("use")


def take(engine: Any, version: WeightVersion = VERSION, **options: Any) -> list[str]:
    asyncio.run(take_version(engine, version, **options))
    return engine.calls


def test_weights_are_used_after_every_check() -> None:
    engine, reading = Engine(), Reading()
    assert take(engine, reading=reading) == ["load", "score", "decode", "score", "use"]
    # The canary's first half is decoded on from, so that no more tokens are scored than it has.
    assert engine.asked == [(list(range(8)), 8)]
    assert engine.scored == [list(range(16)), [*range(8), *range(100, 108)]]
    figures = reading.figures()
    assert figures["read_bytes"] == 12 and min(figures["read_s"], figures["verify_s"]) > 0


def test_verifying_decoding_takes_a_fiftieth_of_the_time_at_most(monkeypatch) -> None:
    now_s = 0.0

    class Slow(Engine):
        async def decode_greedy(self, tokens: np.ndarray, count: int, loaded: Loaded) -> Any:
            nonlocal now_s
            now_s += 0.5
            return await super().decode_greedy(tokens, count, loaded)

    monkeypatch.setattr("rlax_plugin.weights.verification.time.perf_counter", lambda: now_s)
    reading, verified_at_s = Reading(), []
    for number in range(12):
        now_s = 10.0 * number
        if "decode" in take(Slow(), reading=reading):
            verified_at_s.append(10 * number)
    # It ends at 0.5 s and 30.5 s: 25 s later it is due again, with the version after that.
    assert verified_at_s == [0, 30, 60, 90]


@pytest.mark.parametrize(
    ("tokens", "most", "context", "count"), [(16, 3, 13, 3), (6, 8, 1, 5), (2, 8, 1, 1)]
)
def test_it_decodes_no_more_than_fits(tokens: int, most: int, context: int, count: int) -> None:
    engine = Engine()
    canary = Canary(CANARY.tokens[:tokens], CANARY.logprobs[: tokens - 1], 1e-3)
    take(engine, replace(VERSION, canary=canary), max_new_tokens=most)
    assert engine.asked == [(list(range(context)), count)]
    assert max(map(len, engine.scored)) == tokens


@pytest.mark.parametrize(
    ("changes", "tensors", "error", "message"),
    [
        ({"version": 3}, TENSORS, WeightsMismatchError, "loaded version 3 instead of 4"),
        ({"arrays": {}}, TENSORS, WeightsError, "'w' was published but is missing"),
        (
            {"fingerprints": lambda: {"w": 8}},
            TENSORS,
            WeightsMismatchError,
            "'w' has fingerprint 0x00000008, but 0x00000007 was published",
        ),
        ({}, {"w": TensorSpec((3,), "int32", 7)}, WeightsError, r"published as int32\[3\]"),
    ],
    ids=["version", "name", "fingerprint", "dtype"],
)
def test_wrong_weights_are_discarded(
    changes: dict[str, Any], tensors: dict[str, TensorSpec], error: type, message: str
) -> None:
    engine = Engine(**changes)
    with pytest.raises(error, match=message) as caught:
        take(engine, make_version(4, "/4", tensors, CANARY))
    assert caught.type is error and engine.calls == ["load", "discard"]


def test_without_fingerprints_the_canary_decides() -> None:
    engine = Engine(fingerprints=None)
    assert take(engine)[-1] == "use"
    wrong = replace(CANARY, logprobs=CANARY.logprobs + np.float32(0.1))
    with pytest.raises(WeightsMismatchError, match="the canary's log-prob at position 0"):
        take(Engine(fingerprints=None), replace(VERSION, canary=wrong))


@pytest.mark.parametrize(
    ("place", "logprob", "message"),
    [
        (5, -2.25, r"its token 5 \(id 105\) the log-prob -2.25, but prefill gives it -2: .* 0.25"),
        (0, np.nan, r"its token 0 \(id 100\) the log-prob nan"),
        (7, -2.0009, None),  # within the tolerance
    ],
)
def test_decoding_that_differs_from_prefill_is_a_mismatch(
    place: int, logprob: float, message: str | None
) -> None:
    engine = Engine()
    engine.decoded[place] = logprob
    if message is None:
        assert take(engine)[-1] == "use"
        return
    with pytest.raises(WeightsMismatchError, match=message):
        take(engine)
    assert engine.calls == ["load", "score", "decode", "score", "discard"]


def test_decoding_is_skipped_where_it_cannot_be_compared() -> None:
    assert take(Engine(), replace(VERSION, canary=None)) == ["load", "use"]

    class Rounds(Engine):
        async def decode_greedy(self, tokens: np.ndarray, count: int, loaded: Loaded) -> Any:
            return None

    assert take(Rounds()) == ["load", "score", "use"]


def test_an_answer_of_another_length_is_a_mismatch() -> None:
    class Short(Engine):
        async def decode_greedy(self, tokens: np.ndarray, count: int, loaded: Loaded) -> Any:
            return np.arange(3), np.full(2, -2.0)

    with pytest.raises(WeightsMismatchError, match="gave 3 tokens, 2 log-probs"):
        take(Short())


async def test_a_load_that_is_given_up_is_discarded() -> None:
    class Hangs(Engine):
        async def use(self, loaded: Loaded) -> None:
            await asyncio.Event().wait()

    engine = Hangs()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(take_version(engine, VERSION), 0.05)
    assert engine.calls[-1] == "discard"


def test_what_is_verified_follows_from_what_an_engine_can_do() -> None:
    class WithoutScoring(Engine):
        capabilities = Capabilities(slots=1)

    assert take(WithoutScoring()) == ["load", "use"]
    wrong = WithoutScoring(fingerprints=lambda: {"w": 8})
    with pytest.raises(WeightsMismatchError, match="fingerprint"):
        take(wrong)
    assert wrong.calls == ["load", "discard"]


def test_a_heartbeat_says_for_how_long_a_version_is_being_loaded_and_how_often_that_failed() -> (
    None
):
    reading, seen = Reading(), dict[str, dict[str, float]]()

    class Unreadable(Engine):
        async def load(self, version: WeightVersion) -> Loaded:
            seen["load"] = reading.figures()
            raise WeightsUnreadableError("away")

    class Seen(Engine):
        async def use(self, loaded: Loaded) -> None:
            seen["use"] = reading.figures()

    for _ in range(2):
        with pytest.raises(WeightsUnreadableError):
            take(Unreadable(), reading=reading)
    assert seen["load"]["loading_s"] >= 0 and seen["load"]["load_failures_total"] == 1
    assert "loading_s" not in reading.figures()
    take(Seen(), reading=reading)
    # Putting it into use may wait for running samples, which is not the store's fault.
    assert "loading_s" not in seen["use"] and seen["use"]["load_failures_total"] == 2
