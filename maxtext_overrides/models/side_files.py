"""The files of a Hugging Face directory other than its weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.tokens.tokenizer_files import FilesError, check_places

CONFIG, GENERATION = "config.json", "generation_config.json"
_TOKENIZER = (
    "added_tokens.json",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_TEMPLATES = ("*.jinja", "additional_chat_templates/*.jinja")
_WITH_WORDS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def has_tokenizer(directory: Path) -> bool:
    """True if a directory has a file with a tokenizer's vocabulary."""
    return any((directory / name).is_file() for name in _WITH_WORDS)


def check(directory: Path, key: str) -> None:
    """Checks that the files to copy are files of this directory, and not links that leave it.

    Raises:
      ConfigError: one is not; names ``key``, the file, and where it leads.
    """
    try:
        check_places(directory, [directory / CONFIG, directory / GENERATION, *_files(directory)])
    except FilesError as error:
        raise ConfigError(key, str(directory), str(error)) from None


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies a tokenizer's files and chat templates, and leaves other files in the target alone."""
    for path in _files(source):
        copy(path, target / path.relative_to(source))


def _files(directory: Path) -> Iterator[Path]:
    yield from (directory / name for name in _TOKENIZER)
    for pattern in _TEMPLATES:
        yield from sorted(directory.glob(pattern))


def copy(source: Path, target: Path) -> None:
    """Copies a file if it exists; a link becomes a file."""
    if source.is_file():
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
