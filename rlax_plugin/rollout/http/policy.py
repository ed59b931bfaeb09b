"""What the HTTP door asks a policy, and what it answers.

``wire`` has the bytes, ``app`` the routes. Two policies exist: the engine of ``rlax serve RUN``,
and an episode of the environment ``http``. Both get requests that are checked already, so that they
need not know of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.base.types import Finish

RefusalType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
]
"""OpenAI's types of errors."""


class Refused(Exception):
    """A request that is not answered; its sender gets the message.

    Args:
      message: the reason, and what would be right.
      status: HTTP status.
      kind: OpenAI's type of the error.
      param: name of the field that is refused; None: none is to blame.
      code: OpenAI's code of the error; None: that of the status.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: RefusalType = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ):
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code


@dataclass(frozen=True, slots=True)
class Edge:
    """A request's relation to an earlier one of its session, as its headers declare it.

    Attributes:
      kind: as in verifiers' ``SemanticEdge``: ``continuation``, ``compaction``, ``subagent_call``
        and others.
      parent: ``Asked.id`` of the earlier request; "": the one that was answered last.
    """

    kind: str
    parent: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request.

    Attributes:
      given: int32 [length] token ids; or a text; or the whole history of a chat.
      tools: descriptions of the tools, as JSON schemas in OpenAI's form.
      n: number of choices.
      most_tokens: maximum number of tokens of each choice; None: the policy's own.
      temperature, top_p, top_k, seed: None: the policy's own.
      stop: texts before which a choice's text ends.
      stop_ids: tokens that end a choice, in addition to the policy's own.
      retry: how often the client has sent the request before (``x-stainless-retry-count``).
      edge: None: it is found by comparing prefixes.
      id: the client's own for the request, the same if it is sent again; "": none.
    """

    given: np.ndarray | str | tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    n: int = 1
    most_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    retry: int = 0
    edge: Edge | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool.

    Attributes:
      id: unique within its conversation.
      arguments: JSON text, exactly as sampled.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """An answer in a chat, in the parts that OpenAI's API has.

    Attributes:
      content: text without reasoning and calls; None: there is none.
      reasoning: ``reasoning_content``; None: there is none.
    """

    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One sampled answer.

    Attributes:
      tokens: int32 [length], the stop token included.
      logprobs: float32 [length], see ``Sampled``.
      text: decoded tokens, without stop tokens; it ends before a stop string.
      version: weight version of its last token.
      message: for chats; None otherwise.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    text: str
    finish: Finish
    version: int
    message: AssistantMessage | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request.

    Attributes:
      prompt: int32 [length], the tokens that the choices continue.
      choices: ``n`` of them.
    """

    prompt: np.ndarray
    choices: tuple[Choice, ...]


Told = Callable[[int, Sequence[int], Sequence[float], str], None]
"""Called with a choice's index, and its new tokens, their log-probs, and its new text.

Text that further tokens may change is held back. In a chat the texts are the message's content.
"""


class Policy(Protocol):
    """A policy that answers requests. All of it is called on the event loop of the server.

    Attributes:
      name: id of the model.
      longest: maximum number of tokens of a prompt and its answer (``max_model_len``).
    """

    @property
    def name(self) -> str: ...

    @property
    def longest(self) -> int: ...

    async def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Tokens of a conversation, with the beginning of the policy's answer.

        Raises:
          Refused: the policy has no chat template, or it does not take these messages.
        """
        ...

    async def encode(self, text: str) -> list[int]:
        """Tokens of a text.

        Raises:
          Refused: the policy encodes no texts.
        """
        ...

    async def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token alone, for log-probs.

        Raises:
          Refused: the policy decodes no tokens.
        """
        ...

    async def answer(self, asked: Asked, told: Told | None) -> Answered:
        """Samples the choices; ends them if it is cancelled.

        Args:
          told: called where the policy can stream; a policy that cannot does not call it, and its
            choices are streamed in one piece.

        Raises:
          Refused: the request cannot be answered as it is.
        """
        ...
