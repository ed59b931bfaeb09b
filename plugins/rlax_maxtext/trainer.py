"""The trainer: MaxText's loop between the controller's batches and publications."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlax_maxtext.config_agreement import (
    Demonstrations,
    answered_prompts,
    check_examples,
    check_rows,
    check_shapes,
    demonstrations,
    given_config,
    trains,
)
from rlax_maxtext.options import (
    DATA,
    MIXED,
    TrainerOptions,
    WarmStart,
    check_answers,
    check_directory,
)
from rlax_maxtext.several_hosts import Obedient, Orders, join
from rlax_plugin.api import (
    ADAPTER,
    ARRAYS,
    PREPARED,
    BuildContext,
    ConfigError,
    Conversion,
    ConvertibleModel,
    Descent,
    Exported,
    FollowerPort,
    Publication,
    ResolvedConfig,
    RlaxSection,
    RunFiles,
    Trainer,
    TrainerPort,
    TrainingError,
    make_loss,
    resolve,
)

if TYPE_CHECKING:
    import numpy as np

    from maxtext_overrides.trainer.train_loop import Loop
    from rlax_maxtext.batch_signals import Training
    from rlax_maxtext.mixing import MixedRows

log = logging.getLogger("rlax.trainer")
_IMPORTING = "importing MaxText and reading its config"
_IMPORT_S, _BUILD_S = 25.0, 15.0  # typically


class _Published(Exception):
    """The first weights are published; no training is requested."""


def _stop_unless(wanted: bool) -> None:
    if not wanted:
        raise _Published


def _none(step: int) -> Mapping[str, np.ndarray]:
    raise TrainingError(f"only host 0 has the batch of step {step}")


class MaxTextTrainer(Trainer):
    """Runs on the main thread, which also makes all its calls of the port."""

    takes_signals = True
    takes_shared_prompts = True
    rounds_weights = True
    keeps_checkpoints = True
    spans_hosts = True
    converts_models = True
    converts_versions = True

    def __init__(self, options: TrainerOptions, context: BuildContext):
        self._options, self._context = options, context
        self._section: RlaxSection = context.section
        self._descent: Descent | None = None
        self._config: Any = None  # MaxText's, which is loaded later
        self.vocabulary = 0  # of it

    def _reporter(self, port: TrainerPort) -> Callable[[int, int, str], None]:
        def report(step: int, steps: int, note: str) -> None:
            log.info("warm start: step %d, %s", step, note)
            port.progress("warm start", step, steps, f"({note})")

        return report

    def _supervised(
        self, given: ResolvedConfig, config: Any, report: Callable[[int, int, str], None]
    ) -> str:
        """Runs the warm start; returns the path of its weights.

        Raises:
          ConfigError, TrainingError: see ``supervised.warm_start`` and ``demonstrations.train``.
        """
        from rlax_maxtext import demonstrations as on_demonstrations
        from rlax_maxtext import supervised
        from rlax_maxtext.checking import check_tokenizer

        warm = self.warm_start()
        if warm.data is not None:
            data = demonstrations(self._context, warm)
            check_tokenizer(config, data.source.tokenizer, data.name, DATA)
            log.info("warm start: %s", data)
            return on_demonstrations.train(given, config, warm, data, report)

        def measured(step: int, pass_at_1: float) -> None:
            report(step, warm.most_steps, f"validation pass@1 {pass_at_1:.3f}")

        check_answers(warm, self._context)  # rlax eval has not
        source = answered_prompts(self._context)
        return supervised.warm_start(given, config, warm, source, measured)

    def _publisher(self, port: Publication) -> Callable[[Loop], None]:
        """A function that publishes the weights of a loop, with the canary for workers.

        With adapters it hands over the base once, and then they are all that a version writes.
        """
        from maxtext_overrides.adapters import enabled, is_adapter
        from maxtext_overrides.trainer.train_loop import fresh_weights
        from maxtext_overrides.variables import published
        from rlax_maxtext.canary_forward import CanaryForward

        canary = CanaryForward(port.canary_tokens)
        rounds = self._section.weights.rounded
        base_is_out = False

        def publish(loop: Loop) -> None:
            nonlocal base_is_out
            if not enabled(loop.config):
                arrays = fresh_weights(loop, rounds)
                port.publish(loop.completed, arrays, canary(loop, arrays))
                return
            adapter = fresh_weights(loop, rounds, is_adapter)
            base = None
            if not base_is_out:
                base = fresh_weights(loop, rounds, lambda name: not is_adapter(name))
            checked = canary(loop, {**(base or published(loop.model_state)), **adapter})
            port.publish(loop.completed, base, checked, {ADAPTER: adapter})
            base_is_out = True

        return publish

    def run(self, port: TrainerPort) -> None:
        """Trains to ``steps``, or until a stop is requested.

        Raises:
          ConfigError: MaxText's config and the ``rlax`` section disagree.
          OverrideError: MaxText is not a tested version.
          Exception: any error of the port, unchanged.
        """
        # MaxText and JAX take seconds to import: not before the run is known to be sound.
        if self._descent is None:
            check_examples(self._context, self.warm_start())
        mixed = self._options.demonstrations
        examples = None
        if mixed.data is not None and trains(self._context):
            examples = demonstrations(self._context, mixed)
        port.waits(_IMPORTING, _IMPORT_S)
        from maxtext_overrides.trainer.checkpoint_fingerprints import DamagedCheckpointError
        from maxtext_overrides.trainer.checkpoints import mismatch
        from maxtext_overrides.trainer.first_weights import chosen
        from maxtext_overrides.trainer.train_loop import Events, run_train_loop
        from rlax_maxtext.model_view import MaxTextView

        orders = Orders(port.followers, self._context.hosts)
        config = self._initialized(port, orders)
        publish = self._publisher(port)
        training = self._training(config)
        signals = training.signals
        mixed_rows = self._mixed_rows(config, examples)
        given = given_config(self._context)
        model = MaxTextView(config, self._section.rollouts.only_temperature, orders, given)
        running: Loop | None = None

        def on_start(loop: Loop) -> None:
            nonlocal running
            running = loop
            model.show(loop)
            signals.start(model, loop.completed)
            if mixed_rows is not None:
                replays = self._context.replays
                mixed_rows.start(
                    RunFiles(f"{self._context.run_url}/{PREPARED}"),
                    loop.completed,
                    RunFiles(f"{replays}/{PREPARED}") if replays else None,
                )
            orders.all("started")
            publish(loop)
            _stop_unless(trains(self._context))

        def batches(step: int) -> Mapping[str, np.ndarray]:
            batch = port.next_batch(step)
            assert running is not None, "a loop starts before it asks for a batch"
            model.show(running)
            completed = signals.complete(model, step, batch)
            return completed if mixed_rows is None else mixed_rows.added(step, completed)

        def before_checkpoint(step: int) -> None:
            signals.save(step)
            port.before_checkpoint(step)

        def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> None:
            import jax

            publish(loop)  # dispatched first: it runs while the metrics are waited for
            found = jax.device_get(dict(metrics))
            mixed = {} if mixed_rows is None else mixed_rows.metrics
            port.step_done(loop.completed, signals.metrics | mixed | found)

        def place(arrays: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
            assert running is not None, "a loop starts before it gets arrays"
            return orders.place(running, arrays)

        events = Events(
            batches=batches,
            on_step_end=on_step_end,
            decide=port.decide,
            on_start=on_start,
            before_checkpoint=before_checkpoint,
            update=training.update,
            update_arrays=training.update_arrays,
            place=place,
        )
        try:
            while True:
                try:
                    with contextlib.suppress(_Published):
                        run_train_loop(config, events, **training.of_loop)
                except DamagedCheckpointError as error:
                    if self._context.hosts is not None:
                        raise  # the other hosts would have to start again, too
                    error.set_aside()
                    moved = "it is moved to damaged/, and the one before it counts"
                    port.found_damaged(f"{error}; {moved}")
                    port.waits(f"building the model: {error}, the one before it counts", _BUILD_S)
                else:
                    break
        except ValueError as error:
            found = ("--from", str(self._descent)) if self._descent else chosen(config.get_keys())
            if found is None or running is not None or not (weight := mismatch(error)):
                raise
            reason = f"holds the weights of another model: {weight}"
            raise ConfigError(*found, reason) from error

    def follow(self, port: FollowerPort) -> None:
        """See ``Trainer``.

        Raises:
          TrainingError: host 0 has ended training or cannot be reached, or gives wrong orders.
        """
        from maxtext_overrides.trainer.train_loop import Events, run_train_loop

        publish = self._publisher(port)  # waits until host 0 is about to train
        config = self._initialized_following(port)
        training = self._training(config)
        model = Obedient(config, self._context, port)

        def on_start(loop: Loop) -> None:
            model.loop = loop
            model.until("started")
            publish(loop)
            _stop_unless(trains(self._context))

        events = Events(
            batches=_none,
            on_step_end=lambda loop, metrics: publish(loop),
            decide=port.decide,
            on_start=on_start,
            update_arrays=training.update_arrays,
            next_update=model.next_update,
        )
        with contextlib.suppress(_Published):
            run_train_loop(config, events, **training.of_loop)

    def leave(self) -> None:
        """See ``Trainer``.

        Raises:
          TrainingError: another host has not finished in time.
        """
        from maxtext_overrides.trainer import distributed

        distributed.leave()

    def _training(self, config: Any) -> Training:
        """The objective and the signals of a run; the same on all hosts."""
        from rlax_maxtext.batch_signals import Training, signals_of

        steps = config.steps // self._section.objective.updates_per_step
        slots = replace(resolve(self._section, self._context.part), steps=steps)
        signals = signals_of(self._context, slots, self.checkpoints)
        parts = config.gradient_accumulation_steps
        mixed = self._options.demonstrations
        return Training(self._section, slots, signals, parts=parts, mixed=mixed)

    def _mixed_rows(self, config: Any, examples: Demonstrations | None) -> MixedRows | None:
        """What adds demonstrations to the batches; None without any."""
        if examples is None:
            return None
        from rlax_maxtext.checking import check_tokenizer
        from rlax_maxtext.mixing import MixedRows

        check_tokenizer(config, examples.source.tokenizer, examples.name, f"{MIXED}.data")
        log.info("beside RL: %s", examples)
        steps = config.steps // self._section.objective.updates_per_step
        return MixedRows(self._section, self._options.demonstrations, examples, steps)

    def _initialized(self, port: TrainerPort, orders: Orders) -> Any:
        """MaxText's config of a training; runs the warm start, if the config has one.

        Raises:
          ConfigError: MaxText's config and the ``rlax`` section disagree.
        """
        from maxtext_overrides.config.loading import initialize
        from rlax_maxtext import supervised

        given, config = self._loaded()
        if self._options.warm_start.enabled and self._descent is None:
            port.waits("building the model of the warm start, and compiling its step", _BUILD_S)
            warm = self.warm_start()
            path = supervised.finished(config, warm)
            orders.all("warm_start", path=path or "")
            if path is None:
                path = self._supervised(given, config, self._reporter(port))
            config = initialize(given, **self._start_at(path))
        port.waits("building the model", _BUILD_S)
        return config

    def _initialized_following(self, port: FollowerPort) -> Any:
        """MaxText's config on another host; runs the warm start if host 0 does."""
        from maxtext_overrides.config.loading import initialize
        from rlax_maxtext import supervised

        given, config = self._loaded()
        if self._options.warm_start.enabled and self._descent is None:
            order = Obedient(config, self._context, port).until("warm_start")
            path, warm = order.settings["path"], self.warm_start()
            if not path:
                path = self._supervised(given, config, lambda step, steps, note: None)
            elif path != supervised.finished(config, warm):
                raise TrainingError(f"host 0 names {path}, and there is no such warm start here")
            config = initialize(given, **self._start_at(path))
        return config

    def _loaded(self) -> tuple[ResolvedConfig, Any]:
        """The keys for MaxText, and its config, checked; joins the other hosts.

        Raises:
          ConfigError: MaxText's config and the ``rlax`` section disagree.
        """
        from maxtext_overrides.config.loading import initialize
        from maxtext_overrides.trainer import first_weights
        from rlax_maxtext.checking import check_vocabulary

        added = self._options.demonstrations.added_rows
        given = join(self._context, given_config(self._context), added)
        config = initialize(given, **self.first_weights())
        check_rows(config, self._section, added)
        check_shapes(config, self._section)
        check_vocabulary(config, self._context)
        self._config, self.vocabulary = config, int(config.vocab_size)
        if (found := first_weights.chosen(config.get_keys())) is not None:
            first_weights.check_converted(*found, config)
        return given, config

    def publish_first(self, port: TrainerPort) -> None:
        """See ``Trainer``: MaxText's loop makes or loads them, and trains no step."""
        port.waits(_IMPORTING, _IMPORT_S)
        from maxtext_overrides.trainer.train_loop import Events, run_train_loop

        config = self._initialized(port, Orders(port.followers, None))
        slots, publish = resolve(self._section, self._context.part), self._publisher(port)

        def on_start(loop: Loop) -> None:
            publish(loop)
            raise _Published

        events = Events(batches=port.next_batch, on_step_end=lambda *_: None, on_start=on_start)
        with contextlib.suppress(_Published):
            run_train_loop(config, events, arrays=ARRAYS, objective=make_loss(slots))

    def warm_start(self) -> WarmStart:
        """The options of the warm start; a replay uses the one of the run that it repeats.

        Raises:
          ConfigError: the finished warm start that the config names does not exist.
        """
        warm = self._options.warm_start
        if self._context.replays and not warm.directory:
            own = f"{self._context.replays}/{PREPARED}/warm_start"
            warm = warm.model_copy(update={"directory": own})
        check_directory(warm, self._context)
        return warm

    def start_from(self, descent: Descent) -> str | None:
        """See ``Trainer``.

        Raises:
          ConfigError: there is no own checkpoint, and the other one is missing.
        """
        from maxtext_overrides.trainer.checkpoints import holds

        if not self.checkpoints() and not holds(descent.run, descent.checkpoint):
            reason = "no longer exists, and this run has no checkpoint of its own yet"
            raise ConfigError("--from", str(descent), reason)
        self._descent = descent
        return "the warm start" if self._options.warm_start.enabled else None

    def first_weights(self) -> dict[str, Any]:
        """MaxText's keys for the weights of another run; an own checkpoint takes precedence."""
        if self._descent is None:
            return {}
        from maxtext_overrides.trainer.checkpoints import items

        return self._start_at(items(self._descent.run, self._descent.checkpoint))

    def _start_at(self, path: str) -> dict[str, Any]:
        """MaxText's keys for weights that were trained with this config's keys ``lora``."""
        lora = given_config(self._context).maxtext.get("lora")
        if isinstance(lora, Mapping) and lora.get("enable_lora"):
            return {"lora": {**lora, "lora_restore_path": path}}
        return {"load_parameters_path": path, "source_checkpoint_layout": "orbax"}

    def checkpoints(self) -> dict[int, str]:
        """See ``Trainer``."""
        from maxtext_overrides.trainer.checkpoints import checkpoints

        updates = self._section.objective.updates_per_step
        return checkpoints(self._context.run_url, updates)

    def examine_model(self, source: Path, dtype: str, scan_layers: bool) -> ConvertibleModel:
        """See ``Trainer``."""
        return examine_model(source, dtype, scan_layers)

    def checkpoint_path(self, name: str) -> str:
        """See ``Trainer``."""
        from maxtext_overrides.trainer.checkpoints import items

        return items(self._context.run_url, name)

    def export_model(
        self,
        weights: str | Callable[[], dict[str, np.ndarray]],
        out: Path,
        dtype: Literal["float32", "bfloat16"],
        most_bytes: int,
        peft: bool,
    ) -> Exported:
        """See ``Trainer``."""
        from rlax_maxtext.exporting import export_model

        return export_model(self._context, weights, out, dtype, most_bytes, peft)

    def converter(self) -> Conversion:
        """See ``Trainer``."""
        from rlax_maxtext.exporting import converter

        if self._config is None:  # rlax eval of a version, which reads no weights with this trainer
            from maxtext_overrides.config.loading import load_to_check, passed_on

            with passed_on(given := given_config(self._context)):
                return converter(load_to_check(given))
        return converter(self._config)

    def publish_checkpoint(self, port: TrainerPort, name: str) -> None:
        """See ``Trainer``: MaxText's loop restores it, with no step left to train."""
        port.waits(_IMPORTING, _IMPORT_S)
        from maxtext_overrides.config.loading import absolute, initialize
        from maxtext_overrides.trainer.checkpoints import items
        from maxtext_overrides.trainer.train_loop import Events, run_train_loop

        port.waits("reading the checkpoint", _BUILD_S)
        given = given_config(self._context)
        config = initialize(
            join(self._context, given, self._options.demonstrations.added_rows),
            base_output_directory=str(self._context.run_dir),
            run_name="restored",
            load_full_state_path=items(self._context.run_url, name),
            load_parameters_path="",
            steps=self._section.objective.updates_per_step,
            enable_checkpointing=True,
        )
        self._config = config  # for the publisher's thread, which is to load none meanwhile
        events = Events(
            batches=port.next_batch,
            on_step_end=lambda *_: None,
            decide=lambda step: (False, True),
            on_start=self._publisher(port),
        )
        slots = resolve(self._section, self._context.part)
        run_train_loop(
            config,
            events,
            arrays=ARRAYS,
            objective=make_loss(slots),
            base=absolute(str(given.maxtext.get("load_parameters_path") or "")),
        )


if TYPE_CHECKING:
    from maxtext_overrides.models.convert import Convertible


def examine_model(source: Path, dtype: str, scan_layers: bool) -> ConvertibleModel:
    """See ``Trainer.examine_model``."""
    from maxtext_overrides.models.convert import examine

    found = examine(source, dtype, scan_layers)
    # MaxText takes seconds to import: not before the source is known to be sound.
    from maxtext_overrides.models import agreement

    agreement.check(found.architecture, found.keys, str(source))
    return _Model(found)


class _Model(ConvertibleModel):
    """A model that was examined."""

    def __init__(self, found: Convertible):
        self._found = found
        self.nbytes = found.nbytes
        family = found.architecture.family
        self.description = f"{family}, {found.parameters:,} parameters, {found.dtype}"
        self.notes = [*_notes(found)]

    def write(self, directory: Path, home: Path, progress: Callable[[int, int], None]) -> None:
        self._found.write(directory, home, progress)

    def verification(self, python: str) -> Callable[[Path], Sequence[str]]:
        from maxtext_overrides.models.verify import Verification

        return Verification(self._found, python).compare


def _notes(found: Convertible) -> Iterator[str]:
    if not found.has_tokenizer:
        yield f"{found.source.where} has no tokenizer: set tokenizer_type and tokenizer_path"
    if doubles := found.source.doubles:
        more = f" and {len(doubles) - 1} more" if len(doubles) > 1 else ""
        yield f"{min(doubles)}{more} have float64 values, which are rounded to {found.dtype}"
