"""Log-probs of a batch under other weights than those being updated: pi_old's and the reference's.

Both are computed from a whole RL step's batch before its first update, by one compiled forward pass
of the trainer's own model in the trainer's layout, to which the weights are an argument:

    proximal    pi_old is the policy just before the first update. With one update per batch the
                loss has it already, as the stop-gradient of its own log-probs.
    reprefill   pi_old is, token by token, the policy of the version that sampled it, if that is
                the current one or the one of which a copy is kept: the newest but the current that
                workers load which were there from the start, every ``staleness.reload_every``-th.
                Of any other, and after a resume until that copy is there again, it is the proximal
                policy, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maxtext_overrides.config.loading import Config
from maxtext_overrides.trainer import kept_weights
from maxtext_overrides.trainer.kept_weights import KeptWeights
from maxtext_overrides.trainer.scoring import BatchScores
from maxtext_overrides.trainer.train_loop import Loop
from maxtext_overrides.variables import published
from rlax_maxtext.options import TrainerOptions
from rlax_plugin.api import (
    ConfigError,
    ObjectiveSlots,
    RlaxSection,
    RunFiles,
    kl_estimate,
    kl_token_rewards,
    of_batch,
)

_REFERENCE = "rlax.objective.reference.path"

Arrays = dict[str, np.ndarray]


class Policies:
    """What the objective wants to know of other policies, for the batches of one run.

    Args:
      config: of the RL loop.
      slots: with ``needs_reference`` or ``needs_old_logprobs``.
      section: the whole ``rlax`` section.
      options: of the trainer; which of the kept weights rest in host memory.
      directory: path or URL of the run, below which the reference is kept.

    Attributes:
      metrics: of the latest batch, sums over its tokens as the loss's, added up over all updates:
        ``objective/reprefill_missed``, trained tokens whose version was not at hand; with KL in the
        reward ``objective/reference_kl_{k1,k3}``, of the sampler to the reference.
    """

    def __init__(
        self,
        config: Config,
        slots: ObjectiveSlots,
        section: RlaxSection,
        options: TrainerOptions,
        directory: str,
    ):
        self._slots, self._section, self._files = slots, section, RunFiles(directory)
        self._options = options
        self._logprobs = BatchScores(config, section.rollouts.temperature)
        self._reference: KeptWeights | None = None
        self._retained: tuple[int, KeptWeights] | None = None  # with its version
        self.metrics: dict[str, float] = {}

    @property
    def arrays(self) -> dict[str, np.dtype]:
        """Name -> dtype of what ``complete`` adds for the device, all [rows, length]."""
        added = {}
        if self._slots.needs_old_logprobs:
            added["rl_old_logprobs"] = np.dtype(np.float32)
            added["rl_old_known"] = np.dtype(np.int32)
        if self._slots.kl_in_loss:
            added["rl_reference_logprobs"] = np.dtype(np.float32)
        return added

    def start(self, loop: Loop) -> None:
        """Gets the reference, if there is one; to be called before the first step.

        Raises:
          ConfigError: there is no reference, or it is another model's.
        """
        if not self._slots.needs_reference:
            return
        given, offload = self._section.objective.reference.path, self._options.offload_reference
        path = given or self._files.location("reference")
        if given or loop.completed > 0:
            if not given and not self._files.exists("reference"):
                raise ConfigError(
                    _REFERENCE, "", f"must be set: this run did not store a reference in {path}"
                )
            self._reference = kept_weights.load(path, loop, offload, _REFERENCE)
        else:
            # Nothing resumes a run without checkpoints. What a killed start left is replaced.
            if loop.config.enable_checkpointing:
                kept_weights.save(path, loop)
            self._reference = KeptWeights.of(loop, offload)

    def complete(self, loop: Loop, step: int, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """The batch with what the objective needs beside it.

        Args:
          loop: its weights are version ``step - 1``.
          step: RL step, counts from 1.
          arrays: of ``rlax_plugin.objective.batches``, the whole batch of the step.

        Returns:
          ``arrays`` and those of ``self.arrays``; with KL in the reward, other ``rl_advantages``.
        """
        self.metrics = {}
        batch = dict(arrays)
        if self._reference is not None:
            reference_bt = self._logprobs(loop, self._reference.on_devices(), batch)
            batch |= self._compared(batch, reference_bt)
        if self._slots.needs_old_logprobs:
            batch |= self._old(loop, step, batch)
        self._retain(loop, step)
        return batch

    def _compared(self, batch: Arrays, reference_bt: np.ndarray) -> Arrays:
        """What follows from the reference's log-probs."""
        if self._slots.kl_in_loss:
            return {"rl_reference_logprobs": reference_bt}
        behaviour_bt = batch["rl_behaviour_logprobs"]
        kl = self._slots.algorithm.kl
        rewards_bt = kl_token_rewards(kl, behaviour_bt, reference_bt, batch["rl_group"])
        advantages_bt = of_batch(self._slots.advantages, batch, rewards_bt)
        log_ratio = (behaviour_bt - reference_bt)[batch["rl_mask"] > 0].astype(np.float64)
        for name in ("k1", "k3"):
            self._report(f"reference_kl_{name}", kl_estimate(name, log_ratio, np).sum())
        return {"rl_advantages": advantages_bt.astype(np.float32)}

    def _old(self, loop: Loop, step: int, batch: Arrays) -> Arrays:
        trained_bt = batch["rl_mask"] > 0
        old_bt, known_bt = np.zeros(trained_bt.shape, np.float32), np.zeros_like(trained_bt)
        if self._slots.updates_per_step > 1:
            current = published(loop.model_state)
            old_bt, known_bt = self._logprobs(loop, current, batch), trained_bt
        if self._slots.algorithm.old_policy == "reprefill":
            version_bt = step - batch["rl_staleness"]
            older_bt = trained_bt & (version_bt < step - 1)
            if self._retained is not None:
                version, weights = self._retained
                found_bt = older_bt & (version_bt == version)
                if found_bt.any():
                    retained_bt = self._logprobs(loop, weights.on_devices(), batch)
                    old_bt = np.where(found_bt, retained_bt, old_bt)
                    known_bt = known_bt | found_bt
                    older_bt &= ~found_bt
            self._report("reprefill_missed", older_bt.sum())
        return {
            "rl_old_logprobs": np.where(known_bt, old_bt, np.float32(0)),
            "rl_old_known": known_bt.astype(np.int32),
        }

    def _retain(self, loop: Loop, step: int) -> None:
        """Keeps the current weights if later batches can hold tokens of theirs."""
        staleness = self._section.staleness
        if self._slots.algorithm.old_policy != "reprefill" or staleness.max_staleness == 1:
            return
        if (step - 1 - loop.started_from) % staleness.reload_every == 0:
            self._retained = None  # before the new copy takes its place
            copy = KeptWeights.of(loop, self._options.offload_old_policy)
            self._retained = (step - 1, copy)

    def _report(self, name: str, total: float) -> None:
        # The loss meets every token once per epoch.
        self.metrics[f"objective/{name}"] = float(total) * self._section.objective.epochs
