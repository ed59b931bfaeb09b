"""Checks the files of a tokenizer before and after ``transformers`` reads them.

Before, for what the library would accept although it does harm; what it rejects itself is reported
with the names of the files. After, for ids that it has changed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.growth import growth_faults, growth_faults_of_model
from rlax_plugin.base.tokens.library import LibraryError, library_errors

_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_OBJECTS = (
    _TOKENIZER,
    _CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "vocab.json",
    "config.json",
    "generation_config.json",
)
# The library reads other names too: which, depends on the class of the tokenizer.
_KINDS = (".jinja", ".json", ".model", ".spm", ".tiktoken", ".txt")
_INDEX = ".index.json"  # of weights, which may be links
_PAPERS = re.compile("license|notice|readme|trainer_state", re.IGNORECASE)  # of no tokenizer
_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # the name of a file in the cache of the hub
_WITH_WORDS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
_HASHED = (
    *_WITH_WORDS,
    "tokenizer_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "config.json",  # which names the tokenizer's class where no other file does
    "*.spm",
    "*.jinja",
)
_LARGEST = 256 << 20  # bytes of a file; Gemma 3's tokenizer.json has 33 MB
_COUNTS = ("extra_ids", "num_madeup_words")  # so many tokens the library makes by itself
_MOST_TOKENS = 1 << 20
_SHOWN = 60  # characters of a token in a message


class FilesError(ValueError):
    """A file of a tokenizer is damaged; the message begins with its name."""


Contents = Mapping[str, Mapping[str, Any]]
"""Name of a JSON file -> its content."""


def read(directory: Path) -> Contents:
    """Reads the JSON files that exist, and checks their contents.

    Raises:
      FilesError: there is no file of a tokenizer, or one cannot be read or has content that no
        tokenizer has.
    """
    if not any(found for pattern in _WITH_WORDS for found in directory.glob(pattern)):
        raise FilesError(
            "has no tokenizer.json, and no other file of a tokenizer, such as tokenizer.model"
        )
    check_places(directory, _paths(directory))
    found = {name: _object(directory / name) for name in _OBJECTS if (directory / name).is_file()}
    for path in (*directory.glob("*.model"), *directory.glob("*.spm")):
        if (fault := next(growth_faults_of_model(_bytes(path)), None)) is not None:
            raise FilesError(f"{path.name} {fault}")
    for name, check in ((_TOKENIZER, _tokenizer_faults), (_CONFIG, _config_faults)):
        if name in found and (fault := next(check(found[name]), None)) is not None:
            raise FilesError(f"{name} {fault}")
    return found


def digest(directory: Path) -> str:
    """Returns a hash of the names and bytes of a tokenizer's files.

    Raises:
      RlaxError: one cannot be read, or is too large.
    """
    whole = hashlib.blake2b(digest_size=16)
    try:
        for path in sorted(path for path in _paths(directory) if _is_hashed(path)):
            content = _bytes(path)
            name = os.fsencode(path.relative_to(directory))
            whole.update(b"%s\0%d\0%s" % (name, len(content), content))
    except FilesError as error:
        raise RlaxError(f"{directory}: {error}") from None
    except OSError as error:
        raise RlaxError(f"{directory} cannot be read: {one_line(str(error))}") from error
    return whole.hexdigest()


def _is_hashed(path: Path) -> bool:
    """True if it is a tokenizer's by its name, and not data or weights beside it."""
    return any(fnmatch.fnmatchcase(path.name, one) for one in _HASHED) and path.is_file()


def _paths(directory: Path) -> list[Path]:
    return [*directory.iterdir(), *directory.glob("additional_chat_templates/*")]


def check_places(directory: Path, paths: Iterable[Path]) -> None:
    """Checks that files of a model's directory may be read; a model may have been made by anyone.

    A link may lead to any file of this machine, whose content would then be in prompts, in records
    and in what is exported.

    Args:
      directory: the directory, which may be a link itself.
      paths: files in it, which need not exist; those that no tokenizer is read from are ignored.

    Raises:
      FilesError: one leads out of the directory, or is no file.
    """
    home = os.path.realpath(directory)
    # In the cache of the Hugging Face hub, snapshots/REVISION/tokenizer.json leads to blobs/HASH;
    # blobs may be a link to a larger disk.
    caches = [one.parent / "blobs" for one in Path(home).parents if one.name == "snapshots"][:1]
    for path in sorted(paths):
        name = path.relative_to(directory)
        if path.suffix not in _KINDS or path.name.endswith(_INDEX) or _PAPERS.match(path.name):
            continue
        if path.is_dir() or not path.exists():  # the library reads neither
            continue
        target = Path(os.path.realpath(path))
        is_blob = _HASH.fullmatch(target.name) and any(
            target.parent == Path(os.path.realpath(one)) for one in caches
        )
        if not (is_blob or target.is_relative_to(home)):
            raise FilesError(
                f"{name} is a link to {one_line(repr(str(target)))}, outside this directory: put "
                "a copy of that file in its place, if it belongs to the model"
            )
        if not path.is_file():  # reading a pipe would wait for ever
            raise FilesError(f"{name} is no file")


def reason_of(error: LibraryError, directory: Path, contents: Contents) -> str:
    """Returns the reason why the library failed, and the file that caused it if it can be found."""
    if _TOKENIZER in contents:
        from tokenizers import Tokenizer

        try:
            with library_errors():
                Tokenizer.from_file(str(directory / _TOKENIZER))
        except LibraryError as alone:
            return f"{_TOKENIZER} is no tokenizer: {alone}"
        if "added_tokens" not in contents[_TOKENIZER]:
            return f"{_TOKENIZER} has no added_tokens, which must be a list"
    beside = [name for name in contents if name not in (_TOKENIZER, "config.json")]
    return f"no tokenizer can be read from {', '.join(beside) or 'these files'}: {error}"


def check_ids(vocabulary: Mapping[str, int], contents: Contents) -> None:
    """Compares the ids of the loaded tokens with those in the files.

    The library gives an added token the next free id and ignores the id in the file.

    Args:
      vocabulary: token -> id, as it was loaded.
      contents: see ``read``.

    Raises:
      FilesError: an id has two tokens, or a token has another id than a file says.
    """
    file = _TOKENIZER if _TOKENIZER in contents else "the vocabulary"
    if not vocabulary:
        raise FilesError(f"{file} has no tokens")
    tokens: dict[int, str] = {}
    for token, number in vocabulary.items():
        if tokens.setdefault(number, token) != token:
            both = f"{_shown(tokens[number])} and {_shown(token)}"
            raise FilesError(f"{file} gives the id {number} to two tokens, {both}")
    added = contents.get(_TOKENIZER, {}).get("added_tokens") or []
    decoder = contents.get(_CONFIG, {}).get("added_tokens_decoder") or {}
    try:
        said = [(_TOKENIZER, entry["content"], entry["id"]) for entry in added]
        said += [(_CONFIG, entry["content"], int(number)) for number, entry in decoder.items()]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FilesError(
            f"{_TOKENIZER} or {_CONFIG} has added tokens without id or content: {error}"
        ) from None
    for name, token, number in said:
        if (has := vocabulary.get(token)) != number:
            raise FilesError(
                f"{name} says that the token {_shown(token)} has the id {number}, and it "
                + ("is not in the tokenizer" if has is None else f"gets the id {has}")
            )


def _object(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(_bytes(path))
    except FilesError:
        raise
    except (ValueError, RecursionError) as error:
        raise FilesError(f"{path.name} cannot be read: {one_line(str(error))}") from None
    if not isinstance(found, dict):
        raise FilesError(f"{path.name} must hold a JSON object, not a {type(found).__name__}")
    return found


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            raise FilesError(f"{path.name} has more than {_LARGEST >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise FilesError(f"{path.name} cannot be read: {one_line(str(error))}") from None


def _tokenizer_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the faults in the content of tokenizer.json that the library would accept."""
    model = content.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        yield (
            f"has the model.dropout {model['dropout']!r:.40}, which must be null: a text would "
            "have other tokens each time"
        )
    yield from growth_faults(content)


def _config_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the faults in the content of tokenizer_config.json that the library would accept."""
    if content.get("fast_tokenizer_files"):
        yield "has fast_tokenizer_files, which must not replace tokenizer.json: remove the key"
    # The library keeps any value, and fails with it at each text.
    longest = content.get("model_max_length")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int | float)):
        yield f"has the model_max_length {longest!r:.40}, which must be a number"
    for key in _COUNTS:
        if isinstance(count := content.get(key, 0), int) and count > _MOST_TOKENS:
            yield f"has the {key} {count!r:.40}, which must be at most {_MOST_TOKENS}"


def _shown(token: str) -> str:
    return one_line(repr(token), _SHOWN)
