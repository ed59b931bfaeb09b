"""The batch signals of a run of MaxText's trainer, which its objective asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection

from maxtext_overrides.config.loading import Config
from maxtext_overrides.trainer.scoring import BatchScores
from maxtext_overrides.trainer.train_loop import Loop
from rlax_maxtext.options import TrainerOptions
from rlax_maxtext.policies import OldPolicy, ReferencePolicy
from rlax_plugin.api import BatchSignal, ObjectiveSlots, RlaxSection, RunFiles, SignalChain


def signals_of(
    config: Config,
    slots: ObjectiveSlots,
    section: RlaxSection,
    options: TrainerOptions,
    directory: str,
    checkpoints: Callable[[], Collection[int]],
) -> SignalChain[Loop]:
    """The chain; no signal is in it that the objective does not need.

    Args:
      config: of the RL loop.
      section: the whole ``rlax`` section.
      options: of the trainer; which of the kept weights rest in host memory.
      directory: path or URL of the run.
      checkpoints: see ``SignalChain``.
    """
    files = RunFiles(directory)
    logprobs = BatchScores(config, section.rollouts.temperature)  # compiled once for all of them
    signals: list[BatchSignal[Loop]] = []
    if slots.needs_reference:
        path, offload = section.objective.reference.path, options.offload_reference
        signals.append(ReferencePolicy(slots, path, files, logprobs, offload=offload))
    if slots.needs_old_logprobs:
        signals.append(OldPolicy(slots, section, logprobs, offload=options.offload_old_policy))
    return SignalChain(
        signals,
        files,
        slots.advantages,
        checkpoints=checkpoints,
        epochs=section.objective.epochs,
    )
