"""Turns messages into tokens by the model's own chat template; no other module does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.tokens.rendering import (
    RenderError,
    RenderLimits,
    Template,
    TurnsError,
    rendered,
    rendered_turns,
)

TOGETHER = 6
"""The factor by which the time limit of many conversations exceeds that of one."""

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ANSWER = "sampled7answer"  # stands for what was sampled, in conversations that are tried
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
_REASONING = "reasoning_content"  # key of a message, which templates read
_LAST = 64  # tokens of an answer that its end is looked for in
_BEFORE = {"role": "user", "content": "question"}
_EARLIER = (_BEFORE, {"role": "assistant", "content": "earlier"})
_SYSTEM = {"role": "system", "content": "system"}

Message = Mapping[str, Any]
"""One message of a chat: ``role``, ``content``, and other keys that the template reads."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A text to train on, of which only some tokens train.

    Attributes:
      tokens: all of them.
      spans: of each answer that trains, the place of its first token and that behind its last.
    """

    tokens: list[int]
    spans: list[tuple[int, int]]


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
        self._independent: set[tuple[str, ...]] = set()  # tools or not, and roles, that were tried

    @property
    def exists(self) -> bool:
        """True if the tokenizer has a chat template."""
        return self._template is not None

    @property
    def writes_today(self) -> bool:
        """True if it writes today's date for want of the argument ``date_string``.

        The template of Llama 3.2 does so; ``strftime_now`` is a function of ``transformers``.
        """
        has_date = self._template is None or "date_string" in self._template.arguments
        return not has_date and self.reads("date_string") and self.reads("strftime_now")

    def render(
        self,
        messages: Sequence[Message],
        generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Returns the tokens of a conversation, ready for the model.

        Special tokens within the messages, such as ``<|im_end|>`` in a user's text, are encoded as
        plain text.

        Args:
          messages: the first may be that of the system.
          generation_prompt: True if the beginning of the policy's answer follows.
          tools: descriptions of the tools, as JSON schemas, which the template gets.

        Raises:
          ChatTemplateError: there is no template, it raised something, it needs more than its
            limits, or it does not read tools or calls of tools that there are.
          ValueError: these are not valid messages.
        """
        return self._rendered([messages], generation_prompt, self.limits.render_s, tools)[0]

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
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[list[int]]:
        template = self._usable()
        checked = [[_checked(message) for message in messages] for messages in conversations]
        if not all(checked):
            raise ValueError("a conversation has at least one message")
        for messages in checked:
            for turn, message in enumerate(messages):
                self._check_read(turn, message, tools, keys=("tool_calls",))
        try:
            return rendered(template, checked, generation_prompt, tools, limit_s)
        except RenderError as error:
            raise ChatTemplateError(self._file, f"failed: {error}") from error

    def _usable(self) -> Template:
        if self._template is None:
            raise ChatTemplateError(
                self._file, "is missing: chat_template.jinja, or chat_template in tokenizer_config"
            )
        render = self._fast.apply_chat_template
        if "sanitize_control_tokens" not in inspect.signature(render).parameters:
            raise ChatTemplateError(self._file, "needs transformers 5.20 or newer")  # else ignored
        return self._template

    def demonstration(
        self,
        messages: Sequence[Message],
        turns: Sequence[int],
        tools: Sequence[Mapping[str, Any]] = (),
        most_tokens: int | None = None,
    ) -> Demonstration:
        """Returns the tokens of a conversation, with those of some of its answers.

        An answer's tokens are those that a policy would sample there: they begin behind the
        generation prompt and end with the token that ends an answer (``end_id``); what the
        template writes behind it, such as a newline, is not one of them. Nothing is guessed: the
        tokens of the conversation before an answer, with a generation prompt, and those up to its
        end have to be beginnings of the tokens of the whole conversation.

        Args:
          messages: the whole conversation.
          turns: indices of answers of the assistant, ascending.
          tools: descriptions of the tools, as JSON schemas, which the template gets.
          most_tokens: a conversation with more is refused before its answers are looked for.

        Raises:
          TooLongError: the conversation has more than ``most_tokens``.
          ChatTemplateError: see ``render``; the template does not read reasoning, calls or tools
            that there are; it writes an earlier turn otherwise when the conversation goes on; an
            answer does not begin or end between two tokens; or ``{% generation %}`` in the
            template marks other tokens.
          ValueError: these are not valid messages.
        """
        template = self._usable()
        checked = [self._with_reasoning(_checked(message)) for message in messages]
        if not turns or turns[0] == 0:
            raise ValueError("an answer to train on follows a message")
        for turn in turns:
            self._check_spelled(turn, checked[turn].get("content"))
            self._check_read(turn, checked[turn], tools)
        try:
            # The whole conversation, and for each answer two beginnings of it.
            limit_s = (1 + len(turns)) * self.limits.render_s
            found = rendered_turns(template, checked, turns, tools, limit_s, most_tokens)
        except TurnsError as error:
            raise ChatTemplateError(self._file, str(error)) from error
        except RenderError as error:
            raise ChatTemplateError(self._file, f"failed: {error}") from error
        spans = [(begin, self._end_of(found.tokens, begin, end)) for begin, end in found.spans]
        for turn, (begin, end) in zip(turns, spans, strict=True):
            if begin == end:
                raise ChatTemplateError(self._file, f"writes nothing for message {turn + 1}")
        if found.marked is not None:
            every = [i for i, message in enumerate(checked) if message["role"] == "assistant"]
            whole = (0, len(found.tokens)) if list(turns) == every else None
            self._check_marked(set(found.marked), turns, spans, found.spans, whole)
        return Demonstration(found.tokens, spans)

    @cached_property
    def source(self) -> str:
        """The template's text; of several, all of them."""
        source = self._fast.chat_template
        return source if isinstance(source, str) else "\n".join(source.values())

    def _with_reasoning(self, message: dict[str, Any]) -> dict[str, Any]:
        """Moves reasoning from the content to its own key, for a template that reads that.

        Tags in a content are texts, and not the tokens that the template writes around reasoning.
        """
        content = message.get("content")
        if message["role"] != "assistant" or _REASONING in message or _REASONING not in self.source:
            return message
        if not isinstance(content, str) or not (found := _THOUGHT.fullmatch(content)):
            return message
        thought, answer = found.groups()
        return {**message, _REASONING: thought.strip("\n"), "content": answer.lstrip("\n")}

    def _check_spelled(self, turn: int, content: Any) -> None:
        """Refuses an answer that spells a token of the template, such as ``<tool_call>``.

        A special token in a text is meant as text. One that is not special, such as that of a
        tool's call, is more likely meant as the token, and would be trained as other tokens.
        """
        for text in self._written:
            if text in str(content):
                advice = "write calls of tools as tool_calls"
                if self.reads(_REASONING):
                    advice += f", and reasoning as {_REASONING}"
                raise ChatTemplateError(
                    self._file,
                    f"writes {text} itself, so in the content of message {turn + 1} it is plain "
                    f"text: {advice}",
                )

    @cached_property
    def _written(self) -> list[str]:
        """The tokens, special ones apart, that the template writes itself."""
        added = [one.content for one in self._fast.added_tokens_decoder.values() if not one.special]
        return [text for text in added if text.strip() and text in self.source]

    def reads(self, name: str) -> bool:
        """True if the template's text names a key or a variable."""
        return re.search(rf"\b{name}\b", self.source) is not None

    def _check_read(
        self,
        turn: int,
        message: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
        keys: Sequence[str] = (_REASONING, "tool_calls"),
    ) -> None:
        """Refuses a message of which the template would leave something out.

        Raises:
          ChatTemplateError: it does not name the key.
        """
        for key in keys:
            if message.get(key) and not self.reads(key):
                raise ChatTemplateError(
                    self._file, f"does not read {key}, which message {turn + 1} has"
                )
        if tools and not self.reads("tools"):
            raise ChatTemplateError(self._file, "does not read tools, which the conversation has")

    def _end_of(self, tokens: Sequence[int], begin: int, end: int) -> int:
        """Returns the place behind the token that ends an answer; ``end`` if there is none."""
        ending = self._end_id
        return next((i + 1 for i in range(end - 1, begin - 1, -1) if tokens[i] == ending), end)

    def _check_marked(
        self,
        marked: set[int],
        turns: Sequence[int],
        spans: Sequence[tuple[int, int]],
        rendered_spans: Sequence[tuple[int, int]],
        whole: tuple[int, int] | None,
    ) -> None:
        """Compares with the tokens that ``{% generation %}`` marks.

        Args:
          marked: their places.
          spans: of the answers.
          rendered_spans: the same with what the template writes behind an answer.
          whole: the conversation, if each of its answers is in ``spans``.

        Raises:
          ChatTemplateError: it marks others.
        """
        for turn, (begin, end), (_, behind) in zip(turns, spans, rendered_spans, strict=True):
            if marked.isdisjoint(range(end, behind)):
                behind = end
            ours = set(range(begin, behind))
            if not ours <= marked:
                missing = min(ours - marked) - begin + 1
                raise ChatTemplateError(
                    self._file,
                    f"has {{% generation %}} around other tokens of message {turn + 1}: not around "
                    f"number {missing} of its {end - begin}",
                )
            marked = marked - ours
        if whole and marked:
            raise ChatTemplateError(
                self._file,
                f"has {{% generation %}} around token {min(marked) + 1} of {whole[1]}, which is of "
                "no answer",
            )

    @cached_property
    def _ending(self) -> list[int]:
        """The tokens that the template puts after an answer if nothing follows it."""
        return self._behind_answer((_BEFORE,), (), (), generation_prompt=False)

    def end_id(self) -> int | None:
        """Returns the special token with which the template ends an answer; None without one."""
        return self._end_id

    @cached_property
    def _end_id(self) -> int | None:
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
        tools: Sequence[Mapping[str, Any]] = (),
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
          tools: those that the conversation began with; see ``render``.

        Raises:
          ChatTemplateError: see ``render``; or the text that the template writes after an answer
            depends on earlier messages, such as one of the system.
        """
        self._check_independent(messages, tools)
        ending = self._ending
        follows = self._behind_answer((_BEFORE,), messages, tools, generation_prompt=True)
        place = next((i for i, token in enumerate(ending) if token in stop_ids), None)
        if place is None:  # the template ends an answer with plain text, such as a newline
            place = len(ending) - 1
            ended = self._text(after[-_LAST:]).endswith(self._text(ending))
        else:
            ended = len(after) > 0 and int(after[-1]) == ending[place]
        ended = ended and follows[: place + 1] == ending[: place + 1]
        return follows[place + 1 :] if ended else follows

    def _check_independent(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        """Checks that the next turn does not depend on earlier messages, once for equal roles."""
        roles = ("tools" if tools else "", *(str(message.get("role")) for message in messages))
        if roles in self._independent:
            return
        found = self._behind_answer((_BEFORE,), messages, tools, generation_prompt=True)
        for before in ((*_EARLIER, _BEFORE), (_SYSTEM, _BEFORE)):
            try:
                other = self._behind_answer(before, messages, tools, generation_prompt=True)
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
        self,
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        generation_prompt: bool,
    ) -> list[int]:
        """Returns the tokens after an answer to ``before``, if ``messages`` come next."""
        answer = {"role": "assistant", "content": _ANSWER}
        tokens = self.render([*before, answer, *messages], generation_prompt, tools)
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
