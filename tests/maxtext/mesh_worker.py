"""A worker's engine that takes a version and generates: on one device, and on a mesh of two.

As a program it is a worker with two devices, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts
import tiny_engine
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine
from rlax_orbax.store import OrbaxStore

from maxtext_overrides.sampler.decode import DecodeEngine
from rlax_plugin.base.types import Canary, Key, Request, SamplingParams, TensorSpec
from rlax_plugin.config import RlaxSection
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.verification import Reading, take_version

SAMPLES = 2
TOLERANCE = 1e-4  # nats, of a canary in float32


def rollouts():
    known = {
        "slots": tiny_engine.SLOTS,
        "group_size": SAMPLES,
        "max_prompt_tokens": tiny_engine.PROMPT,
        "max_new_tokens": tiny_engine.NEW,
    }
    names = {"prompt_source": {"name": "x"}, "rewards": [{"name": "x"}]}
    return RlaxSection.model_validate(names | {"rollouts": known}).rollouts


def requests():
    """Groups whose samples have other seeds, temperatures and truncations of the distribution."""
    settings = ({}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8})
    return [
        Request(
            Key("train", number),
            1,
            prompt,
            (10 * number, 10 * number + 1),
            SamplingParams(max_new_tokens=tiny_engine.NEW, **given),
            0,
        )
        for number, (prompt, given) in enumerate(
            zip(tiny_engine.prompts_of(3, 8, 5, 1), settings, strict=True)
        )
    ]


def bytes_read() -> int:
    found = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(one["value"] for metric in found for one in metric["values"])


def generated(slots: DecodeEngine, version: Any) -> dict[str, Any]:
    """Returns the bytes, checks and samples of a worker with these slots."""

    async def scenario() -> dict[str, Any]:
        engine = JetstreamEngine(
            make_slots=lambda: slots,
            store=OrbaxStore(),
            rollouts=rollouts(),
            config=JetstreamConfig(warm_up=False),
            make_prompt_source=lambda: None,
        )
        before, reading, found = bytes_read(), Reading(), {}
        try:
            await take_version(engine, version, max_new_tokens=tiny_engine.NEW, reading=reading)
            read = bytes_read() - before
            scored = await engine.score(np.asarray(version.canary.tokens, np.int32))
            await engine.generate(requests(), lambda key, samples: found.update({key: samples}))
        finally:
            engine.close()
        assert reading.decoding_s > 0  # decoding was verified too
        samples = [one for key in sorted(found, key=lambda key: key.group) for one in found[key]]
        return {
            "bytes": read,
            "canary": scored.tolist(),
            "tokens": [one.tokens.tolist() for one in samples],
            "logprobs": [one.logprobs.tolist() for one in samples],
        }

    return asyncio.run(scenario())


def of_device(arrays: Mapping[str, Any]) -> int:
    """Bytes that the first device holds."""
    return sum(array.addressable_shards[0].data.nbytes for array in arrays.values())


def main(directory: Path) -> None:
    described = json.loads((directory / "version.json").read_text())
    tensors = {n: TensorSpec(tuple(s), t, f) for n, (s, t, f) in described["tensors"].items()}
    canary = Canary(
        np.asarray(described["tokens"], np.int32),
        np.asarray(described["logprobs"], np.float32),
        TOLERANCE,
    )
    version = make_version(0, described["path"], tensors, canary=canary)
    half = tiny_engine.SLOTS // 2
    config = tiny_engine.configure(per_device_batch_size=half, ici_tensor_parallelism=2)
    slots = DecodeEngine(config, group_size=SAMPLES)
    like = slots.variables_like()
    held = of_device(OrbaxStore().load(described["path"], like))
    found = generated(slots, version) | {"held": held, "devices": jax.device_count()}
    (directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
