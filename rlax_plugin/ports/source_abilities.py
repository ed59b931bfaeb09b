"""Optional abilities of a prompt source: one small protocol each, told by its members.

A source has an ability if it has all of the protocol's members; it need not inherit anything.
``TextSource`` has most of them, ``DatasetSource`` some more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlax_plugin.types import Prompt

if TYPE_CHECKING:
    import numpy as np

    from rlax_plugin.tokens.chat import Message
    from rlax_plugin.tokens.tokenizer import Tokenizer


@runtime_checkable
class TextEncoder(Protocol):
    """A source that makes prompts of texts: other programs can ask a worker with text."""

    def encode(self, text: str) -> list[int]:
        """A prompt's tokens, with those in front of its text.

        Raises:
          ValueError: the text cannot be encoded.
        """
        ...


@runtime_checkable
class GivenTextEncoder(Protocol):
    """A source whose policy can be given texts by an environment, such as the result of a tool."""

    def encode_given(self, text: str) -> list[int]:
        """Tokens of a text behind a completion, with whatever the model expects around it.

        What was sampled before is not encoded again.

        Raises:
          ValueError: the text cannot be encoded.
        """
        ...


@runtime_checkable
class MessageEncoder(Protocol):
    """A source whose policy can be given messages of a chat by an environment."""

    def encode_messages(self, messages: Sequence[Message], after: np.ndarray | None) -> list[int]:
        """Tokens of messages behind a completion, up to where the policy answers next.

        Args:
          messages: mappings with a role and a content.
          after: tokens of the completion; None: the messages begin a sequence.

        Raises:
          ValueError: they cannot be encoded.
        """
        ...


@runtime_checkable
class AnswerReader(Protocol):
    """A source that finds the answer in a completion; else a completion is its own answer."""

    def answer(self, completion: str) -> str | None:
        """The answer, which votes in majority@k; None if the completion gives none."""
        ...


@runtime_checkable
class StopStringSource(Protocol):
    """A source whose samples end at texts as well.

    Attributes:
      stop_strings: texts. A sample ends with the first token at which ``decode`` of all its tokens
        contains one. That token trains; the text that rewards and people read ends before the
        string.
    """

    @property
    def stop_strings(self) -> tuple[str, ...]: ...


@runtime_checkable
class TokenizerSource(Protocol):
    """A source that says whose ids its tokens are.

    Attributes:
      tokenizer: is compared with the model's.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...


@runtime_checkable
class SplitSource(Protocol):
    """A source that knows the names of its splits.

    Attributes:
      splits: those that ``prompts`` takes; of other sources the usual three are tried.
    """

    @property
    def splits(self) -> tuple[str, ...]: ...


@runtime_checkable
class IdentifiedSource(Protocol):
    """A source that tells which data it reads, so that a resumed run can name what has changed."""

    def identity(self) -> Mapping[str, Any]:
        """JSON that is equal as long as the data is, such as names, sizes and times of files."""
        ...


@runtime_checkable
class AnsweredPrompts(Protocol):
    """A source that knows right completions, for a trainer's warm start.

    Attributes:
      pad_id: the token that fills rows up to the batch's length.
    """

    def answer_tokens(self, prompt: Prompt) -> np.ndarray:
        """A right completion, int32 [length], stop token included."""
        ...

    @property
    def pad_id(self) -> int: ...


@runtime_checkable
class AnsweredTurns(Protocol):
    """``AnsweredPrompts`` whose right answers take several turns."""

    def answer_turns(self, prompt: Prompt) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """Of each turn what is given before the answer, and the answer; int32 arrays.

        Nothing is given before the first answer but the prompt.
        """
        ...


def tokenizer_of(source: object) -> Tokenizer | None:
    """The tokenizer of a prompt source; None where it names none."""
    return source.tokenizer if isinstance(source, TokenizerSource) else None


SOURCE_ABILITIES = (
    TextEncoder,
    GivenTextEncoder,
    MessageEncoder,
    AnswerReader,
    StopStringSource,
    TokenizerSource,
    SplitSource,
    IdentifiedSource,
    AnsweredPrompts,
    AnsweredTurns,
)
