"""Size limits of a message, and of all messages of one group together."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rlax_plugin.base.types import EMPTY, SideSpec

MESSAGE_BYTES = 16 << 20
"""Maximum size of any message, for all senders."""

PIECE_BYTES = (4 << 20) + (64 << 10)
"""Maximum size of each message that a large reply or request is split into.

These are 4 MiB of arrays and their overhead. Only a request's seeds and sampling settings are
never split.
"""

TOKEN_BYTES = 18  # of a sample: the token, its log-prob, and at most one run of versions
SAMPLE_BYTES = 64  # its seed, where it begins, how it ended and what protobuf adds, at most
CHANNEL_BYTES = 32  # what protobuf adds to a side channel and its name, at most
GROUP_BYTES = 4096  # sampling settings and the like, at most
SEED_BYTES = 8
ID_BYTES = 4  # of a token of a context


def group_bytes(
    samples: int, tokens: int, context_tokens: int, side: Mapping[str, SideSpec] = EMPTY
) -> int:
    """Maximum bytes of a group in all messages of a reply, or of a request that resumes it.

    Args:
      tokens: maximum number of tokens of each sample.
      context_tokens: number of tokens before each sample.
      side: the side channels that its samples have.
    """
    sample = SEED_BYTES + SAMPLE_BYTES + tokens * TOKEN_BYTES
    for name, spec in side.items():
        count = tokens + (context_tokens if spec.over == "context+sampled" else 0)
        width = np.dtype(spec.dtype).itemsize * math.prod(spec.trailing)
        sample += channel_bytes(name) + count * width
    whole = GROUP_BYTES + context_tokens * ID_BYTES + samples * sample
    return whole + whole // 64  # what is repeated in each of several messages


def channel_bytes(name: str) -> int:
    """Maximum bytes of a side channel in a sample, in addition to its numbers."""
    return CHANNEL_BYTES + len(name.encode())
