"""What a group takes in a message, and configs whose groups no message could hold."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from dispatching import answer, generated, join, make, request, run
from sections import section_with

from rlax_plugin.errors import ConfigError
from rlax_plugin.rollouts.jobs import TRUNCATED_LOGPROBS
from rlax_plugin.rpc import message_sizes, wire
from rlax_plugin.types import Key, Request, Sampled, SamplingParams


def group(samples: int, tokens: int, prompt: int) -> Request:
    ids, logprobs = np.full(tokens, 2**31 - 1, np.int32), np.full(tokens, -1, np.float32)
    side = {TRUNCATED_LOGPROBS: logprobs}
    seeds = tuple(2**64 - 1 - i for i in range(samples))
    resume = tuple(Sampled(seed, ids, logprobs, ids, None, side=side) for seed in seeds)
    sampling = SamplingParams(0.7, 50, 0.9, 2**31 - 1, tuple(range(2**31 - 9, 2**31 - 1)))
    key, context = Key("serve", 2**62, *[2**31 - 1] * 3), np.full(prompt, 2**31 - 1, np.int32)
    return Request(key, 2**30, context, seeds, sampling, 2**62, resume, session="s" * 128)


@pytest.mark.parametrize(("samples", "tokens", "prompt"), [(1, 1, 1), (64, 3, 5000), (16, 9999, 9)])
def test_no_group_takes_more_than_is_counted(samples, tokens, prompt):
    asked = group(samples, tokens, prompt)
    counted = message_sizes.group_bytes(samples, samples * tokens, prompt)
    for message in (wire.request_to_proto(asked), wire.reply_to_proto(asked.key, asked.resume)):
        # In a list of groups each takes a few bytes more, for its length.
        assert message.ByteSize() + 16 <= counted
    # And it is no wild guess: what counts are the tokens.
    assert counted <= 16 * samples * tokens + 4 * prompt + 4096 + 128 * samples


@pytest.mark.parametrize(
    "changes",
    [
        {"rollouts": {"group_size": 16, "max_new_tokens": 32_768, "slots": 1024}},
        {
            "rollouts": {"max_new_tokens": 32_768},
            "evaluation": {"samples": 512, "sets": {"hard": {"samples": 1024}}},
        },
        {"rollouts": {"group_size": 64, "max_new_tokens": 1_000_000}},
    ],
)
def test_large_groups_fit(changes):
    message_sizes.check_messages(section_with(**changes))


@pytest.mark.parametrize(
    ("changes", "key", "samples", "most"),
    [
        ({"rollouts": {"group_size": 64, "max_new_tokens": 2**20}}, "rollouts.group_size", 64, 63),
        (
            {"rollouts": {"max_new_tokens": 2**17}, "evaluation": {"samples": 512}},
            "evaluation.samples",
            512,
            511,
        ),
        (
            {
                "rollouts": {"max_new_tokens": 2**17},
                "evaluation": {"sets": {"hard": {"samples": 600}}},
            },
            "evaluation.sets.hard.samples",
            600,
            511,
        ),
    ],
)
def test_groups_that_no_message_holds_are_rejected_by_key(changes, key, samples, most):
    with pytest.raises(ConfigError, match=f"at most {most} samples fit") as failure:
        message_sizes.check_messages(section_with(**changes))
    assert failure.value.key == f"rlax.{key}" and failure.value.value == samples


def test_a_sample_that_no_message_holds_is_rejected_by_its_length():
    with pytest.raises(ConfigError, match="a single sample may take 1,073,746") as failure:
        message_sizes.check_messages(
            section_with(rollouts={"max_new_tokens": 2**26, "max_prompt_tokens": 1})
        )
    assert failure.value.key == "rlax.rollouts.max_new_tokens"


def test_without_evaluation_its_samples_do_not_count():
    evaluation = {"problems": 0, "samples": 4096, "k": [1]}
    message_sizes.check_messages(
        section_with(rollouts={"max_new_tokens": 2**17}, evaluation=evaluation)
    )


def test_requests_that_do_not_fit_into_one_message_are_sent_in_several(monkeypatch):
    async def main():
        resumed = []
        for i in range(4):
            resumed.append(request(i, resume=tuple(generated((0, 1), 10, 10, None))))
        size = message_sizes.group_bytes(2, 20, 1)
        monkeypatch.setattr(message_sizes, "MESSAGE_BYTES", 2 * size)
        fleet, dispatcher, _ = make()
        tickets = [dispatcher.submit(one) for one in resumed]
        stub = await join(fleet, "a", answer)
        await asyncio.gather(*tickets)
        assert sorted(stub.calls) == [[0, 1], [2, 3]]
        assert fleet.workers["a"].assigned == 0
        await dispatcher.close()

    run(main)
