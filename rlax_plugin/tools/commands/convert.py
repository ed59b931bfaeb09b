"""``rlax convert``: converts a pretrained model into a checkpoint that training starts from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.places import check_new_directory, new_directory
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.base.text.terminal import quiet
from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice, RewardChoice, RlaxSection
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.ports.training import ConvertibleModel, Trainer


def convert(
    source: str,
    out: str,
    *,
    dtype: str,
    scan_layers: bool,
    trainer: str,
    verify_python: str | None = None,
) -> None:
    """Writes the directory of a converted model, and prints a description of it.

    Args:
      source: a Hugging Face directory, or a GGUF file.
      out: a local directory, which must not exist.
      dtype: float32 or bfloat16.
      scan_layers: True if layers are stored as one scanned layer.
      trainer: name of the trainer for which it is converted.
      verify_python: path of a Python, possibly with torch, that verifies the model; None: it is
        not verified.

    Raises:
      RlaxError: the conversion failed; then nothing is written.
    """
    check_new_directory("--out", out)
    converter = _converter(trainer)
    with quiet(Path(os.devnull)) as console:
        model = converter.examine_model(Path(source), dtype, scan_layers)
        console.print(f"{source}: {model.description}")
        _check_space(out, model.nbytes)
        compare = None if verify_python is None else model.verification(verify_python)
        with new_directory("--out", out) as directory:
            _write(model, directory, Path(out).absolute(), console)
            compared = () if compare is None else compare(directory)
        for said in compared:
            console.print(said)
        for note in model.notes:
            console.print(f"note: {note}")
        console.print(f"written to {out} ({in_bytes(model.nbytes)})")


def _converter(name: str) -> Trainer:
    """Returns the trainer, built without a run.

    Raises:
      ConfigError: there is no such trainer, or it cannot convert models.
    """
    nothing = RewardChoice(name="none")  # neither is looked at
    choice = Choice(name=name)
    section = RlaxSection(prompt_source=nothing, rewards=(nothing,), trainer=choice)
    context = BuildContext.outside_run(section)
    trainer: Trainer = registry_for(section).part("trainer", choice, "--trainer", context)
    if not trainer.converts_models:
        raise ConfigError("--trainer", name, "does not declare converts_models")
    return trainer


def _check_space(out: str, nbytes: int) -> None:
    place = Path(out).absolute().parent
    while not place.exists():
        place = place.parent
    if (free := shutil.disk_usage(place).free) < nbytes:
        reason = f"needs {in_bytes(nbytes)}, and {in_bytes(free)} are free on that disk"
        raise ConfigError("--out", os.fspath(out), reason)


def _write(model: ConvertibleModel, directory: Path, home: Path, console: Console) -> None:
    columns = (TextColumn("weights written"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=model.nbytes)
        model.write(
            directory, home, lambda done, of: progress.update(bar, completed=done, total=of)
        )
