"""Checks before a run: the key, and for ``rlax check`` one request to the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from rlax_http.failures import ServerError
from rlax_http.judge import JudgeConfig, LlmJudge
from rlax_http.server import AddressConfig, ServerConfig, choices_of, socket_problem
from rlax_http.verifier import HttpVerifier, VerifierConfig, sample_of
from rlax_plugin.api import BuildContext, CheckResult, ConfigError, Prompt, Score, is_loopback

TRIAL = (
    Prompt("rlax-check", np.array([1], np.int32), "What is 1+1?", "2", {"rlax_check": True}),
    "2",
)
"""The prompt and completion that ``rlax check`` sends to a server to be scored."""

_WRONG = (301, 302, 303, 307, 308, 401, 403, 404, 405)  # HTTP status that a config is the cause of


def check_server(config: AddressConfig, context: BuildContext) -> CheckResult:
    """Checks before a start that the key exists, and who else could get it.

    Raises:
      ConfigError: there is no key where the config says, or others could replace the socket.
    """
    place = _place(config, context)
    try:
        config.key()
    except ConfigError as error:
        raise ConfigError(f"{place}.{error.key}", error.value, error.reason) from None
    if config.socket:
        if why := socket_problem(config.socket):
            raise ConfigError(f"{place}.socket", config.socket, why)
        return CheckResult()
    address = "base_url" if isinstance(config, JudgeConfig) else "url"
    parts = urlsplit(getattr(config, address))
    if parts.scheme != "http":
        return CheckResult()
    named = "key_env" if config.key_env else "key_file" if config.key_file else ""
    if is_loopback(parts.hostname or ""):
        sent = "the key and the prompts" if named else "the prompts"
        text = (
            f"is on loopback without TLS: if the server ends, another user of this machine can "
            f"take its port, receive {sent}, and give rewards; let it listen on a unix socket "
            f"and name that with {place}.socket, unless all users are trusted"
        )
        return CheckResult(warnings=[(f"{place}.{address}", text)])
    if named:
        text = f"the key is sent unencrypted to {parts.hostname}"
        return CheckResult(warnings=[(f"{place}.{named}", text)])
    return CheckResult()


def check_verifier(config: VerifierConfig, context: BuildContext) -> CheckResult:
    """Sends one sample to the verifier.

    Raises:
      ConfigError: the server's reply shows that this config is wrong.
    """

    async def ask(limit_s: float) -> Score:
        verifier = HttpVerifier(config, context)
        try:
            reply = await verifier.client.once(sample_of(*TRIAL), limit_s)
        finally:
            await verifier.client.close()
        return verifier.reward_of(reply)

    return _result(ask, context, f"{_place(config, context)}.url", config.url)


def check_judge(config: JudgeConfig, context: BuildContext) -> CheckResult:
    """Asks the judge one question.

    Raises:
      ConfigError: see ``check_verifier``.
    """

    async def ask(limit_s: float) -> Score:
        judge = LlmJudge(config, context)
        try:
            reply = await judge.client.once(judge.request(*TRIAL), limit_s)
        finally:
            await judge.client.close()
        return judge.reward_of(reply, *TRIAL)

    key = f"{_place(config, context)}.base_url"
    return _result(ask, context, key, config.base_url)


def _result(
    ask: Callable[[float], Coroutine[Any, Any, Score]], context: BuildContext, key: str, url: str
) -> CheckResult:
    """Returns the result of one request to a server."""
    begun_s = time.monotonic()
    try:
        score = asyncio.run(ask(context.section.deadlines.rpc_s))
    except ServerError as error:
        if error.status in _WRONG:
            raise ConfigError(key, url, str(error)) from None
        said = "cannot be reached now" if error.passes else "scored no trial sample"
        return CheckResult(warnings=[(key, f"{said}: {error}")])
    took_s = time.monotonic() - begun_s
    said = f"{url} gave a trial sample, a right answer, {score.total:g} in {took_s:.2g} s"
    return CheckResult(says={"server": said})


def _place(config: AddressConfig, context: BuildContext) -> str:
    """Returns the dotted key of the part that has these options."""
    if not isinstance(config, ServerConfig):
        return "rlax.environment"
    return next((key for key, _ in choices_of(config, context)), "rlax.rewards")
