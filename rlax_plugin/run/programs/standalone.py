"""``rlax serve RUN``: a trained run's weights for other programs, without a trainer.

The weights are verified as in training: names, shapes, checksums, fingerprints, canary, decoding.
The run's directory stays unchanged. Clients speak gRPC, the engine's own service, or HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.errors import ConfigError, DeadlineError, WeightsUnreadableError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.text.logs import log_to
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.build import build_part
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import ResolvedConfig, of_yaml
from rlax_plugin.config.network import ADVERTISED, HOST, Place, check_page_is_local
from rlax_plugin.data.prompts.source import example_prompt
from rlax_plugin.ports.protocols import BuildContext, PromptSource, RolloutEngine
from rlax_plugin.rollout.http.engine_policy import EnginePolicy
from rlax_plugin.rollout.http.serving import ServedHttp, check_http
from rlax_plugin.rollout.worker.endpoint import Endpoint, Scrapes
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rpc.transport.doors import check_open
from rlax_plugin.run.programs.engine import run as run_engine
from rlax_plugin.weights.kept_versions import kept_version
from rlax_plugin.weights.verification import take_version

log = logging.getLogger("rlax.worker")

NAME = "standalone"

_STREAMED = ("rlax.rollouts.on_new_weights=continue", "rlax.rollouts.progress_s=0.1")
"""With these an engine reports samples as they grow; here the weights never change."""


def serve_run(
    run: str,
    overrides: Sequence[str] = (),
    *,
    host: str | None = None,
    advertised_host: str = "",
    port: int = 0,
    http_port: int | None = None,
    version: int | None = None,
    prometheus_port: int | None = None,
    open_to_all: bool = False,
    token_file: Path | None = None,
    prometheus_token: str = "",
    ready: Callable[[str], None] = print,
) -> None:
    """Serves one version of a run until SIGTERM or Ctrl-C, after which running calls may end.

    Args:
      run: the run's directory; a path or a URL.
      overrides: ``key=value`` arguments on top of the run's own config.
      host: address to listen on; None: ``rlax.network.host``, or with ``open_to_all`` 127.0.0.1.
      advertised_host: host by which clients reach it; "": ``host``.
      port: port of the engine's services and ours; 0 takes any free one.
      http_port: port of OpenAI's API; None: any free one, where HTTP can be served.
      version: number of the version; None: the newest that was kept.
      prometheus_port: 0 takes any free one; None: no page.
      open_to_all: True to answer clients without a token.
      token_file: path to write the clients' token to; None: the place at which this user's
        commands find it.
      prometheus_token: token that a scrape must have; "" if none is required.
      ready: called once the service answers, with a text on its address and use.

    Raises:
      RlaxError: there is no such run or version, its weights are missing or not the published
        ones, or a port is taken.
    """
    files = RunFiles(run)
    config = of_yaml(files.config(), files.location(CONFIG), overrides)
    if not config.section.deterministic:  # which has its own way with unfinished samples
        config = of_yaml(files.config(), files.location(CONFIG), (*_STREAMED, *overrides))
    place = _place(config.section, host, advertised_host, open_to_all=open_to_all)
    if prometheus_port is not None and not prometheus_token:
        check_page_is_local(place.host, "--prometheus-token-file")
    has_http = check_http(place, config.section.network.tls, http_port)
    chosen = kept_version(files, version)

    async def life(section: RlaxSection, engine: RolloutEngine, terminated: asyncio.Event) -> None:
        with (
            contextlib.ExitStack() as closing,
            Endpoint(
                place,
                engine,
                name=NAME,
                port=port,
                scrapes=Scrapes(prometheus_port, prometheus_token),
                clients="open" if open_to_all else "token",
                client_roles=("client", "trainer"),  # nobody else does: it has the worker to itself
                token_file=token_file,
            ) as endpoint,
        ):
            if not open_to_all and endpoint.clients_file is None:
                reason = "must be given: the file cannot be written where it lies by default"
                raise ConfigError("--token-file", None, reason)
            if open_to_all:
                log.warning(
                    "every user of this machine can call %s: --open lets in clients without a "
                    "token",
                    endpoint.address,
                )
            service = RolloutService(
                engine,
                section,
                has_weights=lambda: engine.version >= 0,
                sends_unfinished=False,  # for streams over HTTP alone
            )
            source = functools.cache(functools.partial(_prompt_source, section, config))
            http = None
            if has_http:
                name = PurePosixPath(files.location()).name
                policy = EnginePolicy(engine, service, section, source, name)
                closing.callback(policy.close)
                tls = section.network.tls
                http = closing.enter_context(
                    ServedHttp(
                        policy,
                        place,
                        tls,
                        http_port,
                        endpoint.callers,
                        endpoint.calls,
                        needs_key=not open_to_all,
                    )
                )
            services = await endpoint.start(service)
            served = chosen
            take = functools.partial(
                take_version,
                engine,
                max_new_tokens=section.rollouts.max_new_tokens,
                reading=endpoint.reading,
            )

            async def start() -> None:
                nonlocal served
                find = functools.partial(kept_version, files, version)
                served = await load_readable(take, chosen, find, section.deadlines.weights_s)
                await services

            try:
                if not await _told_first(terminated, start(), section.deadlines.startup_s):
                    ready(
                        await greeting(
                            engine, served, files, endpoint.address, endpoint.clients_file
                        )
                    )
                    if http is not None:
                        ready(await _http_greeting(http, endpoint.clients_file, source))
                    await _told(terminated, engine, section.deadlines.heartbeat_s)
            finally:
                service.draining = True
                # gRPC's grace lets running calls end and rejects new ones.
                drain_s = section.deadlines.drain_s
                ending: list[Awaitable[object]] = [endpoint.server.stop(drain_s)]
                if http is not None:
                    ending.append(http.drained(drain_s))
                await asyncio.gather(*ending)

    log_to(sys.stderr)
    run_engine(config, NAME, life)


def _prompt_source(section: RlaxSection, config: ResolvedConfig) -> PromptSource:
    context = BuildContext.outside_run(section, config)
    return build_part("prompt_source", section.prompt_source, "rlax.prompt_source", context)


def _place(section: RlaxSection, host: str | None, advertised: str, *, open_to_all: bool) -> Place:
    if host is None and not advertised:
        place = Place() if open_to_all else section.network.place
    else:
        place = Place(host or section.network.host, advertised)
    if open_to_all:
        check_open(place.host)
    place.check("--host" if host else HOST, "--advertised-host" if host else ADVERTISED)
    return place


async def load_readable(
    take: Callable[[WeightVersion], Awaitable[None]],
    chosen: WeightVersion,
    find: Callable[[], WeightVersion],
    weights_s: float,
) -> WeightVersion:
    """Loads a version, or the result of ``find`` if a run that continues has deleted the first.

    Returns:
      The version that was loaded.

    Raises:
      DeadlineError: none could be read within ``weights_s``.
      WeightsError: it is not the published one.
    """
    pauses = Pauses(weights_s)
    while True:
        try:
            await take(chosen)
            return chosen
        except WeightsUnreadableError as error:
            if pauses.over:
                what = f"reading version {chosen.version} ({error})"
                raise DeadlineError(what, weights_s, "rlax.deadlines.weights_s") from error
            pause_s = pauses.next_s()
            log.warning("weights were not loaded, trying again in %g s: %s", pause_s, error)
        await asyncio.sleep(pause_s)
        # Not yet on the list: the next reading fails as well, and this is looked at again.
        with contextlib.suppress(WeightsUnreadableError):
            chosen = await asyncio.to_thread(find)


async def _told_first(
    terminated: asyncio.Event, start: Coroutine[Any, Any, None], deadline_s: float
) -> bool:
    """True if a signal to end came before ``start`` was done; raises the errors of ``start``."""
    starting = asyncio.ensure_future(start)
    told = asyncio.ensure_future(terminated.wait())
    try:
        await asyncio.wait(
            {starting, told}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
        )
        if starting.done():
            starting.result()
        elif not told.done():
            raise DeadlineError("starting to serve", deadline_s, "rlax.deadlines.startup_s")
        return told.done()
    finally:
        starting.cancel()
        told.cancel()
        await asyncio.gather(starting, told, return_exceptions=True)


async def _told(terminated: asyncio.Event, engine: RolloutEngine, every_s: float) -> None:
    """Waits for a signal to end; raises once the engine has died.

    The error ends the process, so its parent notices and may start it again.
    """
    while not terminated.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(terminated.wait(), every_s)
        engine.health()


async def greeting(
    engine: RolloutEngine,
    version: WeightVersion,
    files: RunFiles,
    address: str,
    token_file: Path | None,
) -> str:
    """A text on the served version, its address, and a command that calls it."""
    line = f"version {version.version} of {files.url} is served on {address}"
    if token_file is not None:
        line += f", to clients with the token in {token_file}"
    try:
        example = await asyncio.to_thread(engine.client_example, address, token_file)
        return f"{line}; try:\n{example}" if example else line
    except Exception as error:  # noqa: BLE001  a plug-in reads its prompts, which may be elsewhere
        return f"{line} (no example, as there is no prompt: {type(error).__name__}: {error})"


async def _http_greeting(
    http: ServedHttp, token_file: Path | None, source: Callable[[], PromptSource]
) -> str:
    line = f"OpenAI's API is served on {http.url}"
    try:
        prompt = await asyncio.to_thread(lambda: example_prompt(source()))
    except Exception as error:  # noqa: BLE001  see ``greeting``
        return f"{line} (no example, as there is no prompt: {type(error).__name__}: {error})"
    return f"{line}; try:\n{http.example(token_file, prompt)}"
