"""The engine: it sends samples to vLLM's server, and switches its weights between them."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlax_plugin.api import (
    SAFETENSORS,
    AllWaitedFor,
    Attempt,
    BuildContext,
    Capabilities,
    Job,
    Key,
    Loaded,
    Request,
    RolloutEngine,
    Sampled,
    WeightsError,
    WeightsUnreadableError,
    WeightVersion,
    WorkerError,
)
from rlax_vllm.options import TESTED, VllmConfig
from rlax_vllm.server import CALL, START, TOKENS, Chunk, Server

if TYPE_CHECKING:
    from rlax_vllm.model import Model

log = logging.getLogger("rlax.vllm")

_READY_S = 0.2  # between two looks whether the server is up
_STAGED_S = 0.02  # between two looks whether a version is read
_AGAIN_S = 0.5  # after which requests that an abort has missed are aborted again


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of the server, and their label, which no others ever have."""

    version: int
    label: str = ""
    loaded: Loaded | None = None


_NONE = _Weights(-1)


@dataclass(eq=False, slots=True)
class _Running:
    """A sample at the server, with what it has gained there.

    Attributes:
      weights: the weights that it is generated with.
      dropped: True once nobody waits for it.
    """

    job: Job
    index: int
    weights: _Weights
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    task: asyncio.Task[Any] | None = None
    dropped: bool = False

    def sampled(self, finish: Literal["stop", "length"] | None) -> Sampled:
        """The sample with all its tokens, also those from before this request."""
        before = self.job.samples[self.index]
        versions = np.full(len(self.tokens), self.weights.version, np.int32)
        return Sampled(
            before.seed,
            np.concatenate([before.tokens, np.array(self.tokens, np.int32)]),
            np.concatenate([before.logprobs, np.array(self.logprobs, np.float32)]),
            np.concatenate([before.versions, versions]),
            finish,
        )


class VllmEngine(RolloutEngine):
    """Rollout engine over one of vLLM's servers, which holds one set of weights.

    Each sample is a request of its own, with its own seed; no more than ``slots`` are at the server
    at a time. A sample that goes on after new weights, or that another worker began, is sent again
    as prompt and tokens; its seed is then made of its own and the position, so that it differs from
    an undisturbed one.

    New weights are read into host memory while samples run. ``score`` with them switches: running
    samples end (``rollouts.on_new_weights`` says how), the weights are loaded, the prefix cache is
    emptied, the canary is scored. ``use`` then lets samples run again; ``discard`` switches back.
    If that fails, or the server ends, is silent or says what cannot be, the engine has failed: the
    worker ends, its launcher starts another, and its requests go elsewhere.

    Args:
      make_model: describes the model; called on a thread.
      make_arguments: (model, its directory) -> arguments of the server.
    """

    def __init__(
        self,
        config: VllmConfig,
        context: BuildContext,
        make_model: Callable[[], Model],
        make_arguments: Callable[[Model, str], list[str]],
    ):
        section = context.section
        self._config, self._rollouts, self._deadlines = config, section.rollouts, section.deadlines
        self._context_tokens = section.max_context_tokens + section.rollouts.max_new_tokens
        self._make_model, self._make_arguments = make_model, make_arguments
        self._model: Model | None = None
        self._server: Server | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._waited_for = AllWaitedFor()
        self._jobs: list[Job] = []  # open ones, in the order of arrival
        self._running: set[_Running] = set()
        self._ended = asyncio.Event()  # a sample is not at the server any more
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error: WorkerError | None = None
        self._tokens_total = 0
        self._switching = asyncio.Lock()
        self._tickets = itertools.count(1)
        self._process = os.urandom(4).hex()
        # The weights in use, in the model, and in the server's host memory, with their labels.
        self._used, self._applied, self._staged = _NONE, _NONE, _NONE
        self._discarding: asyncio.Task[Any] | None = None

    # --- the server

    async def prepare(self) -> None:
        """Starts the server and waits until it answers; see ``RolloutEngine``."""
        if self._preparing is None:
            self._preparing = asyncio.ensure_future(self._prepare())
        await asyncio.shield(self._preparing)
        self._raise_if_failed()

    def preparing(self) -> str:  # the config is read before the server is started
        return "importing" if self._server is None else "starting vLLM"

    async def _prepare(self) -> None:
        loop, deadlines = asyncio.get_running_loop(), self._deadlines
        self._model = model = await asyncio.to_thread(self._make_model)
        arguments: list[str] = []
        if self._config.python:
            directory = tempfile.mkdtemp(prefix="rlax-vllm-")  # only this user may enter it
            try:
                model.write(Path(directory) / "model")
                arguments = self._make_arguments(model, str(Path(directory) / "model"))
            except BaseException:  # no server will remove it
                shutil.rmtree(directory, ignore_errors=True)
                raise
        else:
            directory = ""

        def on_end(reason: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._fail, WorkerError(reason))

        self._server = server = Server(
            python=self._config.python,
            url=self._config.url,
            directory=directory,
            arguments=arguments,
            vocabulary=model.vocabulary,
            connections=self._rollouts.slots + 8,
            limits={
                CALL: deadlines.weights_s,
                TOKENS: deadlines.batch_s,
                START: deadlines.startup_s,
            },
            on_end=on_end,
        )

        while not await server.healthy():  # the caller waits for rlax.deadlines.startup_s
            await asyncio.sleep(_READY_S)
            self._raise_if_failed()
        self._check_server(await server.call("rlax_describe"))
        # The first request compiles what later ones run.
        await server.score(np.zeros(2, np.int32), "none", limit=START)
        if self._rollouts.on_new_weights == "continue":
            self._start(self._report())

    def _check_server(self, said: Mapping[str, Any]) -> None:
        """Checks that the server computes what this engine promises.

        Raises:
          WorkerError: it does not; names the argument.
        """
        assert self._model is not None
        wanted = {
            "vocabulary": self._model.vocabulary,
            "dtype": self._model.dtype,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "quantization": "",
            "speculative": False,
        }
        for name, value in wanted.items():
            if said.get(name) != value:
                what = f"vLLM's server has {name} {said.get(name)!r}, not {value!r}"
                option = "dtype" if name == "dtype" else "url"
                raise WorkerError(f"{what}: see rlax.rollouts.engine.{option}")
        for name, least, key in (
            ("context", self._context_tokens + 1, "rlax.rollouts.engine.url"),
            ("sequences", self._rollouts.slots, "rlax.rollouts.slots"),
        ):
            if not isinstance(number := said.get(name), int) or number < least:
                what = f"vLLM's server has {name} {number!r}, and {least} are needed"
                raise WorkerError(f"{what}: see {key}")
        if (version := str(said.get("vllm"))) not in TESTED:
            log.warning("vLLM %s was not tested with rlax_vllm: %s", version, ", ".join(TESTED))

    def _fail(self, error: WorkerError) -> None:
        """Ends the engine; all that wait for it get the error."""
        if self._error is not None:
            return
        self._error = error
        log.error("the rollout engine failed: %s", error)
        for one in self._running:
            if one.task is not None and one.task is not asyncio.current_task():
                one.task.cancel()
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.fail(error)
        self._ended.set()

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a task whose errors end the engine; its result is then None."""

        async def run() -> Any:
            try:
                return await work
            except WorkerError as error:
                self._fail(error)
            except Exception as error:  # nobody else would see it
                log.exception("a task of the rollout engine failed")
                self._fail(WorkerError(f"the engine failed: {type(error).__name__}: {error}"))

        def end(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            work.close()  # it was not begun if the task was cancelled before its first step

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(end)
        return task

    def close(self) -> None:
        """Ends the server's processes; see ``RolloutEngine``."""
        self._error = self._error or WorkerError("rollout engine: closed")
        for task in self._tasks:
            with suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)
        if self._server is not None:
            self._server.close()

    # --- samples

    async def generate(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> None:
        """See ``RolloutEngine``. Cancelling it aborts its samples.

        Raises:
          WorkerError: the engine has failed, or cannot generate what is asked.
        """
        for request in requests:
            sampling = request.sampling
            if sampling.truncates or sampling.stop_strings or 0 < sampling.temperature < 0.01:
                # top_p and top_k change what a log-prob means; vLLM makes a temperature 0.01.
                what = "top_p, top_k, stop strings, or temperatures between 0 and 0.01"
                raise WorkerError(f"{request.key}: the engine vllm takes no {what}")
        await self.prepare()
        if not requests:
            return
        try:
            with self._waited_for.waiting(requests, on_reply) as waited_for:
                for job in waited_for.jobs:
                    if job.complete:
                        job.deliver(job.samples)
                    else:
                        self._jobs.append(job)
                self._pump()
                await waited_for.ended
        finally:
            self._pump()

    def _pump(self) -> None:
        """Ends what nobody waits for, and starts what may start."""
        self._jobs = [job for job in self._jobs if not (job.complete or job.unwanted)]
        for one in self._running:
            if one.job.unwanted and not one.dropped and one.task is not None:
                one.dropped = True
                one.task.cancel()
        if self._used is _NONE or self._used is not self._applied or self._error is not None:
            return  # no sample starts while weights are switched and verified
        for job in self._jobs:
            while (
                job.waiting
                and job.min_version <= self._used.version
                and len(self._running) < self._rollouts.slots
            ):
                one = _Running(job, job.waiting.pop(0), self._used)
                self._running.add(one)
                one.task = self._start(self._generate(one))
                one.task.add_done_callback(functools.partial(self._end, one))

    def _end(self, one: _Running, task: asyncio.Task[Any]) -> None:
        """Takes what a sample has gained, if anything; a task may end before its first step."""
        self._running.discard(one)
        job, finish = one.job, None if task.cancelled() else task.result()
        if finish == "abort":
            keeps = self._rollouts.on_new_weights == "continue"
            job.interrupt(one.index, one.sampled(None) if keeps else None)
        elif finish is not None:
            job.samples[one.index] = one.sampled(finish)
            if job.complete:
                job.deliver(job.samples)
        self._ended.set()
        self._pump()

    async def _generate(self, one: _Running) -> Any:
        """Generates one sample; returns how it ended."""
        request, before = one.job.request, one.job.samples[one.index]
        sampling, position = request.sampling, len(before.tokens)
        finish = None
        chunks = self._read(
            np.concatenate([request.context, before.tokens]),
            one.weights.label,
            sampling.max_new_tokens - position,
            sampling.stop_ids,
            temperature=sampling.temperature,
            seed=seed_at(before.seed, position),
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                one.tokens += chunk.tokens.tolist()
                one.logprobs += chunk.logprobs.tolist()
                self._tokens_total += len(chunk.tokens)
                finish = chunk.finish
        return finish

    async def _read(
        self, prompt: np.ndarray, label: str, most: int, stop_ids: Sequence[int], **sampling: Any
    ) -> AsyncGenerator[Chunk]:
        """Reads one stream to its end, and checks it; only the last chunk has a ``finish``."""
        assert self._server is not None
        count, stopped = 0, False
        stream = self._server.sample(
            prompt, label, max_tokens=most, stop_token_ids=list(stop_ids), **sampling
        )
        async with aclosing(stream):
            async for chunk in stream:
                if stopped and len(chunk.tokens):
                    raise WorkerError("vLLM went on behind the end of a sample")
                stops = [i for i, t in enumerate(chunk.tokens.tolist()) if t in stop_ids]
                count += len(chunk.tokens)
                stopped = stopped or bool(stops)
                if count > most or (stops and stops[0] != len(chunk.tokens) - 1):
                    raise WorkerError("vLLM went on behind the end of a sample")
                if chunk.finish is not None:
                    ended = "stop" if stopped else "length" if count == most else "abort"
                    if chunk.finish != ended:
                        what = f"{count} of {most} tokens, {'a' if stopped else 'no'} stop id"
                        raise WorkerError(f"vLLM says {chunk.finish} after {what}")
                    expected = ((label, 0, count),) if count else ()
                    if chunk.spans != expected:
                        what = f"weights {chunk.spans}, and {expected} are in use"
                        raise WorkerError(f"vLLM generated with {what}")
                yield chunk
                if chunk.finish is not None:
                    return
        raise WorkerError("vLLM ended the answer of a sample early")

    async def _report(self) -> None:
        """Reports unfinished requests every ``progress_s``."""
        while True:
            await asyncio.sleep(self._rollouts.progress_s)
            for job in self._jobs:
                running = {one.index: one for one in self._running if one.job is job}
                samples = [
                    running[i].sampled(None) if i in running else sample
                    for i, sample in enumerate(job.samples)
                ]
                if not job.complete:
                    job.report(samples)

    def give_up(self, unwanted: Collection[Attempt], oldest: int) -> dict[Attempt, tuple[int, ...]]:
        """See ``RolloutEngine``."""
        at_server: dict[Job, dict[int, tuple[int, int]]] = {}
        for one in self._running:
            at_server.setdefault(one.job, {})[one.index] = one.weights.version, len(one.tokens)
        found = self._waited_for.give_up(unwanted, oldest, at_server)
        self._pump()
        return found

    def unfinished(self) -> Mapping[Attempt, int]:
        """See ``RolloutEngine``."""
        return self._waited_for.unfinished()

    def progress(self) -> dict[Attempt, int]:
        """See ``RolloutEngine``: a running request's tokens; for a waiting one, all tokens."""
        figures: dict[Job, int] = {}
        for one in self._running:
            known = figures.get(one.job, sum(len(s.tokens) for s in one.job.samples))
            figures[one.job] = known + len(one.tokens)
        return {
            (job.request.key, job.request.attempt): figures.get(job, self._tokens_total)
            for job in self._jobs
        }

    # --- weights

    async def load(self, version: WeightVersion) -> Loaded:
        """Reads a version into the server's host memory, while samples run.

        Raises:
          WeightsError, WeightsUnreadableError: see ``RolloutEngine``.
          WorkerError: the server has failed.
        """
        await self.prepare()
        assert self._server is not None and self._model is not None
        for part in version.parts:
            if part.format != SAFETENSORS:
                what = f"its part {part.name} has format {part.format}, and vLLM reads safetensors"
                raise WeightsError(f"version {version.version}: {what}")
        check_model(version, self._model.shapes)
        files = await asyncio.to_thread(_files, version)
        ticket = f"{version.version}-{self._process}-{next(self._tickets)}"
        wanted = {n: [list(spec.shape), spec.dtype] for n, spec in version.tensors.items()}
        if self._discarding is not None:
            await asyncio.shield(self._discarding)
        said = await self._server.call("rlax_stage", ticket, files, wanted)
        if self._applied is not _NONE and said.get("applied") != self._applied.label:
            what = "a server serves one worker (rlax.rollouts.engine.url)"
            raise WorkerError(f"another worker has switched the weights of vLLM's server: {what}")
        # Each of vLLM's workers reads the version, in its own time.
        staged = await self._server.answers("rlax_staged", ticket)
        while not all(said.get("done") for said in staged):
            await asyncio.sleep(_STAGED_S)
            staged = await self._server.answers("rlax_staged", ticket)
        for said in staged:
            if reason := said.get("error"):
                kind = WeightsUnreadableError if said.get("unreadable") else WeightsError
                raise kind(f"version {version.version}: {reason}")
        found = [said.get("fingerprints") for said in staged]
        if not isinstance(fingerprints := found[0], dict) or fingerprints.keys() != wanted.keys():
            raise WorkerError("vLLM: the fingerprints are not those of what was staged")
        if any(one != fingerprints for one in found):
            raise WorkerError("vLLM: its workers have staged different weights")
        arrays = {n: _Tensor(s.shape, np.dtype(s.dtype)) for n, s in version.tensors.items()}
        loaded = Loaded(
            version.version, arrays, lambda: fingerprints, functools.partial(self._discard, ticket)
        )
        self._staged = _Weights(version.version, ticket, loaded)
        return loaded

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        """See ``RolloutEngine``; with weights that are not in use, it switches to them."""
        self._check_scored(tokens)
        await self._switch_to(loaded)
        assert self._server is not None
        return await self._server.score(np.asarray(tokens, np.int32), self._applied.label)

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray]:
        """See ``RolloutEngine``."""
        self._check_scored(tokens)
        await self._switch_to(loaded)
        prompt, label = np.asarray(tokens, np.int32), self._applied.label
        read = self._read(prompt, label, count, (), temperature=0.0)
        async with aclosing(read):
            chunks = [chunk async for chunk in read]
        if chunks[-1].finish == "abort":
            raise WorkerError("vLLM has aborted a sample that nobody else may abort")
        found, logprobs = [c.tokens for c in chunks], [c.logprobs for c in chunks]
        return np.concatenate(found), np.concatenate(logprobs)

    def _check_scored(self, tokens: np.ndarray) -> None:
        if not 1 <= len(tokens) <= self._context_tokens:
            raise ValueError(f"{len(tokens)} tokens, vLLM takes 1 to {self._context_tokens}")
        most = self.capabilities.vocabulary
        if most and not (int(np.min(tokens)) >= 0 and int(np.max(tokens)) < most):
            raise ValueError(f"a token id is not below the vocabulary of {most}")

    async def _switch_to(self, loaded: Loaded | None) -> None:
        await self.prepare()
        if loaded is None and self._used is _NONE:
            raise WorkerError("there are no weights to score with")
        # Shielded: what has begun ends, so that the weights in the model stay known.
        await asyncio.shield(self._start(self._switch(loaded)))
        self._raise_if_failed()

    async def _switch(self, loaded: Loaded | None) -> None:
        async with self._switching:
            if loaded is None or loaded is self._applied.loaded:
                return
            if loaded is not self._staged.loaded:
                raise WorkerError(f"version {loaded.version} is not staged any more")
            self._applied, self._staged = self._staged, _NONE
            await self._interrupt()
            await self._apply("rlax_switch", self._applied.label)

    async def _apply(self, method: str, *arguments: str) -> None:
        """Loads weights into the model, and makes sure that nothing of the earlier is left."""
        assert self._server is not None
        server, label = self._server, self._applied.label
        said = await server.call(method, *arguments)
        if said.get("applied") != label:
            raise WorkerError(f"vLLM's model has weights {said.get('applied')!r}, not {label!r}")
        await server.post("/update_weight_version", {"new_version": label})
        until_s = time.monotonic() + self._deadlines.weights_s
        while True:  # blocks of aborted samples may be in use for a moment yet
            emptied = await server.post("/reset_prefix_cache", {})
            if isinstance(emptied, dict) and emptied.get("success") is True:
                return
            if time.monotonic() > until_s:
                what = f"emptied in {self._deadlines.weights_s:g} s ({CALL}): its blocks are in use"
                raise WorkerError(f"vLLM's prefix cache could not be {what}")
            await asyncio.sleep(_READY_S)

    async def _interrupt(self) -> None:
        """Returns once no sample is at the server; they end as ``on_new_weights`` says."""
        assert self._server is not None
        finishes, until_s = self._rollouts.on_new_weights == "finish", 0.0
        while self._running:
            self._raise_if_failed()
            self._ended.clear()
            if not finishes:
                until_s = until_s or time.monotonic() + self._deadlines.weights_s
                if time.monotonic() > until_s:
                    what = f"{self._deadlines.weights_s:g} s ({CALL})"
                    raise WorkerError(f"vLLM did not abort {len(self._running)} samples in {what}")
                await self._server.post("/abort_requests", {})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _AGAIN_S)

    async def use(self, loaded: Loaded) -> None:
        """See ``RolloutEngine``; it switches, unless ``score`` has."""
        await self._switch_to(loaded)
        self._used = self._applied
        self._pump()

    def _discard(self, label: str) -> None:
        if self._error is None:
            self._discarding = self._start(self._switch_back(label))

    async def _switch_back(self, label: str) -> None:
        assert self._server is not None
        async with self._switching:
            if label == self._staged.label:
                self._staged = _NONE
                await self._server.call("rlax_drop")
            elif label == self._applied.label != self._used.label:
                self._applied = self._used
                await self._apply("rlax_back")
        self._pump()

    @property
    def version(self) -> int:
        return self._used.version

    @property
    def capabilities(self) -> Capabilities:
        """See ``RolloutEngine``; the vocabulary is known once the config was read."""
        return Capabilities(
            slots=self._rollouts.slots,
            vocabulary=self._model.vocabulary if self._model else 0,
            context_tokens=self._context_tokens,
            seeded=True,
            logprobs=True,
            resumes=True,
            scores=True,
            weights_format=SAFETENSORS,
        )

    def health(self) -> dict[str, float]:
        """Figures.

        Raises:
          WorkerError: the engine has failed.
        """
        self._raise_if_failed()
        return {
            "slots": float(self._rollouts.slots),
            "active": float(len(self._running)),
            "waiting": float(sum(len(job.waiting) for job in self._jobs)),
            "tokens_total": float(self._tokens_total),
        }


def seed_at(seed: int, position: int) -> int:
    """The seed of a request for a sample that has ``position`` tokens.

    A request begins its seed's stream anew, so a sample that goes on needs another one than it
    began with. On CPUs only the lower 32 bits of a seed count.
    """
    if position == 0:
        return seed
    text = f"{seed} {position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def check_model(version: WeightVersion, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compares the names and shapes of a version with those of the model that vLLM has.

    Raises:
      WeightsError: they differ; names the first difference.
    """
    found = {name: spec.shape for name, spec in version.tensors.items()}
    for name in sorted(found.keys() | shapes.keys()):
        if found.get(name) != shapes.get(name):
            is_, must = found.get(name, "missing"), shapes.get(name, "missing")
            what = f"tensor {name!r} is {is_} in it, and {must} in the model that vLLM runs"
            raise WeightsError(f"version {version.version}: {what}")


def _files(version: WeightVersion) -> list[str]:
    """The safetensors files of all parts.

    Raises:
      WeightsUnreadableError: a directory has none.
    """
    found = []
    for path in version.paths:
        try:
            names = sorted(p.name for p in Path(path).iterdir() if p.suffix == ".safetensors")
        except OSError as error:
            raise WeightsUnreadableError(f"{path} cannot be read: {error}") from error
        if not names:
            raise WeightsUnreadableError(f"{path} has no safetensors file")
        found += [os.path.join(path, name) for name in names]
    return found
