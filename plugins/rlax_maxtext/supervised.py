"""A supervised warm start by MaxText's ordinary loop and loss, stopped inside a window of pass@1.

Validation pass@1 is exact: the mean over problems of exp(sum of the answer's token log-probs) at
the rollouts' temperature, from one teacher-forced forward pass. Nothing is sampled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maxtext_overrides.config.loading import Config, initialize
from maxtext_overrides.trainer.host_rows import jitted, placed_alike
from maxtext_overrides.trainer.model_outputs import target_logprobs_of
from maxtext_overrides.trainer.train_loop import MAXTEXT_ARRAYS, Events, Loop, run_train_loop
from rlax_maxtext.options import RECORD, WARM_START_FOLDER, WarmStart, check_step_rows, weights_in
from rlax_plugin.api import (
    ConfigError,
    Demonstration,
    Prompt,
    PromptSource,
    ResolvedConfig,
    RunFiles,
    TrainingError,
)

log = logging.getLogger("rlax.trainer")

_LOGITS_AT_ONCE = 2**28  # bytes, float32


def laid_out(
    rows: Sequence[Sequence[Demonstration]], length: int, pad_id: int
) -> dict[str, np.ndarray]:
    """MaxText's arrays of demonstrations, one behind the other in each row.

    ``targets_segmentation`` is above 0 on trained tokens only: MaxText's loss is their mean.

    Args:
      rows: the demonstrations of each row; a row without any is padding.
      length: positions of a row.

    Returns:
      name -> int32 [rows, length].

    Raises:
      ConfigError: they do not fit into a row.
    """
    arrays = {name: spec.zeros(len(rows), length) for name, spec in MAXTEXT_ARRAYS.items()}
    for side in ("inputs", "targets"):
        arrays[side].fill(pad_id)
        arrays[f"{side}_position"][:] = np.arange(length)
    for row, examples in enumerate(rows):
        begin = 0
        for segment, example in enumerate(examples, 1):
            end = begin + len(example.tokens) - 1
            if end > length:
                raise ConfigError("max_target_length", length, f"must be at least {end}")
            arrays["inputs"][row, begin:end] = example.tokens[:-1]
            arrays["targets"][row, begin:end] = example.tokens[1:]
            arrays["inputs_segmentation"][row, begin:end] = segment
            for side in ("inputs", "targets"):
                arrays[f"{side}_position"][row, begin:end] = np.arange(end - begin)
            for first, behind in example.spans:
                arrays["targets_segmentation"][row, begin + first - 1 : begin + behind - 1] = (
                    segment
                )
            begin = end
    return arrays


def rows(source: PromptSource, prompts: Sequence[Prompt], length: int) -> dict[str, np.ndarray]:
    """The arrays of right answers, one problem per row; see ``laid_out``."""
    found = []
    for prompt in prompts:
        turns, end = _answer_turns(source, prompt), 0
        spans = []
        for given, answer in turns:
            begin, end = end + len(given), end + len(given) + len(answer)
            spans.append((begin, end))
        tokens = np.concatenate([part for turn in turns for part in turn]).tolist()
        found.append([Demonstration(tokens, spans)])
    assert source.pad_id is not None, "answered_prompts has checked it"
    return laid_out(found, length, source.pad_id)


def answered(source: PromptSource, prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """The prompts that have an answer, of at most ``most`` tokens in each turn; warns of others.

    Raises:
      ConfigError: none of them has one.
    """
    found = []
    for prompt in prompts:
        turns = source.right_answer(prompt)
        if turns and max(len(answer) for _, answer in turns) <= most:
            found.append(prompt)
    if left_out := len(prompts) - len(found):
        log.warning(
            "warm start: %d of %d prompts are left out: they have no right answer of at most "
            "rlax.rollouts.max_new_tokens = %d tokens",
            left_out,
            len(prompts),
            most,
        )
    if not found:
        reason = f"must be false: no prompt has an answer of at most max_new_tokens = {most} tokens"
        raise ConfigError("rlax.trainer.warm_start.enabled", True, reason)
    return found


def _answer_turns(source: PromptSource, prompt: Prompt) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each turn of the correct answer the input before it, the prompt first, and the answer."""
    (nothing, first), *later = source.answer_turns(prompt)
    return [(np.concatenate((prompt.tokens, nothing)), first), *later]


class AnswerLogprobs:
    """The log-probability of the trained tokens of each row, their sum, in fixed rows.

    Args:
      arrays: arrays of ``laid_out``.
      temperature: temperature of the answers.
      at_once: number of rows of one forward pass.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], temperature: float, at_once: int):
        self._parts = _parts(arrays, at_once)
        self._rows, self._temperature = len(arrays["inputs"]), temperature
        self._forward: Any = None

    def __call__(self, loop: Loop) -> np.ndarray:
        with loop.shardings():
            if self._forward is None:
                self._forward = self._compiled(loop.graph, loop.mesh)
            found = [np.asarray(self._forward(loop.model_state, part)) for part in self._parts]
        return np.concatenate(found)[: self._rows]

    def _compiled(self, graph: Any, mesh: Any) -> Callable[..., Any]:
        def answer_logprob_b(model_state: Any, data: Mapping[str, Any]) -> jax.Array:
            logprobs_bt = target_logprobs_of(graph, model_state, data, self._temperature)
            return jnp.sum(jnp.where(data["targets_segmentation"] != 0, logprobs_bt, 0.0), axis=1)

        return jitted(answer_logprob_b, mesh)


class PassAt1:
    """Exact pass@1 on fixed problems, one per row; see ``AnswerLogprobs``."""

    def __init__(self, arrays: Mapping[str, np.ndarray], temperature: float, at_once: int):
        self._logprobs = AnswerLogprobs(arrays, temperature, at_once)

    def __call__(self, loop: Loop) -> float:
        return float(np.mean(np.exp(self._logprobs(loop))))


def _parts(arrays: Mapping[str, np.ndarray], rows: int) -> list[dict[str, np.ndarray]]:
    """Splits arrays into equal numbers of rows; the last part is filled up with its last row."""
    count = len(arrays["inputs"])
    every = np.minimum(np.arange(-(-count // rows) * rows), count - 1)
    parts = every.reshape(-1, rows)
    return [{name: array[part] for name, array in arrays.items()} for part in parts]


def rows_at_once(config: Config, problems: int) -> int:
    """The number of rows whose logits fit into ``_LOGITS_AT_ONCE`` on each device."""
    devices = config.num_target_devices
    row = config.max_target_length * config.vocab_size * 4
    return devices * max(1, min(-(-problems // devices), _LOGITS_AT_ONCE // row))


def configured(
    given: ResolvedConfig, rl_config: Config, warm: WarmStart, steps: int, period: int
) -> Config:
    """MaxText's config of a supervised training.

    Args:
      steps: number of steps.
      period: steps from one checkpoint to the next; there is one at the end, too.

    Raises:
      ConfigError: the rows of a step cannot be divided among the devices.
    """
    devices = rl_config.num_target_devices
    check_step_rows(warm, devices)
    return initialize(
        given,
        run_name=f"{rl_config.run_name}/{WARM_START_FOLDER}",
        steps=steps,
        per_device_batch_size=warm.batch_rows // devices,
        gradient_accumulation_steps=1,
        learning_rate=warm.learning_rate,
        learning_rate_schedule_steps=steps,
        learning_rate_final_fraction=1.0,  # constant: when it ends may not be known beforehand
        warmup_steps_fraction=0.0,
        enable_checkpointing=True,
        async_checkpointing=False,
        save_checkpoint_on_start=False,
        save_checkpoint_on_completion=False,
        checkpoint_period=period,
        max_num_checkpoints_to_keep=2,  # to continue from; the last one has the weights
    )


def finished(rl_config: Config, warm: WarmStart) -> str | None:
    """Path of the finished warm start's weights; None if it is to be trained.

    Raises:
      ConfigError: there is no finished warm start in ``rlax.trainer.warm_start.directory``.
    """
    found = weights_in(files_of(rl_config, warm))
    if found is None and warm.directory:
        raise ConfigError(
            "rlax.trainer.warm_start.directory", warm.directory, "no warm start has ended there"
        )
    return found


def files_of(rl_config: Config, warm: WarmStart) -> RunFiles:
    """The directory of a run's supervised training."""
    own = f"{rl_config.base_output_directory}/{rl_config.run_name}/{WARM_START_FOLDER}"
    return RunFiles(warm.directory or own)


def warm_start(
    given: ResolvedConfig,
    rl_config: Config,
    warm: WarmStart,
    source: PromptSource,
    on_progress: Callable[[int, float], None] = lambda step, pass_at_1: None,
) -> str:
    """Trains on correct answers until validation pass@1 is in the config's window.

    Skipped if it is ``finished``. Runs MaxText's loop under ``<run_name>/prepared/warm_start``, on
    all hosts of the trainer, which read the same problems.

    Args:
      given: the config of the RL run.
      rl_config: MaxText's, loaded from it.
      warm: the trainer's options for it.
      source: source of problems and answers; "train" is trained on, "validation" is evaluated.
      on_progress: called with step and pass@1 at every evaluation.

    Returns:
      Path for MaxText's ``load_parameters_path``.

    Raises:
      ConfigError: the config cannot work, or see ``finished``.
      TrainingError: pass@1 jumped over the window, or the steps ran out below it and
        ``rlax.trainer.warm_start.required`` is true.
    """
    if done := finished(rl_config, warm):
        return done
    files = files_of(rl_config, warm)
    steps = warm.most_steps
    config = configured(given, rl_config, warm, steps, steps + 1)  # no checkpoint but the last
    most = config.rlax.rollouts.max_new_tokens
    shown = source.prompts("train")[: warm.train_problems or None]
    shown = answered(source, [shown[n] for n in range(0, len(shown), warm.train_every)], most)
    examples = rows(source, shown, config.max_target_length)
    held_out = answered(source, source.prompts("validation")[: warm.problems], most)
    pass_at_1 = PassAt1(
        rows(source, held_out, config.max_target_length),
        config.rlax.rollouts.temperature_at(1),
        rows_at_once(config, len(held_out)),
    )
    count = len(examples["inputs"])
    if count < warm.batch_rows:
        raise ConfigError(
            "rlax.trainer.warm_start.batch_rows", warm.batch_rows, f"must be <= {count}"
        )
    latest, reached = 0.0, False
    started: list[Loop] = []

    def batches(step: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng((config.rlax.seed, step))
        chosen = rng.choice(count, warm.batch_rows, replace=False, shuffle=False)
        return {name: array[chosen] for name, array in examples.items()}

    def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> None:
        nonlocal latest, reached
        del metrics
        # It climbs from a half to the whole of the goal within a few steps.
        near = latest >= warm.pass_at_1_from / 2
        last = loop.completed == steps and not warm.required
        if not near and loop.completed % warm.check_every and not last:
            return
        latest = pass_at_1(loop)
        on_progress(loop.completed, latest)
        if latest > warm.pass_at_1_to:
            raise TrainingError(
                f"warm start: validation pass@1 is {latest:.3f} at step {loop.completed}, above "
                f"rlax.trainer.warm_start.pass_at_1_to = {warm.pass_at_1_to}: lower its "
                "learning_rate or check_every"
            )
        if latest < warm.pass_at_1_from and not last:
            return
        # Counts with the checkpoint only.
        record = {"step": loop.completed, "pass_at_1": latest, "problems": warm.problems}
        if jax.process_index() == 0:
            files.put_json(RECORD, record)
        reached = True

    def decide(step: int) -> tuple[bool, bool]:
        return reached, reached

    events = Events(
        batches=batches,
        on_step_end=on_step_end,
        decide=decide,
        on_start=started.append,
        place=lambda arrays: placed_alike(started[0], arrays),
    )
    run_train_loop(config, events)
    done = weights_in(files)
    if done is None:
        raise TrainingError(
            f"warm start: validation pass@1 is {latest:.3f} after rlax.trainer.warm_start.steps = "
            f"{steps}, below rlax.trainer.warm_start.pass_at_1_from = {warm.pass_at_1_from}: "
            "raise one, lower the other, or start RL all the same with required: false"
        )
    return done
