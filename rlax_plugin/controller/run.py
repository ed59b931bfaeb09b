"""``rlax train``: one run from start to end, on two threads.

The main thread belongs to the trainer: it alone launches JAX work and takes signals. The controller
lives on an event loop on a second thread. ``Link`` is where they meet.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from rlax_plugin import batches
from rlax_plugin.build import registry_for
from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.controller import Controller
from rlax_plugin.controller.dashboard import Dashboard, before_after_table
from rlax_plugin.controller.link import FinishedStep, Link
from rlax_plugin.controller.publisher import Publisher
from rlax_plugin.controller.records import write_json
from rlax_plugin.controller.summary import summary
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.loading import config_hash, load_section
from rlax_plugin.protocols import BuildContext, Trainer
from rlax_plugin.statistics import Estimate
from rlax_plugin.types import Group, TrainBatch

log = logging.getLogger("rlax.run")

INTERRUPTED = 130
_LOOP_S = 60.0  # for the event loop to start or stop something that has no deadline of its own


def run_directory(maxtext: dict[str, Any]) -> Path:
    """Where MaxText keeps the run, and so where everything of the run is kept.

    Raises:
      ConfigError: a key is missing.
    """
    for key in ("run_name", "base_output_directory", "steps"):
        if not maxtext.get(key):
            raise ConfigError(key, maxtext.get(key), "must be set in the config or as key=value")
    return Path(str(maxtext["base_output_directory"])) / str(maxtext["run_name"])


@contextmanager
def _quiet(log_path: Path) -> Iterator[Console]:
    """Sends what libraries print to a file; yields a console on the real standard output."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    log_file = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
    real = os.fdopen(os.dup(out), "w", buffering=1)
    try:
        yield Console(file=real, force_terminal=real.isatty(), soft_wrap=not real.isatty())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
        for descriptor in (out, err, log_file):
            os.close(descriptor)
        real.close()


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """One process per run directory; the lock ends with the process, however it ends."""
    lock: IO[str] = (run_dir / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError("run_name", run_dir.name, "another process is running it") from None
    try:
        yield
    finally:
        lock.close()


class _Loop:
    """The controller's event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="controller")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], deadline_s: float | None) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(deadline_s)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_LOOP_S)
        self.loop.close()


def _check_same_run(run_dir: Path, digest: str) -> None:
    record = run_dir / "config.json"
    if record.exists() and (known := json.loads(record.read_text())["config_hash"]) != digest:
        raise ConfigError(
            "run_name",
            run_dir.name,
            f"holds a run of another config ({known}, this one is {digest}); choose another "
            "run_name or remove that directory",
        )


def _evaluation_deadline_s(section: RlaxSection) -> float:
    """Generous: groups have deadlines of their own, this one only bounds their number."""
    return section.deadlines.startup_s + section.deadlines.group_s * 10


def train(config_path: str, overrides: Sequence[str] = ()) -> int:
    """Runs, or continues, the run that the config describes.

    Returns:
      0 when the run is complete, 130 when it was interrupted and can be continued.

    Raises:
      RlaxError: whatever made it fail; what was computed stays in the run directory.
    """
    began_s = time.perf_counter()
    section, maxtext = load_section(config_path, overrides)
    registry = registry_for(section)
    registry.validate(section)
    run_dir = run_directory(maxtext)
    digest = config_hash(config_path, overrides)
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    _check_same_run(run_dir, digest)
    with _locked(run_dir), _quiet(run_dir / "logs" / "trainer.log") as console:
        write_json(
            run_dir / "config.json",
            {"config": config_path, "overrides": list(overrides), "config_hash": digest},
        )
        context = BuildContext(
            run_dir=run_dir,
            seed=section.seed,
            section=section,
            maxtext_argv=(config_path, *overrides),
        )
        run = _Run(context, registry, digest, int(maxtext["steps"]), console, began_s)
        return run.execute()


class _Run:
    """Holds what ``train`` has started, so that it can end all of it."""

    def __init__(
        self,
        context: BuildContext,
        registry: Any,
        digest: str,
        last_step: int,
        console: Console,
        began_s: float,
    ):
        self._context, self._registry, self._digest = context, registry, digest
        self._section: RlaxSection = context.section
        self._last_step, self._console, self._began_s = last_step, console, began_s
        self._stopped = False

    def _objective(self) -> Any:
        from rlax_plugin import objective  # JAX: imported after the reward pool was spawned

        def part(kind: str, choice: Any, key: str) -> Any:
            return self._registry.part(kind, choice, key, self._context)

        return objective.resolve(self._section.objective, part)

    def _summarise(self, metrics: Any) -> dict[str, float]:
        from rlax_plugin import objective

        return objective.summarise(metrics)

    def _build_batch(self, step: int, groups: tuple[Group, ...]) -> TrainBatch:
        r = self._section.rollouts
        return batches.build_batch(
            step,
            groups,
            rows=r.groups_per_step * r.group_size,
            length=r.max_prompt_tokens + r.max_new_tokens,
        )

    def execute(self) -> int:
        thread = _Loop()
        dashboard = Dashboard(
            self._console,
            lambda: list(controller.fleet.workers.values()) if hasattr(controller, "fleet") else [],
            self._last_step,
        )
        controller = Controller(
            context=self._context,
            registry=self._registry,
            argv=self._context.maxtext_argv,
            config_hash=self._digest,
            last_step=self._last_step,
            dashboard=dashboard,
            advantage=lambda: self._objective().advantage,
            summarise=self._summarise,
        )
        publisher: Publisher | None = None
        try:
            with dashboard:
                dashboard.phase(f"starting {self._context.run_dir}")
                thread.run(controller.start(), self._section.deadlines.startup_s)
                thread.loop.set_exception_handler(
                    lambda loop, what: controller.fail(
                        what.get("exception") or RlaxError(what["message"])
                    )
                )
                directory = self._section.weights.path or str(self._context.run_dir / "weights")
                publisher = controller.make_publisher(thread.loop, os.path.abspath(directory))
                self._train(thread, controller, publisher)
                publisher.wait()
                after: dict[int, Estimate] = {}
                if not self._stopped:
                    after = thread.run(
                        controller.evaluate("after", controller.latest_version),
                        _evaluation_deadline_s(self._section),
                    )
            self._report(controller, after)
        except BaseException as error:
            if hasattr(controller, "flow"):
                self._registry.manager.hook.rlax_on_run_error(error=str(error))
            raise
        finally:
            thread.run(controller.close(), _LOOP_S)
            if publisher is not None:
                publisher.close()
            thread.close()
        return INTERRUPTED if self._stopped else 0

    def _train(self, thread: _Loop, controller: Controller, publisher: Publisher) -> None:
        def finished(done: FinishedStep) -> None:
            controller.step_finished(done, publisher.last_s)

        link = Link(
            loop=thread.loop,
            section=self._section,
            flow=controller.flow,
            publisher=publisher,
            build_batch=self._build_batch,
            started=controller.weights_exist,
            finished=finished,
            snapshot=controller.snapshot,
            progress=controller.dashboard.progress,
        )
        trainer: Trainer = self._registry.part(
            "trainer", self._section.trainer, "rlax.trainer", self._context
        )
        with self._signals(link, controller):
            trainer.run(link)
        self._stopped = link.stop_requested

    @contextmanager
    def _signals(self, link: Link, controller: Controller) -> Iterator[None]:
        """First signal: stop after this step, with a checkpoint. Second: stop now."""

        def stop(number: int, frame: object) -> None:
            if link.stop_requested:
                raise KeyboardInterrupt
            link.request_stop()
            controller.dashboard.message(
                "stopping after this step, with a checkpoint (again: at once)"
            )

        previous = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _report(self, controller: Controller, after: dict[int, Estimate]) -> None:
        run_dir = self._context.run_dir
        document = summary(
            controller,
            after,
            began_s=self._began_s,
            config_hash=self._digest,
            complete=not self._stopped,
        )
        write_json(run_dir / "summary.json", document)
        again = "rlax train " + " ".join(self._context.maxtext_argv)
        out = self._console
        if self._stopped:
            out.print(f"interrupted after step {controller.flow.next_step - 1}", highlight=False)
            out.print(f"continue with:  {again}", highlight=False)
            return
        if after:
            out.print(before_after_table(controller.before, after))
        for what, path in (
            ("summary", "summary.json"),
            ("metrics per step", "metrics.jsonl"),
            ("rollouts (Parquet)", "rollouts/"),
            ("checkpoints", "checkpoints/"),
            ("logs", "logs/"),
            ("TensorBoard", "tensorboard/"),
        ):
            if (run_dir / path).exists():
                out.print(f"{what:20} {run_dir / path}", highlight=False)
        out.print(f"go on training:      {again} steps={2 * self._last_step}", highlight=False)
        if (run_dir / "tensorboard").exists():
            out.print(f"look at the curves:  tensorboard --logdir {run_dir}", highlight=False)
