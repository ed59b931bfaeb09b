"""Rollout engine ``rast``: a model that is guided by what RL has changed in a smaller one.

RAST (Ouyang et al., NeurIPS 2025, arXiv 2506.15710) carries the change of the smaller model's
logits to the larger one of the same tokenizer, at each token:

    logits(t) = large(t) + strength * (small_after_RL(t) - small_before_RL(t))

The three models read the same context and are one program. Such samples are those of no model that
can be trained: the engine is for ``rlax eval`` and ``rlax serve RUN``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    Capabilities,
    ConfigError,
    DecodeSlots,
    Extension,
    Loaded,
    PathText,
    ResolvedConfig,
    RlaxError,
    RolloutEngine,
    SlotsConfig,
    SlotsEngine,
    WeightVersion,
    check_canary,
    check_fingerprints,
    hookimpl,
    kept_weights,
    model_tokenizer,
    read_weights,
)

_KEY = "rlax.rollouts.engine"
_STRENGTH = "strength"  # among the weights of the programs, as it is 0 until a version is verified


class RastConfig(SlotsConfig):
    """Guides a run's model by what RL has changed in a smaller one; only to evaluate and serve."""

    after: PathText = Field(
        description="weight version of the smaller model after RL, as RUN@VERSION",
    )
    before: PathText = Field(
        description="the smaller model before RL, in the same way; it may be another run's version",
    )
    strength: float = Field(
        1.0,
        ge=-100,
        le=100,
        allow_inf_nan=False,
        description="factor of the difference that is added to the larger model's logits; 0: the "
        "larger model alone",
    )


class RastEngine(SlotsEngine):
    """The slots' engine with a model that consists of three.

    A version is verified at strength 0, where it is the larger model alone, as its run has
    published it. Decoding is then compared with prefill at strength 1, so that the smaller models'
    decode steps count, and no difference is multiplied beyond the tolerance.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Without log-probs, which are not of a model that could be trained: no run trains them."""
        return replace(super().capabilities, logprobs=False)

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """See ``RolloutEngine``; the canary has been scored before."""
        _set_strength(loaded, 1.0)
        return await super().decode_greedy(tokens, count, loaded)

    async def use(self, loaded: Loaded) -> None:
        """See ``RolloutEngine``."""
        assert isinstance(self.config, RastConfig)
        _set_strength(loaded, self.config.strength)
        await super().use(loaded)


def _set_strength(loaded: Loaded, strength: float) -> None:
    assert isinstance(loaded.arrays, dict)
    loaded.arrays[_STRENGTH] = np.float32(strength)


def _shifted(logits: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
    return logits[""] + weights[_STRENGTH] * (logits["after"] - logits["before"])


def _make_slots(
    config: RastConfig,
    context: BuildContext,
    small: Mapping[str, tuple[ResolvedConfig, WeightVersion]],
) -> DecodeSlots:
    from maxtext_overrides import worker_slots

    with worker_slots.lean():
        from maxtext_overrides.sampler.combined_model import CombinedModel
        from maxtext_overrides.sampler.maxengine_model import MaxEngineModel

    def combined(large: MaxEngineModel) -> tuple[CombinedModel, dict[str, Any]]:
        models, beside = {}, {_STRENGTH: np.float32(0)}
        for name, (run, version) in small.items():
            key, text = f"{_KEY}.{name}", getattr(config, name)
            try:
                maxtext = worker_slots.worker_config(config, context, run)
                model = models[name] = MaxEngineModel(maxtext, rounds=run.section.weights.rounded)
                if model.vocabulary != large.vocabulary:
                    reason = f"must be {large.vocabulary}, as that of the larger model"
                    raise ConfigError("vocab_size", model.vocabulary, reason)
                beside[name] = _verified(model, maxtext, run, version, context)
            except RlaxError as error:  # it names keys of that run
                raise ConfigError(key, text, str(error)) from error
        return CombinedModel(large, models, _shifted), beside

    return worker_slots.make_slots(config, context, combine=combined)


def _verified(
    model: Any, maxtext: Any, run: ResolvedConfig, version: WeightVersion, context: BuildContext
) -> dict[str, Any]:
    """Reads a smaller model's weights, and verifies them as a worker verifies those of its run.

    Raises:
      WeightsError: they are not the published ones, or are of another model.
    """
    import jax

    from maxtext_overrides import layer_major
    from maxtext_overrides.sampler import buckets
    from maxtext_overrides.sampler.slot_programs import SlotPrograms
    from rlax_plugin.api import fingerprint

    fingerprints: dict[str, Any] = {}
    store = context.part("weight_store", run.section.weights.store, "rlax.weights.store")
    arrays = read_weights(version, store, model.variables_like, fingerprint=None).arrays
    assert isinstance(arrays, dict)  # in place: a copy would keep each array as it was
    layer_major.lay_out(arrays, model.layer_axes)
    for part in layer_major.published(arrays):
        fingerprints |= jax.block_until_ready(fingerprint(part))
    check_fingerprints(version, fingerprints)
    if version.canary is not None:
        score = jax.jit(SlotPrograms(model, 0, 0).score_prefixes)
        count = len(version.canary.tokens) - 1
        padding = buckets.fitting(count, functools.partial(getattr, maxtext)) - count
        found = score(arrays, np.pad(version.canary.tokens, (0, padding)))
        check_canary(version, np.asarray(found)[:count])
    return arrays


def _smaller(
    config: RastConfig, context: BuildContext
) -> dict[str, tuple[ResolvedConfig, WeightVersion]]:
    """Finds both versions of the smaller model, and checks that their runs are as the larger one's.

    Raises:
      ConfigError: they cannot be found, have another tokenizer or vocabulary, or are the same.
    """
    assert context.config is not None
    found, ours = {}, context.config.maxtext.get("vocab_size")
    for name in ("after", "before"):
        key, text = f"{_KEY}.{name}", getattr(config, name)
        run, _ = found[name] = kept_weights(text, key)
        theirs = run.maxtext.get("vocab_size")
        if theirs != ours and None not in (theirs, ours):  # None: a named model knows it
            reason = f"has vocab_size {theirs}, and must have {ours} as this run"
            raise ConfigError(key, text, reason)
        try:
            difference = _other_tokenizer(context, run)
        except ConfigError as error:
            raise ConfigError(key, text, f"its tokenizer cannot be compared: {error}") from error
        if difference:
            raise ConfigError(key, text, f"must have the tokenizer of this run: {difference}")
    if found["after"][1].tensors == found["before"][1].tensors:
        reason = f"has the weights of {_KEY}.after, so that nothing would be added"
        raise ConfigError(f"{_KEY}.before", config.before, reason)
    return found


def _other_tokenizer(context: BuildContext, run: ResolvedConfig) -> str | None:
    """Returns the difference between the tokenizers of two runs; None if they have the same."""
    assert context.config is not None
    ours, theirs = names = [
        one.maxtext.get("tokenizer_path") or one.section.prompt_source.options.get("tokenizer", "")
        for one in (context.config, run)
    ]
    if ours == theirs:
        same = ours or context.section.prompt_source == run.section.prompt_source
        return None if same else "both name none, and have different prompt sources"
    if not (ours and theirs):
        return f"one names {ours or theirs}, and the other none"
    own, its = (model_tokenizer(context, name=name) for name in names)
    return own.difference(its)


def _build(config: RastConfig, context: BuildContext) -> RolloutEngine:
    small = _smaller(config, context)
    return RastEngine.of(config, context, lambda: _make_slots(config, context, small))


def _refuse_training(config: RastConfig, context: BuildContext) -> None:
    reason = (
        "samples from no model that can be trained: name it in rlax eval RUN or rlax serve RUN, "
        "and train with jetstream"
    )
    raise ConfigError(f"{_KEY}.name", "rast", reason)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    return {"rast": Extension(RastConfig, _build, needs_model=True, check_start=_refuse_training)}
