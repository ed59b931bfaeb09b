"""vLLM's server: its process and sockets, and calls whose answers are checked here."""

from __future__ import annotations

import asyncio
import atexit
import collections
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from rlax_plugin.api import WorkerError, cache_home, one_line, python_command

log = logging.getLogger("rlax.vllm")
logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each sample

CALL, TOKENS, START = (f"rlax.deadlines.{k}" for k in ("weights_s", "batch_s", "startup_s"))
"""Config keys of the longest waits: for weights, for the next tokens, for the start."""

_INSIDE = Path(__file__).parent / "inside"
_KEEPER = Path(__file__).parent / "keeper.py"
_FLOOR = -9999.0  # what vLLM writes for a log-prob that is -inf or not a number
_ROUNDED = 1e-5  # of a log-prob of a certain token, above 0
_END_S = 15.0  # for the keeper, to end all processes of the server
_IDLE_S = 1.0  # after which a connection is not used again: vLLM closes it after 5 s
_CHUNK_TOKENS = 8  # tokens of one message: one each would cost as much as small models do
_SAID = 5  # last lines of the server's log that an error repeats
_LINE = 300  # characters of each


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a sample has gained.

    Attributes:
      tokens: int32 [length]; logprobs: float32 [length], nats.
      finish: "stop", "length" or "abort"; None: the sample goes on.
      spans: with ``finish``: (weights' label, start, end) over all tokens of the request.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    finish: str | None
    spans: tuple[tuple[str, int, int], ...] = ()


class Server:
    """One of vLLM's API servers, reached over a unix socket or on loopback.

    Args:
      python: the Python to start it with; "": ``url`` says where it is.
      directory: for its sockets and files, of mode 0700; deleted at the end. Only with ``python``,
        as ``arguments``, those of the server beside its socket.
      vocabulary: token ids are below it.
      limits: config key -> the longest wait that it sets, seconds.
      on_end: called on any thread when the server's process has ended, with the reason.
    """

    def __init__(
        self,
        *,
        python: str,
        url: str,
        directory: str,
        arguments: Sequence[str],
        vocabulary: int,
        connections: int,
        limits: Mapping[str, float],
        on_end: Callable[[str], None],
    ):
        self._vocabulary, self._on_end, self._closing = vocabulary, on_end, False
        self._limits, self._token_s = limits, limits[TOKENS]
        self._said = collections.deque[str](maxlen=_SAID)
        self._directory = directory
        self._keeper: subprocess.Popen[bytes] | None = None
        socket = url.removeprefix("unix:") if url.startswith("unix:") else ""
        if python:
            # Only this user reaches it: the server's routes for weights have no key.
            socket = os.path.join(directory, "api")
            self._keeper = self._start(python, [*arguments, "--uds", socket], directory)
        transport = httpx.AsyncHTTPTransport(
            uds=socket or None,
            limits=httpx.Limits(max_connections=connections, keepalive_expiry=_IDLE_S),
        )
        base = "http://vllm" if socket else url
        self._http = httpx.AsyncClient(transport=transport, base_url=base)

    def _start(
        self, python: str, arguments: Sequence[str], directory: str
    ) -> subprocess.Popen[bytes]:
        module = ("-m", "vllm.entrypoints.openai.api_server", *arguments)
        keeper = subprocess.Popen(
            [*python_command(str(_KEEPER), directory), python, "-P", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(directory),
            cwd=directory,
            start_new_session=True,
        )
        atexit.register(self.close)
        threading.Thread(
            target=self._listen, args=(keeper,), name="rlax-vllm-log", daemon=True
        ).start()
        return keeper

    def _listen(self, keeper: subprocess.Popen[bytes]) -> None:
        assert keeper.stdout is not None
        for line in keeper.stdout:
            text = one_line(line.decode(errors="replace").strip(), _LINE)
            if text:
                self._said.append(text)
                log.info("%s", text)
        keeper.wait()
        if not self._closing:
            self._on_end(f"vLLM's server has ended (status {keeper.returncode}){self.last_words()}")

    def last_words(self) -> str:
        """The last lines of the server's log, to end a message with; "" if there are none."""
        return "".join(f"\n  {line}" for line in self._said)

    async def healthy(self) -> bool:
        """True if the server has loaded its model and answers."""
        try:
            return (await self._http.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def post(self, path: str, body: Mapping[str, Any], *, limit: str = CALL) -> Any:
        """The JSON that a route answers.

        Args:
          limit: key of the longest wait for it.

        Raises:
          WorkerError: the server cannot be reached, answers late, or with an error.
        """
        within_s = self._limits[limit]
        try:
            async with asyncio.timeout(within_s):  # httpx's is one for each read
                reply = await self._http.post(path, json=body, timeout=within_s)
            if reply.status_code != 200:
                raise WorkerError(f"vLLM {path}: {reply.status_code} {one_line(reply.text, _LINE)}")
            return reply.json()
        except (TimeoutError, httpx.TimeoutException):
            raise WorkerError(f"vLLM {path}: no answer in {within_s:g} s ({limit})") from None
        except httpx.HTTPError as error:
            raise WorkerError(f"vLLM {path}: {_words(error)}{self.last_words()}") from error
        except (ValueError, RecursionError) as error:
            raise WorkerError(f"vLLM {path}: the answer is not JSON") from error

    async def call(self, method: str, *arguments: Any) -> dict[str, Any]:
        """What a method of the extension inside vLLM answers, the same in all its workers."""
        first, *others = await self.answers(method, *arguments)
        if any(one != first for one in others):
            raise WorkerError(f"vLLM {method}: its workers answer differently")
        return first

    async def answers(self, method: str, *arguments: Any) -> list[dict[str, Any]]:
        """What a method of the extension answers in each of vLLM's workers, at least one."""
        reply = await self.post("/collective_rpc", {"method": method, "args": arguments})
        results = reply.get("results") if isinstance(reply, dict) else None
        if not isinstance(results, list) or not results:
            raise WorkerError(f"vLLM {method}: the answer has no results")
        for one in results:
            if not isinstance(one, dict | None):
                raise WorkerError(f"vLLM {method}: {one_line(str(one), _LINE)}")
        return [one or {} for one in results]

    async def sample(self, tokens: np.ndarray, salt: str, **sampling: Any) -> AsyncGenerator[Chunk]:
        """Generates one sample; closing the generator aborts it.

        A task that reads it waits for nothing else meanwhile: the time would count.

        Raises:
          WorkerError: the server failed, or what it says cannot be right.
        """
        body = _body(tokens, salt, stream_interval=_CHUNK_TOKENS, **sampling) | {"stream": True}
        timeout = httpx.Timeout(self._token_s)
        path = "/inference/v1/generate"
        now = asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(self._token_s) as limit,
                self._http.stream("POST", path, json=body, timeout=timeout) as reply,
            ):
                if reply.status_code != 200:
                    text = (await reply.aread()).decode(errors="replace")
                    raise WorkerError(f"vLLM {path}: {reply.status_code} {one_line(text, _LINE)}")
                async for line in reply.aiter_lines():
                    if line == "data: [DONE]":
                        return
                    if line:
                        chunk = _chunk(line, self._vocabulary)
                        if len(chunk.tokens):
                            limit.reschedule(now() + self._token_s)
                        yield chunk
        except (TimeoutError, httpx.TimeoutException):
            late = f"no token in {self._token_s:g} s ({TOKENS})"
            raise WorkerError(f"vLLM {path}: {late}") from None
        except httpx.HTTPError as error:
            raise WorkerError(f"vLLM {path}: {_words(error)}{self.last_words()}") from error

    async def score(self, tokens: np.ndarray, salt: str, *, limit: str = TOKENS) -> np.ndarray:
        """Log-probs of ``tokens[1:]`` at temperature 1, float32 [n], by prefill.

        What vLLM writes for NaN and -inf is NaN: weights may give it, and are then refused.
        """
        body = _body(tokens, salt, temperature=1.0, max_tokens=1, prompt_logprobs=0)
        reply = await self.post("/inference/v1/generate", body, limit=limit)
        rows = reply.get("prompt_logprobs") if isinstance(reply, dict) else None
        if not isinstance(rows, list) or len(rows) != len(tokens):
            raise WorkerError(f"vLLM: not as many log-probs as tokens ({len(tokens)}) were scored")
        found = []
        for token, row in zip(tokens[1:].tolist(), rows[1:], strict=True):
            one = row.get(str(token)) if isinstance(row, dict) else None
            value = one.get("logprob") if isinstance(one, dict) else None
            lost = isinstance(value, float | int) and value <= _FLOOR
            found.append(math.nan if lost else _logprob(value))
        return np.array(found, np.float32)

    def close(self) -> None:
        """Ends the server's processes, if this started them. Idempotent; waits at most 15 s."""
        self._closing = True
        if (keeper := self._keeper) is None:
            return
        atexit.unregister(self.close)
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            keeper.wait(_END_S)
        except subprocess.TimeoutExpired:
            log.warning("vLLM's processes were not gone after %g s", _END_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(keeper.pid, signal.SIGKILL)
        shutil.rmtree(self._directory, ignore_errors=True)  # if the keeper was killed


def _environment(directory: str) -> dict[str, str]:
    """Variables of the server: its sockets and files where only this user comes."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME",)}
    return kept | {
        "PYTHONPATH": str(_INSIDE),
        "TMPDIR": directory,  # torch's store
        # Compiled programs outlive the server: making them takes a minute, or several.
        "TORCHINDUCTOR_CACHE_DIR": str(cache_home() / "rlax-vllm"),
        "VLLM_RPC_BASE_PATH": directory,
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_SERVER_DEV_MODE": "1",  # the routes for weights
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "HF_HUB_OFFLINE": "1",
    }


def _body(tokens: np.ndarray, salt: str, **sampling: Any) -> dict[str, Any]:
    params = {"n": 1, "logprobs": 0, "detokenize": False, "ignore_eos": True, "top_k": 0}
    return {
        "token_ids": tokens.tolist(),
        "sampling_params": params | sampling,
        "cache_salt": salt,
    }


def _chunk(line: str, vocabulary: int) -> Chunk:
    """Reads a message of a stream.

    Raises:
      WorkerError: it is none, or says what cannot be.
    """
    try:
        said = json.loads(line.removeprefix("data: "))
        if "error" in said:
            raise WorkerError(f"vLLM ended a sample: {one_line(str(said['error']), _LINE)}")
        (choice,) = said["choices"]
        tokens = choice["token_ids"]
        content = choice["logprobs"]["content"]
        if len(content) != len(tokens):
            raise ValueError("not one log-prob per token")
        if not all(type(t) is int and 0 <= t < vocabulary for t in tokens):
            raise ValueError("a token beyond the vocabulary")
        if any(one["token_id"] != token for one, token in zip(content, tokens, strict=True)):
            raise ValueError("a log-prob of another token")
        logprobs = [_logprob(one["logprob"]) for one in content]
        finish = choice["finish_reason"]
        if finish not in (None, "stop", "length", "abort"):
            raise ValueError(f"finish_reason {finish!r}")
        spans = choice["weight_versions"] or () if finish else ()
        return Chunk(
            np.array(tokens, np.int32),
            np.array(logprobs, np.float32),
            finish,
            tuple((str(s["version"]), int(s["start"]), int(s["end"])) for s in spans),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        what = f"vLLM's stream cannot be right: {error!r}: {one_line(line, _LINE)}"
        raise WorkerError(what) from error


def _logprob(value: object) -> float:
    """Returns a log-prob that can be one; what vLLM writes for NaN cannot."""
    if not isinstance(value, float | int) or not _FLOOR < value <= _ROUNDED:
        raise WorkerError(f"vLLM: {one_line(repr(value), 60)} is no log-prob of a sampled token")
    return min(0.0, float(value))


def _words(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", _LINE)
