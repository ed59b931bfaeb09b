"""The reward ``http_verifier``: a program behind a URL scores completions, one per request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlax_http.client import Client, Reply, names_of
from rlax_http.failures import ServerError
from rlax_http.server import ServerConfig, check_url
from rlax_plugin.api import BuildContext, Prompt, Score

USABLE = 0.9
"""Part of ``rlax.deadlines.reward_s`` for the server; the rest leaves time to report errors."""


class VerifierConfig(ServerConfig):
    """Scores completions by a program that answers HTTP requests."""

    url: str = Field(default=..., description="address to which each sample is sent by POST")

    def check_together(self) -> None:
        check_url("url", self.url)


class HttpVerifier:
    """Sends samples to a verifier as they come; failed requests leave samples without a reward."""

    def __init__(self, config: VerifierConfig, context: BuildContext):
        section = context.section
        self.client = Client(config, config.url, config.key(), processes=section.reward_processes)
        self._limit_s = USABLE * section.deadlines.reward_s

    async def __call__(self, prompt: Prompt, completion: str) -> Score:
        sample = sample_of(prompt, completion)
        return self.reward_of(await self.client.post(sample, self._limit_s))

    def reward_of(self, reply: Reply) -> Score:
        """Returns the reward in an answer: a number, or an object with ``reward`` or ``error``.

        Raises:
          ServerError: the answer is an error, or not a reward.
        """
        metrics: Any = {}
        given = reply.content
        if isinstance(given, Mapping) and given.get("error") is not None:
            error = given["error"]
            said = self.client.shown(error if isinstance(error, str) else names_of(error))
            raise ServerError(f"the verifier cannot score this sample: {said}", passes=False)
        reward = given
        if isinstance(given, Mapping):
            reward, metrics = given.get("reward"), given.get("metrics") or {}
        if isinstance(reward, Mapping) or not isinstance(reward, int | float):
            what = self.client.shown(names_of(given if reward is None else reward))
            said = f"the verifier gave {what} in place of a reward: it must be a number"
            raise ServerError(f"{said}, or {{'reward': number}}", passes=False)
        try:
            named = dict(metrics) if isinstance(metrics, Mapping) else {"metrics": None}
            shown = {self.client.shown(name): _number(value) for name, value in named.items()}
            return Score(float(reward), metrics={"verifier_requests": reply.tries, **shown})
        except (TypeError, OverflowError):
            said = "the verifier gave a number without end, or metrics that are no numbers"
            raise ServerError(said, passes=False) from None


def _number(value: Any) -> float:
    """Returns a number of the verifier's answer; texts are rejected, and not repeated in a message.

    Raises:
      TypeError, OverflowError: it is not a number.
    """
    if not isinstance(value, int | float):
        raise TypeError
    return float(value)


def sample_of(prompt: Prompt, completion: str) -> dict[str, Any]:
    """Returns the JSON object that is sent for a sample."""
    return {
        "id": prompt.id,
        "prompt": prompt.text,
        "completion": completion,
        "reference": prompt.reference,
        "metadata": dict(prompt.metadata),
    }
