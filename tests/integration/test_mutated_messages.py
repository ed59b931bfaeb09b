"""Whatever a peer with a valid token sends: servers live, answer others, and do not grow.

The servers are processes of their own, so that their memory can be measured and their logs read.
"""

import asyncio
import collections
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attacked_servers
import grpc
import numpy as np
import pytest
from attacked_servers import LEASE_S, Attacked, written
from examples import examples
from google.protobuf.message import Message
from jetstream.core.proto import jetstream_pb2 as jet
from mutating import mutations

from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, SideSpec
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.capabilities import to_proto
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.rpc.transport.wire import key_from_proto, key_to_proto, request_to_proto
from rlax_plugin.testing.task import STOP
from rlax_plugin.weights.messages import version_to_proto

MESSAGES, WARM_UP = examples(500), 100
"""To each method."""
AT_ONCE, LIMIT_S = 24, 60.0
FLEET, PARAMETERS = "/rlax.v1.Fleet/", "/rlax.v1.ParameterServer/"
ROLLOUT, JETSTREAM = "/rlax.v1.Rollout/", "/jetstream_proto.Orchestrator/"
OK, LATE = grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED
UNLAWFUL = {"CANCELLED", "UNKNOWN", "ALREADY_EXISTS", "ABORTED", "OUT_OF_RANGE", "INTERNAL"}
UNLAWFUL |= {"DATA_LOSS", "DEADLINE_EXCEEDED"}
NUMBERS = itertools.count()  # of what must not come twice, such as a process
CAPABILITIES = Capabilities(
    slots=8,
    vocabulary=64,
    context_tokens=4096,
    seeded=True,
    logprobs=True,
    resumes=True,
    side={"entropy": SideSpec("float32", (2,), "context+sampled")},
)


class Peer:
    """Calls a server with bytes. Its connection belongs to the event loop of its first call."""

    def __init__(self, address: str, secret: Secret):
        self._connection = connect(address, secret)

    def show(self, token: str) -> None:
        """Shows another token from now on."""
        self._connection = self._connection.showing(token)

    async def call(
        self, method: str, data: bytes, within_s: float = LIMIT_S
    ) -> tuple[grpc.StatusCode, str, list[bytes]]:
        """The status of a call, its details, and the messages of the answer."""
        replies: list[bytes] = []
        try:
            async for reply in self._connection.unary_stream(method)(data, timeout=within_s):
                replies.append(reply)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or "", replies
        return OK, "", replies

    async def ask[M: Message](self, method: str, request: Message, reply: Callable[[], M]) -> M:
        """The only message with which a valid call is answered."""
        code, why, replies = await self.call(method, request.SerializeToString())
        assert code is OK, (method, code, why)
        answer = reply()
        (data,) = replies
        answer.ParseFromString(data)
        return answer

    async def join(self, attacked: Attacked, name: str) -> None:
        """Registers as a worker, and shows the token of its registration from now on."""
        self.show(attacked.worker.token)
        request = registration(attacked.worker.certificate, name, name)
        reply = await self.ask(FLEET + "Register", request, pb.RegisterReply)
        assert reply.accepted, reply.reason
        self.show(request.token)

    async def is_member(self, name: str) -> None:
        """Nobody has driven this worker out, and it learns what there is to learn."""
        beat = pb.HeartbeatRequest(worker=name, process=name, version=3)
        reply = await self.ask(FLEET + "Heartbeat", beat, pb.HeartbeatReply)
        assert reply.known and reply.latest_version == 3 and not reply.stop


def registration(certificate: str, name: str, process: str) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        worker=name,
        address="127.0.0.1:9",
        config_hash="abc",
        version=-1,
        process=process,
        capabilities=to_proto(CAPABILITIES),
        token=new_token(),
        certificate=certificate,
        versions={"rlax-plugin": "0.1.0", "jax": "0.7.2"},
    )


def heartbeat(name: str) -> pb.HeartbeatRequest:
    keys = (Key("train", 7), Key("evaluate", 8, 1, 2, 3))
    figures = {"steps_total": 30.0, "decode_s_total": 2.0, "silent_tokens": 64.0, "read_s": 1.5}
    return pb.HeartbeatRequest(
        worker=name,
        version=3,
        figures=figures | {"read_bytes": 1e9, "slots": 8.0},
        process=name,
        progress=[pb.Progress(key=key_to_proto(key), attempt=2, moves=40) for key in keys],
        pin=2,
        capabilities=to_proto(CAPABILITIES),
    )


def generation() -> pb.GenerateRequest:
    sampling = SamplingParams(0.9, 5, 0.8, 12, (STOP,), ("77", "8"))
    tokens, versions = np.array([3, 4, 5], np.int32), np.array([1, 1, 2], np.int32)
    side = {"truncated_logprobs": np.full(3, -0.5, np.float32)}
    begun = [
        Sampled(seed, tokens, np.full(3, -1, np.float32), versions, None, side=side)
        for seed in (1, 2)
    ]
    context, number = np.array([1, 2, 3], np.int32), next(NUMBERS)
    fresh = Request(Key("train", number), 1, context, (5, 6, 7), sampling, 2, session="s")
    resumed = Request(Key("train", number, 0, 1, 1), 2, context, (1, 2), sampling, 1, tuple(begun))
    return pb.GenerateRequest(requests=[request_to_proto(fresh), request_to_proto(resumed)])


def decoding() -> jet.DecodeRequest:
    made = jet.DecodeRequest(session_cache="x", priority=1, max_tokens=8)
    if next(NUMBERS) % 2:
        made.text_content.text = "123"
    else:
        made.token_content.token_ids.extend([1, 2, 3])
    return made


Start = Callable[[str], Attacked]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts each of ``attacked_servers`` when it is wanted first."""
    with ExitStack() as stack:
        started: dict[str, Attacked] = {}

        def server(name: str) -> Attacked:
            if name not in started:
                directory = tmp_path_factory.mktemp(name) / "run"
                started[name] = stack.enter_context(attacked_servers.running(name, directory))
            return started[name]

        yield server


async def attack(
    peer: Peer,
    method: str,
    messages: Iterator[bytes],
    count: int,
    within_s: float = LIMIT_S,
    prepare: Callable[[], Awaitable[None]] | None = None,
) -> collections.Counter[str]:
    """Sends so many messages, ``AT_ONCE`` at a time; returns how often each status was the answer.

    Args:
      prepare: awaited before each portion of messages.
    """
    codes: collections.Counter[str] = collections.Counter()
    for left in range(count, 0, -AT_ONCE):
        if prepare is not None:
            await prepare()
        portion = list(itertools.islice(messages, min(left, AT_ONCE)))
        for data, (code, why, _) in zip(
            portion,
            await asyncio.gather(*(peer.call(method, data, within_s) for data in portion)),
            strict=True,
        ):
            lawful = code.name not in UNLAWFUL or (code is LATE and within_s < LIMIT_S)
            assert lawful, (code, why, data[:300])
            codes[code.name] += 1
    return codes


async def campaign(
    attacked: Attacked,
    peer: Peer,
    method: str,
    messages: Callable[[], Message],
    *,
    waits: bool = False,
    prepare: Callable[[], Awaitable[None]] | None = None,
) -> float:
    """Sends wrong messages to a method; returns the megabytes that the server had once warm.

    Args:
      waits: the method may lawfully wait until the deadline.
    """
    own = str(attacked.directory)
    places = ("/x", "/..", "/a\x00b", "/", "/x/../../y", "/é\n", "/" + "n" * 5000)
    texts = [own, "v3", "honest", *(f"{own}/weights{end}" for end in places)]
    wrong = mutations(messages, 1, [text.encode() for text in texts])
    within_s = 0.25 if waits else LIMIT_S
    await attack(peer, method, wrong, WARM_UP, within_s, prepare)
    warm_mb = attacked.rss_mb
    await attack(peer, method, wrong, MESSAGES, within_s, prepare)
    return warm_mb


def check_process(attacked: Attacked, before_mb: float, most_mb: float = 100.0) -> None:
    """It lives, has not grown, has deleted nothing elsewhere, and no handler has failed."""
    assert attacked.process.poll() is None, attacked.log[-3000:]
    assert attacked.rss_mb - before_mb < most_mb
    weights = attacked.directory / "weights"
    assert all(Path(path).parent == weights for path in attacked.deleted), attacked.deleted
    assert "Traceback" not in attacked.log, attacked.log[:5000]


@pytest.mark.property
@pytest.mark.parametrize("method", ["Config", "Register", "Heartbeat", "Deregister"])
def test_fleet_survives_every_message(start: Start, method: str) -> None:
    attacked = start("controller")
    certificate = attacked.worker.certificate

    async def main() -> None:
        honest, name = Peer(attacked.address, attacked.worker), f"honest{next(NUMBERS)}"
        await honest.join(attacked, name)
        evil, process = Peer(attacked.address, attacked.worker), ""

        async def join_again() -> None:
            nonlocal process
            await honest.is_member(name)
            if method in ("Heartbeat", "Deregister"):
                process = f"evil{next(NUMBERS)}"
                await evil.join(attacked, process)

        made: dict[str, Callable[[], Message]] = {
            "Config": pb.ConfigRequest,
            "Register": lambda: registration(certificate, f"e{next(NUMBERS)}", "p"),
            "Heartbeat": lambda: heartbeat(process),
            "Deregister": lambda: pb.DeregisterRequest(
                worker=process, process=process, quarantine="wrong weights"
            ),
        }
        before_mb = await campaign(attacked, evil, FLEET + method, made[method], prepare=join_again)
        await honest.is_member(name)
        check_process(attacked, before_mb)

    asyncio.run(main())


def test_heartbeats_with_ever_new_requests_and_figures_take_no_memory(start: Start) -> None:
    attacked = start("controller")

    def beats(name: str) -> Iterator[bytes]:
        beat = heartbeat(name)
        for number in itertools.count():
            del beat.progress[:]
            for index in range(300):
                key = pb.Key(group=1000 * number + index)
                beat.progress.add(key=key, attempt=index, moves=number)
            beat.figures.clear()
            beat.figures.update({f"figure{number}_{n}": float(n) for n in range(300)})
            yield beat.SerializeToString()

    async def main() -> None:
        peer, name = Peer(attacked.address, attacked.worker), f"busy{next(NUMBERS)}"
        await peer.join(attacked, name)
        before_mb = attacked.rss_mb
        assert await attack(peer, FLEET + "Heartbeat", beats(name), 500) == {"OK": 500}
        check_process(attacked, before_mb, 50)

    asyncio.run(main())


@pytest.mark.property
@pytest.mark.parametrize(
    "method", ["Publish", "Latest", "Acquire", "Renew", "Release", "Watch", "Files", "Fetch"]
)
def test_parameter_server_survives_every_message(start: Start, method: str) -> None:
    attacked = start("controller")
    number, lease = 3, ""

    async def publish(trainer: Peer) -> pb.Version:
        nonlocal number
        number = 3 + next(NUMBERS) % 1000
        version = version_to_proto(written(attacked.directory / "weights", number))
        request = pb.PublishRequest(version=version, restart=True)
        await trainer.ask(PARAMETERS + "Publish", request, pb.PublishReply)
        return version

    async def main() -> None:
        nonlocal lease
        trainer = Peer(attacked.address, attacked.trainer)
        worker = Peer(attacked.address, attacked.worker)
        await publish(trainer)
        wanted = pb.AcquireRequest(version=-1, holder="evil")
        lease = (await trainer.ask(PARAMETERS + "Acquire", wanted, pb.AcquireReply)).lease

        def to_publish() -> Message:
            version = written(attacked.directory / "weights", 3 + next(NUMBERS))
            return pb.PublishRequest(version=version_to_proto(version), restart=number % 2 == 0)

        made: dict[str, Callable[[], Message]] = {
            "Publish": to_publish,
            "Latest": pb.LatestRequest,
            "Acquire": lambda: pb.AcquireRequest(version=number, holder="host:evil"),
            "Renew": lambda: pb.RenewRequest(lease=lease),
            "Release": lambda: pb.ReleaseRequest(lease=lease),
            "Watch": lambda: pb.WatchRequest(after=number),
            "Files": lambda: pb.FilesRequest(lease=lease, part="base"),
            "Fetch": lambda: pb.FetchRequest(lease=lease, part="base", file="w", offset=1),
        }
        peer = trainer if method == "Publish" else worker
        waits = method == "Watch"
        before_mb = await campaign(attacked, peer, PARAMETERS + method, made[method], waits=waits)
        expected = await publish(trainer)
        latest = await worker.ask(PARAMETERS + "Latest", pb.LatestRequest(), pb.LatestReply)
        assert latest.version == expected
        other = Peer(attacked.address, attacked.worker)  # this one has all the leases it may have
        wanted = pb.AcquireRequest(version=number, holder="honest")
        held = await other.ask(PARAMETERS + "Acquire", wanted, pb.AcquireReply)
        assert held.version == expected and held.lease_s == LEASE_S
        release = pb.ReleaseRequest(lease=held.lease)
        await other.ask(PARAMETERS + "Release", release, pb.ReleaseReply)
        check_process(attacked, before_mb)

    asyncio.run(main())


@pytest.mark.property
@pytest.mark.parametrize(
    "method",
    [
        *(ROLLOUT + name for name in ("Generate", "GiveUp", "Health")),
        *(JETSTREAM + name for name in ("Decode", "HealthCheck")),
    ],
)
def test_worker_survives_every_message(start: Start, method: str) -> None:
    attacked = start("worker")
    attempts = [pb.Attempt(key=one.key, attempt=one.attempt) for one in generation().requests]
    made: dict[str, Callable[[], Message]] = {
        "Generate": generation,
        "GiveUp": lambda: pb.GiveUpRequest(unwanted=attempts, oldest=2),
        "Health": pb.HealthRequest,
        "Decode": decoding,
        "HealthCheck": jet.HealthCheckRequest,
    }

    async def main() -> None:
        peer, name = Peer(attacked.address, attacked.trainer), method.rpartition("/")[2]
        before_mb = await campaign(attacked, peer, method, made[name], waits=name == "Generate")
        asked = generation()
        code, why, replies = await peer.call(ROLLOUT + "Generate", asked.SerializeToString())
        assert code is OK, why
        seeds = {
            key_from_proto(reply.key): [sample.seed for sample in reply.samples]
            for reply in map(pb.Reply.FromString, replies)
        }
        assert seeds == {key_from_proto(one.key): list(one.seeds) for one in asked.requests}
        live = await peer.ask(
            JETSTREAM + "HealthCheck", jet.HealthCheckRequest(), jet.HealthCheckResponse
        )
        assert live.is_live
        check_process(attacked, before_mb)

    asyncio.run(main())
