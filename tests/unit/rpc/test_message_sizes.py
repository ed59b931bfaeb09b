"""What a group takes in messages, and how large a message may be."""

import numpy as np
import pytest

from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, SideSpec
from rlax_plugin.rollout.batching.jobs import TRUNCATED_LOGPROBS
from rlax_plugin.rpc.transport import message_sizes, wire

SIDE = {
    TRUNCATED_LOGPROBS: SideSpec("float32"),
    "experts": SideSpec("int8", (3, 5), "context+sampled"),
}


def group(samples: int, tokens: int, prompt: int) -> Request:
    """One of the largest of its shape: each token has another version."""
    ids, logprobs = np.full(tokens, 2**31 - 1, np.int32), np.full(tokens, -1, np.float32)
    versions = ids - np.arange(tokens, dtype=np.int32)
    experts = np.ones((tokens + prompt, 3, 5), np.int8)
    side = {TRUNCATED_LOGPROBS: logprobs, "experts": experts}
    seeds = tuple(2**64 - 1 - i for i in range(samples))
    resume = tuple(Sampled(seed, ids, logprobs, versions, None, side=side) for seed in seeds)
    sampling = SamplingParams(0.7, 50, 0.9, 2**31 - 1, tuple(range(2**31 - 9, 2**31 - 1)))
    key, context = Key("serve", 2**62, *[2**31 - 1] * 3), np.full(prompt, 2**31 - 1, np.int32)
    return Request(key, 2**30, context, seeds, sampling, 2**62, resume, session="s" * 128)


@pytest.mark.parametrize(("samples", "tokens", "prompt"), [(1, 1, 1), (64, 3, 5000), (16, 9999, 9)])
def test_no_group_takes_more_than_is_counted(samples, tokens, prompt):
    asked = group(samples, tokens, prompt)
    counted = message_sizes.group_bytes(samples, tokens, prompt, SIDE)
    for message in (wire.request_to_proto(asked), wire.reply_to_proto(asked.key, asked.resume)):
        # In a list of groups each takes a few bytes more, for its length.
        assert message.ByteSize() + 16 <= counted
    # And it is no wild guess: what counts are the tokens, at 18, 4 and 15 bytes, and the context.
    arrays = samples * (37 * tokens + 15 * prompt) + 4 * prompt
    assert counted <= (arrays + 4096 + 256 * samples) * 65 // 64


def test_side_channels_count_with_their_width_and_the_tokens_they_are_over():
    plain = message_sizes.group_bytes(2, 640, 320)
    wide = {"x": SideSpec("float16", (7,))}
    over_all = {"x": SideSpec("float16", (7,), "context+sampled")}
    # A channel's name of one letter and what goes with it: 33 bytes in each sample.
    assert message_sizes.group_bytes(2, 640, 320, wide) - plain == (2 * (33 + 640 * 14)) * 65 // 64
    found = message_sizes.group_bytes(2, 640, 320, over_all) - plain
    assert found == pytest.approx(2 * (33 + 960 * 14) * 65 / 64, abs=1)
