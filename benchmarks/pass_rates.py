"""Measures the cost of pass rates with many prompts.

    .venv/bin/python benchmarks/pass_rates.py --count 10000 1000000

All prompts are measured. A step chooses 64 prompts by sampling from their posteriors and observes
64 groups. A snapshot has a part on the event loop, the copy, and the rest on another thread;
meanwhile a ticker on the loop measures the longest time for which nothing else could run. Each
count has a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import rlax_curation

from rlax_plugin.config import RlaxSection
from rlax_plugin.pass_rates.pass_rate_table import PassRateTable
from rlax_plugin.prompts.table import PromptTable
from rlax_plugin.records.files import RunFiles
from rlax_plugin.resume.run_state import RunState
from rlax_plugin.resume.snapshots import (
    rates_name,
    read_snapshot,
    snapshot,
    snapshot_name,
    write_snapshot,
)
from rlax_plugin.start.prior import about_rates, first_rates
from rlax_plugin.types import SamplingParams

STEPS, PROMPTS = 50, 64


def prompt_table(count: int) -> PromptTable:
    """Returns short prompts; only ids and tokens are ever read of most."""
    rng, texts = np.random.default_rng(0), [f"{n}?" for n in range(count)]
    ids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), count, [None, pa.py_buffer(rng.bytes(16 * count))]
    )
    tokens = pa.ListArray.from_arrays(
        np.arange(0, 4 * count + 1, 4, dtype=np.int32), np.zeros(4 * count, np.int32)
    )
    text = pa.array(texts)
    columns = {"id": ids, "tokens": tokens, "text": text, "reference": text}
    metadata = pa.array(["{}"] * count)
    table = pa.table(columns | {"metadata": metadata, "place": text})
    return PromptTable(table, digest="x")


async def longest_ms(work: Callable[[], Awaitable[Any]]) -> tuple[float, float, float, Any]:
    """Returns the time of some work, the longest gap on the loop during it and after, its result.

    Times in ms. A gap is the time between two ticks; the gap after the work, over an equally long
    time, shows the machine's own share.
    """
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.2)
    gaps.clear()
    began_s = time.perf_counter()
    result = await work()
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(0.01)
    busiest = max(gaps)
    gaps.clear()
    await asyncio.sleep(took_s)
    idle = max(gaps)
    ticker.cancel()
    return 1000 * took_s, 1000 * busiest, 1000 * idle, result


async def costs(count: int, directory: Path) -> dict[str, float]:
    section = RlaxSection.model_validate(
        {"prompt_source": {"name": "x"}, "rewards": [{"name": "x"}]}
    )
    prompts, files = prompt_table(count), RunFiles(directory)
    about = about_rates(section, SamplingParams(), "benchmark", None)
    found: dict[str, float] = {}

    began_s = time.perf_counter()
    rates = first_rates(section, prompts, about, files, print)
    found["start, ms"] = 1000 * (time.perf_counter() - began_s)
    rng = np.random.default_rng(0)
    rates.begin_with(
        rng.integers(0, 5, count).astype(float), rng.integers(1, 5, count).astype(float)
    )

    config = rlax_curation.LearnabilityConfig()
    run_state = RunState(section, prompts, rlax_curation.Learnability(config), rates)
    run_state.choose(PROMPTS, 0)
    longest: list[float] = []
    cpu_s = time.process_time()
    for step in range(STEPS):
        began_s = time.thread_time()
        run_state.choose(PROMPTS, 0)
        for one in run_state.open.values():
            rates.observe(one.index, 3, 5, step)
        rates.histogram()
        longest.append(time.thread_time() - began_s)
        run_state.open.clear()
    found["step, ms of CPU"] = 1000 * (time.process_time() - cpu_s) / STEPS
    found["step, longest, ms of CPU"] = 1000 * max(longest)

    copies = []
    for _ in range(5):
        began_s = time.thread_time()
        saved = run_state.state()
        copies.append(time.thread_time() - began_s)
    found["snapshot on the loop, ms of CPU"] = 1000 * float(np.median(copies))
    found["snapshot on the loop, longest, ms of CPU"] = 1000 * max(copies)

    async def write() -> None:
        state = run_state.state()
        document = snapshot(1, 0, "", state.document)
        await asyncio.to_thread(write_snapshot, files, document, state.rates, prompts, about)

    cpu_s = time.process_time()
    await write()
    found["snapshot, all threads, ms of CPU"] = 1000 * (time.process_time() - cpu_s)
    took, busiest, idle, _ = await longest_ms(write)
    found["snapshot beside the loop, ms"] = took
    found["snapshot, longest stay on the loop, ms"] = busiest
    found["same time without it, ms"] = idle
    for what, name in (("JSON", snapshot_name(1)), ("Parquet", rates_name(1))):
        found[f"snapshot, {what}, kB"] = len(files.get(name)) / 1000

    fresh = PassRateTable(count, 32)
    again = RunState(section, prompts, rlax_curation.Learnability(config), fresh)

    def restore() -> None:
        document, columns = read_snapshot(files, 1, prompts)
        again.restore(document["run_state"], columns, lambda _: {})

    took, busiest, idle, _ = await longest_ms(lambda: asyncio.to_thread(restore))
    found["resume, ms"], found["resume, longest stay on the loop, ms"] = took, busiest
    for one, other in zip(fresh.posterior(), rates.posterior(), strict=True):
        assert one.tobytes() == other.tobytes()

    prior = {"prior": {"path": files.location(rates_name(1))}}
    other = section.model_copy(update={"curation": section.curation.model_validate(prior)})

    def start() -> PassRateTable:
        return first_rates(other, prompts, about, files, lambda _: None)

    took, busiest, idle, _ = await longest_ms(lambda: asyncio.to_thread(start))
    found["start with a prior, ms"] = took
    found["start with a prior, longest stay on the loop, ms"] = busiest
    found["memory of the table, MB"] = (
        sum(
            getattr(saved.rates, name).nbytes
            for name in ("passed_n", "failed_n", "version_n", "groups_n", "streak_n")
        )
        / 1e6
    )
    found["memory of the process, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps(asyncio.run(costs(given.count[0], Path(name)))))
    else:
        found = []
        for count in given.count:
            command = [sys.executable, __file__, "--here", "--count", str(count)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
        print("| | " + " | ".join(f"{count:,} prompts" for count in given.count) + " |")
        print("| --- |" + " --- |" * len(found))
        for name in found[0]:
            print(f"| {name} | " + " | ".join(f"{one[name]:.3g}" for one in found) + " |")


if __name__ == "__main__":
    main()
