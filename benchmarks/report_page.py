"""Measures the page of a long run: writing it, writing it again, and opening it in a browser.

    python benchmarks/report_page.py --steps 10000

The run is made up (``tests/helpers/long_runs.py``): 88 metrics, 4 groups of 4 samples a step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/helpers"), str(ROOT / "tests/integration")]

import psutil  # noqa: E402
from browser import browser, executable  # noqa: E402
from long_runs import LongRun  # noqa: E402
from playwright.sync_api import Browser  # noqa: E402

from rlax_plugin.commands.report.write import ReportPage  # noqa: E402

STAMPS = """
window.ready = {};
new MutationObserver(() => {
  for (const part of ["charts", "pairs"]) {
    if (document.body?.dataset[part] === "ready") ready[part] ??= performance.now() / 1000;
  }
}).observe(document, { subtree: true, attributes: true, childList: true });
"""


def cpu_s_by_process() -> dict[int, float]:
    """Returns the CPU time of each process of the browser so far."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "chrom" in process.name():
                found[process.pid] = sum(process.cpu_times()[:2])
    return found


def opened(chromium: Browser, path: Path) -> dict[str, float]:
    """Returns the seconds until the charts on the screen, and all parts of the page, are there.

    ``cpu`` is the CPU time of all processes of the browser until all is there.
    """
    before_s = cpu_s_by_process()
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    page = context.new_page()
    page.add_init_script(STAMPS)
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-table=ready]")
    found = page.evaluate("ready")
    found["cpu"] = sum(s - before_s.get(pid, 0.0) for pid, s in cpu_s_by_process().items())
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5, help="number of times the page is opened")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "run"
        run = LongRun(directory)
        run.go_on(arguments.steps)
        page = ReportPage(str(directory))
        for what in ("first", "again, one step later"):
            began_s, cpu_s = time.perf_counter(), time.process_time()
            page.write(10.0)
            took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
            size = page.path.stat().st_size / 1e6
            print(f"written {what}: {took_s:.1f} s, {cpu_s:.1f} s of CPU time; {size:.2f} MB")
            run.go_on(1)
        if executable() is None:
            sys.exit("no Chromium on PATH: opening the page was not measured")
        with browser() as chromium:
            found = [opened(chromium, page.path.resolve()) for _ in range(arguments.times)]
        labels = {
            "charts": "charts on the screen",
            "pairs": "the whole page",
            "cpu": "CPU time of the browser for the whole page",
        }
        for part, label in labels.items():
            seconds = sorted(one[part] for one in found)
            median = statistics.median(seconds)
            print(f"{label}: {median:.2f} s, from {seconds[0]:.2f} to {seconds[-1]:.2f} s")
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
