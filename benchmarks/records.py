"""Measures the cost of a run's records, compared with its own step time.

Takes a finished run and writes its events and samples once more, step by step, through the
same recorder, ledger and journal; then fingerprints its last weight version. CPU time is what
matters on a machine that the trainer and its workers keep busy::

    python benchmarks/records.py runs/demo-seed0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.ledger import Ledger
from rlax_plugin.records.read_samples import as_batch
from rlax_plugin.records.recorder import Recorder


def _measured(files: RunFiles) -> dict[str, float]:
    """Returns medians over the run's steps, ms."""
    lines = [json.loads(line) for line in files.get("metrics.jsonl").splitlines()]
    return {
        "step_ms": 1e3 * statistics.median(m["time/step_s"] for m in lines),
        "waited_for_commit_ms": 1e3 * statistics.median(m["time/commit_s"] for m in lines),
    }


async def _write_again(files: RunFiles, directory: Path, most: int) -> list[tuple[float, float]]:
    """Returns CPU and wall seconds of each step's records, of both threads together."""

    def failed(error: BaseException) -> None:
        raise error

    ledger = Ledger(directory / "ledger.sqlite", run="benchmark")
    recorder = Recorder(RunFiles(directory), ledger, failed)
    figures = []
    for segment, _ in journal.read(files, until=most):
        recorded = journal.read_samples(files, segment)
        known = {one.group.id: one.judged for one in recorded}
        batch = None if segment.step is None else as_batch(segment.step, recorded)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        for event in segment.events:
            scored = isinstance(event, ev.Scored)
            recorder.add(event, known.get(event.group) if scored else None)
        await asyncio.wrap_future(recorder.commit(segment.step or 0, batch))
        figures.append((time.process_time() - cpu_s, time.perf_counter() - wall_s))
    recorder.close()
    return figures


def _fingerprint_s(files: RunFiles) -> float:
    """Returns CPU seconds of one fingerprint of the run's last version, on one device."""
    import jax
    from rlax_orbax.layout import METADATA_FILE, decode

    from rlax_plugin.weights.device_fingerprint import fingerprint

    name = files.names("weights")[-1]
    layouts = decode(name, files.get(f"weights/{name}/{METADATA_FILE}"))
    arrays = {
        n: jax.random.normal(jax.random.key(i), layout.shape).astype(layout.dtype)
        for i, (n, layout) in enumerate(layouts.items())
    }
    jax.block_until_ready(fingerprint(arrays))
    cpu_s = []
    for _ in range(20):
        start = time.process_time()
        jax.block_until_ready(fingerprint(arrays))
        cpu_s.append(time.process_time() - start)
    return statistics.median(cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="directory of a finished run")
    parser.add_argument("--segments", type=int, default=60, help="of the journal, at most")
    parser.add_argument("--out", help="also write the figures to this JSON file")
    arguments = parser.parse_args()
    files = RunFiles(arguments.run)
    with tempfile.TemporaryDirectory() as directory:
        most = min(arguments.segments, journal.last_number(files))
        figures = asyncio.run(_write_again(files, Path(directory), most))[3:]  # imports, first use
    run = _measured(files)
    result = run | {
        "records_cpu_ms": 1e3 * statistics.median(cpu for cpu, _ in figures),
        "records_wall_ms": 1e3 * statistics.median(wall for _, wall in figures),
        "fingerprint_cpu_ms": 1e3 * _fingerprint_s(files),
    }
    cost_ms = result["records_cpu_ms"] + result["fingerprint_cpu_ms"]
    result["share_of_step"] = cost_ms / run["step_ms"]
    for name, value in result.items():
        print(f"{name:24}{value:10.4g}")
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
