"""Interfaces of the parts that plug-ins provide: base classes and protocols.

An instance is made by ``Extension.build`` (see ``hookspecs``). Parts do not know each other or the
controller; parts raise errors, and the controller handles deadlines and retries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from pydantic import BaseModel

from rlax_plugin.base.errors import PluginError
from rlax_plugin.base.types import (
    EMPTY,
    Attempt,
    Episode,
    HostPlace,
    Key,
    Prompt,
    Request,
    Sampled,
    Score,
    SideSpec,
    WeightVersion,
)
from rlax_plugin.config import Choice
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.compiling import CompiledProgram, CompileTarget
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.scaling import ScalingRule

if TYPE_CHECKING:
    from rlax_plugin.base.tokens.chat import Message
    from rlax_plugin.base.tokens.tokenizer import Tokenizer


Arrays = Mapping[str, Any]  # variable name -> numpy or JAX array


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Findings of a part's ``check``, which ``rlax check`` shows.

    Attributes:
      says: title -> finding, in words.
      memory: purpose -> bytes, of all devices of one process together.
      warnings: (config key, one sentence) for settings that are allowed but may be unintended.
      weights_bytes: size of one weight version; None: this part does not know it.
      silent_tokens: for an engine, maximum number of tokens that it decodes for one sequence before
        a heartbeat can report them; None: this part does not know it.
      one_process: for a launcher, True if the trainer's process generates as well.
    """

    says: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[tuple[str, str]] = ()
    weights_bytes: int | None = None
    silent_tokens: int | None = None
    one_process: bool = False


@dataclass(frozen=True, slots=True)
class Extension[C: BaseModel]:
    """A part that a plug-in registers under a name.

    Attributes:
      config_class: pydantic model of the options that stand beside ``name:`` in the config.
      build: called once with the validated options and the run's context; returns the part.
        For objective slots the part is a pure function that JAX may trace.
      check: called only by ``rlax check``, with the same arguments as ``build``: raises a
        ConfigError for faults that the options alone do not show, without touching a device; may
        return ``CheckResult``.
      needs_model: True if ``build`` needs the run's own model; ``rlax check-plugin`` then does not
        try the part.
      check_start: called like ``check``, by ``rlax check`` also with ``--fast``, and by ``rlax
        train`` before it starts anything: raises a ConfigError for options that contradict the rest
        of the config or have no effect; both commands show the warnings that it returns. It takes
        milliseconds and loads no model.
      compile: for a trainer or a rollout engine, called only by ``rlax check --compile``, in a
        process of its own: compiles the programs that the part runs for the chips of the target,
        one after the other.
      side: for a rollout engine, the side channels that its samples may have besides
        ``truncated_logprobs``. A run accepts no others from its workers.
    """

    config_class: type[C]
    build: Callable[[C, BuildContext], Any]
    check: Callable[[C, BuildContext], CheckResult | None] | None = None
    needs_model: bool = False
    check_start: Callable[[C, BuildContext], CheckResult | None] | None = None
    compile: Callable[[C, BuildContext, CompileTarget], Iterable[CompiledProgram]] | None = None
    side: Mapping[str, SideSpec] = EMPTY


def _no_part(kind: str, choice: Choice, key: str) -> Any:
    raise PluginError(f"{key}: the {kind} {choice.name!r} cannot be built in this process")


def _no_check(kind: str, choice: Choice, key: str) -> None:
    pass


def _no_progress(what: str, done: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Facts about the run that every part may use.

    Attributes:
      run_dir: a local directory for the part's files: the run's own, or the local stand-in of one
        on an object store. Exists only in processes that own the run.
      run_url: the run's directory as given in the config, a path or an fsspec URL. Files that a
        part makes before step 1 and that another config could not use belong into its folder
        ``PREPARED``.
      replays: in ``rlax replay``, path or URL of the run that is trained again, whose ``PREPARED``
        is used.
      seed: ``rlax.seed``.
      section: the whole validated ``rlax:`` section (``rlax_plugin.config.RlaxSection``).
      config: the whole resolved config, for parts that need MaxText's keys (``config.maxtext``);
        None if there is only a section. In reward processes it has no ``content``.
      part: (kind, choice, dotted config key) -> another part of the config, built; for parts that
        consist of others, such as a trainer.
      check_part: (kind, choice, dotted config key): runs the ``check_start`` of another part; for
        the ``check_start`` of parts that consist of others.
      functions: file of a key ``function``, as the config names it -> the file to execute.
      progress: (task, progress) is shown to the user, if the command shows progress; any thread
        may call it.
      hosts: the place of this process among the hosts of the trainer; None: hosts are not spoken
        of, so the trainer is one process with all devices that it finds.
      generating: for a rollout engine: each of its computations on devices happens inside a block
        of ``with generating():``, which waits while the trainer of the same process computes. In a
        process of its own it never waits.
    """

    run_dir: Path
    seed: int
    section: Any
    config: ResolvedConfig | None = None
    run_url: str = ""
    replays: str = ""
    part: Callable[[str, Choice, str], Any] = _no_part
    check_part: Callable[[str, Choice, str], None] = _no_check
    functions: Mapping[str, str] = field(default_factory=dict)
    progress: Callable[[str, int], None] = _no_progress
    hosts: HostPlace | None = None
    generating: Callable[[], AbstractContextManager[None]] = nullcontext

    @classmethod
    def outside_run(cls, section: Any, config: ResolvedConfig | None = None) -> BuildContext:
        """Context for a process that owns no run; files that parts keep there are temporary."""
        functions = {} if config is None else config.functions
        return cls(Path(), section.seed, section, config, functions=functions)

    @property
    def maxtext(self) -> Mapping[str, Any]:
        """MaxText's own keys that the config sets."""
        return {} if self.config is None else self.config.maxtext


class PromptSource(ABC):
    """Base class of prompt sources: owns the identity of prompts.

    The same config gives the same prompts in every process. ``rlax_plugin.api.TextSource`` has most
    of the optional members.

    Attributes:
      stop_strings: texts at which a sample ends as well: with the first token at which ``decode``
        of all its tokens contains one. That token is trained; the text for rewards and displays
        ends before the string.
      tokenizer: tokenizer of the token ids, which is compared with the model's; None: not known.
      splits: names that ``prompts`` accepts; those of the usual three may be missing.
      pad_id: for a trainer's warm start, the token that fills rows up to the batch's length; None:
        the source knows no correct completions.
    """

    stop_strings: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    splits: tuple[str, ...] = ("train", "validation", "test")
    pad_id: int | None = None

    @abstractmethod
    def prompts(self, split: str) -> Sequence[Prompt]:
        """All prompts of "train", "validation" or "test", in a fixed order.

        Raises:
          ConfigError: there is no such split.
        """

    @abstractmethod
    def decode(self, tokens: np.ndarray) -> str:
        """Text of completion tokens, without stop or padding tokens. Any thread."""

    @property
    @abstractmethod
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a completion."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a prompt, including those that precede its text; other programs send texts.

        Raises:
          ValueError: the text cannot be encoded, or the source encodes none.
        """
        raise ValueError("the prompt source has no encode: give tokens, not a text")

    def encode_given(self, text: str) -> list[int]:
        """Tokens of an environment's text after a completion, such as a tool's result.

        They include those that the model expects around it; tokens sampled earlier are not encoded
        again.

        Raises:
          ValueError: the text cannot be encoded, or the source encodes none.
        """
        raise ValueError("the prompt source has no encode_given: give tokens, not a text")

    def encode_messages(
        self,
        messages: Sequence[Message],
        after: np.ndarray | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Tokens of an environment's messages, up to the start of the policy's next answer.

        Args:
          messages: mappings with a role and a content.
          after: tokens of the completion before them; None: the messages begin a sequence.
          tools: descriptions of the conversation's tools, as JSON schemas.

        Raises:
          ValueError: they cannot be encoded, or the source encodes none; or the chat template does
            not read tools.
        """
        raise ValueError("the prompt source has no encode_messages: give tokens or a text")

    def messages(self, prompt: Prompt) -> Sequence[Message]:
        """The chat messages of a prompt, before the policy's first answer.

        Raises:
          ValueError: prompts are no chats.
        """
        raise ValueError("the prompt source has no messages: its prompts are no chats")

    def answer(self, completion: str) -> str | None:
        """The answer, which votes in majority@k; None if the completion contains none."""
        return completion.strip()

    def identity(self) -> Mapping[str, Any]:
        """JSON that stays equal while the data does, such as names, sizes and times of files.

        A resumed run reports what has changed.
        """
        return {}

    def answer_tokens(self, prompt: Prompt) -> np.ndarray:
        """A correct completion, int32 [length], stop token included; needs ``pad_id``."""
        raise NotImplementedError

    def answer_turns(self, prompt: Prompt) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """For each turn of a correct answer the input before it, and the answer; int32 arrays.

        The input before the first answer is empty, because the prompt precedes it.
        """
        return [(np.zeros(0, np.int32), self.answer_tokens(prompt))]

    @property
    def gives_answers(self) -> bool:
        """True if it has ``answer_tokens`` or ``answer_turns``."""
        names = ("answer_tokens", "answer_turns")
        return any(getattr(type(self), n) is not getattr(PromptSource, n) for n in names)

    def right_answer(self, prompt: Prompt) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """``answer_turns``; () if there is no reference and each answer is at most an end token."""
        turns = self.answer_turns(prompt)
        empty = max((len(answer) for _, answer in turns), default=0) <= 1
        return () if empty and not prompt.reference else turns


@runtime_checkable
class Reward(Protocol):
    """Scores completions in a process of its own, without JAX. May be slow, may raise.

    A reward may instead be a ``GroupReward`` or an ``EpisodeReward``; the first match of these
    three decides.

    Each may be an ``async def``: then many samples are scored at the same time in one process, and
    it must not block. Any may return a ``Score``: its ``total`` is the reward, ``metrics`` are
    recorded and reported, ``token_rewards`` assign shares of the total to tokens; its ``parts`` are
    ignored. ``prompt.metadata`` has JSON types: lists in place of tuples.
    """

    def __call__(
        self, prompt: Prompt, completion: str
    ) -> float | Score | Awaitable[float | Score]: ...


@runtime_checkable
class EpisodeReward(Protocol):
    """A reward that sees episodes; see ``Reward``."""

    def score(self, prompt: Prompt, episode: Episode) -> float | Score | Awaitable[float | Score]:
        """The reward of an episode, from its turns with their tokens and its ending.

        Log-probs, versions and side channels are empty, seeds are 0, workers have no names.
        """
        ...


@runtime_checkable
class GroupReward(Protocol):
    """A reward that sees all episodes of a prompt at once; see ``Reward``."""

    def score_group(
        self, prompt: Prompt, episodes: Sequence[Episode]
    ) -> Sequence[float | Score] | Awaitable[Sequence[float | Score]]:
        """The rewards of the episodes, in the order of their ``index``."""
        ...


class RolloutEngine(ABC):
    """Base class of rollout engines, which generate completions in a worker process.

    Called on the worker's event loop, which no method may block.

    Attributes:
      reads_memory: True if ``load`` reads the copies in memory of a version's parts, as
        ``read_weights`` does. A worker on the trainer's machine then need not wait until a version
        is on the disk: its parts have perhaps no files yet.
      services: full names of gRPC services that the engine serves to other programs; clients may
        call these and no others.
    """

    reads_memory: bool = False
    services: Sequence[str] = ()

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The engine's capabilities; reported when its worker registers, and when they change."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The weight version in use; -1 before the first."""

    @abstractmethod
    async def load(self, version: WeightVersion) -> Loaded:
        """Reads a version into buffers beside those in use; ``read_weights`` does most of it.

        Parts that the weights in use have as well need not be read again, see ``Loaded``.

        Running samples continue with the weights in use. An engine with memory for only one set of
        weights may pause its samples, as ``on_new_weights`` says, until ``use``, ``discard`` or
        another ``load``. The worker then verifies the loaded weights, and never lets wrong weights
        be used.

        Raises:
          WeightsUnreadableError: the store could not read them, see ``WeightStore.load``.
          WeightsError: they are damaged, or belong to another model. In both cases the old weights
            stay in use.
        """

    @abstractmethod
    async def use(self, loaded: Loaded) -> None:
        """Puts verified weights into use; samples are treated as ``on_new_weights`` says.

        Returns once they are in use; before that, no token is generated with them.
        """

    @abstractmethod
    async def generate(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> None:
        """Generates; calls ``on_reply(key, samples)`` on the event loop as each request ends.

        Requests wait inside the engine until it holds their ``min_version``. A request that made no
        progress arrives again with another ``attempt``, perhaps while the first still runs. With
        ``on_new_weights: continue`` the engine also reports unfinished requests every
        ``progress_s``: then some of the samples have no ``finish``, and the request continues.
        """

    @abstractmethod
    def health(self) -> dict[str, float]:
        """Reports slots, active, waiting, tokens_total; raises if the engine's thread has died.

        With three optional figures a run can predict that a deadline will expire: steps_total and
        decode_s_total, the decode steps and their duration in seconds; silent_tokens, see
        ``CheckResult``.
        """

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        """Log-probs of tokens[1:], by prefill as for a prompt; only with ``Capabilities.scores``.

        The worker verifies the canary of each weight version with it before the version is used.
        Without it, weights are verified by checksums and fingerprints at most.

        Args:
          tokens: int32 [n + 1].
          loaded: weights to score with; None: those in use.

        Returns:
          float32 [n], nats at temperature 1; element t belongs to ``tokens[t + 1]`` given
          ``tokens[: t + 1]``.

        Raises:
          ValueError: the engine cannot take that many or that few tokens.
        """
        raise NotImplementedError

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Decodes at temperature 0, with the same programs that decode samples.

        Called between ``load`` and ``use``. It may wait until the running samples have made way
        for new weights, and keep others from starting until ``use`` or ``discard``.

        Args:
          tokens: int32 [n], the prefix.
          count: maximum number of tokens to decode.
          loaded: weights to decode with.

        Returns:
          The tokens, int32 [m], and their log-probs at temperature 1, float32 [m], which the
          worker compares with those of ``score``. None, the default, where it cannot decode so, or
          decoding differs from prefill on purpose, as with quantised caches; then no fault in the
          decoding programs is detected.
        """
        return None

    def progress(self) -> Mapping[Attempt, int] | None:
        """A progress number for each open request, by its key and attempt.

        For example its tokens so far, or, while it waits for a slot or for new weights, the total
        number of tokens generated by the engine. A request whose number does not change for
        ``rlax.deadlines.group_s`` is sent to another worker. Called with each heartbeat.

        Returns:
          None, the default: all requests count as progressing while ``tokens_total`` grows, replies
          are sent, or weights are loaded.
        """
        return None

    def unfinished(self) -> Mapping[Attempt, int]:
        """The number of unfinished samples of each open request, by its key and attempt.

        Its worker then gets further requests when samples have ended, although their requests are
        not complete. A request without a number keeps the room of all its samples. Called with each
        heartbeat.
        """
        return {}

    def give_up(
        self, unwanted: Collection[Attempt], oldest: int
    ) -> Mapping[Attempt, Sequence[int]]:
        """Ends requests without a reply; ``docs/plugin_hooks.md`` lists which.

        Args:
          unwanted: keys and attempts of the requests to end.
          oldest: weight version; training requests must not start or continue with older weights.

        Returns:
          For each request that it ended, the number of tokens so far of each unfinished sample.
          By default none ends: all of them run on, and are not used.
        """
        return {}

    async def prepare(self) -> None:  # noqa: B027  most engines are built at once
        """Returns once the engine is built and its programs are compiled.

        Awaited once, before the worker registers, for at most ``rlax.deadlines.startup_s``.

        Raises:
          WorkerError: the engine has failed.
        """

    def preparing(self) -> str:
        """Its activity during ``prepare`` in a word or two, such as compiling, for the terminal.

        Called with the interval of heartbeats.
        """
        return ""

    def close(self) -> None:  # noqa: B027  an engine without a thread has nothing to release
        """Releases everything the engine has started; called once, when its worker ends."""

    def add_services(self, server: Any) -> Future[Any]:
        """Adds ``services`` to the worker's ``grpc.aio.Server``, before the server starts.

        Returns:
          A future that is done once the services answer.
        """
        raise NotImplementedError

    def client_example(self, address: str, token_file: Path | None) -> str:
        """A shell command that calls one of its services; "": none. On a thread, and may raise.

        Args:
          address: host:port.
          token_file: file with the token for clients; None if no token is required.
        """
        return ""


class WeightStore(ABC):
    """Keeps the bytes of weight versions, part by part. A part is visible completely or not at all.

    On a disk, ``load`` needs nothing but the files in a part's directory: a worker may have
    received copies of them, at another path.

    The type of error decides what happens next. A failing disk or network is temporary, and the
    operation is retried until ``rlax.deadlines.weights_s``; wrong bytes quarantine the worker that
    read them. Therefore ``load`` must raise a plain ``WeightsError`` only for bytes that it has
    read and found to be wrong, and a ``WeightsUnreadableError`` in every uncertain case.

    A trainer that consists of several processes ("hosts") needs a store with ``shared_writing``,
    into which they write one version together. Each host passes the same arrays: names, shapes and
    global shardings are equal, and each host holds some of the shards. Host 0 calls ``begin`` and
    sends the directory to the other hosts; all hosts call ``write`` and tell host 0 the number of
    chunks; then host 0 calls ``commit``, or ``abandon`` if a host failed. The store itself never
    waits for another host. Each of these methods has the deadline of ``save`` and raises its
    errors.

    Attributes:
      shared_writing: true if these four methods are there.
    """

    shared_writing: bool = False

    @abstractmethod
    def save(self, path: str, arrays: Arrays) -> None:
        """Writes all arrays to a new directory ``path``, atomically. Blocking, thread-safe.

        Raises:
          WeightsUnwritableError: the disk or the network failed; an ``OSError`` counts as one. The
            same arrays are then saved again, to another path.
          WeightsError: the path exists, or the arrays cannot be stored.
        """

    @abstractmethod
    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        """Reads arrays with the shapes, dtypes and shardings of ``like``; verifies checksums.

        Raises:
          WeightsUnreadableError: the bytes could not be read: access was denied, a connection broke
            or timed out, a limit was reached, or there is no such version (any more). Every other
            exception that is no ``RlaxError``, such as an ``OSError``, counts as one.
          WeightsError: the bytes were read and are wrong: a checksum failed, a file is truncated or
            cannot be decoded, or names, shapes or dtypes are not those of ``like``.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Removes a part and the remains of an interrupted ``save``; silent if there are none.

        Raises:
          WeightsError: it cannot be removed now; deletion is retried with the next version.
        """

    def begin(self, path: str, arrays: Arrays) -> str:
        """Host 0: makes the directory into which every host writes, with the arrays' metadata.

        Returns:
          The location of the directory.

        Raises:
          WeightsError: ``path`` exists, or the arrays cannot be stored.
        """
        raise NotImplementedError

    def write(self, directory: str, arrays: Arrays) -> int:
        """Every host: writes the chunks of its own shards; returns once they are there.

        Never makes the directory.

        Returns:
          The number of chunks written.

        Raises:
          WeightsUnwritableError: the directory does not exist, or was removed meanwhile.
        """
        raise NotImplementedError

    def commit(self, path: str, directory: str, arrays: Arrays, chunks: int) -> None:
        """Host 0: makes the version visible, after all hosts have written.

        Args:
          chunks: sum of the numbers that the hosts' ``write`` returned.

        Raises:
          WeightsError: the version has another number of chunks; nothing becomes visible.
        """
        raise NotImplementedError

    def abandon(self, path: str) -> None:
        """Host 0: removes the remains of a failed attempt; silent if there are none.

        Raises:
          WeightsError: they cannot be removed now; ``delete`` removes them too.
        """
        raise NotImplementedError


class Launcher(ABC):
    """Base class of launchers: starts worker processes. Called on the controller's event loop.

    Attributes:
      restarts: number of times a worker was restarted after it ended by itself.
      stop_s: maximum duration of ``stop``, in seconds.
      failing: worker that it cannot keep running at present -> how often and how it ended, the last
        line of its log, and when it is tried again. The run shows each sentence once, and in its
        status.
      scaling: the rule by which the controller decides on the number of workers; None: it does not.
      colocated: True if each process of the trainer has a worker, on the trainer's devices.
    """

    restarts: int = 0
    stop_s: float = 60.0
    failing: Mapping[str, str] = EMPTY
    scaling: ScalingRule | None = None
    colocated: bool = False

    @abstractmethod
    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        """Starts workers: ``rlax serve --controller CONTROLLER --token-file TOKEN_FILE``.

        The controller sends them the config.

        Args:
          controller: host:port.
          run_dir: see ``BuildContext``; for logs.
          token_file: absolute path of the file that lets a worker in. Pass on the path only, never
            the file's content as an argument or in the environment.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Ends every process it started, first with a request; returns when none is left."""

    def resize(self, workers: int) -> None:
        """Starts or drains workers until there are so many; only called if it has ``scaling``.

        Called after ``start``; must return at once.
        """
        raise NotImplementedError


class Tracker(Protocol):
    """Receives metrics. Called on the controller's event loop, so it must return fast."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one RL step, named ``stage/name``.

        A step may be logged twice. A killed run resumes from its last checkpoint, and its next
        process logs the steps after that checkpoint again: keep one of the two. And the last step
        gets further metrics if an evaluation ends after training: keep both.
        """
        ...

    def close(self) -> str | None:
        """Writes buffered metrics, within its own deadline; returns what was lost, or None.

        Called on a thread, while other trackers are closed.
        """
        ...
