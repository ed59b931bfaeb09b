"""Whole samples of a reply, as a controller reads them."""

from collections.abc import Sequence
from typing import Any

from rlax_plugin.base.types import Request, Sampled
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import continued, told_by_reply


def reply_from_proto(
    reply: pb.Reply, request: Request, worker: str, *, told: Sequence[Sampled], **known: Any
) -> tuple[Sampled, ...]:
    """See ``told_by_reply``; ``told`` are samples that the worker has sent before."""
    return continued(told, told_by_reply(reply, request, worker, **known), request, worker)
