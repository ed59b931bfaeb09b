"""Contract of rollout engines: honest log-probs, seeds that decide, weights that are proved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.errors import WeightsError
from rlax_plugin.ports.protocols import RolloutEngine, vocabulary_of
from rlax_plugin.rollouts.defects import defect
from rlax_plugin.testing.builders import make_request
from rlax_plugin.testing.contracts.inspection import (
    Inspection,
    eventually,
    require,
    run_async,
)
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.types import GroupRequest, Rollout, WeightVersion

_FIGURES = ("slots", "active", "waiting", "tokens_total")
_SEEDS = (11, 2**63 + 5, 12, 2**31)
_WAIT_S = 0.2  # in which nothing may come that waits for weights
_LOADS = (
    "if it works with models of its own only, register it with Extension(..., needs_model=True)"
)


def check_rollout_engine(trial: Trial, part: Inspection) -> None:
    """Generates with two versions of the toy policy."""
    versions: list[WeightVersion] = []
    with part.rule("there are weights to load", "mend the plug-in's weight store first"):
        versions = trial.published()
    if part.sound:
        check_generation(trial.build, versions, make_request(), part)


def check_generation(
    make_engine: Callable[[], RolloutEngine],
    versions: Sequence[WeightVersion],
    request: GroupRequest,
    part: Inspection,
    *,
    tolerance: float = 1e-5,
    deadline_s: float = 60.0,
) -> None:
    """Generates with two published versions; see ``check_engine``."""
    scenarios = _Scenarios(make_engine, versions, request, tolerance)
    for scenario, expected, mend in (
        (
            scenarios.loads,
            "holds no weights at first (version -1), loads a version, and tells its health",
            f"health() returns {', '.join(_FIGURES)} as floats; {_LOADS}",
        ),
        (
            scenarios.generates,
            "every sample has a log-prob <= 0 and a version per token, and ends as it says",
            "return one Rollout per seed in order: int32 tokens below the engine's vocabulary, "
            "float32 log-probs in nats of the tokens generated, the stop token kept; finish_reason "
            "'stop' after a stop id, 'length' at max_new_tokens",
        ),
        (
            scenarios.seeds,
            "a seed decides a sample's tokens, whatever slot, neighbours or engine generate it",
            "make the random key from the request's seed and the token's place alone, for example "
            "jax.random.fold_in(key(seed), place)",
        ),
        (
            scenarios.min_version,
            "a request waits for its min_version, and others pass it",
            "keep what asks for newer weights waiting inside the engine, and look again after each "
            "load; progress(), if there is one, tells of what waits as well",
        ),
        (
            scenarios.rejects,
            "wrong weights are a WeightsError, and the old ones stay in use",
            "load with rlax_plugin.api.load_verified, swap only what it returned",
        ),
        (
            scenarios.cancels,
            "a cancelled generate frees its slots",
            "drop a group's samples in a finally of generate",
        ),
    ):
        with part.rule(expected, mend):
            run_async(scenario, deadline_s)
        if not part.sound:
            return  # what follows rests on it


class _Scenarios:
    """One coroutine per promise, each with engines of its own."""

    def __init__(
        self,
        make_engine: Callable[[], RolloutEngine],
        versions: Sequence[WeightVersion],
        request: GroupRequest,
        tolerance: float,
    ):
        self._make_engine, self._tolerance = make_engine, tolerance
        self._old, self._new = versions
        self._request = request

    async def loads(self) -> None:
        async with _Engine(self._make_engine) as engine:
            require(engine.version == -1, f"version is {engine.version} before the first load")
            await engine.load_weights(self._old)
            found, expected = engine.version, self._old.version
            require(found == expected, f"version is {found} after version {expected} was loaded")
            figures = engine.health()
            for name in _FIGURES:
                require(isinstance(figures.get(name), float), f"health() is {figures}")

    async def generates(self) -> None:
        async with _Engine(self._make_engine) as engine:
            await engine.load_weights(self._old)
            one, two = self._group(0), self._group(1, seeds=(91, 92))
            before = engine.health()["tokens_total"]
            groups = await _generated(engine, one, two)
            for request in (one, two):
                known = vocabulary_of(engine)
                _check_group(request, groups[request.group_id], self._old.version, known)
            tokens = sum(len(r.tokens) for rollouts in groups.values() for r in rollouts)
            counted = engine.health()["tokens_total"] - before
            require(counted >= tokens, f"tokens_total grew by {counted:g} for {tokens} tokens")
            await engine.load_weights(self._new)
            (rollouts,) = (await _generated(engine, self._group(2))).values()
            _check_group(self._group(2), rollouts, self._new.version)

    async def seeds(self) -> None:
        async with _Engine(self._make_engine) as engine, _Engine(self._make_engine) as other:
            await engine.load_weights(self._old)
            await other.load_weights(self._old)
            groups = await _generated(engine, self._group(0), self._group(1, seeds=(91, 92)))
            among = groups[0]
            last = _SEEDS[-1]
            alone = (await _generated(other, self._group(5, seeds=(last,))))[5][0]
            self._require_same(among[-1], alone, "beside others and alone")
            again = (await _generated(engine, self._group(0)))[0]
            self._require_same(among[0], again[0], "the first time and the second")
            different = {tuple(r.tokens.tolist()) for r in among}
            require(len(different) > 1, f"seeds {_SEEDS} all generate {among[0].tokens.tolist()}")

    async def min_version(self) -> None:
        async with _Engine(self._make_engine) as engine:
            await engine.load_weights(self._old)
            wanted = self._group(0, min_version=self._new.version)
            waiting = asyncio.ensure_future(_generated(engine, wanted))
            try:
                await _generated(engine, self._group(1))
                done, _ = await asyncio.wait([waiting], timeout=_WAIT_S)
                require(not done, f"it was generated with version {engine.version}")
                if (progress := getattr(engine, "progress", None)) is not None:
                    key = wanted.group_id, wanted.attempt
                    require(key in progress(), f"progress() says nothing of {key}: {progress()}")
                await engine.load_weights(self._new)
                (rollouts,) = (await waiting).values()
                _check_group(wanted, rollouts, self._new.version)
            finally:
                waiting.cancel()

    async def rejects(self) -> None:
        async with _Engine(self._make_engine) as engine:
            await engine.load_weights(self._old)
            expected = (await _generated(engine, self._group(0)))[0]
            name, spec = min(self._new.tensors.items())
            wrong = {
                "another fingerprint": {name: replace(spec, fingerprint=spec.fingerprint ^ 1)},
                "another shape": {name: replace(spec, shape=(*spec.shape, 2))},
                "a variable more": {f"{name}.more": spec},
            }
            for what, tensors in wrong.items():
                version = replace(self._new, tensors={**self._new.tensors, **tensors})
                try:
                    await engine.load_weights(version)
                except WeightsError:
                    found, held = engine.version, self._old.version
                    require(found == held, f"version is {found} after {what} was rejected")
                else:
                    require(False, f"weights with {what} than published were loaded")
            found = (await _generated(engine, self._group(0)))[0]
            self._require_same(expected[0], found[0], "before and after weights were rejected")

    async def cancels(self) -> None:
        async with _Engine(self._make_engine) as engine:
            await engine.load_weights(self._old)
            never = self._group(0, min_version=self._new.version + 1)
            tasks = [asyncio.ensure_future(_generated(engine, r)) for r in (never, self._group(1))]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

            def idle() -> bool:
                figures = engine.health()
                return figures["active"] == figures["waiting"] == 0

            require(await eventually(idle, 10.0), f"health() stays at {engine.health()}")
            await _generated(engine, self._group(2))

    def _group(self, group_id: int, **changes: Any) -> GroupRequest:
        return replace(self._request, group_id=group_id, **{"seeds": _SEEDS, **changes})

    def _require_same(self, one: Rollout, other: Rollout, when: str) -> None:
        same = np.array_equal(one.tokens, other.tokens)
        tokens = f"{one.tokens.tolist()} and {other.tokens.tolist()}"
        require(same, f"{when}, seed {one.seed} generates {tokens}")
        apart = float(np.abs(one.logprob_full - other.logprob_full).max())
        require(apart <= self._tolerance, f"{when}, its log-probs are {apart:.2g} apart")


class _Engine:
    """An engine that is closed, where it can be."""

    def __init__(self, make_engine: Callable[[], RolloutEngine]):
        self._engine = make_engine()

    async def __aenter__(self) -> RolloutEngine:
        return self._engine

    async def __aexit__(self, *error: object) -> None:
        close = getattr(self._engine, "close", None)
        if close is not None:
            await asyncio.to_thread(close)


async def _generated(engine: RolloutEngine, *requests: GroupRequest) -> dict[int, list[Rollout]]:
    """Group id -> rollouts; each group must be told of as finished once."""
    finished: dict[int, list[Rollout]] = {}

    def on_group(group_id: int, rollouts: list[Rollout]) -> None:
        if any(r.finish_reason == "cancelled" for r in rollouts):
            return  # a report on the way
        require(group_id not in finished, f"group {group_id} was delivered twice")
        finished[group_id] = rollouts

    await engine.generate(requests, on_group)
    missing = {r.group_id for r in requests} - finished.keys()
    require(not missing, f"generate returned without groups {sorted(missing)}")
    return finished


def _check_group(
    request: GroupRequest, rollouts: Sequence[Rollout], version: int, vocabulary: int = 0
) -> None:
    seeds = [r.seed for r in rollouts]
    require(seeds == list(request.seeds), f"seeds {seeds} for {list(request.seeds)}")
    indices = [r.index for r in rollouts]
    require(indices == list(range(len(seeds))), f"samples come as {indices}")
    for r in rollouts:
        require(r.group_id == request.group_id, f"group {request.group_id} has id {r.group_id}")
        dtypes = [a.dtype.name for a in (r.tokens, r.logprob_full, r.logprob_sampled, r.versions)]
        right = dtypes == ["int32", "float32", "float32", "int32"]
        require(right, f"tokens, two log-probs and versions are {dtypes}")
    if problem := defect(rollouts, request.sampling, vocabulary):
        tokens = [r.tokens.tolist() for r in rollouts]
        require(False, f"{problem}; tokens {tokens}, stop ids {request.sampling.stop_ids}")
    for r in rollouts:
        for values in (r.logprob_full, r.logprob_sampled):
            require(values.max() <= 1e-6, f"a log-prob is {values.max():.4g}")
        found = sorted({int(v) for v in r.versions})
        require(found == [version], f"generated with version {version}, it says {found}")
