"""``rlax replay``: runs only the trainer, on the batches that a run has recorded.

On CPU every weight version is bit-identical to the run's, regardless of rewards, workers and
failures. The comparison uses the digest of each version's fingerprints, which the journal contains.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.private import check_private, check_private_run, make_private
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.text.terminal import quiet
from rlax_plugin.config import Algorithm, RlaxSection
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.ports.training import Decision, NewWeights, TrainerPort
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.start import descent
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.journal import Segment
from rlax_plugin.run.state.pruned import read_pruned
from rlax_plugin.run.state.read_samples import as_batch
from rlax_plugin.training.objective import batches, loss
from rlax_plugin.weights.fingerprint import digest
from rlax_plugin.weights.publisher import fingerprints

log = logging.getLogger("rlax.replay")

_OURS = {CONFIG, "trainer.log", "replayed"}  # what a replay leaves


@dataclass(frozen=True, slots=True)
class Recorded:
    """Segments and digests that a run has recorded.

    Attributes:
      segments: step -> the segment of its batch.
      digests: version -> its digest when it was first published.
    """

    files: RunFiles
    segments: Mapping[int, Segment]
    digests: Mapping[int, str]


class ReplayPort(TrainerPort):
    """Gives recorded batches to a trainer, and compares the resulting versions with the run's.

    Attributes:
      digests: version -> digest of its fingerprints in this replay.
      differing: versions that differ from those of the run.
    """

    def __init__(
        self,
        section: RlaxSection,
        algorithm: Algorithm,
        run: Recorded,
        last_step: int,
        on_step: Callable[[int], object],
    ):
        self._section, self._algorithm, self._run = section, algorithm, run
        self._last_step, self._on_step = last_step, on_step
        self.digests: dict[int, str] = {}
        self.differing: list[int] = []
        self._prints: dict[str, Mapping[str, Any]] = {}  # of each part, as it was last published

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        samples = journal.read_samples(self._run.files, self._run.segments[step])
        batch = as_batch(step, samples)
        return batches.arrays_of(self._section, self._algorithm, batch)

    @property
    def canary_tokens(self) -> np.ndarray:
        return np.zeros(0, np.int32)

    def take(self, weights: NewWeights) -> None:
        step, given = weights.step, weights.parts
        self._prints |= {name: fingerprints(a) for name, a in given.items() if a is not None}
        found = {name: int(value) for part in given for name, value in self._prints[part].items()}
        self.digests[step] = digest(found)
        wanted = self._run.digests.get(step)
        if wanted not in (None, self.digests[step]):
            self.differing.append(step)
            log.error("version %d is %s, the run had %s", step, self.digests[step], wanted)

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._on_step(step)

    def before_checkpoint(self, step: int) -> None:
        """Does nothing: there is no controller whose state would belong to the checkpoint."""

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        log.info("%s: %d of %d %s", phase, done, of, note)

    def decide(self, step: int) -> Decision:
        return Decision(save=False, stop=step >= self._last_step)


def _read_run(files: RunFiles) -> Recorded:
    segments: dict[int, Segment] = {}
    digests: dict[int, str] = {}
    for segment, _ in journal.read(files):
        if segment.step is not None:
            segments[segment.step] = segment
        for event in segment.events:
            if isinstance(event, ev.Published):
                digests.setdefault(event.version, event.digest)
    return Recorded(files, segments, digests)


def _directory(files: RunFiles, out: str | None) -> Path:
    if out:
        return Path(out)
    name = files.url.rstrip("/").rpartition("/")[2]
    return Path(files.location()) / "replay" if files.is_local else Path(f"replay-{name}")


def _empty(directory: Path) -> None:
    """Removes an earlier replay.

    Raises:
      ConfigError: the directory contains anything else.
    """
    make_private(directory)
    check_private("--out", str(directory), directory)
    if others := sorted({path.name for path in directory.iterdir()} - _OURS):
        reason = f"is not empty (it contains {others[0]}): give an empty directory"
        raise ConfigError("--out", str(directory), reason)
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def replay(run: str, to: int | None = None, out: str | None = None) -> int:
    """Trains again on the recorded batches of a run, in a separate directory.

    Args:
      run: the run's directory, a path or an fsspec URL.
      to: last step; None: the last recorded step.
      out: local directory for the replay's checkpoints and log; empty, or of an earlier replay.
        None: ``RUN/replay``, or ``./replay-<name>`` for a run on an object store.

    Returns:
      0 if every version equals that of the run, 1 otherwise.

    Raises:
      RlaxError: the run cannot be read, or the trainer failed.
    """
    files = RunFiles(run)
    if out is None:
        check_private_run(files)
    directory = _directory(files, out)
    config = files.config()
    recorded = _read_run(files)
    if not (recorded.segments and recorded.digests):
        reason = (
            "cannot be replayed yet: it has no recorded batch, or no weight version to compare with"
        )
        raise ConfigError("RUN", files.url, reason)
    if (pruned := read_pruned(files)).step:
        raise ConfigError("RUN", files.url, f"cannot be replayed from its first step: {pruned}")
    overrides = [f"base_output_directory={directory.resolve()}", "run_name=replayed"]
    resolved = of_yaml(config, files.location(CONFIG), overrides)
    _empty(directory)
    RunFiles(directory).put(CONFIG, config, private=True)
    section, url = resolved.section, str(directory.resolve() / "replayed")
    builder = Builder.of(resolved, directory, run_url=url, replays=files.location())
    builder.registry.validate(section)
    trainer = builder.trainer()
    if (origin := descent.recorded(files)) is not None:
        descent.start(trainer, section.trainer.name, origin)
    algorithm = loss.resolve(section, builder.part).algorithm
    last_step = min(to or len(recorded.segments), len(recorded.segments))
    with quiet(directory / "trainer.log") as console:
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task(f"replaying {files.url}", total=last_step)
            port = ReplayPort(
                section,
                algorithm,
                recorded,
                last_step,
                lambda step: progress.update(bar, completed=step),
            )
            trainer.run(port)
        return _compared(port, recorded.digests, console, _hosts_hint(files))


def _hosts_hint(files: RunFiles) -> str:
    """A hint if the run was trained on several hosts, which round differently."""
    hosts = (files.get_json("config.json") or {}).get("hosts", 1)
    return "" if hosts == 1 else f"; it was trained on {hosts} hosts, which round sums differently"


def _compared(port: ReplayPort, digests: Mapping[int, str], console: Console, hint: str) -> int:
    """Prints the comparison of a replay with its run; returns the exit status.

    Args:
      hint: printed behind a difference.
    """
    compared = [version for version in port.digests if version in digests]
    if port.differing:
        console.print(
            f"different: version {min(port.differing)} is the first of {len(port.differing)} "
            f"of {len(compared)} versions that differ from the run{hint}"
        )
        return 1
    if unknown := sorted(port.digests.keys() - digests.keys()):
        console.print(f"not compared, because the run ended before it recorded them: {unknown}")
    last = max(compared)
    console.print(
        f"identical: {len(compared)} versions, the last is version {last} "
        f"with digest {port.digests[last]}"
    )
    return 0
