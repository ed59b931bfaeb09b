"""The figures of a run, and the lines that it prints at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from rich.console import Console, RenderableType

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.command_lines import pasteable, train_command
from rlax_plugin.run.controller.controller import Controller
from rlax_plugin.run.display.dashboard import before_after_table
from rlax_plugin.run.evaluation.result import Evaluated, recorded, steps_evaluated
from rlax_plugin.run.start.judging import verdict_of


def print_results(
    out: Console, files: RunFiles, argv: Sequence[str], steps: int, updates: int
) -> None:
    """Prints the results that a run of ``steps`` steps has written, and how to continue it.

    Args:
      updates: MaxText updates per step; its key ``steps`` counts updates.
    """
    if found := before_and_after(files, steps):
        for one in found:
            out.print(one)
    elif recorded(files, "before") is not None:
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
        f"steps={max(1, 2 * steps) * updates}"
    ]
    out.print(f"continue training:   {train_command(longer)}")
    out.print(f"write a report:      {pasteable('rlax', 'report', files.url)}")
    out.print(f"check the records:   {pasteable('rlax', 'audit', files.url)}")
    if files.exists("tensorboard"):
        out.print(f"look at the curves:  {pasteable('tensorboard', '--logdir', _shown(files))}")


def before_and_after(files: RunFiles, steps: int | None = None) -> list[RenderableType]:
    """Returns the table of the evaluations before and after training, and the run's verdict.

    Args:
      steps: those after which the last evaluation must have been made; None: any number.

    Returns:
      Nothing if one of the evaluations is missing.
    """
    before, after = recorded(files, "before"), recorded(files, "after", version=steps)
    if before is None or after is None:
        return []
    sentence = recorded_verdict(files)
    return [before_after_table(before, after), *([sentence] if sentence else ())]


def too_few_steps(files: RunFiles, last_step: int, updates: int) -> str:
    """Returns a sentence about a run that has trained more steps than it should; else "".

    Args:
      last_step: number of RL steps that the config asks for.
      updates: MaxText updates per step; its key ``steps`` counts updates.
    """
    done = (files.get_json("summary.json") or {}).get("steps", 0)
    if done <= last_step:
        return ""
    counted = f" ({last_step} RL steps)" if updates > 1 else ""
    return (
        f"steps = {last_step * updates}{counted} is less than the {done} RL steps that {files.url} "
        "has trained, so nothing is left to train: its results stay those of step "
        f"{done}. For a run of {last_step} steps choose another run_name"
    )


def recorded_verdict(files: RunFiles) -> str | None:
    """Returns the sentence with the verdict on a run; None: it has no verdict."""
    document = files.get_json("summary.json")
    found = document.get("verdict") if isinstance(document, dict) else None
    sentence = found.get("sentence") if isinstance(found, dict) else None
    return sentence if isinstance(sentence, str) else None


def _shown(files: RunFiles) -> str:
    return files.url.rstrip("/")


_LIBRARIES = {
    "maxtext": "maxtext",
    "jax": "jax",
    "jetstream": "google-jetstream",
    "orbax": "orbax-checkpoint",
}


def versions() -> dict[str, str]:
    """Returns the versions of the libraries underneath."""
    found = {}
    for name, distribution in _LIBRARIES.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def summary(
    controller: Controller,
    after: Evaluated | None,
    *,
    began_s: float,
    config_hash: str,
    maxtext: Mapping[str, Any],
    last_step: int,
) -> dict[str, Any]:
    """Returns the run's figures; rates are per second of training steps, without evaluation.

    Args:
      after: result of the evaluation after training; None if there was none.
      began_s: ``time.perf_counter`` at the start of the process.
      maxtext: MaxText's keys.
      last_step: the run is complete once this step is done.
    """
    stats, totals = controller.stats, controller.run_state.totals
    steps = controller.run_state.next_step - 1
    training_s = stats.training_started_s
    document: dict[str, Any] = {
        "complete": steps >= last_step,
        "steps": steps,
        "wall_s": time.perf_counter() - began_s,
        "startup_s": None if training_s is None else training_s - began_s,
        "reward_first10": stats.first_mean("reward/mean", 10),
        "reward_last10": stats.last_mean("reward/mean", 10),
        "tokens_generated": totals.tokens,
        "generated_tokens_per_s": stats.rate("rollout/tokens", "time/step_s"),
        "train_tokens_per_s": stats.rate("train/tokens", "time/step_s"),
        "weight_versions": steps + 1,  # the first weights, and those of each step
        "max_staleness_seen": totals.max_staleness,
        "logprob_gap_mean": stats.mean("logprob_gap/mean"),
        "logprob_gap_p95": stats.largest("logprob_gap/p95"),
        "groups_issued": totals.issued,
        "groups_accepted": totals.accepted,
        "groups_rejected": sum(totals.rejected.values()),
        "groups_rejected_why": dict(totals.rejected),
        "groups_dropped": dict(totals.dropped),
        "samples_saved": totals.samples_saved,
        "tokens_saved": totals.tokens_saved,
        "groups_reissued": totals.reissued,
        "trainer_restarts": totals.restarts,
        "reward_errors": totals.reward_errors,
        "workers_seen": len(controller.fleet.identities.names),
        "worker_restarts": controller.generation.launcher.restarts,
        "config_hash": config_hash,
        "versions": versions(),
        "evaluation": {
            "during": len(steps_evaluated(controller.files)),
            "skipped": controller.periodic.skipped,  # by this process
        },
    }
    for when, found in (("before", controller.before), ("after", after)):
        if found is not None:
            document["evaluation"][when] = found.sets_to_json()
            document |= {f"{name}_{when}": e.to_json() for name, e in found.pass_at.items()}
    judged = (controller.before, after, stats, controller.section, maxtext, steps)
    if (found := verdict_of(*judged)) is not None:
        document["verdict"] = found
    return document
