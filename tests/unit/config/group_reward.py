"""Reward ``rank``: compares the samples of a group; the longest has 1, all others 0."""

from collections.abc import Sequence

from rlax_plugin.api import Episode, Extension, NoOptions, Prompt, hookimpl


class Rank:
    def score_group(self, prompt: Prompt, episodes: Sequence[Episode]) -> list[float]:
        longest = max(episode.tokens for episode in episodes)
        return [float(episode.tokens == longest) for episode in episodes]


@hookimpl
def rlax_register_reward() -> dict[str, Extension[NoOptions]]:
    return {"rank": Extension(NoOptions, lambda config, context: Rank())}
