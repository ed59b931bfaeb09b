"""The base class of prompt sources with texts or messages and a tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.tokens.byte_level import BYTES, DIRECTORY
from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.base.tokens.rendering import DEFAULT_LIMITS, RenderLimits
from rlax_plugin.base.tokens.stopping import end_of
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.base.types.sampled import EMPTY, Prompt
from rlax_plugin.ports.protocols import BuildContext, PromptSource

_MESSAGES = "messages"  # metadata of a question that is a list of messages
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class TextRow:
    """One question before it has tokens.

    Attributes:
      question: a text; or, for a chat, all messages before the policy's answer.
      reference: text that rewards compare with.
      metadata: further data that JSON can hold.
      answer: a right completion, for a warm start; None: the reference.
    """

    question: str | Sequence[Message]
    reference: str
    metadata: Mapping[str, Any] = EMPTY
    answer: str | None = None


class TextSource(PromptSource):
    """A prompt source of texts: a subclass only provides the rows of each split.

    A prompt's id is a hash of its question, reference and metadata, and of ``chat`` and ``system``.

    Args:
      tokenizer: the model's; see ``model_tokenizer``.
      chat: if True, a question is a user's message in the model's chat template. Otherwise the
        policy continues the question's text.
      system: message of the system before it, for a chat.
      stop_strings: texts that end an answer, in addition to the tokenizer's ``stop_ids``.

    Raises:
      ConfigError: the chat template writes today's date into each prompt.
    """

    tokenizer: Tokenizer

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat: bool = False,
        system: str = "",
        stop_strings: tuple[str, ...] = (),
    ):
        if chat and tokenizer.chat.writes_today:
            raise ConfigError(
                "rlax.prompt_source.template_arguments",
                None,
                "must have date_string, such as {date_string: '26 Jul 2024'}, or the chat template "
                f"in {tokenizer.directory} a date in place of strftime_now: it writes today's, and "
                "a run that is resumed tomorrow has other prompts",
            )
        self.tokenizer, self.stop_strings = tokenizer, stop_strings
        self._chat, self._system = chat, system
        self._prompts: dict[str, tuple[Prompt, ...]] = {}
        self._answers: dict[str, str] = {}

    def rows(self, split: str) -> Iterable[TextRow]:
        """Returns the questions of a split in a fixed order, the same in every process."""
        raise NotImplementedError

    def prompts(self, split: str) -> Sequence[Prompt]:
        """See ``PromptSource``."""
        if split not in self.splits:
            reason = f"no such split; {alternatives(split, self.splits)}"
            raise ConfigError("split of rlax.prompt_source", split, reason)
        if split not in self._prompts:
            self._prompts[split] = tuple(self._prompt(row) for row in self.rows(split))
        return self._prompts[split]

    def decode(self, tokens: np.ndarray) -> str:
        """See ``PromptSource``."""
        return self.tokenizer.decode(tokens)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.tokenizer.stop_ids

    @property
    def pad_id(self) -> int:
        """The id of the token that pads rows to the batch's length."""
        return self.tokenizer.pad_id

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a question as in a prompt."""
        if self._chat:
            return self.tokenizer.render(self._messages(text))
        return [*self.tokenizer.bos_ids, *self.tokenizer.encode(text)]

    def encode_given(self, text: str) -> list[int]:
        """Returns the tokens of a text that an environment adds after a completion."""
        return self.tokenizer.encode_behind(text)

    def encode_messages(
        self,
        messages: Sequence[Message],
        after: np.ndarray | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Returns the tokens of messages after a completion, or at the start of a sequence.

        Raises:
          ValueError: the chat template cannot render them, see ``ChatTemplate``.
        """
        if after is None:
            return self.tokenizer.render(messages, tools=tools)
        return self.tokenizer.next_turn(messages, after, tools)

    def messages(self, prompt: Prompt) -> list[Message]:
        """Returns the messages that a prompt's tokens are rendered from.

        Raises:
          ValueError: without ``chat`` there are none.
        """
        if _MESSAGES in prompt.metadata:
            return self._messages(prompt.metadata[_MESSAGES])
        if not self._chat:
            raise ValueError("prompts are no chats: set rlax.prompt_source.chat")
        return self._messages(prompt.text)

    def answer_tokens(self, prompt: Prompt) -> np.ndarray:
        """Returns a right completion with its ending, int32 [length]."""
        answer = self._answers.get(prompt.id, prompt.reference)
        if not self.stop_strings:
            ending = self.tokenizer.answer_end if self._chat else self.tokenizer.eos_id
            tokens = self.tokenizer.encode_behind(answer)
            return np.array(tokens if ending is None else [*tokens, ending], np.int32)
        text = f"{answer}{self.stop_strings[0]}"
        tokens = np.array(self.tokenizer.encode_behind(text), np.int32)
        return tokens[: end_of(tokens, self.stop_strings, self.decode)]

    def _messages(self, question: str | Sequence[Message]) -> list[Message]:
        said = [{"role": "user", "content": question}] if isinstance(question, str) else question
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *said]

    def _prompt(self, row: TextRow) -> Prompt:
        question, metadata = row.question, dict(row.metadata)
        if isinstance(question, str):
            tokens, text = self.encode(question), question
        else:
            tokens = self.tokenizer.render(self._messages(question))
            text = "\n".join(f"{one.get('role')}: {one.get('content')}" for one in question)
            metadata[_MESSAGES] = [dict(one) for one in question]
        found = prompt_id(self._chat, self._system, text, row.reference, metadata).hex()
        if row.answer is not None:
            self._answers[found] = row.answer
        return Prompt(found, np.array(tokens, np.int32), text, row.reference, metadata)


def prompt_id(
    chat: bool, system: str, text: str, reference: str, metadata: Mapping[str, Any]
) -> bytes:
    """Returns the 16 bytes that identify a prompt: a hash of everything that defines it."""
    identity = [chat, system, text, reference, metadata]
    content = _encode(identity)
    return hashlib.blake2b(content.encode(errors="replace"), digest_size=16).digest()


def model_tokenizer(
    context: BuildContext, template_arguments: Mapping[str, Any] = EMPTY, name: str = ""
) -> Tokenizer:
    """Returns the tokenizer of the run's model: MaxText's key ``tokenizer_path``.

    Args:
      context: the run.
      template_arguments: see ``Tokenizer.load``.
      name: ``bytes``, or a directory, to use another one; see ``DatasetConfig.tokenizer``.

    Raises:
      ConfigError: the config names no tokenizer, or one that is not of Hugging Face.
    """
    key = "tokenizer_path"
    kind, path = context.maxtext.get("tokenizer_type"), context.maxtext.get(key)
    if name:
        key, path = "rlax.prompt_source.tokenizer", DIRECTORY if name == BYTES else name
    elif not path:
        reason = "must be the directory of the model's tokenizer, which this prompt source needs"
        raise ConfigError(key, path, reason)
    elif kind != "huggingface":
        raise ConfigError("tokenizer_type", kind, "must be huggingface for this prompt source")
    limits = DEFAULT_LIMITS
    if context.section is not None:  # else this is a test of a source
        deadlines = context.section.deadlines
        limits = RenderLimits(render_s=deadlines.template_s, start_s=deadlines.startup_s)
    return Tokenizer.load(str(path), key, template_arguments, limits)
