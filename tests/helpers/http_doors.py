"""An HTTP door on loopback, in front of a scripted engine."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from part_stubs import EngineStub, SourceStub
from sections import section_with

from rlax_plugin.base.types import Sampled
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.http.app import LIMITS, HttpDoor
from rlax_plugin.rollout.http.engine_policy import EnginePolicy
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rpc.transport.http import HttpServer, Limits

LIMIT_S = 60.0
KEY = "the-key"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "ab"}]}
STOP = 1


class Letters(SourceStub):
    """Each letter is a token, a message is its letters, and an answer begins with ``>``."""

    stop_ids = (STOP,)

    def encode(self, text: str) -> list[int]:
        if not text.isascii():
            raise ValueError("not ASCII")
        return [ord(c) for c in text]

    def encode_messages(self, messages: Any, after: Any, tools: Any = ()) -> list[int]:
        return self.encode("".join(f"{m['content']}" for m in messages) + ">")

    def decode(self, tokens: Any) -> str:
        return "".join(chr(t) for t in tokens if t != STOP)


class Engine(EngineStub):
    """A sample says its context and then its seed, a letter at a time; log-probs are -token."""

    version = 7
    capabilities = Capabilities(slots=4, vocabulary=300, stop_strings=True)

    def __init__(self) -> None:
        self.requests, self.ended, self.go = [], 0, threading.Event()
        self.says: list[int] = []  # instead
        self.go.set()

    async def generate(self, requests: Any, on_reply: Any) -> None:
        (request,) = requests
        self.requests.append(request)
        try:
            words = [[*request.context.tolist(), *map(ord, str(s)), STOP] for s in request.seeds]
            words = [self.says or word for word in words]
            most = request.sampling.max_new_tokens
            for end in range(1, max(map(len, words)) + 1):
                samples = [self._sample(request, i, w, min(end, most)) for i, w in enumerate(words)]
                on_reply(request.key, samples)
                if all(sample.finish for sample in samples):
                    return
                await asyncio.sleep(0.001)
                while not self.go.is_set():
                    await asyncio.sleep(0.01)
        finally:
            self.ended += 1

    def _sample(self, request: Any, index: int, word: list[int], end: int) -> Sampled:
        tokens = np.array(word[:end], np.int32)
        finish = "length" if end == request.sampling.max_new_tokens else None
        if end >= len(word):
            finish = "stop"
        versions = np.full(len(tokens), 7, np.int32)
        return Sampled(request.seeds[index], tokens, -tokens.astype(np.float32), versions, finish)


class Served:
    """A door in front of an engine, on a thread with the engine's loop."""

    def __init__(self, limits: Limits = LIMITS, needs_key: bool = True, source: Any = Letters):
        self.engine, self.counted = Engine(), []
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        rollouts = {"max_prompt_tokens": 16, "max_new_tokens": 40, "slots": 4, "group_size": 2}
        if source is not Letters:
            rollouts |= {"max_prompt_tokens": 1000, "max_new_tokens": 200}
        section = section_with(rollouts=rollouts)

        async def make() -> EnginePolicy:
            service = RolloutService(self.engine, section)
            return EnginePolicy(self.engine, service, section, source, "m")

        self.policy = asyncio.run_coroutine_threadsafe(make(), self.loop).result(LIMIT_S)
        self.door = HttpDoor(
            lambda key: self.policy if key == KEY or not needs_key else None,
            lambda *call: self.counted.append(call[:2]),
            needs_key,
        )
        self.server = HttpServer(self.door, "127.0.0.1", 0, limits)

    def close(self) -> None:
        self.server.close()
        self.policy.close()
        self.loop.call_soon_threadsafe(self.loop.stop)

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=LIMIT_S)

    def asked(
        self, path: str, body: Any = None, key: str | None = KEY, **headers: str
    ) -> tuple[int, Any]:
        """Status and JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT_S)
        sent = {"Content-Type": "application/json"} | headers
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        data = body if isinstance(body, str | bytes | None) else json.dumps(body)
        try:
            connection.request("GET" if body is None else "POST", path, data, sent)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text.startswith(b"{") else text
        finally:
            connection.close()

    def streamed(self, path: str, body: Any) -> list[Any]:
        """The events of a stream, without the last, which is [DONE]."""
        status, text = self.asked(path, body | {"stream": True})
        assert status == 200, text
        *events, end = text.decode().removesuffix("\n\n").split("\n\n")
        assert end == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]


@contextmanager
def serving(**options: Any) -> Iterator[Served]:
    served = Served(**options)
    try:
        yield served
    finally:
        served.engine.go.set()
        served.close()
