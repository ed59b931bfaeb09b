"""Optional abilities of a prompt source: one small protocol each, recognised by its members.

A source has an ability if it has all of the protocol's members; it need not inherit from it.
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
    """A source that turns texts into prompts, so other programs can send a worker text."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a prompt, including those that precede its text.

        Raises:
          ValueError: the text cannot be encoded.
        """
        ...


@runtime_checkable
class GivenTextEncoder(Protocol):
    """A source that encodes texts that an environment gives, such as a tool's result."""

    def encode_given(self, text: str) -> list[int]:
        """Tokens of a text after a completion, with the tokens that the model expects around it.

        Tokens sampled earlier are not encoded again.

        Raises:
          ValueError: the text cannot be encoded.
        """
        ...


@runtime_checkable
class MessageEncoder(Protocol):
    """A source that encodes chat messages that an environment gives."""

    def encode_messages(self, messages: Sequence[Message], after: np.ndarray | None) -> list[int]:
        """Tokens of messages after a completion, up to the start of the policy's next answer.

        Args:
          messages: mappings with a role and a content.
          after: tokens of the completion; None: the messages begin a sequence.

        Raises:
          ValueError: they cannot be encoded.
        """
        ...


@runtime_checkable
class AnswerReader(Protocol):
    """A source that extracts the answer from a completion; else the completion is the answer."""

    def answer(self, completion: str) -> str | None:
        """The answer, which votes in majority@k; None if the completion contains none."""
        ...


@runtime_checkable
class StopStringSource(Protocol):
    """A source that also ends samples at certain texts.

    Attributes:
      stop_strings: texts. A sample ends with the first token at which ``decode`` of all its tokens
        contains one. That token is trained; the text for rewards and displays ends before the
        string.
    """

    @property
    def stop_strings(self) -> tuple[str, ...]: ...


@runtime_checkable
class TokenizerSource(Protocol):
    """A source that names the tokenizer of its token ids.

    Attributes:
      tokenizer: tokenizer that is compared with the model's.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...


@runtime_checkable
class SplitSource(Protocol):
    """A source that knows the names of its splits.

    Attributes:
      splits: names that ``prompts`` accepts; for other sources the usual three are tried.
    """

    @property
    def splits(self) -> tuple[str, ...]: ...


@runtime_checkable
class IdentifiedSource(Protocol):
    """A source that identifies its data, so a resumed run can report what has changed."""

    def identity(self) -> Mapping[str, Any]:
        """JSON that stays equal while the data does, such as names, sizes and times of files."""
        ...


@runtime_checkable
class AnsweredPrompts(Protocol):
    """A source that knows correct completions, for a trainer's warm start.

    Attributes:
      pad_id: the token that fills rows up to the batch's length.
    """

    def answer_tokens(self, prompt: Prompt) -> np.ndarray:
        """A correct completion, int32 [length], stop token included."""
        ...

    @property
    def pad_id(self) -> int: ...


@runtime_checkable
class AnsweredTurns(Protocol):
    """``AnsweredPrompts`` whose correct answers take several turns."""

    def answer_turns(self, prompt: Prompt) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """For each turn the input before the answer, and the answer; int32 arrays.

        The input before the first answer is empty, because the prompt precedes it.
        """
        ...


def tokenizer_of(source: object) -> Tokenizer | None:
    """The tokenizer of a prompt source; None if it names none."""
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
