"""Rewards of all forms, and plug-ins that each break one promise of such a form."""

from __future__ import annotations

from broken_plugins import source_of

FORMS = """
    import asyncio

    import numpy as np

    from rlax_plugin.api import Extension, NoOptions, Score, hookimpl

    class Best:
        def score_group(self, prompt, episodes):
            most = max(len(one.text) for one in episodes)
            return [float(len(one.text) == most) for one in episodes]

    class Judge:
        async def __call__(self, prompt, completion):
            await asyncio.sleep(0.02)
            return Score(float(len(completion)), metrics={"length": len(completion)})

    class Turns:
        def score(self, prompt, episode):
            paid = tuple(np.ones(len(one.tokens)) for one in episode.sampled)
            return Score(float(episode.tokens), token_rewards=paid)

    @hookimpl
    def rlax_register_reward():
        parts = {"best": Best(), "judge": Judge(), "turns": Turns()}
        return {
            name: Extension(NoOptions, lambda config, context, part=part: part)
            for name, part in parts.items()
        }
"""

REWARDS = {
    "group_reward_of_too_few": source_of(
        "reward",
        """
        class Reward:
            def score_group(self, prompt, episodes):
                return [1.0]

        def build(context):
            return Reward()
        """,
        "score_group returned 1 scores for 2 episodes",
        "score_group one for each episode",
    ),
    "token_rewards_of_other_lengths": source_of(
        "reward",
        """
        from rlax_plugin.api import Score

        class Reward:
            def score(self, prompt, episode):
                return Score(1.0, token_rewards=([0.5],))

        def build(context):
            return Reward()
        """,
        "token_rewards have the shapes [(1,)], but the turns' sampled tokens are",
        "one array for each turn",
    ),
    "metrics_that_are_not_finite": source_of(
        "reward",
        """
        from rlax_plugin.api import Score

        def build(context):
            return lambda prompt, completion: Score(1.0, metrics={"a": float("inf")})
        """,
        "metric 'a' is inf",
        "metrics are finite",
    ),
    "async_reward_that_blocks": source_of(
        "reward",
        """
        import time

        async def judge(prompt, completion):
            if not completion:
                time.sleep(1.2)
            return float(len(completion))

        def build(context):
            return judge
        """,
        "for the empty one, its event loop stood still for ",
        "call what blocks with asyncio.to_thread",
    ),
}
