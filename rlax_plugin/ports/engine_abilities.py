"""Optional abilities of a rollout engine: one small protocol each, told by its members.

An engine has an ability if it has all of the protocol's members; it need not inherit anything.
``rlax check-plugin`` lists those that it has found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.types import Attempt

if TYPE_CHECKING:
    import numpy as np


@runtime_checkable
class TokenScorer(Protocol):
    """An engine that computes the log-probs of given tokens.

    Its worker verifies the canary of each weight version with it before the version is used.
    Without it, weights are verified by checksums and fingerprints at most.
    """

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


@runtime_checkable
class GreedyDecoder(Protocol):
    """An engine whose decoding can be verified as well; needs ``TokenScorer``.

    Without it, a fault of the programs that decode goes unnoticed.
    """

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Decodes at temperature 0, by the programs that samples are decoded with.

        Called between ``load`` and ``use``. It may wait until the running samples have made way
        for new weights, and keep others from beginning until ``use`` or ``discard``.

        Args:
          tokens: int32 [n], to decode behind.
          count: tokens to decode, at most.
          loaded: whose weights are decoded with.

        Returns:
          The tokens, int32 [m], and their log-probs at temperature 1, float32 [m], which the
          worker compares with those of ``score``; None where decoding differs from prefill on
          purpose, as with quantised caches.
        """
        ...


@runtime_checkable
class ProgressReporter(Protocol):
    """An engine that tells how far each request has come.

    Without it, all requests count as going on while ``tokens_total`` grows, replies are sent, or
    weights are loaded.
    """

    def progress(self) -> Mapping[Attempt, int]:
        """A number for each request on its way, by its key and attempt.

        Such as its tokens so far, or while it waits for a slot or a swap of weights, what the
        engine has generated in all. A request whose number stays the same for
        ``rlax.deadlines.group_s`` is sent to another worker. Called with each heartbeat, on the
        event loop; it must not block.
        """
        ...


@runtime_checkable
class RequestCanceller(Protocol):
    """An engine that stops what cannot train any more; else such requests run to their end."""

    def give_up(
        self, unwanted: Collection[Attempt], oldest: int
    ) -> Mapping[Attempt, Sequence[int]]:
        """Ends requests without a reply; ``docs/plugin_hooks.md`` says which.

        Called on the event loop; it must not block.

        Args:
          unwanted: keys and attempts of requests to end.
          oldest: weight version; training requests must not begin, nor go on, with older ones.

        Returns:
          Of each request that it ended, the tokens so far of each unfinished sample.
        """
        ...


@runtime_checkable
class PreparableEngine(Protocol):
    """An engine that takes long to build; its worker registers when it is ready."""

    async def prepare(self) -> None:
        """Returns once the engine is built and its programs are compiled.

        Awaited once, before the worker registers, for at most ``rlax.deadlines.startup_s``.

        Raises:
          WorkerError: the engine has failed.
        """
        ...


@runtime_checkable
class ClosableEngine(Protocol):
    """An engine that holds something, such as a thread, until it is closed."""

    def close(self) -> None:
        """Ends what the engine has started; called once, when its worker ends."""
        ...


@runtime_checkable
class ServiceProvider(Protocol):
    """An engine that also answers other programs, through gRPC services of its own.

    Attributes:
      services: full names of the gRPC services; clients may call these and no others.
    """

    @property
    def services(self) -> Sequence[str]: ...

    def add_services(self, server: Any, engine: Any) -> Future[Any]:
        """Adds the services to the worker's server, before that starts.

        Args:
          server: a ``grpc.aio.Server``.
          engine: this engine.

        Returns:
          Done once the services answer.
        """
        ...


@runtime_checkable
class ExampleProvider(Protocol):
    """An engine with services that can say how to call them."""

    def client_example(self, address: str, token_file: Path | None) -> str:
        """A shell command that asks one of its services; called on a thread, and may raise.

        Args:
          address: host:port.
          token_file: None where no token is wanted.
        """
        ...


ENGINE_ABILITIES = (
    TokenScorer,
    GreedyDecoder,
    ProgressReporter,
    RequestCanceller,
    PreparableEngine,
    ClosableEngine,
    ServiceProvider,
    ExampleProvider,
)
