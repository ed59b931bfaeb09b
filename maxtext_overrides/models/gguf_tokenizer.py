"""Builds Hugging Face tokenizer files from the tokenizer in the header of a GGUF file.

A byte-level tokenizer is built here from its tokens and merges. The header names the way in which
text is split before the merges, and ``transformers`` knows the regular expressions of these names.
SentencePiece tokenizers are built by ``transformers``. Its builder is not used for byte-level ones:
it adds a token of GPT-2's to them, and treats an unknown name as GPT-2's way of splitting.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maxtext_overrides.models.gguf_file import GgufFile
from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.library import LibraryError, library_errors

_KINDS = ("gpt2", "llama")  # byte-level BPE, SentencePiece's BPE
_GPT2 = ("gpt-2", "gpt2", "default", "phi-2")
_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")  # then as GPT-2 splits
# A word that is a token is not put together by merges; a text begins with the first token.
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_MOST_TOKENS = 1 << 21
_LONGEST_NAME = 64  # characters of one, in a message
_LISTS = {
    "tokens": (str, "texts"),
    "scores": (float, "numbers with a fraction"),
    "token_type": (int, "whole numbers"),
    "merges": (str, "texts"),
}


def special_ids(file: GgufFile) -> dict[str, int]:
    """Returns the special tokens for config.json and generation_config.json."""
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: file.value(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {name: value for name, value in found.items() if type(value) is int}


def write(file: GgufFile, tokenizer: Any, directory: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json, the chat template and generation_config.json.

    Args:
      file: the GGUF file.
      tokenizer: returned by ``build``.
      directory: the target.
    """
    tokenizer.save_pretrained(directory)
    config = directory / "tokenizer_config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    # The name that versions of transformers before 5 know as well.
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    generation = json.dumps(special_ids(file), indent=2) + "\n"
    (directory / "generation_config.json").write_text(generation, encoding="utf-8")


def build(file: GgufFile) -> Any:
    """Returns a ``transformers.PreTrainedTokenizerFast`` that encodes as the file describes.

    Raises:
      ConfigError: the file has no tokenizer, or a broken or unsupported one.
    """
    from transformers import PreTrainedTokenizerFast

    header = _header(file)
    kind, split = str(header["tokenizer_type"]), str(header["pre_tokenizer_type"])
    if kind not in _KINDS:
        reason = f"{alternatives(one_line(kind, _LONGEST_NAME), _KINDS)} (tokenizers of GGUF files)"
        raise ConfigError(f"tokenizer.ggml.model in {file.where}", kind, reason)
    before = _splitter(file, split) if kind == "gpt2" else None
    tokens = header["tokens"]
    special = {
        name: tokens[index]
        for name, key in _SPECIAL.items()
        if (index := _special_id(file, key, len(tokens))) is not None
    }
    begins = kind == "llama" or split in _WHOLE_WORDS
    begins = file.value("tokenizer.ggml.add_bos_token", begins) and "bos_token" in special
    template = file.value("tokenizer.chat_template")
    try:
        with library_errors():
            backend = _byte_level(header, before) if kind == "gpt2" else _sentencepiece(header)
            if begins:
                backend.post_processor = _beginning(special["bos_token"], tokens)
            return PreTrainedTokenizerFast(
                tokenizer_object=backend,
                clean_up_tokenization_spaces=False,
                **special,
                **({"chat_template": template} if isinstance(template, str) else {}),
            )
    except LibraryError as error:
        reason = f"has a broken tokenizer: {error}"
        raise ConfigError("SOURCE", file.where, reason) from error


def _beginning(bos: str, tokens: Sequence[str]) -> Any:
    """Returns a post-processor that puts the first token in front of a text."""
    from tokenizers import processors

    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
    )


def _special_id(file: GgufFile, key: str, count: int) -> int | None:
    """Returns the id of a special token; None if the file has no such token.

    Raises:
      ConfigError: no token has this id.
    """
    name = f"tokenizer.ggml.{key}"
    if (found := file.value(name)) is None:
        return None
    if type(found) is not int or not 0 <= found < count:
        raise ConfigError(f"{name} in {file.where}", found, f"must be one of the {count} tokens")
    return found


def _header(file: GgufFile) -> Mapping[str, Any]:
    """Returns the parts a tokenizer is built from, under the names that ``transformers`` uses."""
    names = {
        "tokenizer_type": "model",
        "tokens": "tokens",
        "scores": "scores",
        "token_type": "token_type",
        "merges": "merges",
        "unk_token_id": "unknown_token_id",
        "add_prefix_space": "add_space_prefix",
    }
    found = {name: file.value(f"tokenizer.ggml.{key}") for name, key in names.items()}
    for name, (kind, what) in _LISTS.items():
        if name != "tokens" and found[name] is None:
            continue
        if not isinstance(found[name], list) or not all(type(one) is kind for one in found[name]):
            key = f"tokenizer.ggml.{name} in {file.where}"
            raise ConfigError(key, None, f"must be a list of {what}")
    tokens, key = found["tokens"], f"tokenizer.ggml.tokens in {file.where}"
    if not 0 < len(tokens) <= _MOST_TOKENS:
        raise ConfigError(key, None, f"must list 1 to {_MOST_TOKENS} tokens, not {len(tokens)}")
    if len(set(tokens)) != len(tokens):
        twice = next(token for token, count in Counter(tokens).items() if count > 1)
        reason = f"has a token twice, {one_line(repr(twice), _LONGEST_NAME)}"
        raise ConfigError(key, None, reason)
    for name in ("scores", "token_type"):
        if found[name] is not None and len(found[name]) != len(tokens):
            reason = f"has {len(found[name])} entries, and there are {len(tokens)} tokens"
            raise ConfigError(f"tokenizer.ggml.{name} in {file.where}", None, reason)
    if found["merges"] is None and found["tokenizer_type"] == "gpt2":
        raise ConfigError(f"tokenizer.ggml.merges in {file.where}", None, "is missing")
    split = file.value("tokenizer.ggml.pre", "default")
    return {
        "tokenizer_type": None,
        "pre_tokenizer_type": split,
        **{name: value for name, value in found.items() if value is not None},
    }


def _splitter(file: GgufFile, name: str) -> Any:
    """Returns the pre-tokenizer that splits a text before the merges.

    Raises:
      ConfigError: the name is not known.
    """
    from tokenizers import Regex, pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if name in _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _DIGITS:
        first = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name in GGUF_PRE_TOKENIZER_SPLITS:
        first = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated")
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([first, rest])
    known = (*_GPT2, *_DIGITS, *GGUF_PRE_TOKENIZER_SPLITS)
    reason = alternatives(one_line(name, _LONGEST_NAME), known)
    raise ConfigError(f"tokenizer.ggml.pre in {file.where}", name, reason)


def _sentencepiece(header: Mapping[str, Any]) -> Any:
    from tokenizers import normalizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    backend, _ = convert_gguf_tokenizer("llama", header)
    # SentencePiece puts its space in front of a text that begins with one, too.
    prepended = [normalizers.Prepend("\u2581")] if header.get("add_prefix_space", True) else []
    backend.normalizer = normalizers.Sequence([*prepended, normalizers.Replace(" ", "\u2581")])
    backend.pre_tokenizer = None
    return backend


def _byte_level(header: Mapping[str, Any], splitter: Any) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    split = header["pre_tokenizer_type"]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(header["tokens"])},
        merges=[tuple(merge.split(" ")) for merge in header["merges"]],
        ignore_merges=split in _WHOLE_WORDS,
    )
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = splitter, decoders.ByteLevel()
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    for token, kind in zip(header["tokens"], header.get("token_type", ()), strict=False):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False, special=False)])
    return backend
