"""Rollout engine ``scripted``: samples from the bigram policy, with simulated delays."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rlax_plugin.base.concurrency.clock import Clock
from rlax_plugin.base.errors import WeightsUnreadableError, WorkerError
from rlax_plugin.base.tokens.stopping import Decode, StopFinder
from rlax_plugin.base.types import (
    EMPTY,
    NATIVE,
    Attempt,
    Finish,
    Key,
    Request,
    Sampled,
    SamplingParams,
    WeightVersion,
)
from rlax_plugin.config import YEAR_S, RlaxSection, Section
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.protocols import RolloutEngine, WeightStore
from rlax_plugin.rollout.batching.jobs import SIDE_CHANNELS, TRUNCATED_LOGPROBS
from rlax_plugin.testing import policy
from rlax_plugin.testing.task import VOCABULARY, decode
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.verification import read_weights

NonNegative = Annotated[float, Field(ge=0, le=YEAR_S)]


class ScriptedConfig(Section):
    """Generates with the toy policy of trainer ``bigram``.

    Its options simulate slow machines, and engines with fewer abilities.
    """

    latency_s: NonNegative = Field(default=0.0, description="time before a group's first token")
    token_s: NonNegative = Field(default=0.0, description="time per decode step of a group")
    load_s: NonNegative = Field(default=0.0, description="time before new weights are read")
    seeded: bool = Field(
        default=True,
        description="false: behave like an engine whose samples do not depend on the seed of the "
        "request",
    )
    logprobs: bool = Field(
        default=True,
        description="false: behave like an engine that cannot report log-probs; all of them are 0",
    )
    stop_strings: bool = Field(
        default=True,
        description="false: behave like an engine that does not end samples at stop strings",
    )
    reads_memory: bool = Field(
        default=False,
        description="true: load copies of weights in memory, where the trainer offers them, rather "
        "than wait for the files",
    )
    weights_format: Literal["native", "safetensors"] = Field(
        default=NATIVE,
        description="safetensors: behave like an engine that reads weights in the names of "
        "transformers",
    )


@dataclass(slots=True)
class ScriptedSample:
    """An unfinished completion."""

    seed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: list[float] = field(default_factory=list)  # log-probs, where top-k or top-p cuts
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    finder: StopFinder | None = None  # where there are stop strings

    @classmethod
    def resumed(cls, sampled: Sampled, finder: StopFinder | None) -> ScriptedSample:
        """Continues after the tokens that another worker has generated."""
        if finder is not None and len(sampled.tokens):
            finder.find(sampled.tokens)
        return cls(
            sampled.seed,
            sampled.tokens.tolist(),
            sampled.logprobs.tolist(),
            sampled.side.get(TRUNCATED_LOGPROBS, sampled.logprobs).tolist(),
            sampled.versions.tolist(),
            sampled.finish,
            finder,
        )

    @property
    def unfinished(self) -> bool:
        return self.finish is None

    def sample_token(
        self,
        logprobs_v: np.ndarray,
        version: int,
        sampling: SamplingParams,
        uniform: float | None = None,
    ) -> None:
        """Adds a token, given the log-probs [vocabulary] of the possible next tokens.

        Args:
          uniform: a random number in [0, 1); None: the number of the sample's seed.
        """
        if uniform is None:
            uniform = policy.uniform(self.seed, len(self.tokens))
        token, full, truncated = policy.choose(logprobs_v, uniform, sampling)
        self.tokens.append(token)
        self.logprobs.append(full)
        self.truncated.append(truncated)
        self.versions.append(version)
        told = self.finder is not None and self.finder.find(np.array([token], np.int32))
        if token in sampling.stop_ids or told:
            self.finish = "stop"
        elif len(self.tokens) >= sampling.max_new_tokens:
            self.finish = "length"

    def sampled(self, sampling: SamplingParams) -> Sampled:
        truncated = {TRUNCATED_LOGPROBS: np.array(self.truncated, np.float32)}
        return Sampled(
            seed=self.seed,
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
            finish=self.finish,
            side=truncated if sampling.truncates else EMPTY,
        )


@dataclass(eq=False, slots=True)
class _Asked:
    """An open request.

    Attributes:
      min_version: version that it waits for.
      samples: its samples so far.
      begun: True if it has slots.
    """

    request: Request
    min_version: int
    samples: list[ScriptedSample]
    begun: bool = False
    given_up: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def tokens(self) -> int:
        return sum(len(s.tokens) for s in self.samples)

    def too_old(self, oldest: int) -> bool:
        """True if a token has a version below ``oldest``.

        It is never true of a request for a turn of an episode.
        """
        versions = [s.versions[0] for s in self.samples if s.versions]
        return self.request.key.sample is None and bool(versions) and min(versions) < oldest


def _policy(loaded: Loaded) -> policy.Weights:
    return {name.removeprefix(policy.CONVERTED): value for name, value in loaded.arrays.items()}


class ScriptedEngine(RolloutEngine):
    """Generates every group by itself, one token of each of its samples at a time.

    Unless ``seeded`` is false, a token depends only on the weights, the tokens before it, its
    sample's seed and its place: not on slots, workers or interruptions.

    Args:
      config: the options.
      store: weight store to read versions from.
      section: the run's config: slots, and the treatment of samples on new weights.
      decode: tokens to text, to find stop strings.
      clock: clock for the simulated times.
    """

    def __init__(
        self,
        config: ScriptedConfig,
        store: WeightStore,
        section: RlaxSection,
        decode: Decode = decode,
        clock: Clock | None = None,
    ):
        self._config, self._store, self._decode_text = config, store, decode
        self._rollouts, self._clock = section.rollouts, clock or Clock()
        self._dtypes = policy.version_dtypes(section.weights.rounded)
        self._unseeded = np.random.default_rng()
        self._loaded: Loaded | None = None
        self._changed = asyncio.Condition()
        self._steps_total, self._decode_s = 0, 0.0
        self._active = self._waiting = self._tokens_total = 0
        self._asked: dict[Attempt, _Asked] = {}
        self.reads_memory = config.reads_memory

    @property
    def version(self) -> int:
        return -1 if self._loaded is None else self._loaded.version

    def health(self) -> dict[str, float]:
        return {
            "slots": float(self._rollouts.slots),
            "active": float(self._active),
            "waiting": float(self._waiting),
            "tokens_total": float(self._tokens_total),
            "steps_total": float(self._steps_total),
            "decode_s_total": self._decode_s,
            "silent_tokens": 1.0,
        }

    @property
    def capabilities(self) -> Capabilities:
        """See ``RolloutEngine``: the options, and what all of these engines can do."""
        return Capabilities(
            slots=self._rollouts.slots,
            vocabulary=VOCABULARY,
            side=SIDE_CHANNELS,
            seeded=self._config.seeded,
            logprobs=self._config.logprobs,
            stop_strings=self._config.stop_strings,
            resumes=True,
            scores=True,
            weights_format=self._config.weights_format,
        )

    def progress(self) -> dict[Attempt, int]:
        """See ``RolloutEngine``: a running request's tokens; for a waiting one, all tokens."""
        return {a: o.tokens if o.begun else self._tokens_total for a, o in self._asked.items()}

    def unfinished(self) -> dict[Attempt, int]:
        """See ``RolloutEngine``."""
        return {a: sum(s.unfinished for s in o.samples) for a, o in self._asked.items()}

    def give_up(self, unwanted: Collection[Attempt], oldest: int) -> dict[Attempt, tuple[int, ...]]:
        """See ``RolloutEngine``."""
        found: dict[Attempt, tuple[int, ...]] = {}
        for attempt, one in self._asked.items():
            trains = attempt[0].purpose == "train"
            unfinished = [s for s in one.samples if s.unfinished]  # none: it is being answered
            if attempt in unwanted or (trains and unfinished and one.too_old(oldest)):
                found[attempt] = tuple(len(s.tokens) for s in unfinished)
                one.given_up = True
                assert one.task is not None
                one.task.cancel()
            elif trains:
                one.min_version = max(one.min_version, oldest)
        return found

    async def load(self, version: WeightVersion) -> Loaded:
        """Reads a version on another thread; see ``RolloutEngine``."""
        await self._clock.sleep(self._config.load_s)
        if self._config.weights_format != NATIVE:
            return await asyncio.to_thread(self._read_converted, version)
        return await asyncio.to_thread(
            read_weights,
            version,
            self._store,
            {name: np.empty(policy.SHAPES[name], dtype) for name, dtype in self._dtypes.items()},
            fingerprint=fingerprint_numpy,
            held=self._loaded,
        )

    def _read_converted(self, version: WeightVersion) -> Loaded:
        (part,) = version.parts
        try:
            arrays = policy.read_converted(Path(part.path))
        except OSError as error:
            raise WeightsUnreadableError(f"{part.path} cannot be read: {error}") from error
        computed = functools.partial(fingerprint_numpy, arrays)
        return Loaded(version.version, arrays, computed, parts=version.parts)

    async def use(self, loaded: Loaded) -> None:
        """See ``RolloutEngine``."""
        async with self._changed:
            self._loaded = loaded
            self._changed.notify_all()

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        """See ``RolloutEngine``."""
        if (loaded := loaded or self._loaded) is None:
            raise WorkerError("there are no weights to score with")
        return policy.sequence_log_probs(_policy(loaded), tokens)

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray]:
        """See ``RolloutEngine``."""
        sampling = SamplingParams(0.0, max_new_tokens=count)
        sample = ScriptedSample(seed=0, tokens=[int(tokens[-1])])
        for _ in range(count):
            (logprobs_v,) = policy.log_probs(_policy(loaded), np.array(sample.tokens[-1:]))
            sample.sample_token(logprobs_v, loaded.version, sampling)
        return np.array(sample.tokens[1:], np.int32), np.array(sample.logprobs, np.float32)

    async def generate(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> None:
        """See ``RolloutEngine``. Cancelling it, at the caller's deadline, ends all its groups."""
        groups = [asyncio.ensure_future(self._group(r, on_reply)) for r in requests]
        try:
            await asyncio.gather(*groups)
        finally:
            for group in groups:
                group.cancel()

    async def _group(
        self, request: Request, on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> None:
        stops, attempt = request.sampling.stop_strings, (request.key, request.attempt)

        def finder() -> StopFinder | None:
            return StopFinder(stops, self._decode_text) if stops else None

        samples = [ScriptedSample.resumed(one, finder()) for one in request.resume]
        samples = samples or [ScriptedSample(seed, finder=finder()) for seed in request.seeds]
        one = self._asked[attempt] = _Asked(request, request.needs_version, samples)
        one.task = asyncio.current_task()
        try:
            await self._accept(one)
            try:
                await self._generate(one, on_reply, finder)
            finally:
                self._active -= len(request.seeds)
                async with self._changed:
                    self._changed.notify_all()
        except asyncio.CancelledError:
            if not one.given_up:
                raise
        finally:
            del self._asked[attempt]

    async def _accept(self, one: _Asked) -> None:
        """Returns once there are weights and slots; a group larger than all slots gets all."""
        size = len(one.request.seeds)

        def ready() -> bool:
            fits = self._active == 0 or self._active + size <= self._rollouts.slots
            return fits and self.version >= one.min_version

        self._waiting += size
        try:
            async with self._changed:
                await self._changed.wait_for(ready)
                self._active += size
                one.begun = True
        finally:
            self._waiting -= size

    async def _generate(
        self,
        one: _Asked,
        on_reply: Callable[[Key, Sequence[Sampled]], None],
        finder: Callable[[], StopFinder | None],
    ) -> None:
        loop, request = asyncio.get_running_loop(), one.request
        mode, loaded = self._rollouts.on_new_weights, self._loaded

        def sampled() -> list[Sampled]:
            return [s.sampled(request.sampling) for s in one.samples]

        await self._clock.sleep(self._config.latency_s)
        reported_s = loop.time()
        while open_samples := [s for s in one.samples if s.unfinished]:
            if mode == "continue" and loop.time() - reported_s >= self._rollouts.progress_s:
                on_reply(request.key, sampled())
                reported_s = loop.time()
            if loaded is not self._loaded and mode != "finish":
                loaded = self._loaded
                if mode == "discard":
                    one.samples = [
                        ScriptedSample(s.seed, finder=finder()) if s.unfinished else s
                        for s in one.samples
                    ]
                    continue
            began_s = loop.time()
            assert loaded is not None, "_accept has waited for it"
            self._decode(request, loaded, open_samples)
            await self._clock.sleep(self._config.token_s)
            self._decode_s += loop.time() - began_s
            self._steps_total += 1
        on_reply(request.key, sampled())

    def _decode(self, request: Request, loaded: Loaded, samples: list[ScriptedSample]) -> None:
        """Generates one token for each of ``samples``."""
        prompt_end = int(request.context[-1])
        previous_n = np.array([s.tokens[-1] if s.tokens else prompt_end for s in samples])
        temperature = request.sampling.temperature or 1.0
        logprobs_nv = policy.log_probs(_policy(loaded), previous_n, temperature)
        for sample, logprobs_v in zip(samples, logprobs_nv, strict=True):
            uniform = None if self._config.seeded else self._unseeded.random()
            sample.sample_token(logprobs_v, loaded.version, request.sampling, uniform)
            if not self._config.logprobs:
                sample.logprobs[-1] = sample.truncated[-1] = 0.0
        self._tokens_total += len(samples)
