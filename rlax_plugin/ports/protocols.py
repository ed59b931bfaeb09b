"""Interfaces of the parts that plug-ins provide: one to four methods each, no implementation.

An instance is made by ``Extension.build`` (see ``hookspecs``). Parts know nothing of each other or
of the controller; deadlines and retries belong to the controller, parts raise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import BaseModel

from rlax_plugin.config import Choice
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import PluginError
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.types import Episode, Key, Prompt, Request, Sampled, Score, WeightVersion

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

    It may have abilities beyond this, such as to encode texts: see ``source_abilities``.
    ``rlax_plugin.api.TextSource`` has most of them.
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


@runtime_checkable
class Reward(Protocol):
    """Scores completions. Runs in a process of its own, without JAX. May be slow, may raise.

    Or it is a ``GroupReward`` or an ``EpisodeReward``: the first of the three that it is counts.

    Each may be an ``async def``: then many samples are scored at the same time in one process, and
    it must not block. Any may return a ``Score``: its ``total`` is the reward, ``metrics`` are
    recorded and reported, ``token_rewards`` say what of the total was paid for which token; its
    ``parts`` are ignored. ``prompt.metadata`` is as JSON has it: lists in place of tuples.
    """

    def __call__(
        self, prompt: Prompt, completion: str
    ) -> float | Score | Awaitable[float | Score]: ...


@runtime_checkable
class EpisodeReward(Protocol):
    """A reward that sees episodes; see ``Reward``."""

    def score(self, prompt: Prompt, episode: Episode) -> float | Score | Awaitable[float | Score]:
        """The reward of an episode: its turns with their tokens, and how it ended.

        Log-probs, versions and side channels are empty, seeds 0, workers unnamed.
        """
        ...


@runtime_checkable
class GroupReward(Protocol):
    """A reward that sees all episodes of a prompt at once; see ``Reward``."""

    def score_group(
        self, prompt: Prompt, episodes: Sequence[Episode]
    ) -> Sequence[float | Score] | Awaitable[Sequence[float | Score]]:
        """The rewards of the episodes, which are in the order of their ``index``."""
        ...


class WeightLoader(Protocol):
    """The half of a rollout engine that takes up weights."""

    @property
    def version(self) -> int:
        """The weight version in use; -1 before the first."""
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


class RolloutEngine(WeightLoader, Protocol):
    """Generates completions. Lives in a worker process; safe to call from the worker's event loop.

    It may have abilities beyond this, such as to score given tokens or to end requests early: see
    ``engine_abilities``.
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

    It may be a ``TimedLauncher``; else ``stop`` may take 60 seconds.
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


@runtime_checkable
class TimedLauncher(Protocol):
    """A launcher that knows how long it takes to end its processes.

    Attributes:
      stop_s: seconds that ``stop`` takes at most.
    """

    @property
    def stop_s(self) -> float: ...


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
