"""Sends requests to one server, with limits on number, time and size, and retries.

Requests that fail for a temporary reason are repeated until the deadline, so that an outage costs
time before it costs samples. An answer is JSON, read up to a limit. Redirects are not followed,
because the key would be sent along.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.cookiejar
import json
import os
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlax_http.failures import ServerError, passes, retry_after_s
from rlax_http.server import AddressConfig, ApiKey, ServerConfig, socket_problem
from rlax_plugin.api import one_line

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 8.0  # between attempts, without a Retry-After
_MOST_INVALID = 3  # answers that are no JSON: a proxy's page may pass, a wrong address does not
_EXCERPT = 200  # characters
_ERROR_BYTES = 4096  # read of a reply that is an error
_MOST_BYTES = 1 << 20  # of an answer; a longer one is not read


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request.

    Attributes:
      content: decoded JSON, not checked further.
      tries: number of requests it took.
    """

    content: Any
    tries: int


class Client:
    """Sends JSON to a server and receives JSON; for use in one event loop.

    Args:
      config: the header that carries the key, and limits, if it has some.
      url: address of every request.
      key: may be empty.
      processes: number of processes that share the limit of requests at a time.
    """

    def __init__(self, config: AddressConfig, url: str, key: ApiKey, *, processes: int = 1):
        import httpx  # takes a while, and not every process needs it

        self._httpx, self._config, self._url, self._key = httpx, config, url, key
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        headers["Accept-Encoding"] = "identity"  # what is not compressed cannot explode
        if key.value:
            headers[config.key_header] = config.key_prefix + key.value
        limits = httpx.Limits(max_connections=None)
        socket = os.path.realpath(config.socket) if config.socket else None
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=None,  # each attempt has a limit as a whole
            limits=limits,
            transport=httpx.AsyncHTTPTransport(limits=limits, uds=socket) if socket else None,
            trust_env=not socket,  # never through a proxy
            follow_redirects=False,
            mounts={"all://localhost": None, "all://127.0.0.1": None},  # never through a proxy
        )
        never = http.cookiejar.DefaultCookiePolicy(allowed_domains=[])
        self._http.cookies.jar.set_policy(never)
        limited = config if isinstance(config, ServerConfig) else None
        self._request_s = limited and limited.request_s
        self._slots = asyncio.Semaphore(max(1, limited.concurrency // processes if limited else 1))
        self._failed = 0  # attempts since the last answer
        self._failing_since_s = 0.0
        self._last: ServerError | None = None

    async def close(self) -> None:
        await self._http.aclose()

    def shown(self, text: str) -> str:
        """Returns a server's text for a message: short, harmless and without the key."""
        return one_line(self._key.hidden(text[: 50 * _EXCERPT]), _EXCERPT)

    async def post(self, body: Any, limit_s: float) -> Reply:
        """Sends a request until it is answered, for at most ``limit_s`` seconds.

        Args:
          body: content of the request.
          limit_s: time limit.

        Raises:
          ServerError: there was no answer, or an error that retrying cannot change.
          ValueError: the body cannot be written as JSON, for example because of NaN.
        """
        content = json.dumps(body, allow_nan=False).encode()
        tries = invalid = 0
        begun_s = time.monotonic()
        last: ServerError | None = None
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    async with self._slots:
                        tries += 1
                        try:
                            found = await self._attempt(content)
                        except ServerError as error:
                            last = error
                            invalid += error.status == 0 and not error.passes
                            self._note_failure(error)
                            if not error.passes and (error.status or invalid == _MOST_INVALID):
                                raise
                            left_s = begun_s + limit_s - time.monotonic()
                            wait_s = self._wait_s(tries, error, left_s)
                        else:
                            self._note_answer()
                            return Reply(found, tries)
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            last = last or (self._last if self._failed else None)
            how = f"{tries} request{'' if tries == 1 else 's'}" + (f"; {last}" if last else "")
            said = f"{self._url} gave no answer within {limit_s:.2g} s ({how})"
            raise ServerError(said, passes=True) from None

    async def once(self, body: Any, limit_s: float | None) -> Reply:
        """Sends a request one time.

        Args:
          limit_s: time limit; None: the caller has one.

        Raises:
          ServerError: there was no answer.
        """
        try:
            async with asyncio.timeout(limit_s):
                return Reply(await self._attempt(json.dumps(body).encode()), 1)
        except TimeoutError:
            said = f"{self._url} did not answer within {limit_s:g} s"
            raise ServerError(said, passes=True) from None

    def _wait_s(self, tries: int, error: ServerError, left_s: float) -> float:
        """Returns the seconds between a failed attempt and the next one.

        Args:
          tries: number of attempts so far.
          error: error of the failed attempt.
          left_s: time left of the request's own limit.
        """
        longest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(tries - 1, 20))
        own_s = longest_s * random.uniform(0.5, 1.0)  # so that not all come back together
        if error.after_s is None:
            return own_s
        # Before the request fails it is tried again, however long it was asked to wait.
        return max(own_s, min(error.after_s, left_s / 2))

    async def _attempt(self, content: bytes) -> Any:
        httpx, url, limit_s = self._httpx, self._url, self._request_s
        # Another user may have put a socket there since the start.
        if self._config.socket and (why := socket_problem(self._config.socket)):
            raise ServerError(f"the socket {self._config.socket}: {why}", passes=False)
        try:
            async with (
                asyncio.timeout(limit_s),
                self._http.stream("POST", url, content=content) as reply,
            ):
                if reply.status_code // 100 != 2:
                    raise await self._refusal(reply)
                return self._decoded(await self._body(reply))
        except TimeoutError:
            said = f"{url} did not answer within request_s = {limit_s:g} s"
            raise ServerError(said, passes=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            said = f"{url} cannot be asked: {self.shown(f'{type(error).__name__}: {error}')}"
            raise ServerError(said, passes=True) from None

    async def _refusal(self, reply: Any) -> ServerError:
        status = reply.status_code
        said = f"{self._url} replied {status}"
        if status // 100 == 3:
            to = self.shown(reply.headers.get("location", "nowhere"))
            return ServerError(
                f"{said}, a redirect, to {to}; name that address in the config if it is right",
                passes=False,
                status=status,
            )
        data = bytearray()
        with contextlib.suppress(self._httpx.HTTPError):  # the status says enough
            async for piece in reply.aiter_raw():
                data += piece
                if len(data) >= _ERROR_BYTES:
                    break
        if text := bytes(data[:_ERROR_BYTES]).decode("utf-8", "replace").strip():
            said += f": {self.shown(text)}"
        if status in (401, 403):
            how = "key_env or key_file name the right key" if self._key.value else "it wants a key"
            said += f" (check whether {how})"
        after_s = retry_after_s(reply.headers.get("retry-after")) if passes(status) else None
        return ServerError(said, passes=passes(status), after_s=after_s, status=status)

    async def _body(self, reply: Any) -> bytes:
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            raise self._invalid("is compressed, which was not asked for")
        data = bytearray()
        async for piece in reply.aiter_raw():
            data += piece
            if len(data) > _MOST_BYTES:
                raise self._invalid(f"is longer than {_MOST_BYTES} bytes")
        return bytes(data)

    def _decoded(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            begins = self.shown(data[:_ERROR_BYTES].decode("utf-8", "replace"))
            why = "nests too deep" if isinstance(error, RecursionError) else "is no JSON"
            raise self._invalid(f"{why}; it begins with {begins!r}") from None

    def _invalid(self, why: str) -> ServerError:
        return ServerError(f"the answer of {self._url} {why}", passes=False)

    # What is printed goes to logs/rewards.log.

    def _note_failure(self, error: ServerError) -> None:
        self._last = error
        self._failed += 1
        if self._failed == 1:
            self._failing_since_s = time.monotonic()
        if self._failed & (self._failed - 1) == 0:  # 1, 2, 4, 8, ...
            print(f"{error} (requests that failed in a row: {self._failed})", file=sys.stderr)

    def _note_answer(self) -> None:
        if self._failed:
            for_s = time.monotonic() - self._failing_since_s
            said = f"{self._url} answers again, after {for_s:.0f} s and {self._failed} failures"
            print(said, file=sys.stderr)
        self._failed = 0


def names_of(answer: Any) -> str:
    """Describes the JSON type of an unexpected answer, for a message."""
    if isinstance(answer, Mapping):
        return f"an object with {', '.join(map(repr, list(answer)[:8])) or 'nothing'}"
    kinds = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(answer), "a number")
