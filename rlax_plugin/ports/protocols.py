"""Interfaces of the parts that plug-ins provide: one to four methods each, no implementation.

An instance is made by ``Extension.build`` (see ``hookspecs``). Parts know nothing of each other or
of the controller; deadlines and retries belong to the controller, parts raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from rlax_plugin.config import Choice
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import PluginError
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.types import Key, Prompt, Request, Sampled, Score, WeightVersion

if TYPE_CHECKING:
    import numpy as np


Arrays = Mapping[str, Any]  # variable name -> numpy or JAX array


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a part's ``check`` has found out, for ``rlax check`` to tell.

    Attributes:
      says: title -> what is so, in words.
      memory: what for -> bytes, of all devices of one process together.
      warnings: (config key, one sentence) of what is allowed and yet may not be meant.
      weights_bytes: size of one weight version; None: this part does not know it.
      silent_tokens: of an engine, tokens of one sequence that it decodes at most before a heartbeat
        can tell of them; None: this part does not know it.
    """

    says: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[tuple[str, str]] = ()
    weights_bytes: int | None = None
    silent_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Extension[C: BaseModel]:
    """What a plug-in registers under a name.

    Attributes:
      config_class: pydantic model of the options that stand beside ``name:`` in the config.
      build: called once with the validated options and the run's context; returns the part.
        For objective slots the part is a pure function that JAX may trace.
      check: called by ``rlax check`` only, like ``build``: raises a ConfigError for what the
        options alone do not show, without touching a device; may return ``CheckResult``.
      needs_model: ``build`` wants the run's own model: ``rlax check-plugin`` does not try the part.
      check_start: called like ``check``, by ``rlax check`` also with ``--fast``, and by ``rlax
        train`` before it starts anything: raises a ConfigError for options that contradict the rest
        of the config or have no effect. It takes milliseconds and loads no model.
    """

    config_class: type[C]
    build: Callable[[C, BuildContext], Any]
    check: Callable[[C, BuildContext], CheckResult | None] | None = None
    needs_model: bool = False
    check_start: Callable[[C, BuildContext], None] | None = None


def _no_part(kind: str, choice: Choice, key: str) -> Any:
    raise PluginError(f"{key}: the {kind} {choice.name!r} cannot be built in this process")


def _no_check(kind: str, choice: Choice, key: str) -> None:
    pass


def _no_progress(what: str, done: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What every part may know of the run.

    Attributes:
      run_dir: a local directory for what the part keeps: the run's own, or the local stand-in of
        one on an object store. Exists only in processes that own the run.
      run_url: the run's directory as the config gives it, a path or an fsspec URL. What a part
        makes before step 1 and another config could not use belongs into its folder ``PREPARED``.
      replays: in ``rlax replay``, path or URL of the run that is trained again, whose ``PREPARED``
        is used.
      seed: ``rlax.seed``.
      section: the whole validated ``rlax:`` section (``rlax_plugin.config.RlaxSection``).
      config: the whole resolved config, for parts that need MaxText's keys (``config.maxtext``);
        None where there is only a section, such as in reward processes.
      part: (kind, choice, dotted config key) -> another part of the config, built; for parts that
        are made of others, such as a trainer.
      check_part: (kind, choice, dotted config key): runs the ``check_start`` of another part; for
        the ``check_start`` of parts that are made of others.
      progress: (what, how far) is shown to whoever waits, where somebody does; any thread may call
        it.
    """

    run_dir: Path
    seed: int
    section: Any
    config: ResolvedConfig | None = None
    run_url: str = ""
    replays: str = ""
    part: Callable[[str, Choice, str], Any] = _no_part
    check_part: Callable[[str, Choice, str], None] = _no_check
    progress: Callable[[str, int], None] = _no_progress

    @classmethod
    def outside_run(cls, section: Any, config: ResolvedConfig | None = None) -> BuildContext:
        """For a process that owns no run: what parts keep there is not meant to be found again."""
        return cls(Path(), section.seed, section, config)

    @property
    def maxtext(self) -> Mapping[str, Any]:
        """MaxText's own keys, as far as the config sets them."""
        return {} if self.config is None else self.config.maxtext


class PromptSource(Protocol):
    """Owns what a prompt is. Deterministic: the same config gives the same prompts everywhere.

    May also have ``encode(text) -> list[int]``, a prompt's tokens: other programs can then ask a
    worker with text. It raises a ValueError for text that it cannot encode. And it may have
    ``answer(completion) -> str | None``, the answer that a completion gives, if any, for
    majority@k; without it a completion is its own answer. ``encode_given(text) -> list[int]`` gives
    the tokens of a text that an environment gives the policy behind a completion, such as the
    result of a tool, with whatever the model expects around it; what was sampled before is not
    encoded again. ``encode_messages(messages, after) -> list[int]`` does so for messages of a chat
    behind a completion with the tokens ``after``, up to where the policy answers next; where
    ``after`` is None, the messages begin a sequence. Both raise a ValueError for what they cannot
    encode.

    ``stop_strings``, a tuple of texts, ends samples as ``stop_ids`` do: with the first token at
    which ``decode`` of all tokens contains one of them. That token trains; the text that rewards
    and people read ends before the string. ``tokenizer``, an ``rlax_plugin.api.Tokenizer``, says
    whose ids these are, and is held against the model's. ``rlax_plugin.api.TextSource`` has all of
    this.
    """

    def prompts(self, split: str) -> Sequence[Prompt]:
        """All prompts of "train", "validation" or "test", in a fixed order.

        Raises:
          ConfigError: there is no such split.
        """
        ...

    def decode(self, tokens: np.ndarray) -> str:
        """Text of completion tokens, without stop or padding tokens."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a completion."""
        ...


class Reward(Protocol):
    """Scores completions. Runs in a process of its own, without JAX. May be slow, may raise.

    It may have another form, told by its methods, the first of which counts:

    - ``score_group(prompt, episodes) -> Sequence[float | Score]`` sees all episodes of a prompt at
      once, in the order of their ``index``, and scores each of them;
    - ``score(prompt, episode) -> float | Score`` sees an ``Episode``: its turns with their tokens,
      and how it ended. Log-probs, versions and side channels are empty, seeds 0, workers unnamed;
    - ``__call__(prompt, completion)``, as below.

    Each may be an ``async def``: then many samples are scored at the same time in one process, and
    it must not block. Any may return a ``Score``: its ``total`` is the reward, ``metrics`` are
    recorded and reported, ``token_rewards`` say what of the total was paid for which token; its
    ``parts`` are ignored. ``prompt.metadata`` is as JSON has it: lists in place of tuples.
    """

    def __call__(self, prompt: Prompt, completion: str) -> float | Score: ...


class RolloutEngine(Protocol):
    """Generates completions. Lives in a worker process; safe to call from the worker's event loop.

    May also have ``progress()``, see below; ``close()``;
    ``services``, names of gRPC services for other programs, with
    ``add_services(server, engine) -> concurrent.futures.Future``, which adds them to the worker's
    server and is done once they answer; and ``client_example(address, token_file) -> str``, a shell
    command that asks such a service (``token_file`` is None where no token is wanted).

    ``progress() -> Mapping[tuple[Key, int], int]`` gives a number for each request on its way, by
    its key and attempt: such as its tokens so far, or while it waits for a slot or a swap of
    weights, what the engine has generated in all. A request whose number stays the same for
    ``rlax.deadlines.group_s`` is sent to another worker. It must not block. Without it, a request
    counts as going on while ``tokens_total`` grows, replies are sent, or weights are loaded.

    A worker awaits ``prepare()``, if there is such a coroutine, before it registers with its
    controller: it returns once the engine is built and its programs are compiled.

    ``decode_greedy(tokens, count, loaded)``, a coroutine, decodes at most ``count`` tokens at
    temperature 0 behind ``tokens``, with the weights of ``loaded`` and by the programs that samples
    are decoded with. It returns the tokens, int32 [n], and their log-probs at temperature 1,
    float32 [n], which the worker compares with those of ``score``; or None where decoding differs
    from prefill on purpose, as with quantised caches. It may wait until the running samples have
    made way for new weights, and keep others from beginning until ``use`` or ``discard``. Without
    it, decoding is not verified.

    ``give_up(unwanted, oldest) -> Mapping[Attempt, Sequence[int]]`` stops what cannot train any
    more; see ``docs/plugin_hooks.md``. Without it, such requests are generated to their end.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do: told when its worker registers, and again when it has changed."""
        ...

    async def generate(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> None:
        """Generates; calls ``on_reply(key, samples)`` on the event loop as each request ends.

        Requests wait inside the engine until it holds their ``min_version``. One that stood still
        is asked for again with another ``attempt``, perhaps while the first one goes on. With
        ``on_new_weights: continue`` the engine also reports unfinished ones every ``progress_s``:
        then some of the samples have no ``finish``, and the request goes on.
        """
        ...

    async def load(self, version: WeightVersion) -> Loaded:
        """Reads a version into buffers beside those in use; ``read_weights`` does most of it.

        Parts that the weights in use have as well need not be read again, see ``Loaded``.

        What runs goes on with the weights in use. An engine with room for one set of weights may
        pause its samples, as ``on_new_weights`` says, until ``use``, ``discard`` or another
        ``load``. The worker then verifies what was loaded, and never has wrong weights used.

        Raises:
          WeightsUnreadableError: the store could not read them, see ``WeightStore.load``.
          WeightsError: they are damaged, or belong to another model. In both cases the old weights
            stay in use.
        """
        ...

    async def use(self, loaded: Loaded) -> None:
        """Makes verified weights those in use; samples are treated as ``on_new_weights`` says.

        Returns once they are. Nothing is generated with them before.
        """
        ...

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        """Log-probs by prefill, as the engine computes them for a prompt, of tokens[1:].

        Args:
          tokens: int32 [n + 1].
          loaded: whose weights are scored with; None: those in use.

        Returns:
          float32 [n], nats at temperature 1; element t belongs to ``tokens[t + 1]`` given
          ``tokens[: t + 1]``.

        Raises:
          ValueError: the engine cannot take so many tokens, or so few.
        """
        ...

    @property
    def version(self) -> int:
        """The weight version in use; -1 before the first."""
        ...

    def health(self) -> dict[str, float]:
        """slots, active, waiting, tokens_total; raises if the engine's thread has died.

        With these as well a run can tell before a deadline expires that it will: steps_total and
        decode_s_total, decode steps and the seconds that they took; silent_tokens, see
        ``CheckResult``.
        """
        ...


class WeightStore(Protocol):
    """Keeps the bytes of weight versions, part by part. A part is visible whole or not at all.

    Which error is raised decides what happens next. A failing disk or network passes and is tried
    again until ``rlax.deadlines.weights_s``; wrong bytes quarantine the worker that read them. So a
    store raises a plain ``WeightsError`` from ``load`` only for bytes that it has read and found to
    be wrong, and leaves everything that it is not sure of to the first kind.
    """

    def save(self, path: str, arrays: Arrays) -> None:
        """Writes all arrays under a new directory ``path``, atomically. Blocking, thread-safe.

        Raises:
          WeightsUnwritableError: the disk or the network failed; an ``OSError`` counts as one. The
            same arrays are then saved again, to another path.
          WeightsError: the path exists, or the arrays cannot be stored.
        """
        ...

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        """Reads arrays with the shapes, dtypes and shardings of ``like``, checksums verified.

        Raises:
          WeightsUnreadableError: the bytes could not be had: access was denied, a connection broke
            or timed out, a limit was reached, or there is no such version (any more). Every other
            exception that is no ``RlaxError``, such as an ``OSError``, counts as one.
          WeightsError: the bytes were read and are wrong: a checksum failed, a file is shorter than
            it was or cannot be decoded, or names, shapes or dtypes are not those of ``like``.
        """
        ...

    def delete(self, path: str) -> None:
        """Removes a part, and what a ``save`` of it that was killed has left; silent if gone.

        Raises:
          WeightsError: it cannot be removed now; this is tried again with the next version.
        """
        ...


class Launcher(Protocol):
    """Brings worker processes up. Called on the controller's event loop.

    May also have ``stop_s``, the seconds that ``stop`` takes at most; without it that is 60.
    """

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        """Starts workers: ``rlax serve --controller CONTROLLER --token-file TOKEN_FILE``.

        The controller hands them the config.

        Args:
          controller: host:port.
          run_dir: see ``BuildContext``; for logs.
          token_file: absolute path of the file that lets a worker in. Hand on the file, never
            what is in it, as an argument or in the environment.
        """
        ...

    async def stop(self) -> None:
        """Ends every process it started, politely first; returns when none is left."""
        ...

    @property
    def restarts(self) -> int:
        """How often a worker was started again after it ended by itself."""
        ...


class Tracker(Protocol):
    """Takes metrics. Called on the controller's event loop, so it must return fast."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one RL step, named ``stage/name``.

        A step may come twice. A run that was killed goes on from its last checkpoint, so that its
        next process logs the steps behind that once more: keep one of the two. And the last step
        gets further metrics where an evaluation ends after training: keep both.
        """
        ...

    def close(self) -> str | None:
        """Writes what is left, within a deadline of its own; what was lost, if anything was.

        Called on a thread, while other trackers are closed.
        """
        ...
