"""The files of a Hugging Face directory other than its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

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


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies a tokenizer's files and chat templates, and leaves other files in the target alone."""
    for name in _TOKENIZER:
        copy(source / name, target / name)
    for pattern in _TEMPLATES:
        for path in sorted(source.glob(pattern)):
            copy(path, target / path.relative_to(source))


def copy(source: Path, target: Path) -> None:
    """Copies a file if it exists; a link becomes a file."""
    if source.is_file():
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
