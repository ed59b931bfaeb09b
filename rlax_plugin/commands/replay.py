"""``rlax replay``: the trainer alone, on the batches that a run has recorded.

On CPU every weight version comes out bit for bit as it did, whatever rewards, workers and accidents
there were. What is compared is the digest of each version's fingerprints, which the journal holds.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from rlax_plugin.build import registry_for
from rlax_plugin.config import Algorithm, Choice, RlaxSection
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.controller import descent
from rlax_plugin.errors import ConfigError
from rlax_plugin.objective import batches, loss
from rlax_plugin.ports.protocols import Arrays, BuildContext
from rlax_plugin.ports.training import Decision, Trainer, TrainerPort
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import CONFIG, RunFiles
from rlax_plugin.records.journal import Segment
from rlax_plugin.records.private import check_private, check_private_run, make_private
from rlax_plugin.records.pruned import read_pruned
from rlax_plugin.records.read_samples import as_batch
from rlax_plugin.text.terminal import quiet
from rlax_plugin.types import BASE, EMPTY, Canary
from rlax_plugin.weights.host_fingerprint import digest
from rlax_plugin.weights.publisher import fingerprints

log = logging.getLogger("rlax.replay")

_OURS = {CONFIG, "trainer.log", "replayed"}  # what a replay leaves


class ReplayPort(TrainerPort):
    """Gives a trainer recorded batches, and compares the versions that it makes of them.

    Attributes:
      digests: version -> digest of its fingerprints, as it came out now.
      differing: versions that came out otherwise than they did in the run.
    """

    def __init__(
        self,
        section: RlaxSection,
        algorithm: Algorithm,
        files: RunFiles,
        segments: Mapping[int, Segment],
        last_step: int,
        recorded: Mapping[int, str],
        on_step: Callable[[int], object],
    ):
        self._section, self._algorithm = section, algorithm
        self._files, self._segments = files, segments
        self._last_step, self._recorded, self._on_step = last_step, recorded, on_step
        self.digests: dict[int, str] = {}
        self.differing: list[int] = []
        self._prints: dict[str, Mapping[str, Any]] = {}  # of each part, as it was last published

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        segment = self._segments[step]
        batch = as_batch(step, journal.read_samples(self._files, segment))
        return batches.arrays_of(self._section, self._algorithm, batch)

    @property
    def canary_tokens(self) -> np.ndarray:
        return np.zeros(0, np.int32)

    def publish(
        self,
        step: int,
        arrays: Arrays | None,
        canary: Canary | None = None,
        parts: Mapping[str, Arrays | None] = EMPTY,
    ) -> None:
        given = {BASE: arrays, **parts}
        self._prints |= {name: fingerprints(a) for name, a in given.items() if a is not None}
        found = {name: int(value) for part in given for name, value in self._prints[part].items()}
        self.digests[step] = digest(found)
        wanted = self._recorded.get(step)
        if wanted not in (None, self.digests[step]):
            self.differing.append(step)
            log.error("version %d is %s, the run had %s", step, self.digests[step], wanted)

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._on_step(step)

    def before_checkpoint(self, step: int) -> None:
        """Nothing: there is no controller whose state would belong to it."""

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        log.info("%s: %d of %d %s", phase, done, of, note)

    def decide(self, step: int) -> Decision:
        return Decision(save=False, stop=step >= self._last_step)


def _read_run(files: RunFiles) -> tuple[dict[int, Segment], dict[int, str]]:
    """Step -> the segment of its batch; version -> its digest when it was first published."""
    segments: dict[int, Segment] = {}
    digests: dict[int, str] = {}
    for segment, _ in journal.read(files):
        if segment.step is not None:
            segments[segment.step] = segment
        for event in segment.events:
            if isinstance(event, ev.Published):
                digests.setdefault(event.version, event.digest)
    return segments, digests


def _directory(files: RunFiles, out: str | None) -> Path:
    if out:
        return Path(out)
    name = files.url.rstrip("/").rpartition("/")[2]
    return Path(files.location()) / "replay" if files.is_local else Path(f"replay-{name}")


def _empty(directory: Path) -> None:
    """Removes an earlier replay, and nothing else.

    Raises:
      ConfigError: something else is there.
    """
    make_private(directory)
    check_private("--out", str(directory), directory)
    if others := sorted({path.name for path in directory.iterdir()} - _OURS):
        raise ConfigError(
            "--out",
            str(directory),
            f"is not empty (it contains {others[0]}): give an empty directory",
        )
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def replay(run: str, to: int | None = None, out: str | None = None) -> int:
    """Trains again what a run has trained, in a directory of its own.

    Args:
      run: the run's directory, a path or an fsspec URL.
      to: last step; None: the last that is recorded.
      out: local directory of the replay's own checkpoints and log; empty, or of an earlier one.
        None: ``RUN/replay``, or ``./replay-<name>`` for a run on an object store.

    Returns:
      0 if every version came out as it did in the run, 1 if one did not.

    Raises:
      RlaxError: the run cannot be read, or the trainer failed.
    """
    files = RunFiles(run)
    if out is None:
        check_private_run(files)
    directory = _directory(files, out)
    config = files.config()
    segments, recorded = _read_run(files)
    if not segments or not recorded:
        reason = (
            "cannot be replayed yet: it has no recorded batch, or no weight version to compare with"
        )
        raise ConfigError("RUN", files.url, reason)
    if (pruned := read_pruned(files)).step:
        raise ConfigError("RUN", files.url, f"cannot be replayed from its first step: {pruned}")
    _empty(directory)
    (directory / CONFIG).write_bytes(config)
    overrides = [f"base_output_directory={directory.resolve()}", "run_name=replayed"]
    origin = descent.recorded(files)
    resolved = of_yaml(config, files.location(CONFIG), overrides)
    section = resolved.section
    registry = registry_for(section)
    registry.validate(section)
    last_step = min(to or len(segments), len(segments))
    context = BuildContext(
        run_dir=directory,
        seed=section.seed,
        section=section,
        config=resolved,
        run_url=str(directory.resolve() / "replayed"),
        replays=files.location(),
    )

    def part(kind: str, choice: Choice, key: str) -> Any:
        return registry.part(kind, choice, key, context)

    algorithm = loss.resolve(section, part).algorithm
    trainer: Trainer = part("trainer", section.trainer, "rlax.trainer")
    if origin is not None:
        descent.start(trainer, section.trainer.name, origin)
    with quiet(directory / "trainer.log") as console:
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task(f"replaying {files.url}", total=last_step)
            port = ReplayPort(
                section,
                algorithm,
                files,
                segments,
                last_step,
                recorded,
                lambda step: progress.update(bar, completed=step),
            )
            trainer.run(port)
        compared = [version for version in port.digests if version in recorded]
        if port.differing:
            console.print(
                f"different: version {min(port.differing)} is the first of {len(port.differing)} "
                f"of {len(compared)} versions that differ from the run"
            )
            return 1
        if unknown := sorted(port.digests.keys() - recorded.keys()):
            console.print(f"not compared, because the run ended before it recorded them: {unknown}")
        last = max(compared)
        console.print(
            f"identical: {len(compared)} versions, the last is version {last} "
            f"with digest {port.digests[last]}"
        )
    return 0
