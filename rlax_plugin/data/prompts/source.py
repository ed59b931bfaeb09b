"""Base class of all prompt sources over a dataset; a subclass provides the rows.

Another process prepares a dataset once (``reading_process``); what was prepared before is found
again by a hash of everything that decides it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlax_plugin.base.errors import ConfigError, DeadlineError, RlaxError, alternatives
from rlax_plugin.base.files.private import check_private, make_private
from rlax_plugin.base.processes.asked import AskedProcess, EndedError, with_this_path
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens import tokenizer_files
from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.config.user_directories import cache_home
from rlax_plugin.data.prompts.config import KEY, MANIFEST, TRAIN, DatasetConfig
from rlax_plugin.data.prompts.conversations import Turns, check_options
from rlax_plugin.data.prompts.prompt_files import identify
from rlax_plugin.data.prompts.row_columns import BrokenRow
from rlax_plugin.data.prompts.table import PromptTable, Skipped
from rlax_plugin.data.prompts.text_source import TextSource, model_tokenizer

if TYPE_CHECKING:
    from rlax_plugin.ports.protocols import BuildContext, PromptSource


_FORMAT = 3  # of what is prepared: another number, and it is prepared anew
_UNUSED_S = 30 * 86_400  # after which what was prepared is removed
_END_S = 10.0  # until a process that says nothing more has ended
_EXAMPLE = "Hello"  # a text to complete
Progress = Callable[[str, int], None]
"""Called with the name of the data being read, and the number of rows read so far."""


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
      fills_with_null: True if a table gives all rows the same keys, also inside a message, such as
        the arguments of all tools in each call: then a key of a demonstration whose value is null
        is taken as missing.
      turns: the answers that train, if the rows are demonstrations; None: they are prompts.

    Raises:
      ConfigError: the tokenizer has no chat template, and the config wants a chat.
    """

    config: Any
    fills_with_null = False
    turns: Turns | None = None

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

    def of_demonstrations(self, turns: Turns, longest: int) -> Self:
        """This source with its rows read as demonstrations, whole conversations to train on.

        A row has ``messages``, or ``prompt`` and ``completion``; ``PromptTable.spans_at`` says
        which tokens train.

        Args:
          turns: the answers that train.
          longest: tokens of the longest demonstration; longer ones are left out and counted.

        Raises:
          ConfigError: the config has an option that only prompts have.
        """
        check_options(self.config)
        other = copy.copy(self)
        other.turns, other.max_tokens = turns, longest
        other._tables, other._lock = None, threading.Lock()
        return other

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


def cache_directory() -> Path:
    """The directory of prepared prompts, which can be deleted at any time.

    Raises:
      ConfigError: this user has no directory for it.
    """
    return cache_home() / "rlax" / "prompts"


def tables_of(
    source: DatasetSource, *, deadline_s: float, progress: Progress
) -> dict[str, PromptTable]:
    """The tables of all splits of a source, prepared if they do not exist yet.

    Args:
      deadline_s: ``rlax.deadlines.prompts_s``.

    Raises:
      ConfigError: the data cannot be used, or other users could change the prepared files.
      DeadlineError: preparing made no progress for ``deadline_s``.
      RlaxError: preparing failed, or its result cannot be written.
    """
    asked = _request(source)
    found = cache_directory() / _key(asked)
    _check_private(found.parent)
    tables = open_tables(found, source)
    if tables is not None:
        return tables
    try:
        shutil.rmtree(found, ignore_errors=True)  # it cannot be opened
        make_private(found.parent)
        _check_private(found.parent)  # another user may just have made it
        with tempfile.TemporaryDirectory(prefix=".", dir=found.parent) as beside:
            filled = Path(beside, "filled")
            filled.mkdir()
            limits = dataclasses.asdict(source.tokenizer.chat.limits)
            told = {**asked, "directory": str(filled), "template_limits": limits}
            _ask(told, deadline_s, progress)
            _remove_unused(found.parent)
            if not found.exists():  # else another process was faster
                filled.rename(found)
            tables = open_tables(found, source)
    except OSError as error:
        raise RlaxError(f"prompts cannot be prepared in {found.parent}: {error}") from error
    if tables is None:
        raise RlaxError(f"prompts that were prepared in {found} cannot be opened")
    return tables


def _check_private(cache: Path) -> None:
    check_private("XDG_CACHE_HOME", str(cache.parents[1]), cache)


def _name_of(one: type) -> str:
    """Name under which the other process finds a class.

    Raises:
      RlaxError: the other process cannot find it.
    """
    name = f"{one.__module__}:{one.__qualname__}"
    if one.__module__ == "__main__" or getattr(sys.modules[one.__module__], one.__name__, 0) != one:
        raise RlaxError(f"{name} must be at the top of a module that can be imported")
    return name


def _request(source: DatasetSource) -> dict[str, Any]:
    """The input of the other process: everything that decides the tables."""
    tokenizer = source.tokenizer
    return {
        "source": _name_of(type(source)),
        "config_class": _name_of(type(source.config)),
        "config": source.config.model_dump(mode="json"),
        "tokenizer": {
            "directory": str(tokenizer.directory),
            "digest": tokenizer_files.digest(tokenizer.directory),
            "key": "tokenizer_path",
            "arguments": dict(source.config.template_arguments),
        },
        "max_tokens": source.max_tokens,
        "turns": source.turns,
        "identity": source.identity(),
    }


def _key(asked: Mapping[str, Any]) -> str:
    versions = {name: importlib.metadata.version(name) for name in ("tokenizers", "transformers")}
    text = json.dumps([_FORMAT, versions, asked], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def open_tables(directory: Path, source: DatasetSource) -> dict[str, PromptTable] | None:
    """The prepared tables; None if there are none, or they are damaged."""
    try:
        document = json.loads((directory / MANIFEST).read_bytes())
        os.utime(directory)
        return {
            split: PromptTable.open(
                directory / f"{split}.arrow",
                known,
                _weights(source, known["domains"]) if split == TRAIN else {},
                {
                    reason: Skipped(one["count"], [(p, w) for p, w in one["examples"]])
                    for reason, one in known["skipped"].items()
                },
            )
            for split, known in document["splits"].items()
        }
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _weights(source: DatasetSource, domains: list[str]) -> Mapping[str, float]:
    weights = source.config.weights
    if weights and (unlike := set(weights).symmetric_difference(domains)):
        raise ConfigError(
            f"{KEY}.weights",
            dict(weights),
            f"must name each domain of the training prompts, and no other; differs in "
            f"{', '.join(sorted(map(repr, unlike))[:5])}",
        )
    return weights


def _remove_unused(directory: Path) -> None:
    """Removes tables that were not opened for a long time, and the remains of killed processes."""
    for one in directory.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - one.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(one)


def _ask(asked: Mapping[str, Any], deadline_s: float, progress: Progress) -> None:
    """Runs the other process until it is done.

    Raises:
      DeadlineError: no row was read for ``deadline_s``.
    """
    process = AskedProcess(
        "rlax_plugin.data.prompts.reading_process",
        environment={
            **with_this_path(),
            "PYTHONHASHSEED": "0",  # some generators of tasks go through sets
        },
        keeps_log=True,
        leads_session=True,  # a Ctrl-C is for this process to handle
    )
    try:
        process.send(json.dumps(asked).encode() + b"\n")
        while True:
            line = json.loads(process.receive(deadline_s))
            if "rows" in line:
                progress(f"reading {one_line(str(line['split']), 64)}", int(line["rows"]))
            elif "reason" in line:
                raise ConfigError(line["key"], line["value"], line["reason"])
            elif "error" in line:
                raise RlaxError(f"prompts cannot be prepared: {line['error']}")
            else:
                return
    except TimeoutError:
        what = "preparing prompts without reading another row"
        raise DeadlineError(what, deadline_s, "rlax.deadlines.prompts_s") from None
    except EndedError:  # its log says why
        ending = process.ending(_END_S)
        raise RlaxError(
            f"the process that prepares prompts ended with status {ending.status}: "
            f"{ending.said or 'it said nothing'}"
        ) from None
    finally:
        process.close()


def example_prompt(source: PromptSource) -> str | list[int]:
    """A prompt to try a server with: a text if the source encodes texts, otherwise token ids.

    A dataset is not read, because a worker may not have it.
    """
    text, ids = _EXAMPLE, []
    if not isinstance(source, DatasetSource):
        prompt = source.prompts("train")[0]
        text, ids = prompt.text, prompt.tokens.tolist()
    try:
        source.encode(text)
    except ValueError:  # it encodes no texts
        return ids
    return text
