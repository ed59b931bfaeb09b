"""Signals of other policies: log-probs of a batch under the reference's and pi_old's weights.

Both are computed from a whole RL step's batch before its first update, by one compiled forward pass
of the trainer's own model in the trainer's layout, to which the weights are an argument:

    proximal    pi_old is the policy just before the first update. With one update per batch the
                loss has it already, as the stop-gradient of its own log-probs.
    reprefill   pi_old is, token by token, the policy of the version that sampled it, if that is
                the current one or the one of which a copy is kept: the newest but the current that
                workers load which were there from the start, every ``staleness.reload_every``-th.
                Of any other, and after a resume until that copy is there again, it is the proximal
                policy, and counted.

Neither has a state that belongs to a checkpoint: the reference is stored once, before step 1, and
the copy of older weights is made again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maxtext_overrides.trainer import kept_weights
from maxtext_overrides.trainer.kept_weights import KeptWeights
from maxtext_overrides.trainer.scoring import BatchScores
from maxtext_overrides.trainer.train_loop import Loop
from maxtext_overrides.variables import published
from rlax_plugin.api import (
    ADVANTAGE_INPUTS,
    ArraySpec,
    BatchSignal,
    ConfigError,
    ObjectiveSlots,
    RlaxSection,
    RunFiles,
    kl_estimate,
    kl_token_rewards,
)

_REFERENCE = "rlax.objective.reference.path"
_LOGPROBS, _KNOWN = ArraySpec(np.dtype(np.float32)), ArraySpec(np.dtype(np.int32))

Arrays = dict[str, np.ndarray]


class ReferencePolicy(BatchSignal[Loop]):
    """KL to frozen weights: log-probs for the loss, or token rewards for the advantages.

    Args:
      slots: with ``needs_reference``.
      path: of the reference; empty: the weights that training starts from.
      files: the run's directory, below which they are kept.
      offload: whether they rest in host memory between steps.
      logprobs: of the run's batches.

    Attributes:
      metrics: with KL in the reward ``objective/reference_kl_{k1,k3}``, of the sampler to the
        reference.
    """

    name = "reference"

    def __init__(
        self,
        slots: ObjectiveSlots,
        path: str,
        files: RunFiles,
        logprobs: BatchScores,
        *,
        offload: bool,
    ):
        self._slots, self._path, self._files = slots, path, files
        self._logprobs, self._offload = logprobs, offload
        self._reference: KeptWeights | None = None
        if slots.kl_in_loss:
            self.arrays = {"rl_reference_logprobs": _LOGPROBS}
        else:
            self.arrays = {"rl_token_rewards": ADVANTAGE_INPUTS["rl_token_rewards"]}

    def start(self, model: Loop) -> None:
        """Gets the reference.

        Raises:
          ConfigError: there is none, or it is another model's.
        """
        given = self._path
        path = given or self._files.location("reference")
        if given or model.completed > 0:
            if not given and not self._files.exists("reference"):
                raise ConfigError(
                    _REFERENCE, "", f"must be set: this run did not store a reference in {path}"
                )
            self._reference = kept_weights.load(path, model, self._offload, _REFERENCE)
        else:
            # Nothing resumes a run without checkpoints. What a killed start left is replaced.
            if model.config.enable_checkpointing:
                kept_weights.save(path, model)
            self._reference = KeptWeights.of(model, self._offload)

    def complete(self, model: Loop, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        assert self._reference is not None, "start comes first"
        reference_bt = self._logprobs(model, self._reference.on_devices(), batch)
        if self._slots.kl_in_loss:
            return {"rl_reference_logprobs": reference_bt}
        behaviour_bt = batch["rl_behaviour_logprobs"]
        kl = self._slots.algorithm.kl
        rewards_bt = kl_token_rewards(kl, behaviour_bt, reference_bt, batch["rl_group"])
        log_ratio = (behaviour_bt - reference_bt)[batch["rl_mask"] > 0].astype(np.float64)
        self.metrics = {
            f"objective/reference_kl_{name}": float(kl_estimate(name, log_ratio, np).sum())
            for name in ("k1", "k3")
        }
        return {"rl_token_rewards": rewards_bt}


class OldPolicy(BatchSignal[Loop]):
    """Log-probs under pi_old, where the loss does not have them already.

    Args:
      slots: with ``needs_old_logprobs``.
      section: the whole ``rlax`` section.
      offload: whether a kept copy rests in host memory between steps.
      logprobs: of the run's batches.

    Attributes:
      metrics: with ``reprefill`` ``objective/reprefill_missed``, trained tokens whose version was
        not at hand.
    """

    name = "old_policy"

    def __init__(
        self, slots: ObjectiveSlots, section: RlaxSection, logprobs: BatchScores, *, offload: bool
    ):
        self._slots, self._section = slots, section
        self._logprobs, self._offload = logprobs, offload
        self._retained: tuple[int, KeptWeights] | None = None  # with its version
        self.arrays = {"rl_old_logprobs": _LOGPROBS, "rl_old_known": _KNOWN}

    def complete(self, model: Loop, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        trained_bt = batch["rl_mask"] > 0
        old_bt, known_bt = np.zeros(trained_bt.shape, np.float32), np.zeros_like(trained_bt)
        if self._slots.updates_per_step > 1:
            current = published(model.model_state)
            old_bt, known_bt = self._logprobs(model, current, batch), trained_bt
        if self._slots.algorithm.old_policy == "reprefill":
            version_bt = step - batch["rl_staleness"]
            older_bt = trained_bt & (version_bt < step - 1)
            if self._retained is not None:
                version, weights = self._retained
                found_bt = older_bt & (version_bt == version)
                if found_bt.any():
                    retained_bt = self._logprobs(model, weights.on_devices(), batch)
                    old_bt = np.where(found_bt, retained_bt, old_bt)
                    known_bt = known_bt | found_bt
                    older_bt &= ~found_bt
            self.metrics = {"objective/reprefill_missed": float(older_bt.sum())}
        return {
            "rl_old_logprobs": np.where(known_bt, old_bt, np.float32(0)),
            "rl_old_known": known_bt.astype(np.int32),
        }

    def learn(self, model: Loop, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Keeps the current weights if later batches can hold tokens of theirs."""
        staleness = self._section.staleness
        if self._slots.algorithm.old_policy != "reprefill" or staleness.max_staleness == 1:
            return
        if (step - 1 - model.started_from) % staleness.reload_every == 0:
            self._retained = None  # before the new copy takes its place
            self._retained = (step - 1, KeptWeights.of(model, self._offload))
