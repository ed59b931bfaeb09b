"""Turns messages into tokens by the model's own chat template; no other module does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.tokens.rendering import RenderError, RenderLimits, Template, rendered

TOGETHER = 6
"""The factor by which the time limit of many conversations exceeds that of one."""

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ANSWER = "sampled7answer"  # stands for what was sampled, in conversations that are tried
_LAST = 64  # tokens of an answer that its end is looked for in
_BEFORE = {"role": "user", "content": "question"}
_EARLIER = (_BEFORE, {"role": "assistant", "content": "earlier"})
_SYSTEM = {"role": "system", "content": "system"}

Message = Mapping[str, Any]
"""One message of a chat: ``role``, ``content``, and other keys that the template reads."""


class ChatTemplateError(RlaxError, ValueError):
    """A chat template failed, or cannot do what is needed.

    Args:
      file: file that has the template.
      reason: rest of the message.
    """

    def __init__(self, file: Path, reason: str):
        super().__init__(f"the chat template in {file} {reason}")


class ChatTemplate:
    """The chat template of a tokenizer, which is rendered in a separate process.

    Args:
      fast: the tokenizer.
      directory: directory of the tokenizer.
      arguments: variables that the template gets in addition to the messages.
      limits: limits of time and memory.

    Attributes:
      limits: as given.
    """

    def __init__(
        self, fast: Any, directory: Path, arguments: Mapping[str, Any], limits: RenderLimits
    ):
        self._fast, self._file, self.limits = fast, _file_in(directory), limits
        source = fast.chat_template
        # The process that renders keeps the working directory of its start.
        where = directory.absolute()
        self._template = Template(where, source, dict(arguments), limits) if source else None
        self._independent: set[tuple[str, ...]] = set()  # roles of turns that were tried

    @property
    def exists(self) -> bool:
        """True if the tokenizer has a chat template."""
        return self._template is not None

    def render(self, messages: Sequence[Message], generation_prompt: bool = True) -> list[int]:
        """Returns the tokens of a conversation, ready for the model.

        Special tokens within the messages, such as ``<|im_end|>`` in a user's text, are encoded as
        plain text.

        Args:
          messages: the first may be that of the system.
          generation_prompt: True if the beginning of the policy's answer follows.

        Raises:
          ChatTemplateError: there is no template, it raised something, or it needs more than its
            limits.
          ValueError: these are not valid messages.
        """
        return self._rendered([messages], generation_prompt, self.limits.render_s)[0]

    def render_all(self, conversations: Sequence[Sequence[Message]]) -> list[list[int]]:
        """Returns ``render`` of many conversations, several times as fast.

        Raises:
          ChatTemplateError, ValueError: see ``render``; it does not say for which conversation. All
            together may take ``TOGETHER`` times as long as one.
        """
        return self._rendered(conversations, True, TOGETHER * self.limits.render_s)

    def _rendered(
        self,
        conversations: Sequence[Sequence[Message]],
        generation_prompt: bool,
        limit_s: float,
    ) -> list[list[int]]:
        if self._template is None:
            raise ChatTemplateError(
                self._file, "is missing: chat_template.jinja, or chat_template in tokenizer_config"
            )
        checked = [[_checked(message) for message in messages] for messages in conversations]
        if not all(checked):
            raise ValueError("a conversation has at least one message")
        render = self._fast.apply_chat_template
        if "sanitize_control_tokens" not in inspect.signature(render).parameters:
            raise ChatTemplateError(self._file, "needs transformers 5.20 or newer")  # else ignored
        try:
            return rendered(self._template, checked, generation_prompt, limit_s)
        except RenderError as error:
            raise ChatTemplateError(self._file, f"failed: {error}") from error

    @cached_property
    def _ending(self) -> list[int]:
        """The tokens that the template puts after an answer if nothing follows it."""
        return self._behind_answer((_BEFORE,), (), generation_prompt=False)

    def end_id(self) -> int | None:
        """Returns the special token with which the template ends an answer; None without one."""
        special = {i for i, one in self._fast.added_tokens_decoder.items() if one.special}
        try:
            ending = self._ending
        except ChatTemplateError:  # prompts that need the template will say so
            return None
        return next((token for token in ending if token in special), None)

    def next_turn(
        self,
        messages: Sequence[Message],
        after: Sequence[int] | np.ndarray,
        stop_ids: Sequence[int],
    ) -> list[int]:
        """Returns the tokens from the end of a sampled answer to the beginning of the next one.

        They are the tokens that the template has after an answer: the end of the answer, if it was
        not sampled, then the messages, then the beginning of the next answer. The sampled tokens
        are neither rendered nor encoded again, so a template that would remove earlier thinking
        does not do so here: the policy has seen its thinking, and sees it in the next turn.

        Args:
          messages: messages after the answer, such as the result of a tool.
          after: the sampled tokens of that answer, its stop token included.
          stop_ids: tokens that end an answer.

        Raises:
          ChatTemplateError: see ``render``; or the text that the template writes after an answer
            depends on earlier messages, such as one of the system.
        """
        self._check_independent(messages)
        ending = self._ending
        follows = self._behind_answer((_BEFORE,), messages, generation_prompt=True)
        place = next((i for i, token in enumerate(ending) if token in stop_ids), None)
        if place is None:  # the template ends an answer with plain text, such as a newline
            place = len(ending) - 1
            ended = self._text(after[-_LAST:]).endswith(self._text(ending))
        else:
            ended = len(after) > 0 and int(after[-1]) == ending[place]
        ended = ended and follows[: place + 1] == ending[: place + 1]
        return follows[place + 1 :] if ended else follows

    def _check_independent(self, messages: Sequence[Message]) -> None:
        """Checks that the next turn does not depend on earlier messages, once for equal roles."""
        roles = tuple(str(message.get("role")) for message in messages)
        if roles in self._independent:
            return
        found = self._behind_answer((_BEFORE,), messages, generation_prompt=True)
        for before in ((*_EARLIER, _BEFORE), (_SYSTEM, _BEFORE)):
            try:
                other = self._behind_answer(before, messages, generation_prompt=True)
            except ChatTemplateError:
                if before[0] is not _SYSTEM:
                    raise
                continue  # it knows no system, so no conversation has one
            if other != found:
                what = "a message of the system" if before[0] is _SYSTEM else "earlier messages"
                raise ChatTemplateError(
                    self._file,
                    f"writes what follows an answer otherwise after {what}, so no further turn can "
                    "be given as tokens behind those that were sampled",
                )
        self._independent.add(roles)

    def _behind_answer(
        self, before: Sequence[Message], messages: Sequence[Message], *, generation_prompt: bool
    ) -> list[int]:
        """Returns the tokens after an answer to ``before``, if ``messages`` come next."""
        answer = {"role": "assistant", "content": _ANSWER}
        tokens = self.render([*before, answer, *messages], generation_prompt)
        low, high = 0, len(tokens)  # the fewest tokens with the whole answer are in (low, high]
        while high - low > 1:
            middle = (low + high) // 2
            if _ANSWER in self._text(tokens[:middle]):
                high = middle
            else:
                low = middle
        if not self._text(tokens[:high]).endswith(_ANSWER):
            raise ChatTemplateError(
                self._file, "does not write an answer as it is, so nothing can be put behind one"
            )
        return tokens[high:]

    def _text(self, tokens: Sequence[int] | np.ndarray) -> str:
        ids = np.asarray(tokens).tolist()
        return self._fast.backend_tokenizer.decode(ids, skip_special_tokens=False)


def _checked(message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"{message!r:.100} is no message: it needs a role and a content")
    # A role is part of special tokens in some templates.
    if not _ROLE.fullmatch(message["role"]):
        raise ValueError(f"{message['role']!r:.100} is no role: letters, digits, '_' and '-' only")
    return dict(message)


def _file_in(directory: Path) -> Path:
    """Returns the file of a tokenizer that has the chat template."""
    own = directory / "chat_template.jinja"
    return own if own.exists() else directory / "tokenizer_config.json"
