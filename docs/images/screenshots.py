"""The screenshots of docs/report.md, of runs of a toy model made in seconds, or of a given run.

make screenshots
make screenshots RUN=runs/demo-seed0
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from browser import browser, executable, open_page
from playwright.sync_api import Browser, Locator, Page
from runs import Run

from rlax_plugin.tools.commands.report.write import write_comparison, write_report

IMAGES = Path(__file__).resolve().parent
WIDTH = 1320
# A run with something to see in every chart: old samples, rejected groups, evaluations on the way.
SETTINGS = (
    "steps=64",
    "rlax.curation.max_refill=64",
    "rlax.objective.preset=aipo",
    "rlax.staleness.max_staleness=3",
    "rlax.staleness.reload_every=2",
    "rlax.rollouts.groups_per_step=8",
    "rlax.rollouts.group_size=8",
    "rlax.rollouts.max_new_tokens=12",
    "rlax.rollouts.slots=64",
    "rlax.evaluation.problems=64",
    "rlax.evaluation.samples=8",
    "rlax.evaluation.k=[1,2,4]",
    "rlax.evaluation.every=16",
)


def made_run(directory: Path, name: str, *settings: str) -> str:
    """Trains, and returns the run's directory, relative to ``directory``."""
    run = Run(directory, *SETTINGS, f"run_name={name}", *settings, name=name)
    status, out = run.end()
    if status:
        sys.exit(f"the run ended with status {status}:\n{out}")
    return f"runs/{name}"


def linked(directory: Path, run: str) -> str:
    """A given run below ``directory``: the page shows its path."""
    (directory / "runs").mkdir(exist_ok=True)
    link = directory / "runs" / Path(run).name
    link.symlink_to(Path(run).resolve())
    return str(link.relative_to(directory))


def save(of: Page | Locator, name: str) -> None:
    path = IMAGES / f"{name}.png"
    of.screenshot(path=path)
    print(f"{path.relative_to(IMAGES.parents[1])}: {path.stat().st_size / 1000:.0f} kB")


def at(page: Page, selector: str) -> None:
    """Scrolls, so that an element begins right below the page's head."""
    page.locator(selector).first.evaluate("(element) => element.scrollIntoView()")


def report_views(chromium: Browser, run: str, directory: Path) -> None:
    path = write_report(run, str(directory / "report.html"))
    page, _ = open_page(chromium, path, width=WIDTH, height=860)
    save(page, "report-overview")
    page.set_viewport_size({"width": WIDTH, "height": 1040})
    at(page, "h3:text('Rollouts and data')")
    save(page, "report-charts")
    page.set_viewport_size({"width": WIDTH, "height": 860})
    at(page, "#rollouts")
    save(page, "report-rollouts")
    page.locator("#rows tr").nth(1).click()
    page.wait_for_selector("#rollout-tokens .token")
    save(page, "report-rollout")
    page.click("#close")
    page.click("#theme")
    at(page, "h3:text('Objective')")
    save(page, "report-dark")
    page.context.close()


def main() -> None:
    if executable() is None:
        sys.exit("no Chromium on PATH: screenshots need one")
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        directory = Path(name)
        given = [linked(directory, run) for run in sys.argv[1:]]
        os.chdir(directory)  # so that the page shows runs/<name>
        first = made_run(directory, "slow", "rlax.trainer.learning_rate=4")
        second = made_run(directory, "fast", "rlax.trainer.learning_rate=20", "rlax.seed=1")
        report_views(chromium, (given or [second])[0], directory)
        compared = write_comparison([first, second], str(directory / "compare.html"))
        page, _ = open_page(chromium, compared, width=WIDTH, height=860)
        save(page, "compare")
        at(page, "#charts")
        save(page, "compare-charts")
        page.context.close()


if __name__ == "__main__":
    main()
