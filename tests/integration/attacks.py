"""What a peer with a valid token sends to a server, as bytes; and what it is answered."""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
from attacked_servers import LEASE_S, Attacked, written
from google.protobuf.message import Message
from valid_messages import NUMBERS, registration

from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.security.secret import Secret
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.weights.messages import version_to_proto

LIMIT_S = 60.0
AT_ONCE = 24
Codes = collections.Counter[grpc.StatusCode]

LAWFUL = frozenset(
    getattr(grpc.StatusCode, name)
    for name in (
        "OK",
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    )
)


FLEET, PARAMETERS, ROLLOUT, JETSTREAM = (
    f"/{name}/"
    for name in (
        "rlax.v1.Fleet",
        "rlax.v1.ParameterServer",
        "rlax.v1.Rollout",
        "jetstream_proto.Orchestrator",
    )
)


class Peer:
    """Calls a server with bytes. Its connection belongs to the event loop of its first call.

    Args:
      address: host:port.
      secret: that it shows.
    """

    def __init__(self, address: str, secret: Secret):
        self._connection = connect(address, secret)

    def show(self, token: str) -> None:
        """Shows another token from now on."""
        self._connection = self._connection.showing(token)

    async def call(
        self, method: str, data: bytes, within_s: float = LIMIT_S
    ) -> tuple[grpc.StatusCode, str, list[bytes]]:
        """The status of a call, its details, and the messages of the answer."""
        call = self._connection.unary_stream(method)(data, timeout=within_s)
        found = []
        try:
            async for reply in call:
                found.append(reply)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or "", found
        return grpc.StatusCode.OK, "", found

    async def ask[M: Message](self, method: str, request: Message, reply: Callable[[], M]) -> M:
        """The only message with which a valid call is answered."""
        code, why, found = await self.call(method, request.SerializeToString())
        assert code is grpc.StatusCode.OK, (method, code, why)
        (data,) = found
        answer = reply()
        answer.ParseFromString(data)
        return answer

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def attack(
    peer: Peer,
    method: str,
    messages: Iterator[bytes],
    count: int,
    *,
    within_s: float = LIMIT_S,
    prepare: Callable[[], Any] | None = None,
) -> tuple[Codes, dict[grpc.StatusCode, tuple[str, bytes]]]:
    """Sends so many messages, ``AT_ONCE`` at a time.

    Args:
      prepare: awaited before each portion of messages.

    Returns:
      How often each status was the answer, and an example of each: its details, and what was sent.
    """
    codes, examples = Codes(), {}
    for left in range(count, 0, -AT_ONCE):
        if prepare is not None:
            await prepare()
        portion = list(itertools.islice(messages, min(left, AT_ONCE)))
        answers = await asyncio.gather(*(peer.call(method, one, within_s) for one in portion))
        for one, (code, why, _) in zip(portion, answers, strict=True):
            codes[code] += 1
            examples.setdefault(code, (why, one[:300]))
    return codes, examples


async def joined(peer: Peer, request: pb.RegisterRequest) -> str:
    """Registers a worker; returns the token of its registration."""
    reply = await peer.ask(FLEET + "Register", request, pb.RegisterReply)
    assert reply.accepted, reply.reason
    return request.token


class Honest:
    """A worker that has registered, and that nobody else can drive out."""

    def __init__(self, peer: Peer, name: str):
        self.peer, self._name = peer, name

    @classmethod
    async def joined(cls, attacked: Attacked) -> Honest:
        name, peer = f"honest{next(NUMBERS)}", Peer(attacked.address, attacked.worker)
        peer.show(await joined(peer, registration(attacked.worker.certificate, name, name)))
        return cls(peer, name)

    async def still_there(self) -> None:
        """It is a member, and learns what there is to learn."""
        beat = pb.HeartbeatRequest(worker=self._name, process=self._name, version=3)
        reply = await self.peer.ask(FLEET + "Heartbeat", beat, pb.HeartbeatReply)
        assert reply.known and reply.latest_version == 3 and not reply.stop


async def check_parameters(attacked: Attacked, number: int) -> None:
    """The newest version is told, held, and given back."""
    expected = version_to_proto(written(attacked.directory / "weights", number))
    async with Peer(attacked.address, attacked.worker) as peer:
        latest = await peer.ask(PARAMETERS + "Latest", pb.LatestRequest(), pb.LatestReply)
        assert latest.version == expected
        wanted = pb.AcquireRequest(version=number, holder="honest")
        lease = await peer.ask(PARAMETERS + "Acquire", wanted, pb.AcquireReply)
        assert lease.version == expected
        renew, release = pb.RenewRequest(lease=lease.lease), pb.ReleaseRequest(lease=lease.lease)
        kept = await peer.ask(PARAMETERS + "Renew", renew, pb.RenewReply)
        assert kept.lease_s == LEASE_S
        await peer.ask(PARAMETERS + "Release", release, pb.ReleaseReply)
        for within_s in (2.0, 8.0, 30.0):  # the first answer comes late on a busy machine
            code, _, seen = await peer.call(PARAMETERS + "Watch", b"", within_s=within_s)
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            if seen:
                break
        assert [pb.Version.FromString(one) for one in seen] == [expected]


def check_process(attacked: Attacked, before_mb: float, most_mb: float = 100.0) -> None:
    """It lives, has not grown, has deleted nothing elsewhere, and no handler has failed."""
    assert attacked.process.poll() is None, attacked.log[-3000:]
    grown = attacked.rss_mb - before_mb
    print(f"grown by {grown:.1f} MB to {attacked.rss_mb:.0f} MB")
    assert grown < most_mb
    weights = attacked.directory / "weights"
    assert all(Path(path).parent == weights for path in attacked.deleted), attacked.deleted
    assert "Traceback" not in attacked.log, attacked.log[:5000]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a test, which ends by its own deadlines or that of pytest."""
    asyncio.run(main)
