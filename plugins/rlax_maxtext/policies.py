"""Signals of other policies: log-probs of a batch under the reference's and pi_old's weights.

Both are computed from a whole RL step's batch before its first update. A config need not list them:
they run, before all others, if its objective needs them.

    proximal    pi_old is the policy just before the first update. With one update per batch the
                loss has it already, as the stop-gradient of its own log-probs.
    reprefill   pi_old is, token by token, the policy of the version that sampled it, if that is
                the current one or the one kept copy. The copy is of the newest earlier version
                that workers load if they are there from the start: every
                ``staleness.reload_every``-th. For any other version, and after a resume until
                there is a copy again, pi_old is the proximal policy, and the token is counted.

The only state that belongs to a checkpoint is an adaptive KL coefficient: the reference is stored
once, before step 1, and the copy of older weights is made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from rlax_plugin.api import (
    ADVANTAGE_INPUTS,
    ArraySpec,
    BatchSignal,
    BuildContext,
    ConfigError,
    ModelView,
    ObjectiveSlots,
    RunFiles,
    Section,
    SignalState,
    kl_estimate,
    kl_token_rewards,
    resolve,
)

_REFERENCE = "rlax.objective.reference.path"
_LOGPROBS, _KNOWN = ArraySpec(np.dtype(np.float32)), ArraySpec(np.dtype(np.int32))

Arrays = dict[str, np.ndarray]


class ReferenceConfig(Section):
    """Log-probs under a frozen reference policy, rlax.objective.reference.

    It runs if the coefficient of the KL term is above 0. Listed without such a term, it only
    adds rl_reference_logprobs to each batch, for other signals.
    """

    offload: bool = Field(
        default=False, description="true: keep the weights in host memory between steps"
    )


class OldPolicyConfig(Section):
    """Log-probs under pi_old, if the loss does not have them already.

    It runs where rlax.objective.old_policy needs it.
    """

    offload: bool = Field(
        default=False, description="true: keep the copy of older weights in host memory"
    )


def build_reference(config: ReferenceConfig, context: BuildContext) -> ReferencePolicy:
    """The reference of a run."""
    slots, path = resolve(context.section, context.part), context.section.objective.reference.path
    return ReferencePolicy(slots, path, RunFiles(context.run_url), offload=config.offload)


def build_old_policy(config: OldPolicyConfig, context: BuildContext) -> OldPolicy:
    """The old policy of a run."""
    slots, every = resolve(context.section, context.part), context.section.staleness.reload_every
    return OldPolicy(slots, every, offload=config.offload)


def check_old_policy(config: OldPolicyConfig, context: BuildContext) -> None:
    """See ``Extension``.

    Raises:
      ConfigError: it has no effect.
    """
    slots = resolve(context.section, context.part)
    if not slots.needs_old_logprobs:
        reason = (
            "must not list old_policy: the loss has its log-probs already with old_policy: "
            f"{slots.algorithm.old_policy} and {slots.updates_per_step} update(s) per batch"
        )
        raise ConfigError("rlax.signals", "old_policy", reason)


class ReferencePolicy(BatchSignal):
    """KL to frozen weights: log-probs for the loss, or token rewards for the advantages.

    Args:
      slots: slots of the run; with KL in the reward they turn it into token rewards.
      path: path of the reference; empty: the weights that training starts from.
      files: the run's directory, below which they are kept.
      offload: True to keep them in host memory between steps.

    Attributes:
      metrics: with KL in the reward ``objective/reference_kl_{k1,k3}``, of the sampler to the
        reference; with an adaptive coefficient ``objective/kl_{coefficient,of_target}``.
    """

    def __init__(self, slots: ObjectiveSlots, path: str, files: RunFiles, *, offload: bool):
        self._slots, self._path, self._files = slots, path, files
        self._offload = offload
        self._reference: Any = None
        self._pays = slots.needs_reference and not slots.kl_in_loss
        self._adaptive = slots.adaptive_coefficient()
        if self._pays:
            self.arrays = {"rl_token_rewards": ADVANTAGE_INPUTS["rl_token_rewards"]}
        else:
            self.arrays = {"rl_reference_logprobs": _LOGPROBS}
            if self._adaptive is not None:
                self.arrays["rl_kl_coefficient"] = _LOGPROBS

    def start(self, model: ModelView) -> None:
        """Loads the reference.

        Raises:
          ConfigError: there is none, or it is another model's.
        """
        given = self._path
        path = given or self._files.location("reference")
        if given or model.version > 0:
            if not given and not self._files.exists("reference"):
                raise ConfigError(
                    _REFERENCE, "", f"must be set: this run did not store a reference in {path}"
                )
            self._reference = model.load(path, _REFERENCE, offload=self._offload)
        else:
            # Nothing resumes a run without checkpoints. What a killed start left is replaced.
            if model.resumable:
                model.save(path)
            self._reference = model.keep(offload=self._offload)

    def complete(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        assert self._reference is not None, "start comes first"
        reference_bt = model.forward(batch, "logprobs", weights=self._reference)["logprobs"]
        kl = self._slots.algorithm.kl.at(step)
        self.metrics = {}
        if self._adaptive is not None:
            kl = kl.model_copy(update={"coefficient": self._adaptive.coefficient})
            self._adaptive.observe(batch, reference_bt)  # for the next step
            told = {"kl_coefficient": kl.coefficient, "kl_of_target": self._adaptive.measured}
            self.metrics = {f"objective/{name}": (value, 1.0) for name, value in told.items()}
        if not self._pays:
            found = {"rl_reference_logprobs": reference_bt}
            if self._adaptive is not None:
                found["rl_kl_coefficient"] = np.full_like(reference_bt, kl.coefficient)
            return found
        behaviour_bt = batch["rl_behaviour_logprobs"]
        rewards_bt = kl_token_rewards(kl, behaviour_bt, reference_bt, batch["rl_group"])
        log_ratio = (behaviour_bt - reference_bt)[batch["rl_mask"] > 0].astype(np.float64)
        self.metrics |= {
            f"objective/reference_kl_{name}": (
                float(kl_estimate(name, log_ratio, np).sum()),
                log_ratio.size,
            )
            for name in ("k1", "k3")
        }
        return {"rl_token_rewards": rewards_bt}

    def save(self, step: int, state: SignalState) -> None:
        if self._adaptive is not None:
            state.put({"coefficient": np.array(self._adaptive.coefficient)})

    def restore(self, step: int, state: SignalState) -> None:
        if self._adaptive is not None:
            self._adaptive.coefficient = float(state.get()["coefficient"])


class OldPolicy(BatchSignal):
    """Log-probs under pi_old, if the loss does not have them already.

    Args:
      slots: with ``needs_old_logprobs``.
      reload_every: number of versions from one that workers load to the next.
      offload: True to keep a copy in host memory between steps.

    Attributes:
      metrics: with ``reprefill`` ``objective/reprefill_missed``, trained tokens whose version was
        not available.
    """

    def __init__(self, slots: ObjectiveSlots, reload_every: int, *, offload: bool):
        self._slots, self._reload_every, self._offload = slots, reload_every, offload
        self._started_from = 0
        self._retained: tuple[int, Any] | None = None  # with its version
        self.arrays = {"rl_old_logprobs": _LOGPROBS, "rl_old_known": _KNOWN}

    def start(self, model: ModelView) -> None:
        self._started_from = model.version

    def complete(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        trained_bt = batch["rl_mask"] > 0
        old_bt, known_bt = np.zeros(trained_bt.shape, np.float32), np.zeros_like(trained_bt)
        if self._slots.updates_per_step > 1:
            old_bt, known_bt = model.forward(batch, "logprobs")["logprobs"], trained_bt
        if self._slots.algorithm.old_policy == "reprefill":
            version_bt = step - batch["rl_staleness"]
            older_bt = trained_bt & (version_bt < step - 1)
            if self._retained is not None:
                version, weights = self._retained
                found_bt = older_bt & (version_bt == version)
                if found_bt.any():
                    retained_bt = model.forward(batch, "logprobs", weights=weights)["logprobs"]
                    old_bt = np.where(found_bt, retained_bt, old_bt)
                    known_bt = known_bt | found_bt
                    older_bt &= ~found_bt
            missed, trained = float(older_bt.sum()), float(trained_bt.sum())
            self.metrics = {"objective/reprefill_missed": (missed, trained)}
        return {
            "rl_old_logprobs": np.where(known_bt, old_bt, np.float32(0)),
            "rl_old_known": known_bt.astype(np.int32),
        }

    def learn(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Keeps the current weights if later batches can contain tokens generated with them."""
        if self._slots.algorithm.old_policy != "reprefill" or self._slots.max_staleness == 1:
            return
        if (step - 1 - self._started_from) % self._reload_every == 0:
            self._retained = None  # before the new copy takes its place
            self._retained = (step - 1, model.keep(offload=self._offload))
