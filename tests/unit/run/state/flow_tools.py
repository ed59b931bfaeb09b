"""Environments for ``flow_harness``, and what may train of the episodes that they play."""

import asyncio

from rlax_plugin.base.types import Unscored
from rlax_plugin.ports.environment import EpisodeLimit, Outcome

# What an environment does with an episode, by its number: trajectories and what they are given.
# Those of one element follow the step before; several are sampled at once.
PLANS = [[], [[0]], [[0], [0]], [[0], [0], [0], [0]], [[1], [0], [1]], [[0, 1], [0]]]
FAILS = 7  # the last digit of an episode's number: then the environment raises at its end


class Tool:
    """An environment: what it does follows from prompt, sample and mood.

    Attributes:
      mood: 0, or from the second step on it gives something else (1) or ends the episode (2).
    """

    def __init__(self, plans):
        self.plans, self.mood = plans, 0

    def steps(self, prompt, index, mood):
        """Of each step: trajectory -> what is given."""
        number = 2 * int(prompt.text) + index
        plan = self.plans[number % len(self.plans)]
        steps = [{t: 10 + 2 * place + t for t in step} for place, step in enumerate(plan)]
        if mood == 2:
            return steps[:1]
        return [
            {t: given + 20 * mood * bool(place) for t, given in step.items()}
            for place, step in enumerate(steps)
        ]

    async def play(self, prompt, played):
        begun = {0: 0}
        try:
            for step in self.steps(prompt, played.index, self.mood):
                for trajectory in step.keys() - begun:
                    begun[trajectory] = played.begin([3])
                asked = [played.sample([given], begun[t]) for t, given in step.items()]
                await asyncio.gather(*asked)
        except EpisodeLimit:
            return Outcome(ended="cut")
        if (2 * int(prompt.text) + played.index) % 10 == FAILS:
            return Unscored("it raised")
        return Outcome()

    def given(self, prompt, index, mood):
        """What each trajectory is given behind its first turn, or behind what it began with."""
        found = {0: [], 1: [3]}
        for step in self.steps(prompt, index, mood):
            for trajectory, given in step.items():
                found[trajectory].append(given)
        return found


def answer_of(turn):
    """The number of the answer that a turn is."""
    return -int(turn.sampled.logprobs[0])


def is_part(given, play, ended):
    """Whether trajectories were given what a play gives; where they are cut, a part."""
    whole = {t: tokens for t, tokens in play.items() if t == 0 or len(tokens) > 1}
    if ended == "done":
        return given == whole
    return all(play.get(t, [])[: len(tokens)] == tokens for t, tokens in given.items())
