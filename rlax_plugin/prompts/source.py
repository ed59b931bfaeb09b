"""Base class of all prompt sources over a dataset; a subclass provides the rows."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rlax_plugin.errors import ConfigError, alternatives
from rlax_plugin.prompts.config import KEY, DatasetConfig
from rlax_plugin.prompts.files import identify
from rlax_plugin.prompts.prepared_cache import Progress, tables_of
from rlax_plugin.prompts.row_columns import BrokenRow
from rlax_plugin.prompts.table import PromptTable
from rlax_plugin.prompts.text_source import TextSource, model_tokenizer
from rlax_plugin.tokens.chat import Message
from rlax_plugin.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rlax_plugin.ports.protocols import BuildContext


def _no_progress(what: str, rows: int) -> None:
    pass


class DatasetSource(TextSource):
    """A prompt source whose rows are read once, by a process of its own, and kept as columns.

    A subclass must be at the top level of a module and has ``rows``, and ``files`` if it reads
    files. The reading process makes a second instance with the same arguments; the trainer's
    process neither calls ``rows`` nor imports the modules that it needs.

    Args:
      config: an object of the subclass's config class.
      max_tokens: longer prompts are left out.
      deadline_s: maximum time without progress while reading.
      progress: called with the progress of reading.

    Attributes:
      prepare: makes the tables of all splits, once.

    Raises:
      ConfigError: the tokenizer has no chat template, and the config wants a chat.
    """

    config: Any

    def __init__(
        self,
        config: DatasetConfig,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        deadline_s: float = 120.0,
        progress: Progress = _no_progress,
    ):
        self.chat = tokenizer.chat.exists if config.chat is None else config.chat
        if self.chat and not tokenizer.chat.exists:
            reason = f"must be false: the tokenizer in {tokenizer.directory} has no chat template"
            raise ConfigError(f"{KEY}.chat", True, reason)
        if config.system and not self.chat:
            raise ConfigError(f"{KEY}.system", config.system, "needs a chat, and this is none")
        super().__init__(
            tokenizer, chat=self.chat, system=config.system, stop_strings=config.stop_strings
        )
        self.config, self.splits = config, config.all_splits
        self.max_tokens = config.max_tokens or max_tokens
        self.prepare: Callable[[DatasetSource], dict[str, PromptTable]] = functools.partial(
            tables_of, deadline_s=deadline_s, progress=progress
        )
        self._tables: dict[str, PromptTable] | None = None
        self._lock = threading.Lock()

    @classmethod
    def build(cls, config: DatasetConfig, context: BuildContext) -> Self:
        """For ``Extension``: reads the model's tokenizer, but not the dataset.

        Raises:
          ConfigError: there is no tokenizer, see ``model_tokenizer``; or see the class.
        """
        section = context.section
        limit = section.rollouts.max_prompt_tokens
        if config.max_tokens is not None and config.max_tokens > limit:
            reason = f"must not exceed rlax.rollouts.max_prompt_tokens = {limit}"
            raise ConfigError(f"{KEY}.max_tokens", config.max_tokens, reason)
        return cls(
            config,
            model_tokenizer(context, config.template_arguments, config.tokenizer),
            max_tokens=limit,
            deadline_s=section.deadlines.prompts_s,
            progress=context.progress,
        )

    def rows(self, split: str) -> Iterator[tuple[str, Mapping[str, Any] | BrokenRow]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The rows of a split of ``config.read_splits``, in a fixed order.

        Yields the location of each row, such as ``train.jsonl, line 17``, for messages, and its
        columns, or its defect.
        """
        raise NotImplementedError

    def files(self, split: str) -> Sequence[str]:
        """Paths or URLs of the files that ``rows`` reads; () if it reads no files directly.

        If one of them changes, the dataset is prepared again.
        """
        return ()

    def version(self) -> str:
        """Other dependencies of the rows, such as the version of a library."""
        return ""

    def identity(self) -> dict[str, Any]:
        """The files of each split, with size and time of the last change; and ``version``."""
        key = f"{KEY}.splits"
        return {
            "files": {
                split: [identify(path, key) for path in self.files(split)]
                for split in self.config.read_splits
            },
            "version": self.version(),
        }

    def prompts(self, split: str) -> PromptTable:
        """See ``PromptSource``; the first call may take as long as reading all data.

        Raises:
          ConfigError: there is no such split, it is empty, or the data cannot be used.
          RlaxError: preparing failed.
        """
        if split not in self.splits:
            known = alternatives(split, self.splits)
            reason = f"no such split; {known}; splits and held_out make others"
            raise ConfigError(f"split of {KEY}", split, reason)
        with self._lock:
            if self._tables is None:
                self._tables = self.prepare(self)
        found = self._tables[split]
        if not len(found):
            raise ConfigError(f"{KEY}.splits", None, self._emptiness(split, found))
        return found

    def _emptiness(self, split: str, found: PromptTable) -> str:
        if split in self.config.held_out:
            return f"split {split!r} has no prompts: raise its share in held_out"
        if not found.skipped:
            return f"split {split!r} has no prompts: the data set is empty"
        why = (f"{one.count:,} {reason}" for reason, one in found.skipped.items())
        place, what = next(iter(found.skipped.values())).examples[0]
        return f"split {split!r} has no prompts left: {', '.join(why)}, such as {place}: {what}"

    def encode_all(
        self, questions: Sequence[str | Sequence[Message]], *, alone: bool = False
    ) -> list[list[int]]:
        """Tokens of prompts.

        Args:
          alone: True to encode one by one, each within the deadline of the chat template.

        Raises:
          RlaxError, ValueError: one of them cannot be encoded.
        """
        if self.chat:
            conversations = [self._messages(question) for question in questions]
            if alone:
                return [self.tokenizer.render(one) for one in conversations]
            return self.tokenizer.chat.render_all(conversations)
        texts = [question for question in questions if isinstance(question, str)]
        bos_ids = self.tokenizer.bos_ids
        encoded = self.tokenizer.encode_all(texts)
        return [[*bos_ids, *tokens] for tokens in encoded] if bos_ids else encoded
