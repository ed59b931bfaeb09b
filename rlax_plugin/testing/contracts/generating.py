"""Requests of a contract, and the replies of an engine to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rlax_plugin.batching.jobs import TRUNCATED_LOGPROBS
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.testing.contracts.inspection import require
from rlax_plugin.tokens.defects import defect
from rlax_plugin.types import Key, Request, Sampled


class TriedEngine:
    """Context manager with an engine, which is closed at the end."""

    def __init__(self, make_engine: Callable[[], RolloutEngine]):
        self._engine = make_engine()

    async def __aenter__(self) -> RolloutEngine:
        return self._engine

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._engine.close)


async def generated(engine: RolloutEngine, *requests: Request) -> dict[int, Sequence[Sampled]]:
    """Group -> samples; each request must be answered once."""
    finished: dict[int, Sequence[Sampled]] = {}

    def on_reply(key: Key, samples: Sequence[Sampled]) -> None:
        if any(s.finish is None for s in samples):
            return  # a report on the way
        require(key.group not in finished, f"{key} was answered twice")
        finished[key.group] = samples

    await engine.generate(requests, on_reply)
    missing = {r.key.group for r in requests} - finished.keys()
    require(not missing, f"generate returned without groups {sorted(missing)}")
    return finished


def check_group(
    request: Request, samples: Sequence[Sampled], version: int, has: Capabilities
) -> None:
    """Checks the samples of a request, which must all be of one weight version."""
    seeds = [s.seed for s in samples]
    require(seeds == list(request.seeds), f"seeds {seeds} for {list(request.seeds)}")
    for s in samples:
        dtypes = [a.dtype.name for a in (s.tokens, s.logprobs, s.versions)]
        right = dtypes == ["int32", "float32", "int32"]
        require(right, f"tokens, log-probs and versions are {dtypes}")
    length, known = len(request.context), has.vocabulary
    if problem := defect(samples, request.sampling, known, context_length=length, side=has.side):
        tokens = [s.tokens.tolist() for s in samples]
        require(False, f"{problem}; tokens {tokens}, stop ids {request.sampling.stop_ids}")
    for s in samples:
        for values in (s.logprobs, s.side.get(TRUNCATED_LOGPROBS, s.logprobs)):
            require(values.max() <= 1e-6, f"a log-prob is {values.max():.4g}")
        found = sorted({int(v) for v in s.versions})
        require(found == [version], f"generated with version {version}, it says {found}")
