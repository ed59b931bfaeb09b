"""Runs MaxText's stock ``train_loop`` with our batches, our loss and our events.

Steps are RL steps and count from 1. Each has u updates, ``rlax.objective.updates_per_step``, and
each update is a train step of MaxText: step s is what MaxText calls (s - 1) u .. s u - 1, from 0.
``steps``, ``checkpoint_period`` and the learning-rate schedule count train steps; a checkpoint that
falls due inside an RL step is saved at its end, under the label s u - 1. Everything happens on the
calling thread, in this order:

    on_start  batches(s)  [u train steps]  before_checkpoint(s)  [save]  on_step_end(s)  decide(s)

``decide`` can request a checkpoint that is not due. It is called last because a step is only
dispatched when ``on_step_end`` begins, so its decision applies to this very step.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from maxtext_overrides import adapters, folding, kept_positions, tied_head
from maxtext_overrides.models import rope_scaling
from maxtext_overrides.rounding import copied
from maxtext_overrides.trainer import adapter_files, checkpoint_fingerprints, shared_prompts
from maxtext_overrides.trainer import loss as rl_loss
from maxtext_overrides.trainer.async_saves import AsyncSaves
from maxtext_overrides.trainer.checkpoints import holds
from maxtext_overrides.trainer.events import Events, Loop
from maxtext_overrides.trainer.updates import StepMetrics, Updates
from maxtext_overrides.upstream import lean_imports
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check
from maxtext_overrides.variables import published
from rlax_plugin.base.errors import TrainingError
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import DEMONSTRATED

log = logging.getLogger("rlax.maxtext")

MAXTEXT_ARRAYS: dict[str, ArraySpec] = {
    f"{side}{suffix}": ArraySpec(np.dtype(np.int32))
    for side in ("inputs", "targets")
    for suffix in ("", "_position", "_segmentation")
}

_TRAIN = "maxtext.trainers.pre_train.train"

OVERRIDES = BY_MODULE["maxtext_overrides/trainer/train_loop.py"]


def fresh_weights(
    loop: Loop, rounds: bool = False, only: Callable[[str], bool] = lambda name: True
) -> Mapping[str, jax.Array]:
    """Returns the variables of a weight version in new buffers.

    The call returns at once; the copy runs after the step that computes the weights.

    Args:
      rounds: False gives them the model's dtypes, True those of ``version_dtypes``.
      only: True for the names of the variables to return.
    """
    current = published(loop.model_state)
    return copied({n: a for n, a in current.items() if only(n)}, loop.config, rounds)


def _unless_frozen(frozen_updates: int, before: Any, after: Any) -> Any:
    """Returns the state before an update in the first updates, otherwise that after it.

    Only the count of updates goes on, on which the numbers of versions and checkpoints depend. The
    schedule of the learning rate, which the optimizer's own state counts, begins afterwards.
    """
    frozen = before["optimizer"]["step"].get_value() < frozen_updates

    def chosen(path: Any, old: Any, new: Any) -> Any:
        names = jax.tree_util.keystr(path, simple=True, separator=".")
        return new if names.startswith("optimizer.step") else jnp.where(frozen, old, new)

    return jax.tree_util.tree_map_with_path(chosen, before, after)


class _NothingLeft(Exception):
    """Raised if the checkpoint is that of the last step."""


class _Extension:
    """The replacements of one run of the loop, and the state they share."""

    def __init__(
        self,
        train: Any,
        config: Any,
        events: Events,
        arrays: Mapping[str, ArraySpec],
        rl: bool,
        frozen_updates: int,
        positions: int | None,
        base: str | None,
    ):
        self.frozen_updates, self.positions, self.base = frozen_updates, positions, base
        self.train, self.config, self.events, self.arrays = train, config, events, arrays
        self.rl = rl
        chosen = config.rlax.objective
        self.updates = (
            Updates(chosen.epochs, chosen.mini_batches, config.rlax.seed) if rl else Updates()
        )
        self.metrics = StepMetrics()
        self.saves, self.save_due = AsyncSaves(), False
        self.loop: Loop | None = None
        self.failure: Exception | None = None

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        # MaxText turns errors of the data path into StopTraining and those of a checkpoint into
        # RuntimeError; the original is raised again after the loop.
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise

    def started(self) -> Loop:
        if self.loop is None:
            raise TrainingError("MaxText asked for a batch before setup_train_loop returned")
        return self.loop

    def _data(self) -> Iterator[dict[str, Any]]:
        events = self.events
        with self._remembered():
            while events.next_update is not None:
                yield dict(events.next_update())
            while True:
                step = self.started().completed + 1
                for update in self.updates.of(step, self._batch(step)):
                    yield dict(events.place(events.update(update)))

    def _batch(self, step: int) -> dict[str, np.ndarray]:
        batch = self.events.batches(step)
        rows = self.config.global_batch_size_to_load * self.updates.mini_batches
        for name, spec in self.arrays.items():
            if wrong := spec.mismatch(batch.get(name), rows, self.config.max_target_length):
                raise TrainingError(f"batch of step {step}: {name} is {wrong}")
        kept_positions.check_rows(step, batch, self.positions)
        return {name: batch[name] for name in self.arrays}

    def create_data_iterator(self, config: Any, mesh: Any) -> tuple[Any, None]:
        del config, mesh
        return self._data(), None

    def get_shaped_batch(
        self, config: Any, batch_sharding: Any = None, is_eval: bool = False
    ) -> dict[str, jax.ShapeDtypeStruct]:
        del is_eval
        rows, length = config.global_batch_size_to_load, config.max_target_length
        return {
            name: jax.ShapeDtypeStruct(
                spec.shape(rows, length), spec.dtype, sharding=batch_sharding
            )
            for name, spec in (dict(self.arrays) | dict(self.events.update_arrays)).items()
        }

    def validate_completed_steps(self, completed_steps: int, config_steps: int) -> None:
        """Accepts any number of steps, as ``setup_train_loop`` below ends a finished loop."""

    def setup_train_loop(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def setup(config: Any, recorder: Any, devices: Any = None) -> Any:
            with checkpoint_fingerprints.restoring(self.config.checkpoint_dir):
                result = stock(config, recorder, devices)
            model, mesh, state = result[3], result[4], result[-1]
            trained = self.train.get_first_step(model, state)
            if adapters.enabled(config):
                with self._remembered():
                    adapter_files.complete(config, state.model, trained > 0, self.base)
            completed, extra = divmod(trained, self.updates.per_step)
            graph, model_state = nnx.split(state.model)
            self.loop = Loop(config, completed, completed, mesh, graph, model_state)
            with self._remembered():
                self._check_restored(trained - 1, state)
                if extra:
                    raise TrainingError(
                        f"the {trained} updates of the checkpoint are not a multiple of "
                        f"{self.updates.per_step} updates per RL step, so rlax.objective.epochs = "
                        f"{self.updates.epochs} or mini_batches = {self.updates.mini_batches} "
                        "differs from the values that the run was started with"
                    )
                self.events.on_start(self.loop)
            if trained >= config.steps:
                raise _NothingLeft
            return result

        return setup

    def _check_restored(self, label: int, state: Any) -> None:
        own = self.config.checkpoint_dir
        if label >= 0 and holds(os.path.dirname(own.rstrip("/")), str(label)):
            checkpoint_fingerprints.check(own, label, state)
        elif label >= 0 and (path := self.config.load_full_state_path):
            checkpoints, name = os.path.split(os.path.dirname(path.rstrip("/")))
            if name.isdecimal():  # else it is no checkpoint of a run
                checkpoint_fingerprints.check(checkpoints, int(name), state)

    def _filter_lora_trainable_state(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        return adapter_files.without_base(stock)

    def restore_lora_from_path(self, model: Any, mt_config: Any) -> Any:
        """Restores nothing: see ``adapter_files.complete``."""
        del mt_config
        return model

    def gradient_accumulation_loss_and_grad(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        return adapters.of_adapters_only(stock)

    def train_step(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def train_step(
            model: Any, config: Any, state_shardings: Any, shardings: Any, state: Any, *args: Any
        ) -> Any:
            # Only this function sees the flag: the model's layers read their own config.
            recording = config.copy()
            recording.get_keys()["record_internal_nn_metrics"] = 1
            before = jax.tree.map(lambda x: x, state)  # the stock function changes its variables
            found, metrics = stock(model, recording, state_shardings, shardings, state, *args)
            if self.frozen_updates:
                found = _unless_frozen(self.frozen_updates, before, found)
            return found, metrics

        return train_step

    def record_activation_metrics(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def record(output_metrics: Any, intermediate_outputs: Any, config: Any) -> None:
            output_metrics["rlax"] = intermediate_outputs.get("rlax", {})
            if self.config.record_internal_nn_metrics:
                stock(output_metrics, intermediate_outputs, config)

        return record

    def training_loop_iteration(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def iteration(jax_device_state: Any, python_vars: Any, immutable_data: Any) -> Any:
            loop = self.started()
            metrics = stock(jax_device_state, python_vars, immutable_data)
            if self.frozen_updates:
                schedule = python_vars["metric_logger_instance"].learning_rate_schedule
                after = python_vars["step"] - self.frozen_updates
                rate = schedule(after) if after >= 0 else 0.0
                metrics["scalar"]["learning/current_learning_rate"] = rate
            self.metrics.add(metrics["scalar"], metrics.get("rlax", {}))
            completed, extra = divmod(python_vars["step"] + 1, self.updates.per_step)
            if extra:
                return metrics
            state = jax_device_state["state"]
            loop.completed, loop.model_state = completed, state.model
            saving = (python_vars["checkpoint_manager"], state, python_vars["data_iterator"])
            if self.save_due:
                self._save(*saving)
            with self._remembered():
                self.events.on_step_end(loop, self.metrics.take())
                save, stop = self.events.decide(completed)
            if save:
                self._save_once(*saving)
            if stop:
                if saving[0] is not None:  # MaxText waits for it only after its last step
                    self.train.checkpointing.wait_until_finished(saving[0])
                raise self.train.exceptions.StopTraining(f"asked to after step {loop.completed}")
            return metrics

        return iteration

    def _save(self, manager: Any, state: Any, data_iterator: Any) -> None:
        """Saves the checkpoint of the step just finished, whatever ``checkpoint_period`` says."""
        label = self.started().completed * self.updates.per_step - 1
        self.train.checkpointing.save_checkpoint(
            manager, label, state, self.config, data_iterator, force=True
        )

    def _save_once(self, manager: Any, state: Any, data_iterator: Any) -> None:
        """Saves the checkpoint unless the loop already has, and waits until it is on disk."""
        if manager is None:
            return
        checkpointing = self.train.checkpointing
        label = self.started().completed * self.updates.per_step - 1
        checkpointing.wait_until_finished(manager)
        if label not in checkpointing.all_steps(manager):
            self._save(manager, state, data_iterator)
            checkpointing.wait_until_finished(manager)

    def save_checkpoint(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def save(
            checkpoint_manager: Any,
            step: int,
            state: Any,
            config: Any = None,
            data_iterator: Any = None,
            force: bool = False,
        ) -> Any:
            completed, extra = divmod(step + 1, self.updates.per_step)
            self.save_due = bool(extra)  # until this RL step ends
            if extra:
                return False
            with self._remembered():
                self.events.before_checkpoint(completed)
                checkpoint_fingerprints.save(self.config.checkpoint_dir, step, state)
                self.saves.collect()
                manager = self.saves.watched(checkpoint_manager)
                return stock(manager, step, state, config, data_iterator, force)

        return save


@contextmanager
def extension_points(extension: _Extension, loss_fn: Any = None) -> Iterator[None]:
    """Checks and replaces MaxText's extension points, and restores them when the block ends.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    declared = OVERRIDES + (rl_loss.OVERRIDES if extension.rl else ())
    check(declared, extension.config.allow_untested)
    replacements: dict[str, Any] = {}
    for override in OVERRIDES:
        if override.use not in ("replaced", "wrapped"):
            continue  # such a symbol may be absent where untested versions are allowed
        _, name, stock = resolve(override.symbol)
        if override.use == "replaced":
            replacements[override.symbol] = getattr(extension, name)
        elif extension.rl or name not in ("train_step", "record_activation_metrics"):
            replacements[override.symbol] = getattr(extension, name)(stock)
    if loss_fn is not None:
        replacements[f"{_TRAIN}.loss_fn"] = loss_fn
    with ExitStack() as undo:
        for symbol, replacement in replacements.items():
            module, name, stock = resolve(symbol)
            undo.callback(setattr, module, name, stock)
            setattr(module, name, replacement)
        yield


@contextmanager
def extended(
    config: Any,
    events: Events,
    arrays: Mapping[str, ArraySpec],
    objective: rl_loss.Objective | None,
    outputs: Collection[str],
    frozen_updates: int = 0,
    base: str | None = None,
) -> Iterator[tuple[Any, _Extension]]:
    """Yields MaxText's trainer with our extension points; see ``run_train_loop``."""
    train = lean_imports.import_trainer(bool(config.use_vertex_tensorboard))
    tied_head.install(config.allow_untested)
    rope_scaling.install(config.allow_untested)
    folding.install(config.allow_untested)
    adapters.install(config.allow_untested)
    if config.rlax.batches.shared_prompts:
        shared_prompts.install(config.allow_untested)
    rl = objective is not None
    # Of a demonstration any token may train.
    keeps = rl and "rl_mask" in arrays and DEMONSTRATED not in arrays
    positions = kept_positions.logits_per_row(config) if keeps else None
    extension = _Extension(train, config, events, arrays, rl, frozen_updates, positions, base)
    loss_fn = None
    if objective is not None:
        temperature = config.rlax.rollouts.only_temperature
        loss_fn = rl_loss.make_loss_fn(train, objective, temperature, outputs, positions)
    with extension_points(extension, loss_fn):
        yield train, extension


def run_train_loop(
    config: Any,
    events: Events,
    *,
    arrays: Mapping[str, ArraySpec] = MAXTEXT_ARRAYS,
    objective: rl_loss.Objective | None = None,
    outputs: Collection[str] = (),
    frozen_updates: int = 0,
    base: str | None = None,
) -> Loop:
    """Runs MaxText's ``train_loop`` from the newest checkpoint, if any, to ``config.steps``.

    With a checkpoint of that step it returns after ``on_start``, as no steps are left.

    Args:
      config: returned by ``config.loading.initialize``. With an objective, ``rlax.objective`` sets
        the number of updates per step, which must divide ``steps``.
      events: see ``Events``.
      arrays: names and specs of the arrays of a batch that the device gets, all
        [rows, max_target_length, ...].
      objective: the RL objective; None trains with MaxText's own loss.
      outputs: of ``loss.OUTPUTS``, what the objective gets of the model besides log-probs.
      frozen_updates: number of first updates after which the model and the optimizer are what they
        were before; with an objective.
      base: with adapters, the checkpoint of their base; None: ``load_parameters_path``.

    Returns:
      The loop as it ended, by ``config.steps`` or because ``decide`` said so.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
      TrainingError: a batch of wrong shape; the loss became NaN or infinite; the checkpoint lies
        inside an RL step, because ``rlax.objective`` has changed.
      DamagedCheckpointError: the newest checkpoint has other values than were saved, or cannot be
        decoded.
      Exception: ``events`` raised it; it is passed on unchanged.
    """
    extensions = extended(config, events, arrays, objective, outputs, frozen_updates, base)
    with extensions as (train, extension):
        recorder = train.create_goodput_recorder(config)
        train.record_goodput(recorder, train.RECORD_JOB_START_TIME)
        with (
            train.maybe_monitor_goodput(config),
            _original(extension),
            train.max_utils.maybe_get_transformer_engine_context(config),
            suppress(_NothingLeft),
        ):
            train.train_loop(config, recorder)
    return extension.started()


@contextmanager
def _original(extension: _Extension) -> Iterator[None]:
    """Raises the original error where MaxText swallowed or wrapped it, or exited instead."""
    try:
        yield
    except SystemExit as error:
        raise TrainingError(
            "the loss is NaN or infinite (abort_on_nan_loss, abort_on_inf_loss)"
        ) from error
    except Exception as error:
        if extension.failure is not None and error is not extension.failure:
            raise extension.failure from None
        raise
    if extension.failure is not None:
        raise extension.failure
