"""Workers of different speeds, which hold what they are sent until a test has them answer."""

import asyncio
from collections.abc import Iterable
from typing import Any

from dispatching import Stub, answer, join, make, requests_of
from waiting import turns

from rlax_plugin.rollout.fleet.dispatch import Dispatcher
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rpc import rlax_pb2 as pb


class Holding(Stub):
    """Answers when it is told to, and keeps what it is to give up."""

    def __init__(self) -> None:
        super().__init__(answer)
        self.unwanted: list[tuple[int, int]] = []  # group, attempt
        self.asked: list[tuple[list[int], int]] = []  # to give up: groups, oldest version
        self.replies: dict[int, asyncio.Queue[pb.Reply]] = {}  # by group
        self.cancelled = 0  # calls

    async def Generate(self, messages: Iterable[pb.GenerateRequest]) -> Any:
        requests, replies = requests_of(messages), asyncio.Queue[pb.Reply]()
        self.requests += requests
        self.replies |= {one.key.group: replies for one in requests}
        left = len(requests)
        try:
            while left:
                reply = await replies.get()
                yield reply
                left -= reply.given_up or all(s.finish for s in reply.samples)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def GiveUp(self, message: pb.GiveUpRequest, timeout: float) -> pb.GiveUpReply:
        self.unwanted += [(one.key.group, one.attempt) for one in message.unwanted]
        self.asked.append(([one.key.group for one in message.unwanted], message.oldest))
        return pb.GiveUpReply()

    def give_up(self, group: int, *tokens: int) -> None:
        reply = pb.Reply(key=pb.Key(group=group), given_up=True, tokens=tokens)
        self.replies[group].put_nowait(reply)

    @property
    def groups(self) -> list[int]:
        return [one.key.group for one in self.requests]


async def beat(fleet: Fleet, name: str, steps: float, decode_s: float, version: int = 5) -> None:
    figures = {"steps_total": steps, "decode_s_total": decode_s}
    beats = pb.HeartbeatRequest(worker=name, version=version, process="p", figures=figures)
    assert (await fleet.Heartbeat(beats, None)).known


async def mixed(*names: str) -> tuple[Fleet, Dispatcher, dict[str, Holding]]:
    """Workers of four slots and version 5, the newest, whose speeds are not measured yet."""
    fleet, dispatcher, _ = make(refresh=lambda request: request)
    fleet.newest.number = 5
    return fleet, dispatcher, {name: await holding(fleet, name) for name in names}


async def holding(fleet: Fleet, name: str = "a", version: int = 5) -> Holding:
    await join(fleet, name, answer, slots=4, version=version)
    stub = fleet.workers[name].link.stub = Holding()
    return stub


async def measured(fleet: Fleet, **rates: float) -> None:
    """Has workers report the decode steps a second that they have done; 0: they report none."""
    for count in (1, 2, 3):  # the first report may include a compilation
        for name, rate in rates.items():
            await beat(fleet, name, 7 + count * rate if rate else 0, count * bool(rate))
    await turns()
