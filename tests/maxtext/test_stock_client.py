"""JetStream's own stub against MaxText's model, through the real engine, service and gRPC."""

from __future__ import annotations

import asyncio

import numpy as np
from jetstream.core.proto import jetstream_pb2 as jet
from jetstream.core.proto import jetstream_pb2_grpc as jet_rpc
from part_stubs import SourceStub
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine
from streamed import wholes
from tiny_engine import NEW, PROMPT, SLOTS, prompts_of
from wired import reply_from_proto

from rlax_plugin.config import RlaxSection
from rlax_plugin.config.network import Place
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.doors import connect
from rlax_plugin.rpc.pieces import request_messages
from rlax_plugin.rpc.secret import read_secret
from rlax_plugin.testing.builders import make_version
from rlax_plugin.types import Key, Request, SamplingParams, TensorSpec, WeightVersion
from rlax_plugin.weights.device_fingerprint import fingerprint
from rlax_plugin.weights.verification import take_version
from rlax_plugin.worker.process import Endpoint
from rlax_plugin.worker.rollout_service import RolloutService

DEADLINE_S = 120


class Digits(SourceStub):
    """A text is token ids with spaces between."""

    stop_ids = ()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(map(str, tokens.tolist()))


class Memory:
    """A weight store that holds one version."""

    def __init__(self, weights):
        self._weights = weights

    def load(self, path, like):
        assert like.keys() == self._weights.keys()
        return self._weights


def published(weights) -> WeightVersion:
    prints = fingerprint(weights)
    tensors = {
        name: TensorSpec(tuple(a.shape), a.dtype.name, int(prints[name]))
        for name, a in weights.items()
    }
    return make_version(0, "", tensors)


def test_maxtexts_greedy_tokens_reach_a_stock_client(dense):
    section = RlaxSection.model_validate(
        {
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "x"}],
            "rollouts": {
                "slots": SLOTS,
                "max_prompt_tokens": PROMPT,
                "max_new_tokens": NEW,
                "temperature": 0,
            },
        }
    )
    engine = JetstreamEngine(
        make_slots=lambda: dense.engine,
        store=Memory(dense.weights),
        rollouts=section.rollouts,
        config=JetstreamConfig(warm_up=False),
        make_prompt_source=Digits,
    )
    prompts = prompts_of(3, PROMPT, 5)

    async def by_us(channel, prompt) -> list[int]:
        sampling = SamplingParams(temperature=0, max_new_tokens=NEW)
        request = Request(Key("train", 0), 1, prompt, (5,), sampling)
        (reply,) = [
            r
            async for r in rpc.RolloutStub(channel).Generate(
                request_messages([request]), timeout=DEADLINE_S
            )
        ]
        (one,) = reply_from_proto(reply, request, "", told=(), workers=[()])
        return one.tokens.tolist()

    async def by_jetstream(channel, **content):
        stub = jet_rpc.OrchestratorStub(channel)
        request = jet.DecodeRequest(max_tokens=NEW, **content)
        (sample,) = wholes([r async for r in stub.Decode(request, timeout=DEADLINE_S)])
        return sample

    async def scenario() -> None:
        both = ("client", "trainer")
        with Endpoint(Place(), engine, name="w", clients="token", client_roles=both) as endpoint:
            services = await endpoint.start(RolloutService(engine, section))
            await take_version(engine, published(dense.weights))
            await services
            secret = read_secret(endpoint.clients_file, "token_file")
            async with connect(endpoint.address, secret) as channel:
                ids = [jet.DecodeRequest.TokenContent(token_ids=p.tolist()) for p in prompts]
                texts = [jet.DecodeRequest.TextContent(text=Digits().decode(p)) for p in prompts]
                asked = [by_jetstream(channel, token_content=content) for content in ids]
                asked += [by_jetstream(channel, text_content=content) for content in texts]
                answers = await asyncio.gather(*asked)  # all at once, in neighbouring slots
                expected = [await by_us(channel, prompt) for prompt in prompts]
            await endpoint.server.stop(None)
        assert len({tuple(tokens) for tokens in expected}) == len(prompts)
        assert [list(a.token_ids) for a in answers] == expected + expected
        assert [a.text for a in answers[3:]] == [" ".join(map(str, e)) for e in expected]
        for prompt, tokens in zip(prompts, expected, strict=True):
            logits = dense.completion_logits(prompt, np.array(tokens))
            assert logits.argmax(axis=-1).tolist() == tokens  # of the trainer's forward pass

    try:
        asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
    finally:
        engine.close()
