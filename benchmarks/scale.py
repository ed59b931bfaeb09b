"""Measures the CPU time of the controller's event loop as a run grows along one axis.

The controller is a real one (``rlax train``), and talks to its workers by gRPC. The workers are one
process that answers at once with tokens that were not generated; the trainer only asks for
batches. So what is measured is the cost of groups on their way, per group of 16 samples::

    python benchmarks/scale.py --axis groups --most 1024 --label before
    python benchmarks/scale.py                               # all axes; some minutes
    python benchmarks/scale.py --counts                      # calls and jumps of the thread as well
    python benchmarks/scale.py --table                       # of what was measured so far, and plot

CPU time is that of the event loop's thread alone; a stay is one callback of the loop, during which
no other can run. On a busy machine only calls and jumps (turns of loops) can be compared. Each case
is a process of its own. Results are added to ``results/scale.jsonl``; the newest line of a case
and label counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale.jsonl"
SAMPLES = 16  # of a group
DEADLINE_S = 1800
LIMIT_MS, LIMIT_MS_PER_MB, LIMIT_STAY_MS = 2.0, 5.0, 50.0


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
      axis: that it belongs to.
      groups: of a step.
      batches: "rows", "packed" or "tokens".
      tokens: most of a sample; it has three quarters of them on average.
      reports: of unfinished samples, before each answer.
      steps: that are measured, after ``warm`` others.
      counts: True to count calls and jumps too, which slows the loop's thread down.
    """

    axis: str
    groups: int = 64
    workers: int = 8
    batches: str = "rows"
    tokens: int = 16
    reports: int = 0
    steps: int = 4
    warm: int = 1
    counts: bool = False

    def config(self, directory: str) -> dict[str, Any]:
        layout: dict[str, Any] = {}
        if self.batches != "rows":
            layout = {"rows": self.groups * SAMPLES // 2, "sequences_per_row": 4}
        if self.batches == "tokens":
            layout["rows"] *= 2  # enough if all samples are long
            layout["tokens"] = self.groups * SAMPLES * self.tokens * 3 // 4
        return {
            "run_name": "scale",
            "base_output_directory": directory,
            "steps": self.warm + self.steps,
            "rlax": {
                "plugins": ["rlax_plugin.testing", "scale_parts"],
                "prompt_source": {"name": "numbers", "count": 1000},
                "rewards": [{"name": "even"}],
                "rollouts": {
                    "group_size": SAMPLES,
                    "groups_per_step": self.groups,
                    "max_prompt_tokens": 4,
                    "max_new_tokens": self.tokens,
                    "slots": 4 * SAMPLES,
                    "on_new_weights": "continue" if self.reports else "finish",
                },
                "batches": layout,
                "curation": {"sampler": {"name": "shuffled"}},
                "weights": {"store": {"name": "npz"}},
                "evaluation": {"problems": 0},
                "trainer": {"name": "idle"},
                "launcher": {"name": "at_once", "workers": self.workers, "reports": self.reports},
                "observers": [{"name": "loop_clock", "counts": self.counts}],
                "deadlines": {
                    "startup_s": 60,
                    "heartbeat_s": 5,
                    "heartbeats_lost": 100,
                    "batch_s": DEADLINE_S,
                },
            },
        }


AXES: dict[str, list[Case]] = {
    "groups": [Case("groups", groups=2**n, steps=max(1, 512 >> n)) for n in range(6, 13)],
    "packed": [
        Case("packed", groups=2**n, batches="packed", steps=max(1, 256 >> n))
        for n in (6, 8, 10, 12)
    ],
    "tokens": [
        Case("tokens", groups=2**n, batches="tokens", steps=max(1, 256 >> n))
        for n in (6, 8, 10, 12)
    ],
    "workers": [Case("workers", groups=512, workers=n, steps=1) for n in (2, 8, 32, 128, 256)],
    "length": [Case("length", groups=16, tokens=1024 * n, steps=1) for n in (1, 2, 8, 32)],
    "reports": [Case("reports", groups=16, tokens=8192, reports=n, steps=1) for n in (0, 4, 16)],
}


def measure(case: Case) -> dict[str, Any]:
    """Runs a case in this process; returns its figures."""
    import yaml

    from rlax_plugin.start.run import train

    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "scale.yml")
        config.write_text(yaml.safe_dump(case.config(directory)))
        train(str(config))
        clock = next(Path(directory).rglob("clock.jsonl"))
        lines = [json.loads(line) for line in clock.read_text().splitlines()]
    began, counted = lines[case.warm - 1], lines[case.warm :]
    groups = sum(line["groups"] for line in counted)
    mb = sum(line["tokens"] for line in counted) * 4 / 1e6
    cpu_ms = 1e3 * (counted[-1]["cpu_s"] - began["cpu_s"])
    longest = max(counted, key=lambda line: line["longest_s"])
    return {
        "cpu_ms_per_group": cpu_ms / groups,
        "limit_ms_per_group": LIMIT_MS + LIMIT_MS_PER_MB * mb / groups,
        "callbacks_per_group": (counted[-1]["callbacks"] - began["callbacks"]) / groups,
        "calls_per_group": (counted[-1]["calls"] - began["calls"]) / groups,
        "jumps_per_group": (counted[-1]["jumps"] - began["jumps"]) / groups,
        "longest_stay_ms": 1e3 * longest["longest_s"],
        "where": longest["where"],
        "wall_s_per_step": (counted[-1]["wall_s"] - began["wall_s"]) / case.steps,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_a_process(case: Case) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    environment = os.environ | {"PYTHONPATH": str(HERE), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, timeout=DEADLINE_S, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def newest() -> list[dict[str, Any]]:
    """Returns the newest line of each case and label, in the order in which they were measured."""
    found = {}
    for line in map(json.loads, RESULTS.read_text().splitlines()):
        case = {name: line[name] for name in asdict(Case(""))}
        found[line["label"], json.dumps(case)] = line
    return list(found.values())


def table(lines: list[dict[str, Any]]) -> str:
    """Returns a table in Markdown; 0 calls: they were not counted."""
    columns = ("axis", "groups", "workers", "batches", "tokens", "reports", "label")
    figures = ("calls_per_group", "jumps_per_group", "cpu_ms_per_group", "longest_stay_ms")
    names = (*columns, "calls a group", "jumps a group", "CPU ms a group", "longest stay ms")
    rows = [names, ["---"] * len(names)]
    for line in sorted(lines, key=lambda line: [str(line["axis"]), line["groups"], line["label"]]):
        shown = (f"{line[name]:,.4g}" for name in figures)
        rows.append([*(line[name] for name in columns), *shown])
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws the turns of loops per group over the groups of a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    counted = [line for line in lines if line["axis"] == "groups" and line["counts"]]
    for label in dict.fromkeys(line["label"] for line in counted):
        ours = sorted((x["groups"], x["jumps_per_group"]) for x in counted if x["label"] == label)
        axes.plot(*zip(*ours, strict=True), marker="o", label=label)
    axes.set(xlabel="groups of a step", ylabel="turns of loops per group", ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--axis", choices=AXES, action="append")
    parser.add_argument("--most", type=int, default=4096, help="largest number of groups of a step")
    parser.add_argument("--groups", type=int, help="of a step on the axis of workers")
    parser.add_argument("--label", default="now")
    parser.add_argument("--steps", type=int, help="that are measured, instead of the case's own")
    parser.add_argument("--counts", action="store_true", help="count calls and jumps; slower")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="only show what was measured")
    given = parser.parse_args()
    if given.table:
        print(table(newest()))
        plot(newest(), RESULTS.with_suffix(".png"))
        return
    if given.case:
        print(json.dumps(measure(Case(**json.loads(given.case)))))
        return
    for axis in given.axis or AXES:
        for case in AXES[axis]:
            one = replace(case, steps=given.steps or case.steps, counts=given.counts)
            if axis == "workers" and given.groups:
                one = replace(one, groups=given.groups)
            if one.groups > given.most:
                continue
            load, *_ = os.getloadavg()
            found = {
                "label": given.label,
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.0f}",
                **asdict(one),
            }
            found |= in_a_process(one)
            print(json.dumps(found), flush=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
