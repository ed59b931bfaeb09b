"""Engine ``scripted``: only weights and seeds change its samples."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_versions import publish
from waiting import eventually

from rlax_plugin.base.concurrency.clock import Clock
from rlax_plugin.base.tokens.defects import defect
from rlax_plugin.base.tokens.stopping import end_of
from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, WeightVersion
from rlax_plugin.config.loading import load_section
from rlax_plugin.rollout.batching.jobs import TRUNCATED_LOGPROBS
from rlax_plugin.testing import make_request, policy
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.testing.task import decode
from rlax_plugin.weights.verification import take_version

CONFIG = str(Path(__file__).parents[3] / "tests/configs/testing.yml")


def engine(mode: str = "finish", more: Sequence[str] = (), clock: Any = None, **options: Any):
    limit = "rlax.rollouts.max_new_tokens=64"
    section, _ = load_section(CONFIG, (limit, f"rlax.rollouts.on_new_weights={mode}", *more))
    return ScriptedEngine(ScriptedConfig(**options), NpzStore(), section, clock=clock)


def request(group: int = 0, **changes: Any) -> Request:
    sampling = SamplingParams(temperature=0.8, max_new_tokens=40, stop_ids=(1,))
    return make_request(group, 4, **({"sampling": sampling} | changes))


class Steps(Clock):
    """The engine's clock: behind each decode step, where it sleeps, it waits to be let on.

    Args:
      allowed: so many steps may pass at once.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed, self._free = asyncio.Semaphore(allowed), False

    async def sleep(self, seconds: float) -> None:
        if seconds and not self._free:
            await self._allowed.acquire()
        else:
            await asyncio.sleep(0)

    def go_on(self) -> None:
        self._free = True
        self._allowed.release()


class Groups:
    """Takes reports; ``on_report`` is called with each."""

    def __init__(self, on_report: Callable[[Sequence[Sampled]], None] = lambda samples: None):
        self.reports: list[tuple[Key, Sequence[Sampled]]] = []
        self._on_report = on_report

    def __call__(self, key: Key, samples: Sequence[Sampled]) -> None:
        self.reports.append((key, samples))
        self._on_report(samples)

    def last(self, group: int = 0) -> Sequence[Sampled]:
        return [samples for key, samples in self.reports if key == Key("train", group)][-1]


def generate(engine: ScriptedEngine, version: WeightVersion, *requests: Request) -> Groups:
    async def run() -> Groups:
        groups = Groups()
        await take_version(engine, version)
        await engine.generate(requests, groups)
        return groups

    return asyncio.run(run())


def same(one: Sequence[Sampled], other: Sequence[Sampled]) -> bool:
    names = ("tokens", "logprobs", "versions")
    return len(one) == len(other) and all(
        (a.seed, a.finish, a.side.keys()) == (b.seed, b.finish, b.side.keys())
        and all(np.array_equal(getattr(a, n), getattr(b, n)) for n in names)
        and all(np.array_equal(a.side[n], b.side[n]) for n in a.side)
        for a, b in zip(one, other, strict=True)
    )


def test_log_probs_are_the_policys(tmp_path: Path) -> None:
    samples = generate(engine(), publish(tmp_path, 0), request()).last()
    assert [s.seed for s in samples] == [0, 1, 2, 3]
    weights = policy.initial_weights(0)
    for sample in samples:
        before = np.concatenate([[7], sample.tokens[:-1]])
        rows = policy.log_probs(weights, before, 0.8)
        expected = rows[np.arange(len(rows)), sample.tokens]
        np.testing.assert_array_equal(sample.logprobs, expected)
        assert not sample.side  # the request does not truncate
        assert sample.versions.tolist() == [0] * len(sample.tokens)
        assert (sample.tokens[-1] == 1) == (sample.finish == "stop")
        assert 1 not in sample.tokens[:-1]
    assert len({len(s.tokens) for s in samples}) > 1
    assert {s.tokens.dtype for s in samples} == {np.dtype(np.int32)}


def test_truncated_generates_report_both_log_probs(tmp_path: Path) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=5, max_new_tokens=30)
    samples = generate(engine(), publish(tmp_path, 0), request(sampling=sampling)).last()
    assert {s.finish for s in samples} == {"length"}
    weights = policy.initial_weights(0)
    for s in samples:
        probabilities = np.exp(policy.log_probs(weights, np.concatenate([[7], s.tokens[:-1]])))
        best = np.sort(probabilities, axis=1)[:, -5:]
        assert (np.exp(s.logprobs) >= best[:, 0] - 1e-7).all()
        np.testing.assert_allclose(
            s.side[TRUNCATED_LOGPROBS], s.logprobs - np.log(best.sum(axis=1)), rtol=1e-5
        )


def begun(s: Sampled, after: int) -> Sampled:
    cut = {name: getattr(s, name)[:after] for name in ("tokens", "logprobs", "versions")}
    return replace(s, **cut, finish=None, side={n: array[:after] for n, array in s.side.items()})


def test_samples_end_at_stop_strings(tmp_path: Path) -> None:
    sampling, version = SamplingParams(0.8, max_new_tokens=40), publish(tmp_path, 0)
    free = generate(engine(), version, request(sampling=sampling)).last()
    strings = (decode(free[0].tokens[3:5]), decode(free[1].tokens[7:10]))
    sampling = replace(sampling, stop_strings=strings)
    ended = generate(engine(), version, request(sampling=sampling)).last()
    assert {s.finish for s in ended[:2]} == {"stop"}
    cut = [s.tokens[: end_of(s.tokens, strings, decode)].tolist() for s in free]
    assert [s.tokens.tolist() for s in ended] == cut
    assert defect(ended, sampling, decode=decode) is None
    assert "goes on for" in (defect(free, sampling, decode=decode) or "")


@pytest.mark.parametrize(("after", "top_k"), [(1, 0), (3, 30)])
def test_a_resumed_group_is_the_uninterrupted_one(tmp_path: Path, after: int, top_k: int) -> None:
    version = publish(tmp_path, 0)
    # The toy policy stops early where its choice is truncated.
    sampling = SamplingParams(0.8, top_k, max_new_tokens=40, stop_ids=() if top_k else (1,))
    free = generate(engine("continue"), version, request(sampling=sampling)).last()
    sampling = replace(sampling, stop_strings=(decode(free[0].tokens[:4]),) if top_k else ())
    whole = generate(engine("continue"), version, asked := request(sampling=sampling)).last()
    assert {len(s.side) for s in whole} == {min(top_k, 1)}
    assert any(len(s.tokens) > after for s in whole)
    parts = tuple(s if len(s.tokens) <= after else begun(s, after) for s in whole)
    resumed = generate(engine("continue"), version, replace(asked, resume=parts))
    assert same(resumed.last(), whole)


def changed_after(
    steps: int, mode: str, wanted: Request, old: WeightVersion, new: WeightVersion
) -> Sequence[Sampled]:
    """Generates a group; new weights arrive once it has made so many steps, and before the next."""

    async def run() -> Sequence[Sampled]:
        allowed = Steps(steps - 1)
        groups, worker = Groups(), engine(mode, clock=allowed, token_s=1)
        await take_version(worker, old)
        running = asyncio.ensure_future(worker.generate([wanted], groups))
        await eventually(lambda: worker.health()["tokens_total"] >= steps * len(wanted.seeds))
        await take_version(worker, new)
        assert worker.version == 1
        allowed.go_on()
        await running
        return groups.last()

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("mode", ["finish", "continue", "discard"])
def test_new_weights_in_the_middle_of_a_group(tmp_path: Path, mode: str) -> None:
    old, new = publish(tmp_path, 0), publish(tmp_path, 1)
    endless = request(sampling=SamplingParams(max_new_tokens=40))
    found = changed_after(2, mode, endless, old, new)
    purely_old, purely_new = (generate(engine(), v, endless).last() for v in (old, new))
    if mode == "finish":
        assert same(found, purely_old)
    elif mode == "discard":
        assert same(found, purely_new)
    else:
        for sample, before in zip(found, purely_old, strict=True):
            assert sample.versions.tolist() == [0] * 2 + [1] * 38
            assert np.array_equal(sample.tokens[:2], before.tokens[:2])
