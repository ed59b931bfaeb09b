"""Valid messages of realistic content, to each method of the project's servers."""

from __future__ import annotations

import itertools

import numpy as np
from jetstream.core.proto import jetstream_pb2 as jet

from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, SideSpec
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.capabilities import to_proto
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.security.secret import new_token
from rlax_plugin.rpc.transport.wire import key_to_proto, request_to_proto
from rlax_plugin.testing.task import STOP

NUMBERS = itertools.count()
"""Of what must not come twice, such as a process."""

CAPABILITIES = Capabilities(
    slots=8,
    vocabulary=64,
    context_tokens=4096,
    seeded=True,
    logprobs=True,
    resumes=True,
    side={"entropy": SideSpec("float32", (2,), "context+sampled")},
)


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


def heartbeat(name: str, process: str) -> pb.HeartbeatRequest:
    keys = (Key("train", 7), Key("evaluate", 8, 1, 2, 3))
    progress = [pb.Progress(key=key_to_proto(key), attempt=2, moves=40) for key in keys]
    figures = {"steps_total": 30.0, "decode_s_total": 2.0, "silent_tokens": 64.0, "read_s": 1.5}
    return pb.HeartbeatRequest(
        worker=name,
        version=3,
        figures=figures | {"read_bytes": 1e9, "slots": 8.0},
        process=process,
        progress=progress,
        pin=2,
        capabilities=to_proto(CAPABILITIES),
    )


def generation() -> pb.GenerateRequest:
    sampling = SamplingParams(0.9, 5, 0.8, 12, (STOP,), ("77", "8"))
    begun = [
        Sampled(
            seed,
            np.array([3, 4, 5], np.int32),
            np.array([-1, -2, -0.5], np.float32),
            np.array([1, 1, 2], np.int32),
            None,
            side={"truncated_logprobs": np.full(3, -0.5, np.float32)},
        )
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
