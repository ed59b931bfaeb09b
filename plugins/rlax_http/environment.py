"""The environment ``http``: a program behind a URL plays episodes by OpenAI's API."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

from pydantic import Field

from rlax_http.client import Client
from rlax_http.failures import ServerError
from rlax_http.server import AddressConfig, check_url
from rlax_plugin.api import (
    Access,
    BuildContext,
    Environment,
    EpisodeDoor,
    Outcome,
    Prompt,
    Session,
    outcome_of,
)

_USABLE = 0.9  # part of ``rlax.deadlines.episode_s``; the rest leaves time to say why
_WAIT_S = 1.0  # between two tries to reach the program


class HarnessConfig(AddressConfig):
    """A program plays each episode, and samples the policy's turns by OpenAI's API.

    The program gets one POST for each episode, and answers it once the episode is over.
    """

    url: str = Field(default=..., description="address to which each episode is sent by POST")
    reference: bool = Field(
        default=False, description="true: the program is also sent the prompt's reference"
    )
    tool_calls: Literal["auto", "none", "hermes", "llama3", "pythonic"] = Field(
        default="auto",
        description="form in which the model writes calls of tools; auto: as its chat template "
        "writes them; none: they stay content",
    )

    def check_together(self) -> None:
        check_url("url", self.url)


class Harness(Environment):
    """Waits for the program while it plays; what it replies is checked here.

    A program that cannot be reached is waited for until it has begun to play. What ends it later
    leaves the episode without a score.
    """

    begins = "play"

    def __init__(self, config: HarnessConfig, context: BuildContext):
        self._config, self._section = config, context.section
        key = "rlax.environment.tool_calls"
        self._door = EpisodeDoor(context, config.tool_calls, key)
        if config.tool_calls not in ("auto", "none"):
            self._door.check()  # that it is the template's, before the run begins
        self._key = config.key()
        self._client: Client | None = None

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        if self._client is None:
            self._client = Client(self._config, self._config.url, self._key)
        client = self._client
        until_s = time.monotonic() + _USABLE * self._section.deadlines.episode_s
        while True:
            # A door for each try: a program that got an earlier one may play it yet.
            async with self._door.open(session) as access:
                try:
                    # Its time is the episode's, which stands still while the policy samples.
                    body = task_of(prompt, access, with_reference=self._config.reference)
                    reply = await client.once(body, None)
                except ServerError as error:
                    late = time.monotonic() + _WAIT_S > until_s
                    if access.used or late or not error.passes:
                        raise
                else:
                    return self._outcome(client, reply.content, access)
            await asyncio.sleep(_WAIT_S)

    def _outcome(self, client: Client, given: Any, access: Access) -> Outcome:
        """Returns what a program has replied.

        Raises:
          ServerError: it is no outcome.
        """
        try:
            return outcome_of(given, access, needs_reward=not self._section.rewards)
        except ValueError as error:
            said = f"{self._config.url} replied {client.shown(str(error))}"
            raise ServerError(said, passes=False) from None


def task_of(prompt: Prompt, access: Access, *, with_reference: bool) -> dict[str, Any]:
    """Returns what a program gets of an episode, as JSON."""
    task: dict[str, Any] = {
        "task": prompt.id,
        "text": prompt.text,
        "metadata": dict(prompt.metadata),
        "base_url": access.base_url,
        "api_key": access.api_key,
        "model": access.model,
    }
    if with_reference:
        task["reference"] = prompt.reference
    return task
