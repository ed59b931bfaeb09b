"""What is shown at the end of a run: the measures before and after, its files, how to go on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from rlax_plugin.evaluation.result import recorded
from rlax_plugin.metrics.dashboard import before_after_table
from rlax_plugin.records.files import RunFiles
from rlax_plugin.text.command_lines import pasteable, train_command


def print_results(
    out: Console, files: RunFiles, argv: Sequence[str], steps: int, updates: int
) -> None:
    """What a run of that many steps has left behind, and how to go on.

    Args:
      updates: in one step; MaxText's key ``steps`` counts them.
    """
    before, after = recorded(files, "before"), recorded(files, "after", version=steps)
    if before is not None and after is not None:
        out.print(before_after_table(before, after))
    elif before is not None:
        out.print("the evaluation after training was interrupted")
    for what, name in (
        ("summary", "summary.json"),
        ("metrics per step", "metrics.jsonl"),
        ("samples", "samples/"),
        ("checkpoints", "checkpoints/"),
        ("logs", "logs/"),
        ("TensorBoard", "tensorboard/"),
    ):
        if files.exists(name.rstrip("/")):
            out.print(f"{what:20} {_shown(files)}/{name}")
    longer = [word for word in argv if not word.startswith("steps=")] + [
        f"steps={2 * steps * updates}"
    ]
    out.print(f"continue training:   {train_command(longer)}")
    out.print(f"write a report:      {pasteable('rlax', 'report', files.url)}")
    out.print(f"check the records:   {pasteable('rlax', 'audit', files.url)}")
    if files.exists("tensorboard"):
        out.print(f"look at the curves:  {pasteable('tensorboard', '--logdir', _shown(files))}")


def _shown(files: RunFiles) -> str:
    return files.url.rstrip("/")
