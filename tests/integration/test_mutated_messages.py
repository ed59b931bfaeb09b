"""Whatever a peer with a valid token sends: servers live, answer others, and do not grow."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable

import grpc
import pytest
from attacked_servers import Attacked, Start, written
from attacks import (
    FLEET,
    JETSTREAM,
    LAWFUL,
    LIMIT_S,
    PARAMETERS,
    ROLLOUT,
    Honest,
    Peer,
    attack,
    check_parameters,
    check_process,
    joined,
    run,
)
from examples import examples
from google.protobuf.message import Message
from jetstream.core.proto import jetstream_pb2 as jet
from mutating import mutations
from valid_messages import NUMBERS, decoding, generation, heartbeat, registration

from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_from_proto
from rlax_plugin.weights.messages import version_to_proto

MESSAGES = int(os.environ.get("RLAX_TEST_FUZZ", examples(500)))
"""To each method; more by hand."""
WARM_UP = 100
EVERYWHERE = ("Publish", "Latest", "Acquire", "Renew", "Release", "Watch")


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
    lawful = LAWFUL | ({grpc.StatusCode.DEADLINE_EXCEEDED} if waits else set())
    warm_mb = 0.0
    for count in (WARM_UP, MESSAGES):
        codes, shown = await attack(peer, method, wrong, count, within_s=within_s, prepare=prepare)
        assert set(codes) <= lawful, {code: shown[code] for code in set(codes) - lawful}
        warm_mb = warm_mb or attacked.rss_mb
    print(method, {code.name: count for code, count in codes.items()})
    return warm_mb


@pytest.mark.property
@pytest.mark.parametrize("method", ["Config", "Register", "Heartbeat", "Deregister"])
def test_a_fleet_bears_every_message(start: Start, method: str):
    attacked = start("controller")
    certificate = attacked.worker.certificate

    async def main() -> None:
        honest = await Honest.joined(attacked)
        evil, process = Peer(attacked.address, attacked.worker), ""

        async def join_again() -> None:
            nonlocal process
            await honest.still_there()
            if method in ("Heartbeat", "Deregister"):
                process = f"evil{next(NUMBERS)}"
                evil.show(attacked.worker.token)
                evil.show(await joined(evil, registration(certificate, process, process)))

        made: dict[str, Callable[[], Message]] = {
            "Config": pb.ConfigRequest,
            "Register": lambda: registration(certificate, f"e{next(NUMBERS)}", "p"),
            "Heartbeat": lambda: heartbeat(process, process),
            "Deregister": lambda: pb.DeregisterRequest(
                worker=process, process=process, quarantine="wrong weights"
            ),
        }
        before_mb = await campaign(attacked, evil, FLEET + method, made[method], prepare=join_again)
        await honest.still_there()
        await check_parameters(attacked, 3)
        check_process(attacked, before_mb)

    run(main())


@pytest.mark.property
@pytest.mark.parametrize(
    ("server", "method"),
    [
        *itertools.product(("controller", "parameters"), EVERYWHERE),
        *(("parameters", method) for method in ("Files", "Fetch")),  # the same code in both
    ],
)
def test_a_parameter_server_bears_every_message(start: Start, server: str, method: str):
    attacked = start(server)
    number = 3
    lease = ""

    async def publish(trainer: Peer) -> None:
        nonlocal number
        number = 3 + next(NUMBERS) % 1000
        version = written(attacked.directory / "weights", number)
        request = pb.PublishRequest(version=version_to_proto(version), restart=True)
        await trainer.ask(PARAMETERS + "Publish", request, pb.PublishReply)

    async def main() -> None:
        nonlocal lease
        trainer = Peer(attacked.address, attacked.trainer)
        peer = trainer if method == "Publish" else Peer(attacked.address, attacked.worker)
        separate = server == "parameters"
        if separate:
            await publish(trainer)
        wanted = pb.AcquireRequest(version=-1, holder="evil")
        held = await trainer.ask(PARAMETERS + "Acquire", wanted, pb.AcquireReply)
        lease = held.lease

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
        waits = method == "Watch"
        before_mb = await campaign(attacked, peer, PARAMETERS + method, made[method], waits=waits)
        if separate:
            await publish(trainer)
        await check_parameters(attacked, number)
        check_process(attacked, before_mb)

    run(main())


@pytest.mark.property
@pytest.mark.parametrize(
    "method",
    [
        *(ROLLOUT + name for name in ("Generate", "GiveUp", "Health")),
        *(JETSTREAM + name for name in ("Decode", "HealthCheck")),
    ],
)
def test_a_worker_bears_every_message(start: Start, method: str):
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
        peer = Peer(attacked.address, attacked.trainer)
        name = method.rpartition("/")[2]
        before_mb = await campaign(attacked, peer, method, made[name], waits=name == "Generate")
        asked = generation()
        code, why, replies = await peer.call(ROLLOUT + "Generate", asked.SerializeToString())
        assert code is grpc.StatusCode.OK, why
        found = {key_from_proto(one.key): one for one in map(pb.Reply.FromString, replies)}
        expected = {key_from_proto(one.key): list(one.seeds) for one in asked.requests}
        assert {key: [s.seed for s in one.samples] for key, one in found.items()} == expected
        live = await peer.ask(
            JETSTREAM + "HealthCheck", jet.HealthCheckRequest(), jet.HealthCheckResponse
        )
        assert live.is_live
        check_process(attacked, before_mb)

    run(main())
