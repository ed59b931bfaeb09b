"""Supervised training on demonstrations by MaxText's ordinary loop and loss, before RL.

Every epoch takes each demonstration once, in an order that seed and epoch decide, and packs them
into rows as a batch of RL is packed. A step has ``batch_rows`` rows; the last one of an epoch is
filled up with empty rows. The loss is the mean over the trained tokens of the step. What a step
trains depends on its number alone: one that was killed continues from its newest checkpoint with
the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from maxtext_overrides.config.loading import Config
from maxtext_overrides.trainer.host_rows import placed_alike
from maxtext_overrides.trainer.train_loop import Events, Loop, run_train_loop
from rlax_maxtext.config_agreement import DATA, Demonstrations
from rlax_maxtext.options import KEY, RECORD, WarmStart
from rlax_maxtext.supervised import (
    AnswerLogprobs,
    configured,
    files_of,
    finished,
    laid_out,
    rows_at_once,
)
from rlax_plugin.api import (
    ConfigError,
    Demonstration,
    PromptTable,
    ResolvedConfig,
    RlaxSection,
    RunFiles,
    TrainingError,
)

_PLAN_RECORD = "demonstrations.json"
_METRICS = "metrics.json"

Plan = dict[str, Any]
"""Digest and number of the demonstrations, and the options that the order of rows depends on."""


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch: row r has the demonstrations ``order_n[begins_r[r] : begins_r[r + 1]]``."""

    first_step: int
    order_n: np.ndarray
    begins_r: np.ndarray


class Epochs:
    """The demonstrations of every row of every step.

    Args:
      positions_n: positions that each demonstration takes in a row.
      length: positions of a row, which every demonstration fits into.
      sequences_per_row: the most demonstrations of a row.
      batch_rows: rows of a step.
      epochs: number of epochs.
      seed: of their order.
      most_steps: the steps that are needed; later epochs are left out. None: all.

    Attributes:
      steps: number of steps of all epochs.
    """

    def __init__(
        self,
        positions_n: Sequence[int],
        *,
        length: int,
        sequences_per_row: int,
        batch_rows: int,
        epochs: int,
        seed: int,
        most_steps: int | None = None,
    ):
        self._batch_rows, self._epochs = batch_rows, []
        self.steps = 0
        for epoch in range(epochs):
            if most_steps is not None and self.steps >= most_steps:
                break
            order_n = np.random.default_rng((seed, epoch)).permutation(len(positions_n))
            begins, used, held = [0], 0, 0
            for place, index in enumerate(order_n.tolist()):
                size = int(positions_n[index])
                if held and (used + size > length or held == sequences_per_row):
                    begins.append(place)
                    used = held = 0
                used, held = used + size, held + 1
            begins_r = np.array([*begins, len(order_n)])
            self._epochs.append(_Epoch(self.steps + 1, order_n, begins_r))
            self.steps += -(-len(begins) // batch_rows)

    def rows(self, step: int) -> list[list[int]]:
        """Indices of the demonstrations of each row of a step, which counts from 1."""
        epoch = next(one for one in reversed(self._epochs) if one.first_step <= step)
        first = (step - epoch.first_step) * self._batch_rows
        ends = epoch.begins_r[first : first + self._batch_rows + 1].tolist()
        found = [epoch.order_n[a:b].tolist() for a, b in itertools.pairwise(ends)]
        return found + [[] for _ in range(self._batch_rows - len(found))]


def read(table: PromptTable, indices: Sequence[int]) -> list[Demonstration]:
    """Returns demonstrations of a table."""
    return [Demonstration(table[index].tokens.tolist(), table.spans_at(index)) for index in indices]


class _Metrics:
    """The losses of the steps in a file, which a training that continues goes on with."""

    def __init__(self, files: RunFiles):
        self._files = files
        known = files.get_json(_METRICS) or {"loss": [], "held_out": []}
        self._loss: list[tuple[int, float]] = [(step, loss) for step, loss in known["loss"]]
        self._held_out: list[tuple[int, float]] = [(s, loss) for s, loss in known["held_out"]]

    def continue_from(self, completed: int) -> None:
        self._loss = [one for one in self._loss if one[0] <= completed]
        self._held_out = [one for one in self._held_out if one[0] <= completed]

    def add_loss(self, step: int, loss: float) -> None:
        self._loss.append((step, loss))

    def add_held_out(self, step: int, loss: float) -> None:
        self._held_out.append((step, loss))

    def __str__(self) -> str:
        latest = f", held out {self._held_out[-1][1]:.4f}" if self._held_out else ""
        return f"loss {self._loss[-1][1]:.4f}{latest}"

    def write(self) -> None:
        if jax.process_index() == 0:
            self._files.put_json(_METRICS, {"loss": self._loss, "held_out": self._held_out})


def plan_of(
    section: RlaxSection, length: int, options: Mapping[str, Any], table: PromptTable
) -> Plan:
    """What decides the rows and the updates of a step; more epochs or steps only go on behind.

    Args:
      options: dotted key -> value, those of the training itself.
    """
    return {
        "digest": table.digest,
        "demonstrations": len(table),
        "options": {
            **options,
            "rlax.batches.sequences_per_row": section.batches.sequences_per_row,
            "rlax.seed": section.seed,
            "max_target_length": length,
        },
    }


def check_plan(
    files: RunFiles, record: str, plan: Plan, key: str, name: str, completed: int
) -> None:
    """Compares with the plan that an interrupted training began with; records that of a new one.

    Args:
      record: the plan's file.
      key, name: of the source of demonstrations.
      completed: steps that are trained already.

    Raises:
      ConfigError: the data or an option is another one, so the next steps would not follow those
        that are trained.
    """
    known = files.get_json(record) if completed else None
    if known is None:  # nothing is trained yet, so whatever was recorded binds nobody
        if jax.process_index() == 0:
            files.put_json(record, plan)
        return
    for option, value in plan["options"].items():
        if (before := known["options"].get(option)) != value:
            reason = (
                f"was {before} when this training on demonstrations began, of which {completed} "
                "steps are trained: restore it, or choose another run_name"
            )
            raise ConfigError(option, value, reason)
    if any(known[key] != plan[key] for key in ("digest", "demonstrations")):
        reason = (
            f"has other demonstrations than when this training began ({plan['demonstrations']:,} "
            f"instead of {known['demonstrations']:,}, or others of the same number): restore the "
            "data, or choose another run_name"
        )
        raise ConfigError(key, name, reason)


def _held_out_loss(
    table: PromptTable | None, most: int, pad_id: int, config: Config
) -> Callable[[Loop], float] | None:
    """A function that measures the mean loss of held-out tokens; None if none are held out."""
    if table is None:
        return None
    examples = read(table, range(min(most, len(table))))
    arrays = laid_out([[one] for one in examples], config.max_target_length, pad_id)
    logprobs = AnswerLogprobs(arrays, 1.0, rows_at_once(config, len(examples)))
    tokens = int(np.count_nonzero(arrays["targets_segmentation"]))
    return lambda loop: -float(np.sum(logprobs(loop))) / tokens


def train(
    given: ResolvedConfig,
    rl_config: Config,
    warm: WarmStart,
    data: Demonstrations,
    on_progress: Callable[[int, int, str], None] = lambda step, steps, note: None,
) -> str:
    """Trains on demonstrations, or continues where an earlier process was interrupted.

    Skipped if it is ``finished``. Runs MaxText's loop under ``<run_name>/prepared/warm_start``, on
    all hosts of the trainer, which read the same demonstrations. Checkpoints are made as often as
    those of RL.

    Args:
      given: the config of the RL run.
      rl_config: MaxText's, loaded from it.
      warm: the trainer's options for it.
      data: the demonstrations.
      on_progress: called after each step with it, the number of steps, and the losses in words.

    Returns:
      Path for MaxText's ``load_parameters_path``.

    Raises:
      ConfigError: the config cannot work; the data or an option has changed; or see ``finished``.
      TrainingError: the loop ended without its last checkpoint.
    """
    if done := finished(rl_config, warm):
        return done
    files, section = files_of(rl_config, warm), rl_config.rlax
    table, pad_id = data.train, data.source.pad_id
    length, batch_rows = rl_config.max_target_length, warm.batch_rows
    epochs = Epochs(
        (table.lengths - 1).tolist(),
        length=length,
        sequences_per_row=section.batches.sequences_per_row,
        batch_rows=batch_rows,
        epochs=warm.epochs,
        seed=section.seed,
    )
    steps = epochs.steps if warm.steps is None else min(warm.steps, epochs.steps)
    period = rl_config.checkpoint_period if rl_config.enable_checkpointing else steps + 1
    config = configured(given, rl_config, warm, steps, max(1, period))
    own = {
        f"{KEY}.warm_start.{name}": getattr(warm, name) for name in ("batch_rows", "learning_rate")
    }
    plan = plan_of(section, length, own, table)
    held_out, metrics = (
        _held_out_loss(data.held_out, warm.problems, pad_id, config),
        _Metrics(files),
    )
    started: list[Loop] = []
    is_saved = False

    def record(step: int) -> None:
        if jax.process_index() == 0:
            files.put_json(RECORD, {"step": step, "demonstrations": len(table)})

    def on_start(loop: Loop) -> None:
        started.append(loop)
        check_plan(files, _PLAN_RECORD, plan, DATA, data.name, loop.completed)
        metrics.continue_from(loop.completed)
        if loop.completed >= steps:  # killed between the last checkpoint and the record
            record(loop.completed)

    def batches(step: int) -> dict[str, np.ndarray]:
        return laid_out([read(table, row) for row in epochs.rows(step)], length, pad_id)

    def before_checkpoint(step: int) -> None:
        nonlocal is_saved
        is_saved = True

    def on_step_end(loop: Loop, scalars: Mapping[str, Any]) -> None:
        nonlocal is_saved
        step, last = loop.completed, loop.completed == steps
        metrics.add_loss(step, float(jax.device_get(scalars["learning/loss"])))
        if last or is_saved:
            metrics.write()  # a process that is killed while it measures keeps the loss
        if held_out is not None and (last or step % warm.check_every == 0):
            metrics.add_held_out(step, held_out(loop))
            if last or is_saved:
                metrics.write()
        on_progress(step, steps, str(metrics))
        is_saved = False
        if last:
            record(step)  # counts with the checkpoint only

    events = Events(
        batches=batches,
        on_step_end=on_step_end,
        decide=lambda step: (step == steps, step == steps),
        on_start=on_start,
        before_checkpoint=before_checkpoint,
        place=lambda arrays: placed_alike(started[0], arrays),
    )
    run_train_loop(config, events)
    done = finished(rl_config, warm)
    if done is None:
        raise TrainingError(f"the training on demonstrations has no checkpoint of step {steps}")
    return done
