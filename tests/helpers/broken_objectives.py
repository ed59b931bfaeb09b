"""Slots and presets of objectives that each break one promise; see broken_plugins.py."""

from __future__ import annotations

from textwrap import dedent, indent

from broken_plugins import Broken, source_of


def _function(kind: str, body: str, *told: str, imports: str = "import jax.numpy as jnp") -> Broken:
    """A slot of an objective, ``slot(inputs)``."""
    inner = indent(dedent(body).strip(), "        ")
    part = (
        f"def build(context):\n    def slot(inputs):\n        {imports}\n{inner}\n    return slot\n"
    )
    return source_of(kind, part, *told)


OBJECTIVES: dict[str, Broken] = {
    "mean_instead_of_sum": _function(
        "aggregation",
        "return inputs.mask_bt / inputs.mask_bt.sum().clip(1), jnp.ones(())",
        "uneven micro-batches add up to the whole",
        "do not divide by it: the trainer divides once",
    ),
    "mask_ignored": _function(
        "aggregation",
        "return jnp.ones_like(inputs.mask_bt), jnp.asarray(1.0 * inputs.mask_bt.size)",
        "more padding changes nothing",
        "the total is 48 where nothing trains",
        "multiply by inputs.mask_bt",
    ),
    "rows_instead_of_sequences": _function(
        "aggregation",
        """
        length_b1 = inputs.mask_bt.sum(axis=1, keepdims=True)
        return inputs.mask_bt / length_b1.clip(1), inputs.sequence_count()
        """,
        "several samples packed into a row",
        "a row may hold several",
    ),
    "importance_weight_with_a_gradient": _function(
        "importance_weight",
        "return jnp.exp(inputs.logprobs_bt - jax.lax.stop_gradient(inputs.logprobs_bt))",
        "carries no gradient of its own",
        "belongs into rlax_register_gradient_term",
        imports="import jax, jax.numpy as jnp",
    ),
    "log_prob_as_importance_weight": _function(
        "importance_weight",
        "return inputs.logprobs_bt",
        "never negative",
        "a log-probability is a term",
    ),
    "correction_over_the_batch": _function(
        "correction",
        "return inputs.mismatch_bt / inputs.mismatch_bt.mean()",
        "more padding changes nothing",
        "a slot sees one micro-batch",
    ),
    "term_without_a_gradient": _function(
        "gradient_term",
        "return jax.lax.stop_gradient(inputs.ratio_bt)",
        "no token has a gradient",
        "without stop_gradient",
        imports="import jax",
    ),
    "term_that_cannot_be_traced": _function(
        "gradient_term",
        "return inputs.ratio_bt if inputs.advantages_bt.sum() > 0 else inputs.logprobs_bt",
        "JAX can trace it",
        "jax.numpy.where in place of if",
    ),
    "unbounded_ratio": _function(
        "gradient_term",
        "return jnp.exp(2 * inputs.log_ratio_bt)",
        "is finite with policies 60 nats apart",
        "rlax_plugin.api.ratio_of",
    ),
    "advantage_of_equal_rewards": source_of(
        "advantage",
        """
        def build(context):
            def advantage(rewards_g, lengths_g):
                return (rewards_g - rewards_g.mean()) / (rewards_g.std() + 1e-16)

            def slot(outcomes):
                import numpy as np

                result = np.zeros_like(outcomes.rewards_n)
                for group in np.unique(outcomes.group_n):
                    members = outcomes.group_n == group
                    result[members] = advantage(outcomes.rewards_n[members], None)
                return result

            return slot
        """,
        "a group of equal rewards gets exactly 0",
        "rlax_plugin.api.per_group",
    ),
    "advantage_that_raises": source_of(
        "advantage",
        """
        def build(context):
            def slot(outcomes):
                import numpy as np

                result = np.zeros_like(outcomes.rewards_n)
                for group in np.unique(outcomes.group_n):
                    rewards = outcomes.rewards_n[outcomes.group_n == group]
                    spread = float(np.ptp(rewards)) if len(rewards) > 1 else 1.0
                    scaled = [reward / spread for reward in rewards.tolist()]
                    result[outcomes.group_n == group] = scaled
                return result

            return slot
        """,
        "takes groups whose rewards are all equal",
        "ZeroDivisionError: float division by zero",
        "guard what such rewards leave undefined",
    ),
    "preset_with_an_unknown_slot": source_of(
        "objective",
        """
        from rlax_plugin.api import Choice
        from rlax_plugin.objective.presets import Preset

        def build(context):
            slots = {"aggregation": "token_maen", "advantage": "gae", "grad_1": "log_prob"}
            return Preset(**{slot: Choice(name=name) for slot, name in slots.items()})
        """,
        "did you mean 'token_mean'?",
        "with names that a loaded plug-in offers",
    ),
}
