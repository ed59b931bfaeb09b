"""Contract of rollout engines: correct log-probs, reproducible seeds, verified weights."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.errors import WeightsError
from rlax_plugin.ports.abilities import has
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.testing.builders import make_request
from rlax_plugin.testing.contracts.generating import TriedEngine, check_group, generated
from rlax_plugin.testing.contracts.inspection import (
    Inspection,
    eventually,
    require,
    run_async,
)
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.tokens.defects import defect
from rlax_plugin.tokens.stopping import Decode, problem_of
from rlax_plugin.types import Request, Sampled, SamplingParams, WeightVersion
from rlax_plugin.weights.verification import take_version

_FIGURES = ("slots", "active", "waiting", "tokens_total")
_SEEDS = (11, 2**63 + 5, 12, 2**31)
_PREFILL = 100.0  # times the tolerance; scoring and generating may be different programs
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
        choice = trial.context.section.prompt_source
        source = trial.registry.part("prompt_source", choice, "prompt_source", trial.context)
        check_generation(trial.build, versions, make_request(), part, decode=source.decode)


def check_generation(
    make_engine: Callable[[], RolloutEngine],
    versions: Sequence[WeightVersion],
    request: Request,
    part: Inspection,
    *,
    tolerance: float = 1e-5,
    deadline_s: float = 60.0,
    decode: Decode | None = None,
) -> None:
    """Generates with two published versions; see ``check_engine``."""
    scenarios = _Scenarios(make_engine, versions, request, tolerance, decode)
    built: list[RolloutEngine] = []
    with part.rule("can be built", _LOADS):
        built.append(make_engine())
    for engine in built:
        part.look(engine, RolloutEngine)
    if not part.sound:
        return
    for scenario, expected, mend in (
        (
            functools.partial(scenarios.prepares, built[0]),
            "prepare and close return, and what it declares fits its methods",
            "return from prepare once programs are compiled; declare scores if score "
            "is there, and only then; decode_greedy needs score",
        ),
        (
            scenarios.loads,
            "holds no weights at first (version -1), loads a version, tells its health, and "
            "declares its capabilities",
            f"health() returns {', '.join(_FIGURES)} as floats, capabilities are "
            f"rlax_plugin.api.Capabilities with the same slots; {_LOADS}",
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
            scenarios.stops,
            "an engine that declares stop_strings ends a sample with the first token with which "
            "its text contains one",
            "find them with the prompt source's decode of all tokens so far, keep the token that "
            "completes the string, drop what was generated behind it, and say finish 'stop'",
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
        decode: Decode | None,
    ):
        self._make_engine, self._tolerance, self._decode = make_engine, tolerance, decode
        self._old, self._new = versions
        self._request = request

    async def prepares(self, engine: RolloutEngine) -> None:
        async with TriedEngine(lambda: engine):
            await engine.prepare()
            declared, scores = engine.capabilities, has(engine, RolloutEngine, "score")
            without = "with" if scores else "without"
            require(declared.scores == scores, f"{without} score, it declares {declared}")
            decodes = has(engine, RolloutEngine, "decode_greedy")
            require(scores or not decodes, "it has decode_greedy, and no score")

    async def loads(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            require(engine.version == -1, f"version is {engine.version} before the first load")
            await take_version(engine, self._old)
            found, expected = engine.version, self._old.version
            require(found == expected, f"version is {found} after version {expected} was loaded")
            figures = engine.health()
            for name in _FIGURES:
                require(isinstance(figures.get(name), float), f"health() is {figures}")
            slots = engine.capabilities.slots
            require(figures["slots"] == slots >= 1, f"it declares {slots} slots")

    async def generates(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            await take_version(engine, self._old)
            one, two = self._group(0), self._group(1, seeds=(91, 92))
            before = engine.health()["tokens_total"]
            groups = await generated(engine, one, two)
            for request in (one, two):
                has = engine.capabilities
                check_group(request, groups[request.key.group], self._old.version, has)
            tokens = sum(len(s.tokens) for samples in groups.values() for s in samples)
            counted = engine.health()["tokens_total"] - before
            require(counted >= tokens, f"tokens_total grew by {counted:g} for {tokens} tokens")
            await take_version(engine, self._new)
            (samples,) = (await generated(engine, self._group(2))).values()
            check_group(self._group(2), samples, self._new.version, has)

    async def seeds(self) -> None:
        async with (
            TriedEngine(self._make_engine) as engine,
            TriedEngine(self._make_engine) as other,
        ):
            if not engine.capabilities.seeded:
                return
            await take_version(engine, self._old)
            await take_version(other, self._old)
            groups = await generated(engine, self._group(0), self._group(1, seeds=(91, 92)))
            among = groups[0]
            last = _SEEDS[-1]
            alone = (await generated(other, self._group(5, seeds=(last,))))[5][0]
            self._require_same(among[-1], alone, "beside others and alone")
            again = (await generated(engine, self._group(0)))[0]
            self._require_same(among[0], again[0], "the first time and the second")
            different = {tuple(r.tokens.tolist()) for r in among}
            require(len(different) > 1, f"seeds {_SEEDS} all generate {among[0].tokens.tolist()}")

    async def stops(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            has, decode = engine.capabilities, self._decode
            if not has.stop_strings or decode is None:
                return
            await take_version(engine, self._old)
            free = (await generated(engine, self._group(0)))[0]
            texts = [decode(s.tokens[len(s.tokens) // 2 :])[:3] for s in free[:2]]
            stop_strings = tuple(text for text in texts if problem_of((text,)) is None)
            sampling = replace(self._request.sampling, stop_strings=stop_strings)
            if not stop_strings:
                return
            ended = (await generated(engine, self._group(0, sampling=sampling)))[0]
            problem = defect(ended, sampling, has.vocabulary, side=has.side, decode=decode)
            tokens = [s.tokens.tolist() for s in ended]
            require(problem is None, f"{problem}; tokens {tokens}, stop strings {stop_strings}")

    async def min_version(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            await take_version(engine, self._old)
            wanted = self._group(0, min_version=self._new.version)
            waiting = asyncio.ensure_future(generated(engine, wanted))
            try:
                await generated(engine, self._group(1))
                done, _ = await asyncio.wait([waiting], timeout=_WAIT_S)
                require(not done, f"it was generated with version {engine.version}")
                key, figures = (wanted.key, wanted.attempt), engine.progress()
                if figures is not None:
                    require(key in figures, f"progress() says nothing of {key}: {figures}")
                if has(engine, RolloutEngine, "unfinished"):
                    left = engine.unfinished().get((wanted.key, wanted.attempt))
                    size = len(wanted.seeds)
                    require(left == size, f"unfinished() says {left} of {size} that wait")
                await take_version(engine, self._new)
                (samples,) = (await waiting).values()
                check_group(wanted, samples, self._new.version, engine.capabilities)
            finally:
                waiting.cancel()

    async def rejects(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            await take_version(engine, self._old)
            expected = (await generated(engine, self._group(0)))[0]
            name, spec = min(self._new.tensors.items())
            wrong = {
                "another fingerprint": {name: replace(spec, fingerprint=spec.fingerprint ^ 1)},
                "another shape": {name: replace(spec, shape=(*spec.shape, 2))},
                "a variable more": {f"{name}.more": spec},
            }
            if (await engine.load(self._new)).fingerprints is None:
                del wrong["another fingerprint"]
            require(engine.version == self._old.version, "load changes the version in use")
            for what, tensors in wrong.items():
                (part,) = self._new.parts
                part = replace(part, tensors={**part.tensors, **tensors})
                version = replace(self._new, parts=(part,))
                try:
                    await take_version(engine, version)
                except WeightsError:
                    found, held = engine.version, self._old.version
                    require(found == held, f"version is {found} after {what} was rejected")
                else:
                    require(False, f"weights with {what} than published were loaded")
            found = (await generated(engine, self._group(0)))[0]
            if engine.capabilities.seeded:
                self._require_same(expected[0], found[0], "before and after weights were rejected")

    async def scores(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            if not engine.capabilities.scores:
                return
            await take_version(engine, self._old)
            before = await self._require_scored(engine, self._old)
            loaded = await engine.load(self._new)
            by_loaded = await engine.score(before, loaded)
            await engine.use(loaded)
            found = await engine.score(before)
            apart = float(np.abs(by_loaded - found).max())
            same = apart <= self._tolerance
            require(same, f"with loaded weights, before and after use, it is {apart:.2g} apart")
            await self._require_scored(engine, self._new)

    async def _require_scored(self, engine: RolloutEngine, version: WeightVersion) -> np.ndarray:
        """Requires a generated token's score to be its log-prob; returns all tokens scored."""
        greedy = SamplingParams(temperature=0.0, max_new_tokens=1)
        (samples,) = (await generated(engine, self._group(0, sampling=greedy))).values()
        (token,), (expected,) = samples[0].tokens, samples[0].logprobs
        tokens = np.append(self._request.context, token).astype(np.int32)
        found = await engine.score(tokens)
        shape = np.shape(found)
        require(shape == (len(tokens) - 1,), f"of {len(tokens)} tokens it gives {list(shape)}")
        apart = abs(float(found[-1]) - float(expected))
        near = apart <= _PREFILL * self._tolerance
        require(
            near,
            f"version {version.version} generates token {token} with log-prob {expected:.6g}; "
            f"score gives it {found[-1]:.6g}",
        )
        return tokens

    async def cancels(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            await take_version(engine, self._old)
            never = self._group(0, min_version=self._new.version + 1)
            tasks = [asyncio.ensure_future(generated(engine, r)) for r in (never, self._group(1))]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

            def idle() -> bool:
                figures = engine.health()
                return figures["active"] == figures["waiting"] == 0

            require(await eventually(idle, 10.0), f"health() stays at {engine.health()}")
            await generated(engine, self._group(2))

    async def gives_up(self) -> None:
        async with TriedEngine(self._make_engine) as engine:
            if not has(engine, RolloutEngine, "give_up"):
                return
            await take_version(engine, self._old)
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
            found = {attempt: list(tokens) for attempt, tokens in given_up.items()}
            require(found == expected, f"it gave up {found}, and was asked to give up {expected}")
            await take_version(engine, self._new)
            await waiting
            require(set(answered) == {1}, f"it answered groups {answered} of 0 and 1")

    def _group(self, group_id: int, **changes: Any) -> Request:
        key = self._request.key._replace(group=group_id)
        return replace(self._request, key=key, **{"seeds": _SEEDS, **changes})

    def _require_same(self, one: Sampled, other: Sampled, when: str) -> None:
        same = np.array_equal(one.tokens, other.tokens)
        tokens = f"{one.tokens.tolist()} and {other.tokens.tolist()}"
        require(same, f"{when}, seed {one.seed} generates {tokens}")
        apart = float(np.abs(one.logprobs - other.logprobs).max())
        require(apart <= self._tolerance, f"{when}, its log-probs are {apart:.2g} apart")
