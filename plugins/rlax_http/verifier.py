"""The reward ``http_verifier``: a program behind a URL scores completions, several per request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from rlax_http.client import Client, names_of
from rlax_http.failures import ServerError
from rlax_http.server import ServerConfig, check_url
from rlax_plugin.api import BuildContext, PositiveInt, Prompt, Score

USABLE = 0.9
"""Part of ``rlax.deadlines.reward_s`` for the server; the rest leaves time to report errors."""

_MOST_CRASHES = 3  # of a server, with the same batch
_MAY_BE_ONE_SAMPLE = (0, 400, 413, 422, 500)  # HTTP status of a batch that is tried one by one


class VerifierConfig(ServerConfig):
    """Scores completions by a program that answers HTTP requests."""

    url: str = Field(default=..., description="address to which samples are sent by POST")
    batch_size: PositiveInt = Field(
        default=1,
        description="samples in one request at most; above 1 a request has a list of them. Only "
        "samples of one reward process are sent together, see rlax.reward_concurrency",
    )
    batch_wait_ms: PositiveInt = Field(
        default=20, description="milliseconds that a request waits for further samples at most"
    )

    @model_validator(mode="after")
    def _address(self) -> VerifierConfig:
        check_url("url", self.url)
        return self


class HttpVerifier:
    """Sends samples to a verifier as they come; failed requests leave samples without a reward."""

    def __init__(self, config: VerifierConfig, context: BuildContext):
        section = context.section
        self._config = config
        self.client = Client(config, config.url, config.key(), processes=section.reward_processes)
        self._limit_s = USABLE * section.deadlines.reward_s
        self._open: _Batch | None = None  # which further samples may join

    async def __call__(self, prompt: Prompt, completion: str) -> Score:
        sample = sample_of(prompt, completion)
        if self._config.batch_size == 1:
            reply = await self.client.post(sample, self._limit_s)
            return self.reward_of(reply.content, reply.tries)
        batch = self._open
        if batch is None or not batch.joins(sample):
            batch = self._open = _Batch(self, self._config, self._limit_s, sample)
        place = len(batch.samples) - 1
        # Shielded: a sample that is cancelled does not take the others with it.
        found = (await asyncio.shield(batch.sent))[place]
        if isinstance(found, ServerError):
            raise found
        return found

    def rewards(self, content: Any, count: int) -> Sequence[Any]:
        """Returns the answer's entries for the samples that were sent as a list.

        Raises:
          ServerError: it has another number of entries, or is not a list.
        """
        if isinstance(content, Mapping) and "rewards" in content:
            content = content["rewards"]
        if not isinstance(content, list) or len(content) != count:
            what = f"a list of {len(content)}" if isinstance(content, list) else names_of(content)
            said = f"the verifier was sent a list of {count} samples and answered with {what}"
            said = f"{self.client.shown(said)}: it must be a list of {count} rewards"
            raise ServerError(said, passes=False)
        return content

    def reward_of(self, given: Any, tries: int) -> Score:
        """Returns the reward in one entry: a number, or an object with ``reward`` or ``error``.

        Raises:
          ServerError: the entry is an error, or not a reward.
        """
        metrics: Any = {}
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
            return Score(float(reward), metrics={"verifier_requests": tries, **shown})
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


class _Batch:
    """Samples that are sent together.

    Attributes:
      samples: the samples.
      sent: future with a score or an error for each sample.
    """

    def __init__(self, of: HttpVerifier, config: VerifierConfig, limit_s: float, first: Any):
        self._of, self._config = of, config
        self._until_s = time.monotonic() + limit_s
        self.samples = [first]
        self._full, self._closed = asyncio.Event(), False
        self.sent = asyncio.ensure_future(self._send())

    def joins(self, sample: Any) -> bool:
        """Adds a sample if the batch has not been sent yet, and then returns True."""
        if self._closed or self.sent.done():
            return False
        self.samples.append(sample)
        if len(self.samples) == self._config.batch_size:
            self._closed = True
            self._full.set()
        return True

    async def _send(self) -> list[Score | ServerError]:
        try:
            async with asyncio.timeout(self._config.batch_wait_ms / 1000):
                await self._full.wait()
        except TimeoutError:
            self._closed = True
        try:
            crashes = _MOST_CRASHES if len(self.samples) > 1 else None
            reply = await self._of.client.post(self.samples, self._left_s, crashes=crashes)
            given = self._of.rewards(reply.content, len(self.samples))
        except ServerError as error:
            if len(self.samples) == 1 or error.status not in _MAY_BE_ONE_SAMPLE or error.passes:
                return [error] * len(self.samples)
            return list(await asyncio.gather(*map(self._alone, self.samples)))
        return [self._score(one, reply.tries) for one in given]

    async def _alone(self, sample: Any) -> Score | ServerError:
        """Sends one sample of a batch that the server rejected, as the others may be fine."""
        try:
            reply = await self._of.client.post([sample], self._left_s)
            (given,) = self._of.rewards(reply.content, 1)
        except ServerError as error:
            return error
        return self._score(given, reply.tries)

    def _score(self, given: Any, tries: int) -> Score | ServerError:
        try:
            return self._of.reward_of(given, tries)
        except ServerError as error:
            return error

    @property
    def _left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())


def sample_of(prompt: Prompt, completion: str) -> dict[str, Any]:
    """Returns the JSON object that is sent for a sample."""
    return {
        "id": prompt.id,
        "prompt": prompt.text,
        "completion": completion,
        "reference": prompt.reference,
        "metadata": dict(prompt.metadata),
    }
