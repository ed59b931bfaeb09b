"""Trainer ``maxtext``: MaxText's own training loop with the run's objective."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlax_plugin.batches import ARRAYS
from rlax_plugin.config import NoOptions, RlaxSection
from rlax_plugin.errors import ConfigError
from rlax_plugin.hookspecs import hookimpl
from rlax_plugin.objective import make_loss, resolve
from rlax_plugin.protocols import BuildContext, Extension, Trainer, TrainerLink

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("rlax.trainer")


class MaxTextTrainer(Trainer):
    """Runs on the main thread; everything it calls on the link is called there."""

    def __init__(self, context: BuildContext):
        self._context = context
        self._section: RlaxSection = context.section

    def _reporter(self, link: TrainerLink) -> Callable[[int, float], None]:
        most = self._section.warm_start.steps

        def report(step: int, pass_at_1: float) -> None:
            log.info("warm start: step %d, validation pass@1 %.3f", step, pass_at_1)
            link.progress("warm start", step, most, f"(validation pass@1 {pass_at_1:.3f})")

        return report

    def run(self, link: TrainerLink) -> None:
        """Trains to ``steps``, or until a stop is requested.

        Raises:
          ConfigError: MaxText's config and the ``rlax`` section disagree.
          OverrideError: MaxText is not a tested version.
          Exception: whatever the link raised, unchanged.
        """
        # MaxText and JAX take seconds to import: not before the run is known to be sound.
        from maxtext_overrides import supervised
        from maxtext_overrides.canary import CanaryForward
        from maxtext_overrides.config import initialize
        from maxtext_overrides.policies import Policies
        from maxtext_overrides.train_loop import Events, Loop, fresh_weights, run_train_loop

        argv = self._context.maxtext_argv
        config = initialize(argv)
        _check_rows(config, self._section)
        _check_shapes(config, self._section)
        slots = resolve(self._section, self._context.part)
        if self._section.warm_start.enabled:
            source = _answered_prompts(self._context)
            path = supervised.warm_start(argv, config, source, self._reporter(link))
            config = initialize(argv, load_parameters_path=path)

        canary = CanaryForward(link.canary_tokens)
        policies: Policies | None = None
        if slots.needs_reference or slots.needs_old_logprobs:
            policies = Policies(config, slots, self._section, self._context.run_url)
        running: Loop | None = None

        def publish(loop: Loop) -> None:
            arrays = fresh_weights(loop)
            link.publish(loop.completed, arrays, canary(loop, arrays))

        def on_start(loop: Loop) -> None:
            nonlocal running
            running = loop
            if policies is not None:
                policies.start(loop)
            publish(loop)

        def batches(step: int) -> Mapping[str, np.ndarray]:
            batch = link.next_batch(step)
            if policies is None:
                return batch
            assert running is not None, "a loop starts before it asks for a batch"
            return policies.complete(running, step, batch)

        def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> bool:
            import jax

            publish(loop)  # dispatched first: it runs while the metrics are waited for
            found = jax.device_get(dict(metrics))
            link.step_done(loop.completed, found | (policies.metrics if policies else {}))
            return link.stop_requested

        events = Events(
            batches=batches,
            on_step_end=on_step_end,
            on_start=on_start,
            before_checkpoint=link.before_checkpoint,
        )
        arrays = ARRAYS | (policies.arrays if policies else {})
        run_train_loop(config, events, arrays=arrays, objective=make_loss(slots))


def _answered_prompts(context: BuildContext) -> Any:
    choice = context.section.prompt_source
    source = context.part("prompt_source", choice, "rlax.prompt_source")
    for name in ("answer_tokens", "pad_id"):
        if not hasattr(source, name):
            raise ConfigError(
                "rlax.warm_start.enabled",
                True,
                f"prompt source {choice.name!r} has no {name}: it cannot show right answers",
            )
    return source


def _check_rows(config: Any, section: RlaxSection) -> None:
    rows, mini_batches = section.batch_rows, section.objective.mini_batches
    if config.global_batch_size_to_train_on * mini_batches == rows:
        return
    devices, passes = config.num_target_devices, config.gradient_accumulation_steps
    right, rest = divmod(rows, mini_batches * devices * passes)
    raise ConfigError(
        "per_device_batch_size",
        config.per_device_batch_size,
        f"times {devices} devices, gradient_accumulation_steps = {passes} and "
        f"rlax.objective.mini_batches = {mini_batches} must be the {rows} rows of a batch, "
        "rlax.batches.rows or rlax.rollouts.groups_per_step * group_size: "
        + ("no number is, so change the rows" if rest else f"set it to {right}"),
    )


# They let the samples of a packed row see each other, at least with what batches are fed by here:
# kernels that do not look at segments, layers with a state that runs along the row, and chunks that
# are counted from the start of the row. Likewise engram layers.
_BLIND_TO_SEGMENTS = {
    "attention": ("cudnn_flash_te", "cudnn_flash_jax"),
    "attention_type": ("chunk",),
    "decoder_block": ("qwen3_next", "qwen3_5", "llama4", "deepseek4"),
    "engram_layers": (),
}


def _check_shapes(config: Any, section: RlaxSection) -> None:
    """What can be said of MaxText's keys without knowing how many devices there are."""
    rollouts, updates = section.rollouts, section.objective.updates_per_step
    if config.max_target_length != section.row_tokens:
        raise ConfigError(
            "max_target_length",
            config.max_target_length,
            f"must be rlax.rollouts.max_prompt_tokens + max_new_tokens = {section.row_tokens}",
        )
    if rollouts.temperature == 0:
        raise ConfigError("rlax.rollouts.temperature", 0.0, "must be above 0 to train")
    if config.steps % updates:
        raise ConfigError(
            "steps",
            config.steps,
            f"counts updates, and must be a multiple of the {updates} of a batch "
            "(rlax.objective.epochs * mini_batches)",
        )
    if section.batches.sequences_per_row == 1:
        return
    for key, blind in _BLIND_TO_SEGMENTS.items():
        value = getattr(config, key)
        value = getattr(value, "value", value)
        if value in blind or (key == "engram_layers" and value):
            raise ConfigError(
                key,
                value,
                "must be another with rlax.batches.sequences_per_row above 1: with this one the "
                "samples of a row would see each other",
            )


def _check(options: NoOptions, context: BuildContext) -> None:
    """Validates MaxText's keys. How many devices there will be is not known, nor asked."""
    import jax

    # MaxText's validation counts devices: let it count this machine's processor.
    jax.config.update("jax_platforms", "cpu")
    from maxtext_overrides.config import load

    _check_shapes(load(context.maxtext_argv, skip_jax_distributed_system=True), context.section)
    if context.section.warm_start.enabled:
        _answered_prompts(context)


def _build(config: NoOptions, context: BuildContext) -> MaxTextTrainer:
    return MaxTextTrainer(context)


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    return {"maxtext": Extension(NoOptions, _build, _check)}
