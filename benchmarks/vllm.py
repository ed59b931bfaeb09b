"""Tokens per second of the engine ``vllm`` beside vLLM alone, in turns at one server.

The engine gets groups of 8 samples, as a worker gets them. "Alone" is a client that sends one
request for each sample and reads the whole answer at once, with the same prompts, seeds and
settings, and as many at a time. Random weights; every sample has all its tokens. The first turn
of each is not counted. On a machine with other work only the CPU seconds count: those of the client
and of all processes of the server::

    python benchmarks/vllm.py --python /opt/vllm/bin/python
    python benchmarks/vllm.py --python /opt/vllm/bin/python --model smollm2 --rounds 4 1 --turns 3
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from bench import machine
from rlax_vllm import _build
from rlax_vllm.model import model_of, server_arguments
from rlax_vllm.options import VllmConfig
from rlax_vllm.server import Server
from safetensors.numpy import save_file

from rlax_plugin.api import (
    BuildContext,
    Key,
    Request,
    SamplingParams,
    WeightVersion,
    fingerprint_numpy,
)
from rlax_plugin.base.types import TensorSpec, VersionPart
from rlax_plugin.config.loading import resolve

CONFIG = str(Path(__file__).parents[1] / "configs" / "bench_w2.yml")
PROMPT, NEW, GROUP = 16, 128, 8
MODELS = {
    "demo": {"layers": 3, "emb": 64, "heads": (2, 2, 32), "mlp": 256, "vocabulary": 32},
    "w2": {"layers": 8, "emb": 512, "heads": (8, 8, 64), "mlp": 2048, "vocabulary": 8192},
    "smollm2": {"layers": 30, "emb": 576, "heads": (9, 3, 64), "mlp": 1536, "vocabulary": 49152},
}
START_S = 600.0


def context_of(model: dict[str, Any], slots: int) -> BuildContext:
    heads, kv_heads, head_dim = model["heads"]
    keys = (
        f"base_num_decoder_layers={model['layers']}",
        f"base_emb_dim={model['emb']}",
        f"base_num_query_heads={heads}",
        f"base_num_kv_heads={kv_heads}",
        f"head_dim={head_dim}",
        f"base_mlp_dim={model['mlp']}",
        f"vocab_size={model['vocabulary']}",
        f"rlax.prompt_source.vocab_size={model['vocabulary']}",
        f"max_target_length={PROMPT + NEW}",
        f"rlax.rollouts.max_new_tokens={NEW}",
        f"rlax.rollouts.slots={slots}",
        "rlax.rollouts.engine={name: vllm, python: python}",
    )
    given = resolve(CONFIG, keys)
    return BuildContext.outside_run(given.section, given)


def write_version(directory: Path, shapes: dict[str, tuple[int, ...]]) -> WeightVersion:
    rng = np.random.default_rng(0)
    tensors = {
        name: np.asarray(
            np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.02, shape), np.float32
        )
        for name, shape in shapes.items()
    }
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    prints = fingerprint_numpy(tensors)
    specs = {
        name: TensorSpec(array.shape, array.dtype.name, int(prints[name]))
        for name, array in tensors.items()
    }
    part = VersionPart("huggingface", str(directory), specs, "safetensors")
    return WeightVersion(1, 1, (part,), None)


def requests_of(turn: int, samples: int, vocabulary: int) -> list[Request]:
    rng = np.random.default_rng(turn)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=NEW)
    return [
        Request(
            Key("train", group),
            1,
            rng.integers(0, vocabulary, PROMPT).astype(np.int32),
            tuple(int(seed) for seed in rng.integers(0, 2**63, GROUP)),
            sampling,
        )
        for group in range(samples // GROUP)
    ]


def cpu_s() -> float:
    """CPU seconds of this process, and of those that live and it has started."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def through_engine(engine: Any, requests: list[Request]) -> int:
    """Tokens."""
    tokens = 0

    def on_reply(key: Key, samples: Any) -> None:
        nonlocal tokens
        if all(sample.finish for sample in samples):
            tokens += sum(len(sample.tokens) for sample in samples)

    await engine.generate(requests, on_reply)
    return tokens


async def alone(http: httpx.AsyncClient, requests: list[Request], at_once: int) -> int:
    """Tokens."""
    free = asyncio.Semaphore(at_once)

    async def sample(request: Request, seed: int) -> int:
        body = {
            "token_ids": request.context.tolist(),
            "sampling_params": {
                **{"n": 1, "logprobs": 0, "detokenize": False, "ignore_eos": True, "top_k": 0},
                **{"temperature": 1.0, "max_tokens": NEW, "seed": seed},
            },
            "cache_salt": "alone",
        }
        async with free:
            reply = await http.post("/inference/v1/generate", json=body)
        return len(reply.json()["choices"][0]["token_ids"])

    return sum(await asyncio.gather(*(sample(r, seed) for r in requests for seed in r.seeds)))


async def timed(requests: list[Request], generating: Awaitable[int]) -> tuple[float, float]:
    """Tokens per second, and per CPU second."""
    began_s, began_cpu_s = time.perf_counter(), cpu_s()
    tokens = await generating
    taken_s, taken_cpu_s = time.perf_counter() - began_s, cpu_s() - began_cpu_s
    assert tokens == len(requests) * GROUP * NEW
    return tokens / taken_s, tokens / taken_cpu_s


def ratios(pairs: list[tuple[float, float]], what: str) -> dict[str, Any]:
    """Both figures of all turns, and the spread of their ratio."""
    found = [ours / other for ours, other in pairs]
    print(f"  {what}: ratio {statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})")
    return {
        "engine": [round(ours, 1) for ours, _ in pairs],
        "alone": [round(other, 1) for _, other in pairs],
        "ratio_median": round(statistics.median(found), 3),
        "ratio_min": round(min(found), 3),
        "ratio_max": round(max(found), 3),
    }


async def measure(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    model = MODELS[options.model]
    most = max(options.at_once)
    context = context_of(model, most)
    config = VllmConfig(python=options.python)
    described = model_of(config, context)
    home = directory / "server"
    home.mkdir(mode=0o700)
    described.write(home / "model")
    version = write_version(directory / "version", dict(described.shapes))
    keys = ("weights_s", "batch_s", "startup_s")
    server = Server(
        python=options.python,
        url="",
        directory=str(home),
        arguments=server_arguments(config, context, described, str(home / "model")),
        vocabulary=described.vocabulary,
        connections=1,
        limits=dict.fromkeys((f"rlax.deadlines.{key}" for key in keys), START_S),
        on_end=print,
    )
    found = []
    transport = httpx.AsyncHTTPTransport(
        uds=str(home / "api"), limits=httpx.Limits(max_connections=most, keepalive_expiry=1.0)
    )
    try:
        async with (
            asyncio.timeout(options.limit_s),
            httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=START_S) as http,
        ):
            while not await server.healthy():
                await asyncio.sleep(0.5)
            for at_once, rounds in zip(options.at_once, options.rounds, strict=True):
                section = context.section
                rollouts = section.rollouts.model_copy(update={"slots": at_once})
                section = section.model_copy(update={"rollouts": rollouts})
                engine = _build(
                    VllmConfig(url=f"unix:{home}/api"),
                    dataclasses.replace(context, section=section),
                )
                await engine.prepare()
                await engine.use(await engine.load(version))
                pairs = []
                for turn in range(options.turns + 1):
                    asked = requests_of(turn, at_once * rounds, described.vocabulary)
                    ways = {
                        "engine": through_engine(engine, asked),
                        "alone": alone(http, asked, at_once),
                    }
                    names = sorted(ways, reverse=bool(turn % 2))
                    figures = {name: await timed(asked, ways[name]) for name in names}
                    text = ", ".join(f"{n} {a:.0f} ({b:.0f})" for n, (a, b) in figures.items())
                    print(f"{at_once} at once, tokens/s (per CPU s): {text}", flush=True)
                    pairs.append(tuple(zip(figures["engine"], figures["alone"], strict=True)))
                engine.close()
                found.append(
                    {
                        "at_once": at_once,
                        "samples": at_once * rounds,
                        "tokens_per_s": ratios([by_time for by_time, _ in pairs[1:]], "by time"),
                        "tokens_per_cpu_s": ratios([by_cpu for _, by_cpu in pairs[1:]], "by CPU"),
                    }
                )
    finally:
        server.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="the Python that has vLLM")
    parser.add_argument("--model", choices=MODELS, default="w2")
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 64])
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=[4, 2], help="samples of a turn, as multiples"
    )
    parser.add_argument("--turns", type=int, default=5, help="pairs of turns")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="longest time of all")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(options, Path(directory)))
    if options.json:
        figures = {"machine": machine(), "model": options.model, "prompt_tokens": PROMPT}
        figures |= {"new_tokens": NEW, "runs": found}
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
