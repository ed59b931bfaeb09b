"""Contract of rollout engines: correct log-probs, reproducible seeds, verified weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.tokens.defects import defect
from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, WeightVersion
from rlax_plugin.ports.abilities import has
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.batching.jobs import TRUNCATED_LOGPROBS
from rlax_plugin.testing.builders import make_request
from rlax_plugin.testing.contracts.inspection import Inspection, eventually, require, run_async
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.weights.verification import take_version

_FIGURES = ("slots", "active", "waiting", "tokens_total")
_SEEDS = (11, 2**63 + 5, 12, 2**31)
_PREFILL = 100.0  # times the tolerance; scoring and generating may be different programs
_WAIT_S = 0.2  # in which nothing may come that waits for weights


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
    request: Request,
    part: Inspection,
    *,
    tolerance: float = 1e-5,
    deadline_s: float = 60.0,
) -> None:
    """Generates with two published versions; see ``check_engine``."""
    scenarios = _Scenarios(make_engine, versions, request, tolerance, part)
    for scenario, expected, mend in (
        (
            scenarios.loads,
            "can be built and prepared, holds no weights at first (version -1), loads a version "
            "and tells its health",
            "return from prepare once programs are compiled; "
            f"health() returns {', '.join(_FIGURES)} as floats; if it works with models of its own "
            "only, register it with Extension(..., needs_model=True)",
        ),
        (
            scenarios.generates,
            "every sample has a log-prob <= 0 and a version per token, and ends as it says",
            "return one Sampled per seed in order: int32 tokens below the engine's vocabulary, "
            "float32 log-probs in nats of the tokens generated, the stop token kept; finish 'stop' "
            "after a stop id, 'length' at max_new_tokens",
        ),
        (
            scenarios.seeds,
            "a seed decides a sample's tokens, whatever slot, neighbours or engine generate it, "
            "or the engine declares that it is not seeded",
            "make the random key from the request's seed and the token's place alone, for example "
            "jax.random.fold_in(key(seed), place)",
        ),
        (
            scenarios.min_version,
            "a request waits for its min_version, and others pass it",
            "keep what asks for newer weights waiting inside the engine, and look again after each "
            "load",
        ),
        (
            scenarios.rejects,
            "wrong weights are a WeightsError, and the old ones stay in use",
            "let load return rlax_plugin.api.read_weights(...), with a fingerprint of what was "
            "read, and let it change nothing that is in use",
        ),
        (
            scenarios.scores,
            "score, if it has it, gives the log-probs of generation, with the given weights or "
            "those in use",
            "compute log-probs at temperature 1 of tokens[1:], with the weights of loaded or, "
            "without one, those in use",
        ),
        (
            scenarios.cancels,
            "a cancelled generate frees its slots",
            "drop a group's samples in a finally of generate",
        ),
        (
            scenarios.gives_up,
            "an engine with give_up(unwanted, oldest) ends just those requests, and begins no "
            "others of training with weights older than oldest",
            "end what is unwanted without a reply, return its tokens so far by key and attempt, "
            "raise the min_version of the rest, and let generate return without it",
        ),
    ):
        with part.rule(expected, mend):
            run_async(scenario, deadline_s)
        if not part.sound:
            return  # what follows rests on it


class _Scenarios:
    """One coroutine per rule, each with engines of its own."""

    def __init__(
        self,
        make_engine: Callable[[], RolloutEngine],
        versions: Sequence[WeightVersion],
        request: Request,
        tolerance: float,
        part: Inspection,
    ):
        self._make_engine, self._tolerance, self._part = make_engine, tolerance, part
        self._old, self._new = versions
        self._request = request

    @asynccontextmanager
    async def _engine(self, version: WeightVersion | None = None) -> AsyncIterator[RolloutEngine]:
        """An engine that has loaded a version, and is closed at the end if it has ``close``."""
        engine = self._make_engine()
        try:
            if version is not None:
                await take_version(engine, version)
            yield engine
        finally:
            await asyncio.to_thread(engine.close)

    async def loads(self) -> None:
        async with self._engine() as engine:
            await engine.prepare()
            scores = engine.capabilities.scores
            declared = "scores" if scores else "does not score"
            fits = scores == has(engine, RolloutEngine, "score")
            require(fits, f"it declares that it {declared}, which its methods do not fit")
            require(engine.version == -1, f"version is {engine.version} before the first load")
            await take_version(engine, self._old)
            loaded, expected = engine.version, self._old.version
            require(loaded == expected, f"version is {loaded} after version {expected} was loaded")
            figures = engine.health()
            for name in _FIGURES:
                require(isinstance(figures.get(name), float), f"health() is {figures}")
            slots = engine.capabilities.slots
            require(figures["slots"] == slots >= 1, f"it declares {slots} slots")
            self._part.look(engine, RolloutEngine)

    async def generates(self) -> None:
        async with self._engine(self._old) as engine:
            requests = self._group(0), self._group(1, seeds=(91, 92))
            before = engine.health()["tokens_total"]
            groups = await _generated(engine, *requests)
            for request in requests:
                _check_group(engine, request, groups[request.key.group], self._old.version)
            tokens = sum(len(s.tokens) for samples in groups.values() for s in samples)
            counted = engine.health()["tokens_total"] - before
            require(counted >= tokens, f"tokens_total grew by {counted:g} for {tokens} tokens")
            await take_version(engine, self._new)
            (samples,) = (await _generated(engine, self._group(2))).values()
            _check_group(engine, self._group(2), samples, self._new.version)

    async def seeds(self) -> None:
        async with self._engine(self._old) as engine, self._engine(self._old) as other:
            if not engine.capabilities.seeded:
                return
            groups = await _generated(engine, self._group(0), self._group(1, seeds=(91, 92)))
            among = groups[0]
            alone = (await _generated(other, self._group(5, seeds=_SEEDS[-1:])))[5][0]
            self._require_same(among[-1], alone, "beside others and alone")
            again = (await _generated(engine, self._group(0)))[0]
            self._require_same(among[0], again[0], "the first time and the second")
            different = {tuple(r.tokens.tolist()) for r in among}
            require(len(different) > 1, f"seeds {_SEEDS} all generate {among[0].tokens.tolist()}")

    async def min_version(self) -> None:
        async with self._engine(self._old) as engine:
            wanted = self._group(0, min_version=self._new.version)
            waiting = asyncio.ensure_future(_generated(engine, wanted))
            try:
                await _generated(engine, self._group(1))
                done, _ = await asyncio.wait([waiting], timeout=_WAIT_S)
                require(not done, f"it was generated with version {engine.version}")
                await take_version(engine, self._new)
                (samples,) = (await waiting).values()
                _check_group(engine, wanted, samples, self._new.version)
            finally:
                waiting.cancel()

    async def rejects(self) -> None:
        async with self._engine(self._old) as engine:
            expected = (await _generated(engine, self._group(0)))[0]
            name, spec = min(self._new.tensors.items())
            wrong = {
                "another fingerprint": {name: replace(spec, fingerprint=spec.fingerprint ^ 1)},
                "another shape": {name: replace(spec, shape=(*spec.shape, 2))},
                "a variable more": {f"{name}.more": spec},
            }
            if (await engine.load(self._new)).fingerprints is None:
                del wrong["another fingerprint"]
            require(engine.version == self._old.version, "load changes the version in use")
            (part,) = self._new.parts
            for difference, tensors in wrong.items():
                changed = replace(part, tensors={**part.tensors, **tensors})
                try:
                    await take_version(engine, replace(self._new, parts=(changed,)))
                except WeightsError:
                    pass
                else:
                    require(False, f"weights with {difference} than published were loaded")
            held = engine.version
            require(held == self._old.version, f"version is {held} after weights were rejected")
            samples = (await _generated(engine, self._group(0)))[0]
            if engine.capabilities.seeded:
                self._require_same(expected[0], samples[0], "before and after a rejected version")

    async def scores(self) -> None:
        async with self._engine(self._old) as engine:
            if not engine.capabilities.scores:
                return
            tokens = await self._require_scored(engine, self._old)
            loaded = await engine.load(self._new)
            by_loaded = await engine.score(tokens, loaded)
            await engine.use(loaded)
            apart = float(np.abs(by_loaded - await engine.score(tokens)).max())
            same = apart <= self._tolerance
            require(same, f"with loaded weights, before and after use, it is {apart:.2g} apart")
            await self._require_scored(engine, self._new)

    async def _require_scored(self, engine: RolloutEngine, version: WeightVersion) -> np.ndarray:
        """Requires a generated token's score to be its log-prob; returns all tokens scored."""
        greedy = SamplingParams(temperature=0.0, max_new_tokens=1)
        (samples,) = (await _generated(engine, self._group(0, sampling=greedy))).values()
        (token,), (expected,) = samples[0].tokens, samples[0].logprobs
        tokens = np.append(self._request.context, token).astype(np.int32)
        scores = await engine.score(tokens)
        shape = np.shape(scores)
        require(shape == (len(tokens) - 1,), f"of {len(tokens)} tokens it gives {list(shape)}")
        require(
            abs(float(scores[-1]) - float(expected)) <= _PREFILL * self._tolerance,
            f"version {version.version} generates token {token} with log-prob {expected:.6g}; "
            f"score gives it {scores[-1]:.6g}",
        )
        return tokens

    async def cancels(self) -> None:
        async with self._engine(self._old) as engine:
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

    async def gives_up(self) -> None:
        async with self._engine(self._old) as engine:
            if not has(engine, RolloutEngine, "give_up"):
                return
            never = self._group(0, min_version=self._new.version + 1)
            later = self._group(1, min_version=self._new.version)
            answered: list[int] = []
            waiting = asyncio.ensure_future(
                engine.generate([never, later], lambda key, samples: answered.append(key.group))
            )
            for _ in range(10):  # until it has taken them, however many tasks it makes for that
                await asyncio.sleep(0)
            given_up = engine.give_up({(never.key, never.attempt)}, self._new.version)
            expected = {(never.key, never.attempt): [0] * len(never.seeds)}
            ended = {attempt: list(tokens) for attempt, tokens in given_up.items()}
            require(ended == expected, f"it gave up {ended}, and was asked to give up {expected}")
            await take_version(engine, self._new)
            await waiting
            require(set(answered) == {1}, f"it answered groups {answered} of 0 and 1")

    def _group(self, group_id: int, **changes: Any) -> Request:
        key = self._request.key._replace(group=group_id)
        return replace(self._request, key=key, **{"seeds": _SEEDS, **changes})

    def _require_same(self, first: Sampled, second: Sampled, when: str) -> None:
        same = np.array_equal(first.tokens, second.tokens)
        tokens = f"{first.tokens.tolist()} and {second.tokens.tolist()}"
        require(same, f"{when}, seed {first.seed} generates {tokens}")
        apart = float(np.abs(first.logprobs - second.logprobs).max())
        require(apart <= self._tolerance, f"{when}, its log-probs are {apart:.2g} apart")


async def _generated(engine: RolloutEngine, *requests: Request) -> dict[int, Sequence[Sampled]]:
    """Group -> samples; each request must be answered once."""
    finished: dict[int, Sequence[Sampled]] = {}

    def on_reply(key: Key, samples: Sequence[Sampled]) -> None:
        if any(s.finish is None for s in samples):
            return  # a report on the way
        require(key.group not in finished, f"{key} was answered twice")
        finished[key.group] = samples

    await engine.generate(requests, on_reply)
    missing = {r.key.group for r in requests} - finished.keys()
    require(not missing, f"generate returned without groups {sorted(missing)}")
    return finished


def _check_group(
    engine: RolloutEngine, request: Request, samples: Sequence[Sampled], version: int
) -> None:
    """Checks the samples of a request, which must all be of one weight version."""
    declared = engine.capabilities
    seeds = [s.seed for s in samples]
    require(seeds == list(request.seeds), f"seeds {seeds} for {list(request.seeds)}")
    length = len(request.context)
    problem = defect(
        samples, request.sampling, declared.vocabulary, context_length=length, side=declared.side
    )
    if problem:
        tokens = [s.tokens.tolist() for s in samples]
        require(False, f"{problem}; tokens {tokens}, stop ids {request.sampling.stop_ids}")
    for s in samples:
        for values in (s.logprobs, s.side.get(TRUNCATED_LOGPROBS, s.logprobs)):
            require(values.max() <= 1e-6, f"a log-prob is {values.max():.4g}")
        versions = sorted({int(v) for v in s.versions})
        require(versions == [version], f"generated with version {version}, it says {versions}")
