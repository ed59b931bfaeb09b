"""The trial of an engine: it decodes a few tokens, so that heartbeats say how fast it is.

What a worker is given must end when the other groups of its batch end, and only work shows its
speed. A slow worker that showed it with the first groups of a run would keep batches waiting for
them, and one that gets no groups any more could never show that it has become faster.
"""

from __future__ import annotations

import asyncio
import itertools

import numpy as np

from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.types import Key, Request, SamplingParams
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.protocols import RolloutEngine

IDLE_S = 10.0
"""Seconds without a decode step after which an engine is tried again."""

_TOKENS = 8
_ATTEMPTS = itertools.count(1)


def measurable(engine: RolloutEngine, section: RlaxSection) -> bool:
    """True if an engine reports its decode steps, and the run gives work by speed."""
    return "steps_total" in engine.health() and not section.deterministic


async def try_out(engine: RolloutEngine, section: RlaxSection) -> None:
    """Decodes a few tokens after a prompt of one token; nobody reads them.

    Raises:
      WorkerError: the engine cannot generate.
      DeadlineError: these few tokens took longer than a group may take.
    """
    r = section.rollouts
    request = Request(
        key=Key("serve", -1),  # no client's request has this number
        attempt=next(_ATTEMPTS),  # one may still run when weights of another trainer are there
        context=np.zeros(1, np.int32),
        seeds=(0,),
        sampling=SamplingParams(
            temperature=r.last_temperature,
            top_k=r.top_k,
            top_p=r.top_p,
            max_new_tokens=min(_TOKENS, r.max_new_tokens),
        ),
    )
    deadline_s = section.deadlines.group_s
    try:
        async with asyncio.timeout(deadline_s):
            await engine.generate([request], lambda key, samples: None)
    except TimeoutError:
        what = f"decoding {request.sampling.max_new_tokens} tokens before any request"
        raise DeadlineError(what, deadline_s, "rlax.deadlines.group_s") from None


async def try_when_idle(engine: RolloutEngine, section: RlaxSection) -> None:
    """Tries an engine out whenever it has decoded nothing for a while; never returns.

    Raises:
      WorkerError, DeadlineError: see ``try_out``.
    """
    while True:
        steps = engine.health().get("steps_total")
        await asyncio.sleep(IDLE_S)
        health = engine.health()
        idle = health.get("steps_total") == steps and not (
            health.get("active") or health.get("waiting")
        )
        if idle and engine.version >= 0 and measurable(engine, section):
            await try_out(engine, section)
