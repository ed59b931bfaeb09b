"""The handle of a run: its progress, records and results, and what can be done with it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from rlax_plugin.base.errors import ConfigError, DeadlineError, RlaxError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.config.loading import ResolvedConfig, of_yaml
from rlax_plugin.run.metrics.file import NAME
from rlax_plugin.run.start.holder import holder
from rlax_plugin.run.start.run_directory import state_directory
from rlax_plugin.tools.scripting.processes import Elsewhere, RunProcess, Started, command
from rlax_plugin.tools.scripting.progress import (
    MetricsReader,
    Progress,
    display,
    in_notebook,
    show_once,
)

if TYPE_CHECKING:
    import pyarrow as pa

Status = Literal["starting", "running", "complete", "stopped", "failed"]

_REFRESH_S = 1.0


class Run:
    """A run: one that ``train`` has started, or one that ``open`` has found.

    Args:
      directory: the run's directory, a path or URL.
      config: the config that it was started with; None: the one that the run has recorded.
      path: see the attribute ``config``.
      started: its process; None: this process has not started it.

    Attributes:
      directory: the run's directory; a local path is absolute.
      config: the config that ``rlax train`` starts or continues this run with; None for a run that
        was opened.
    """

    def __init__(
        self,
        directory: str,
        *,
        config: ResolvedConfig | None = None,
        path: Path | None = None,
        started: Started | None = None,
    ):
        self.directory = RunFiles(directory).location()
        self.config = path
        self._files = RunFiles(self.directory)  # the working directory may change
        self._known_config = config
        self._started = started
        self._metrics: MetricsReader | None = None

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.directory.rstrip("/").rpartition("/")[2]

    @property
    def status(self) -> Status:
        """``starting``, ``running``, ``complete``, ``stopped`` or ``failed``.

        ``stopped`` means that the run is not complete and can be continued. A run that was opened
        and has failed is ``stopped`` too, because a run does not record its failure.
        """
        started = self._started
        if started is None:
            process = self._process()
            if process is not None and not process.ended(0):
                return "running" if self._files.exists(NAME) else "starting"
            document = self._files.get_json("summary.json")
            whole = isinstance(document, dict) and document.get("complete")
            return "complete" if whole else "stopped"
        if not started.ended(0):
            return "running" if self._reader().step else "starting"
        if started.stopped:
            return "stopped"
        return "failed" if started.status else "complete"

    @property
    def progress(self) -> Progress:
        """The progress at this moment."""
        metrics, started = self._reader(), self._started
        note = started.last_line() if started is not None else ""
        status, steps = self.status, self._last_step()
        rewards = tuple(metrics.rewards)
        return Progress(self.name, status, metrics.step, steps, rewards, metrics.step_s, note)

    def wait(self, timeout_s: float | None = None, *, show: bool = True) -> Status:
        """Waits until the run has ended, and shows its progress meanwhile, and its result.

        In a notebook, an interrupt ends the waiting, and the run goes on. Elsewhere Ctrl-C stops a
        run that ``train`` has started, as if it were a command of the shell: after the current
        step, with a checkpoint; a second Ctrl-C stops it at once.

        Args:
          timeout_s: longest time to wait, in seconds; None: until the end.
          show: False shows nothing.

        Returns:
          The status, which is ``running`` or ``starting`` if the time is over.

        Raises:
          CommandError: the run has failed; the message is its own.
          KeyboardInterrupt: there was an interrupt.
        """
        try:
            self._wait(timeout_s, show)
            if show and self.status == "complete":
                self._show_results()
        except KeyboardInterrupt:
            if in_notebook() or self._started is None:
                raise
            self._stop_and_wait()
            raise
        if self._started is not None and self.status == "failed":
            raise self._started.error()
        return self.status

    def stop(self, timeout_s: float = 600.0) -> Status:
        """Stops the run as Ctrl-C does: after the current step, with a checkpoint.

        Before the first step and after the last one there is no step to wait for, and it stops at
        once. ``rlax train`` with the same config, or the same call of ``train``, continues the run.

        Args:
          timeout_s: longest time to wait for the end, in seconds.

        Returns:
          The status.

        Raises:
          DeadlineError: the run has not ended in this time; it may still stop.
        """
        process = self._process()
        if process is not None and not process.ended(0):
            process.interrupt()
            if not process.ended(timeout_s):
                raise DeadlineError(f"stopping {self.name}", timeout_s, "timeout_s")
        return self.status

    def metrics(self) -> pa.Table:
        """Returns the metrics so far: a row for each step, a column for each metric.

        A value is null in a step that does not report the metric. docs/metrics.md describes all.
        """
        from rlax_plugin.tools.scripting.tables import metrics_table

        local = self._local_metrics()
        files = self._files if local is None or not local.exists() else RunFiles(local.parent)
        try:
            return metrics_table(files.get(NAME))
        except FileNotFoundError:
            return metrics_table(b"")

    def samples(
        self, columns: Sequence[str] | None = None, *, steps: range | None = None
    ) -> pa.Table:
        """Returns the scored samples so far, each once: prompts, completions, rewards, tokens.

        Args:
          columns: names of columns, such as prompt, completion and reward; None: all. The page
            docs/architecture.md describes them.
          steps: only samples with these steps, such as range(90, 101); None: all.

        Raises:
          ConfigError: there is no such column.
          RlaxError: a file is damaged.
        """
        from rlax_plugin.tools.scripting.tables import samples_table

        return samples_table(self._files, None if columns is None else list(columns), steps)

    def evaluate(
        self,
        *,
        version: int | None = None,
        problems: int | None = None,
        samples: int | None = None,
        k: Sequence[int] = (),
        config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measures a weight version as ``rlax eval`` does, in a process of its own.

        Args:
          version: the weight version; None: the newest.
          problems: number of problems; None: as the run's config says.
          samples: number of completions of each problem; None: as the run's config says.
          k: each k of pass@k; empty: as the run's config says.
          config: other keys of the config, with dotted names.

        Returns:
          The JSON of ``rlax eval --json``: ``sets`` has name -> measure -> value and interval.

        Raises:
          CommandError: the evaluation failed.
        """
        from rlax_plugin.tools.scripting.settings import as_arguments

        if isinstance(k, str):
            raise ConfigError("k", k, "must be a list of numbers, such as [1, 8]")
        options = {"--version": version, "--problems": problems, "--samples": samples}
        words = [f"{name}={value}" for name, value in options.items() if value is not None]
        words += [f"--k={one}" for one in k]
        out = command("eval", self.directory, *as_arguments(config or {}), *words, "--json")
        return json.loads(out[out.index("{") :])

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Writes one HTML page of the run, as ``rlax report`` does; returns its path.

        Args:
          out: file to write; None: ``report.html`` in the run's directory.

        Raises:
          RlaxError: the run cannot be read, or the file cannot be written.
        """
        from rlax_plugin.tools.commands.report.write import write_report

        return write_report(self.directory, None if out is None else os.fspath(out))

    def export(
        self, out: str | os.PathLike[str], *, dtype: Literal["float32", "bfloat16"] = "float32"
    ) -> Path:
        """Writes the newest weights as a directory for transformers, as ``rlax export`` does.

        Args:
          out: directory to write, which must not exist.
          dtype: data type of the tensors.

        Returns:
          The directory.

        Raises:
          CommandError: the export failed.
        """
        command("export", self.directory, f"--out={os.fspath(out)}", f"--dtype={dtype}")
        return Path(out)

    def _wait(self, timeout_s: float | None, show: bool) -> None:
        process = self._process()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        shown = display() if show else None
        try:
            while process is not None:
                left_s = _REFRESH_S if end_s is None else end_s - time.monotonic()
                if process.ended(max(0.0, min(_REFRESH_S, left_s))) or left_s <= 0:
                    break
                if shown is not None:
                    shown.show(self.progress)
            if shown is not None:
                shown.show(self.progress)
        finally:
            if shown is not None:
                shown.close()

    def _show_results(self) -> None:
        from rlax_plugin.run.start.results import before_and_after

        for one in before_and_after(self._files):
            show_once(Text(harmless(one)) if isinstance(one, str) else one)  # a text has no markup

    def _stop_and_wait(self) -> None:
        """Stops the run; each further interrupt is passed on to it."""
        process = self._started
        while process is not None and not process.ended(0):
            process.interrupt()
            print("stopping after this step, with a checkpoint (again: at once)")
            try:
                while not process.ended(_REFRESH_S):
                    pass
            except KeyboardInterrupt:
                continue

    def _process(self) -> RunProcess | None:
        if self._started is not None:
            return self._started
        state_dir = self._state_dir()
        found = holder(state_dir) if state_dir is not None else None
        return None if found is None else Elsewhere(found)

    def _config(self) -> ResolvedConfig | None:
        """Returns the run's config; None if it is not recorded, or cannot be read."""
        if self._known_config is None:
            with suppress(RlaxError):
                self._known_config = of_yaml(self._files.config(), CONFIG)
        return self._known_config

    def _state_dir(self) -> Path | None:
        config = self._config()
        if config is not None:
            return state_directory(config.section, self._files)
        return Path(self.directory) if self._files.is_local else None

    def _local_metrics(self) -> Path | None:
        """Returns the file to which the process of the run writes on this machine."""
        directory = Path(self.directory) if self._files.is_local else self._state_dir()
        return None if directory is None else directory / NAME

    def _reader(self) -> MetricsReader:
        if self._metrics is None:
            self._metrics = MetricsReader(self._local_metrics() or Path(NAME))
        self._metrics.read()
        return self._metrics

    def _last_step(self) -> int:
        config = self._config()
        steps = config.maxtext.get("steps") if config is not None else None
        if config is None or not isinstance(steps, int):
            return 0
        return steps // config.section.objective.updates_per_step

    def __repr__(self) -> str:
        return f"<Run {self.progress.line()}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **options: Any) -> Any:
        panel = self.progress.panel()
        return panel._repr_mimebundle_(include or (), exclude or (), **options)

    def __rich__(self) -> Any:
        return self.progress.panel()


def open_run(directory: str | os.PathLike[str]) -> Run:
    """Returns the handle of a run that exists: complete, running elsewhere, or stopped.

    Nothing of the run is imported or started. ``stop`` works if the run's process is on this
    machine and belongs to the same user.

    Args:
      directory: the run's directory, such as ``runs/demo``: a path or URL.

    Raises:
      ConfigError: it is not the directory of a run.
    """
    from rlax_plugin.tools.commands.report.run import open_run as find

    return Run(find(os.fspath(directory)).location())
