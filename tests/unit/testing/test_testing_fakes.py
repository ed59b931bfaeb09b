"""Fakes reject what a run would never give them; builders make records that fit."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest

from rlax_plugin.errors import TrainingError, WeightsError, WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.rlax_pb2_grpc import RolloutStub
from rlax_plugin.rpc.wire import reply_from_proto, request_to_proto
from rlax_plugin.testing import (
    FakeEngine,
    FakeTrainerPort,
    FakeWeightStore,
    FakeWorker,
    make_batch,
    make_group,
    make_request,
    make_rollout,
    policy,
    publish_version,
)
from rlax_plugin.testing.fakes import CANARY_TOKENS
from rlax_plugin.types import Canary
from rlax_plugin.weights.taking import take_version

WEIGHTS = {"w": np.zeros(2, np.float32)}


def test_a_group_has_a_sample_for_every_reward() -> None:
    group = make_group((1.0, None, 0.25), lengths=(1, 2, 3), version=4, id=7)
    assert [len(r.tokens) for r in group.rollouts] == [1, 2, 3]
    assert [r.group_id for r in group.rollouts] == [7, 7, 7]
    np.testing.assert_array_equal(group.rewards, [1.0, np.nan, 0.25])
    assert group.oldest_version == 4 and group.rollouts[1].reward_error == "it raised"
    assert len({r.seed for r in group.rollouts}) == 3


def test_a_batch_centres_rewards_and_masks_what_failed() -> None:
    batch = make_batch(5, [make_group((1.0, 0.0, None), lengths=(2, 3, 4), version=3)])
    assert batch.arrays["rl_mask"].sum(axis=1).tolist() == [2, 3, 0]
    assert batch.arrays["rl_advantages"].max(axis=1).tolist() == [0.5, 0.0, 0.0]
    assert batch.arrays["rl_staleness"].max() == 2


def test_arrays_of_a_rollout_fit_its_tokens() -> None:
    rollout = make_rollout(tokens=[9, 8], finish_reason="length")
    assert rollout.tokens.tolist() == [9, 8] and rollout.tokens.dtype == np.int32
    assert rollout.logprob_full.shape == rollout.versions.shape == (2,)


def published(step: int = 0) -> FakeTrainerPort:
    port = FakeTrainerPort()
    port.publish(step, WEIGHTS)
    return port


def test_the_calls_of_a_sound_trainer_are_taken() -> None:
    port = published(4)
    for step in (5, 6):
        assert port.next_batch(step)["rl_mask"].any()
        assert port.decide(step) == (False, False)
        port.before_checkpoint(step)
        port.publish(step, {"w": np.full(2, step, np.float32)})
        port.step_done(step, {"loss": 0.5})
    port.close()
    assert port.last_step == 6 and sorted(port.published) == [4, 5, 6]
    assert port.metrics == {5: {"loss": 0.5}, 6: {"loss": 0.5}}


def test_calls_out_of_order_are_rejected() -> None:
    def rejected(message: str):
        return pytest.raises(TrainingError, match=message)

    with rejected(r"next_batch\(1\): publish what training starts from first"):
        FakeTrainerPort().next_batch(1)
    with rejected(r"next_batch\(2\): the next step is 1"):
        published().next_batch(2)
    port = published()
    port.next_batch(1)
    with rejected(r"next_batch\(2\): step 1 is not done"):
        port.next_batch(2)
    with rejected(r"publish\(2\): the weights are those after step 1"):
        port.publish(2, WEIGHTS)
    port.decide(1)
    with rejected(r"decide\(1\): it is decided already"):
        port.decide(1)
    with rejected(r"step_done\(2\): step 1 is being trained"):
        port.step_done(2, {})
    port.step_done(1, {})
    with rejected(r"next_batch\(2\): version 1 is not published"):
        port.next_batch(2)
    with rejected(r"publish\(1\): .*\(3,\)"):
        port.publish(1, {"w": np.zeros(3, np.float32)})
    with rejected(r"before_checkpoint\(7\): the step is 1"):
        port.before_checkpoint(7)


def test_what_shows_only_at_the_end_is_found() -> None:
    port = FakeTrainerPort()
    weights = {"w": np.zeros(2, np.float32)}
    port.publish(0, weights)
    weights["w"] += 1
    with pytest.raises(TrainingError, match="'w' was changed afterwards; hand over fresh buffers"):
        port.close()
    port = published()
    port.next_batch(1)
    with pytest.raises(TrainingError, match="step 1 not done"):
        port.close()


@pytest.mark.parametrize(
    ("canary", "message"),
    [
        (Canary(CANARY_TOKENS[1:], np.zeros(4), 1e-4), "of tokens"),
        (Canary(CANARY_TOKENS, np.full(4, np.nan), 1e-4), "log-probs are"),
        (Canary(CANARY_TOKENS, np.ones(4), 1e-4), "log-probs are"),
        (Canary(CANARY_TOKENS, np.zeros(4), 0.0), "tolerance"),
    ],
)
def test_a_canary_must_be_computable(canary: Canary, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        FakeTrainerPort().publish(0, WEIGHTS, canary)


def test_the_engine_rejects_malformed_requests() -> None:
    store = FakeWeightStore()
    version = publish_version(store, "0", policy.initial_weights(0))
    wrong = {
        "prompt_tokens are int64": make_request(prompt_tokens=np.array([4])),
        r"prompt_tokens are int32\[0\]": make_request(prompt_tokens=np.zeros(0, np.int32)),
        "seeds are": make_request(seeds=(5, 5)),
        "not all of 64 bits": make_request(seeds=(-1, 5)),
        "count from 1": make_request(attempt=0),
        "other samples than seeds": make_request(resume=(make_rollout(seed=3),)),
    }

    async def ask() -> None:
        engine = FakeEngine(store)
        await take_version(engine, version)
        for message, request in wrong.items():
            with pytest.raises(WorkerError, match=message):
                await engine.generate([request], lambda group_id, rollouts: None)
        assert engine.requests == []
        await engine.generate(
            [make_request(3)], lambda group_id, rollouts: generated.append(group_id)
        )
        assert [request.group_id for request in engine.requests] == generated

    generated: list[int] = []
    asyncio.run(ask())
    assert generated == [3]


def test_a_worker_answers_over_grpc_and_rejects_what_its_engine_rejects() -> None:
    store = FakeWeightStore()
    version = publish_version(store, "0", policy.initial_weights(0))
    good, bad = make_request(3), make_request(4, seeds=(5, 5))

    async def ask() -> None:
        engine = FakeEngine(store)
        await take_version(engine, version)
        async with FakeWorker(engine) as worker, grpc.aio.insecure_channel(worker.address) as at:
            stub = RolloutStub(at)
            assert (await stub.Health(pb.HealthRequest(), timeout=60)).version == 0
            asked = pb.GenerateRequest(groups=[request_to_proto(good)])
            replies = [reply async for reply in stub.Generate(asked, timeout=60)]
            (rollouts,) = [reply_from_proto(reply, "w", good.seeds) for reply in replies]
            assert [r.seed for r in rollouts] == list(good.seeds)
            asked = pb.GenerateRequest(groups=[request_to_proto(bad)])
            with pytest.raises(grpc.aio.AioRpcError, match="group 4: seeds are") as caught:
                [reply async for reply in stub.Generate(asked, timeout=60)]
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert worker.group_ids == [3, 4]

    asyncio.run(ask())


def test_the_store_copies_in_both_directions() -> None:
    store, array = FakeWeightStore(), np.zeros(2, np.float32)
    store.save("v", {"w": array})
    array += 1
    store.load("v", {"w": array})["w"] += 5
    assert store.load("v", {"w": array})["w"].tolist() == [0, 0]
    with pytest.raises(WeightsError, match="exists"):
        store.save("v", {"w": array})
