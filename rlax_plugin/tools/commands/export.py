"""``rlax export``: writes weights of a run or checkpoint as a directory for transformers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes  # noqa: F401  its dtypes get names
import numpy as np

from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.places import check_new_directory
from rlax_plugin.base.files.run_files import CONFIG
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.base.text.terminal import quiet
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.build import Registry, registry_for
from rlax_plugin.config.loading import CONVERTED, ResolvedConfig, merged, of_yaml, resolved
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.ports.training import Exported, Trainer
from rlax_plugin.tools.commands.target import checkpoint_name, find_version
from rlax_plugin.weights.named import Target, find_target
from rlax_plugin.weights.verification import stored_arrays

Weights = str | Callable[[], dict[str, np.ndarray]]

# What a converted model lacks of a config: nothing of it is used.
_NO_RUN = {"prompt_source": {"name": "none"}, "rewards": [{"name": "none"}]}
_ITEMS = os.path.join("0", "items")


@dataclass(frozen=True, slots=True)
class Source:
    """The weights to export.

    Attributes:
      config: config that describes the model.
      run: weights of a run; None: a checkpoint is exported.
      checkpoint: path or URL of a checkpoint; empty: weights of a run are exported.
    """

    config: ResolvedConfig
    run: Target | None = None
    checkpoint: str = ""


def find_source(text: str, config: str | None, overrides: Sequence[str]) -> Source:
    """Reads ``RUN``, ``RUN@VERSION``, ``RUN/checkpoints/NAME``, a converted model, or a checkpoint.

    Args:
      config: file with MaxText's keys for a checkpoint that has none of its own.
      overrides: ``key=value`` arguments, on top of the config.

    Raises:
      ConfigError: the text is none of these, or the config is wrong.
    """
    if config is not None:
        return Source(_without_run(config, overrides), checkpoint=text)
    for path in (Path(text), Path(text).parent, Path(text).parent.parent):
        keys = path / CONVERTED
        if (path / _ITEMS).is_dir() and keys.is_file():
            if path != Path(text) and not Path(text).is_dir():
                break
            return Source(_without_run(str(keys), overrides), checkpoint=str(path / _ITEMS))
    try:
        target = find_target(text, None, None)
    except ConfigError as error:
        reason = (
            "must be a run directory (with a config.yml), RUN@VERSION, RUN/checkpoints/NAME, or "
            "what rlax convert has written; of another checkpoint, --config must give the file "
            "with MaxText's keys of its model"
        )
        raise ConfigError("SOURCE", text, reason) from error
    source = target.run.location(CONFIG)
    return Source(of_yaml(target.run.get(CONFIG), source, overrides), run=target)


def _without_run(keys: str, overrides: Sequence[str]) -> ResolvedConfig:
    """Returns a config made of a file with MaxText's keys."""
    names = frozenset(override.partition("=")[0] for override in overrides)
    content = {"rlax": _NO_RUN, **merged(keys, overrides)}
    return resolved(content, arguments=names, source=keys)


def export(
    source: Source,
    out: str,
    *,
    dtype: Literal["float32", "bfloat16"],
    most_bytes: int,
    peft: bool = False,
) -> tuple[str, Exported]:
    """Writes the directory.

    Args:
      out: a local directory, which must not exist.
      dtype: data type of the tensors.
      most_bytes: maximum size of a file of weights.
      peft: True writes only low-rank adapters, as a directory of PEFT.

    Returns:
      A description of the exported weights, and the written files.

    Raises:
      RlaxError: the export failed; then nothing is written.
    """
    check_new_directory("--out", out)
    with tempfile.TemporaryDirectory(prefix="rlax-export-") as directory:
        return _Job(source, Path(directory)).run(Path(out), dtype, most_bytes, peft)


def export_and_show(
    source: Source,
    out: str,
    *,
    dtype: Literal["float32", "bfloat16"],
    most_bytes: int,
    peft: bool = False,
) -> None:
    """Runs ``export`` and prints a summary, without the output of libraries; raises the same."""
    with tempfile.TemporaryDirectory() as directory, quiet(Path(directory, "log")) as console:
        what, exported = export(source, out, dtype=dtype, most_bytes=most_bytes, peft=peft)
        size = sum(Path(out, name).stat().st_size for name in exported.files)
        count = f"{len(exported.files)} file{'s' * (len(exported.files) > 1)}"
        console.print(f"{what}: {exported.model}")
        for note in exported.notes:
            console.print(note)
        console.print(f"written to {out} ({in_bytes(size)} of weights in {count})")


class _Job:
    """One export; the trainer runs on the main thread."""

    def __init__(self, source: Source, directory: Path):
        self._source, self._section = source, source.config.section
        self._registry: Registry = registry_for(self._section)
        self._context = BuildContext(
            run_dir=directory,
            seed=self._section.seed,
            section=self._section,
            config=source.config,
            run_url=source.run.run.url if source.run else "",
        )
        choice = self._section.trainer
        self._trainer: Trainer = self._registry.part(
            "trainer", choice, "rlax.trainer", self._context
        )
        if not self._trainer.converts_models:
            reason = "does not declare converts_models: its weights cannot be exported"
            raise ConfigError("rlax.trainer.name", choice.name, reason)

    def run(self, out: Path, dtype: Any, most_bytes: int, peft: bool) -> tuple[str, Exported]:
        """Returns a description of the exported weights, and the written files."""
        target = self._source.run
        if target is None:
            path = self._source.checkpoint
            return path, self._trainer.export_model(path, out, dtype, most_bytes, peft)
        thread, closing = LoopThread(), AsyncExitStack()
        try:
            what, weights = self._choose(target, thread, closing)
            return what, self._trainer.export_model(weights, out, dtype, most_bytes, peft)
        finally:
            thread.run_last(closing.aclose())
            thread.close()

    def _choose(
        self, target: Target, thread: LoopThread, closing: AsyncExitStack
    ) -> tuple[str, Weights]:
        """Returns a description of the weights and their place; by default the newest weights.

        Of a checkpoint and a version of the same step it chooses the checkpoint: it has the
        trainer's own numbers, while the version may have been cast to fewer bits.
        """
        known = self._trainer.checkpoints() if self._trainer.keeps_checkpoints else {}
        steps = {name: step for step, name in known.items()}
        version: WeightVersion | None = None
        if not target.is_checkpoint:
            try:
                version = self._version(target, thread, closing)
            except ConfigError:
                if target.version is not None or not steps:
                    raise
        if target.is_checkpoint:
            name = checkpoint_name(target, known)
        else:
            name = max(steps, key=lambda name: steps[name], default="")
            if version is not None and (
                target.version is not None or not name or steps[name] < version.step
            ):
                what = f"version {version.version} of {target.run.url}"
                return what, lambda: self._load(version)
        what = f"the checkpoint of step {steps[name]} of {target.run.url}"
        return what, self._trainer.checkpoint_path(name)

    def _version(
        self, target: Target, thread: LoopThread, closing: AsyncExitStack
    ) -> WeightVersion:
        deadlines = self._section.deadlines
        version, _ = thread.run(
            find_version(target, self._section, closing),
            3 * deadlines.rpc_s,
            "finding the weight version",
            "rlax.deadlines.rpc_s",
        )
        return version

    def _load(self, version: WeightVersion) -> dict[str, np.ndarray]:
        """Loads the arrays of a version, as the trainer published them."""
        store = self._registry.part(
            "weight_store", self._section.weights.store, "rlax.weights.store", self._context
        )
        return stored_arrays(version, store)
