"""A model's tokenizer: text to tokens and back, and the tokens that end an answer.

It is that of ``transformers``, read from local files only. Importing this module does not import
the library: ``Tokenizer.load`` does, which takes a second and 60 MB, but neither torch nor JAX.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens import tokenizer_files
from rlax_plugin.base.tokens.chat import ChatTemplate
from rlax_plugin.base.tokens.library import LibraryError, library_errors
from rlax_plugin.base.tokens.rendering import DEFAULT_LIMITS, RenderLimits
from rlax_plugin.base.types.sampled import EMPTY

_WITH_STOP_IDS = ("config.json", "generation_config.json")
_LEAST_LONGEST = 16  # characters; toys have tokens of one, and published models of a hundred
_ANCHOR = "\n"  # what stands before a text that continues another


class TokenizerError(RlaxError, ValueError):
    """A text cannot be encoded."""


class Tokenizer:
    """The fast tokenizer of ``transformers`` in a directory. Any thread may use it.

    A text never becomes special tokens: ``<|im_end|>`` in it is encoded as ordinary characters.
    Only a chat template writes special tokens.

    Attributes:
      directory: directory of its files.
      size: the largest token id + 1, added tokens included.
      stop_ids: tokens that end an answer: the end tokens of the tokenizer, of ``config.json`` and
        of ``generation_config.json``, and the one with which the chat template ends an answer.
      bos_ids: tokens that the tokenizer itself puts in front of a text; often none.
      pad_id: token that pads rows; an end token if the tokenizer has no padding token.
    """

    def __init__(
        self,
        fast: Any,
        directory: Path,
        key: str,
        arguments: Mapping[str, Any] = EMPTY,
        limits: RenderLimits = DEFAULT_LIMITS,
    ):
        self._fast, self._backend = fast, fast.backend_tokenizer
        self._key, self.directory = key, directory
        # Encoding changes settings of the tokenizer, which must not be in use meanwhile.
        self._lock = threading.RLock()
        self._is_plain = _encodes_as_its_backend(fast)
        ids = fast.get_vocab().values()
        self.size = 1 + max(ids)
        # Some tokenizers have ids without a token below their largest id.
        self._ids = range(self.size) if len(ids) == self.size else frozenset(ids)
        self._stop_ids = [i for name in _WITH_STOP_IDS for i in _stop_ids_in(directory / name, key)]
        try:
            self.bos_ids = _put_in_front(fast)
        except LibraryError as error:
            reason = f"tokenizer.json has a broken post_processor: {error}"
            raise ConfigError(key, str(directory), reason) from error
        self.chat = ChatTemplate(fast, directory, arguments, limits)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        key: str,
        template_arguments: Mapping[str, Any] = EMPTY,
        limits: RenderLimits = DEFAULT_LIMITS,
    ) -> Tokenizer:
        """Reads the tokenizer's files.

        Args:
          directory: has ``tokenizer.json``, ``tokenizer_config.json`` and similar files.
          key: dotted config key that names the directory, for errors.
          template_arguments: variables that the chat template gets in addition to the messages,
            such as ``{"enable_thinking": False}``.
          limits: limits of the chat template.

        Raises:
          ConfigError: there is no such directory, or no fast tokenizer can be read from it. The
            message names the file and what is wrong with it.
        """
        found = Path(directory).expanduser()
        return cls(load_fast(found, key), found, key, template_arguments, limits)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        ids = [self._fast.eos_token_id, *self._stop_ids, self.answer_end]
        return tuple(dict.fromkeys(i for i in ids if i is not None))

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text; None if the tokenizer has none."""
        return self._fast.eos_token_id

    @cached_property
    def answer_end(self) -> int | None:
        """The token with which the chat template ends an answer; None if there is none."""
        return self.chat.end_id() if self.chat.exists else None

    def special_id(self, text: str) -> int | None:
        """Returns the special token that is written as a text; None if there is none."""
        added = self._fast.added_tokens_decoder.items()
        return next((i for i, one in added if one.special and one.content == text), None)

    def difference(self, other: Tokenizer) -> str | None:
        """Returns text on an id with different tokens in the two; None if they agree in all ids."""
        ours, theirs = (
            {i: token for token, i in one._fast.get_vocab().items()} for one in (self, other)
        )
        for i in sorted(ours.keys() | theirs.keys()):
            if ours.get(i) != theirs.get(i):
                return f"id {i} is {ours.get(i)!r} in one and {theirs.get(i)!r} in the other"
        return None

    @cached_property
    def longest_token(self) -> int:
        """The most characters of a text that one token stands for.

        It is the number of characters of the longest token, as the vocabulary spells it. There a
        byte, as of a byte-level vocabulary, has at least one character, and a character of a text
        has at least one byte. Special tokens do not count, because a text does not become them.
        Any number of spaces or unknown characters can become one token or none; the least that is
        returned, 16, leaves room for ordinary ones.
        """
        with self._lock:
            tokens = self._backend.get_vocab(with_added_tokens=False).keys()
            added = self._backend.get_added_tokens_decoder().values()
        texts = [*tokens, *(one.content for one in added if not one.special)]
        return max(_LEAST_LONGEST, *map(len, texts))

    @property
    def pad_id(self) -> int:
        pad = self._fast.pad_token_id
        return pad if pad is not None else (self.stop_ids or (0,))[0]

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text alone, without special tokens and without ``bos_ids``.

        Raises:
          TokenizerError: the tokenizer has neither tokens for the text nor one for unknown text.
        """
        try:
            with self._lock, library_errors():
                return self._fast.encode(text, add_special_tokens=False, split_special_tokens=True)
        except LibraryError as error:
            raise TokenizerError(
                f"the tokenizer in {self.directory} cannot encode {text!r:.80}: {error}"
            ) from error

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns ``encode`` of many texts, computed in parallel.

        Raises:
          TokenizerError: one of them cannot be encoded; it does not say which.
        """
        backend = self._backend
        try:
            with self._lock, library_errors():
                if not self._is_plain:  # it does more than its backend
                    found = self._fast(
                        list(texts), add_special_tokens=False, split_special_tokens=True
                    )
                    return found["input_ids"]
                # What ``transformers`` does, without offsets and masks: in half the time.
                backend.no_truncation()
                backend.no_padding()
                backend.encode_special_tokens = True
                encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except LibraryError as error:
            reason = f"cannot encode one of {len(texts)} texts: {error}"
            raise TokenizerError(f"the tokenizer in {self.directory} {reason}") from error
        return [one.ids for one in encodings]

    def encode_behind(self, text: str) -> list[int]:
        """Returns the tokens of a text that continues another, without an added leading space."""
        try:
            anchor = self.encode(_ANCHOR)
        except TokenizerError:  # a small alphabet, which no such space is in either
            return self.encode(text)
        both = self.encode(_ANCHOR + text)
        return both[len(anchor) :] if both[: len(anchor)] == anchor else self.encode(text)

    def decode(self, tokens: Sequence[int] | np.ndarray, special: bool = False) -> str:
        """Returns the text of tokens; special tokens are omitted unless ``special`` is True.

        Bytes that are not UTF-8, such as a part of a character, and ids without a token become
        U+FFFD.

        Raises:
          TokenizerError: the tokenizer's decoder is broken.
        """
        ids = np.asarray(tokens).tolist()
        whole = isinstance(self._ids, range)
        if not ids or (whole and min(ids) >= 0 and max(ids) < self.size):  # nearly always
            return self._decoded(ids, special)
        runs = itertools.groupby(ids, key=self._ids.__contains__)
        return "".join(
            self._decoded(list(run), special) if known else "\ufffd" * len(list(run))
            for known, run in runs
        )

    def _decoded(self, ids: list[int], special: bool) -> str:
        try:
            with self._lock, library_errors():
                return self._backend.decode(ids, skip_special_tokens=not special)
        except LibraryError as error:
            raise TokenizerError(
                f"the tokenizer in {self.directory} cannot decode {len(ids)} tokens: {error}"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """See ``ChatTemplate.render``."""
        return self.chat.render(messages, generation_prompt, tools)

    def next_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        after: Sequence[int] | np.ndarray,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """See ``ChatTemplate.next_turn``."""
        return self.chat.next_turn(messages, after, self.stop_ids, tools)


def load_fast(directory: Path, key: str) -> Any:
    """Reads a fast tokenizer of ``transformers``; see ``Tokenizer.load``.

    Raises:
      ConfigError: the directory has no fast tokenizer.
    """
    if not directory.is_dir():
        reason = "must be a local directory with a tokenizer's files, such as tokenizer.json"
        raise ConfigError(key, str(directory), reason)
    # Importing transformers prints advice about torch otherwise.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        contents = tokenizer_files.read(directory)
        fast = _of_library(directory, contents)
        if not fast.is_fast:
            raise tokenizer_files.FilesError(
                f"has a {type(fast).__name__}, and must have a fast tokenizer (tokenizer.json)"
            )
        tokenizer_files.check_ids(fast.get_vocab(), contents)
    except tokenizer_files.FilesError as error:
        raise ConfigError(key, str(directory), str(error)) from error
    return fast


def _of_library(directory: Path, contents: tokenizer_files.Contents) -> Any:
    """Loads a tokenizer's files with ``transformers``.

    Raises:
      FilesError: it cannot read them.
    """
    from transformers import AutoTokenizer

    try:
        with library_errors():
            return AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=False
            )
    except LibraryError as error:
        raise tokenizer_files.FilesError(
            tokenizer_files.reason_of(error, directory, contents)
        ) from error


def _put_in_front(fast: Any) -> tuple[int, ...]:
    """Returns the tokens that a tokenizer itself puts in front of a text.

    Raises:
      LibraryError: it cannot put anything there.
    """
    try:
        with library_errors():
            plain = fast.encode("a", add_special_tokens=False)
    except LibraryError:  # such an alphabet is not that of a text; ``encode`` says so
        return ()
    with library_errors():
        whole = fast.encode("a")
    start = next((i for i in range(len(whole)) if whole[i:][: len(plain)] == plain), 0)
    return tuple(whole[:start])


def _encodes_as_its_backend(fast: Any) -> bool:
    """True if no subclass has changed the encoding of texts."""
    from transformers import PreTrainedTokenizerFast

    names = ("__call__", "_encode_plus", "_call_one", "prepare_for_tokenization")
    found, usual = type(fast), PreTrainedTokenizerFast
    return all(getattr(found, name, None) is getattr(usual, name, None) for name in names)


def _stop_ids_in(file: Path, key: str) -> list[int]:
    """Returns the ``eos_token_id`` in a file of the model, as a list; [] if there is no file."""
    try:
        found = json.loads(file.read_bytes())
        ids = found.get("eos_token_id")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        reason = f"{file.name} cannot be read: {one_line(str(error))}"
        raise ConfigError(key, str(file.parent), reason) from None
    ids = ids if isinstance(ids, list) else [ids]
    if not all(i is None or (type(i) is int and 0 <= i < 1 << 31) for i in ids):
        reason = f"{file.name} has eos_token_id {ids!r:.80}, and must have token ids there"
        raise ConfigError(key, str(file.parent), reason)
    return [i for i in ids if i is not None]
