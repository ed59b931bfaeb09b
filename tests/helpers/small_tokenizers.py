"""Small tokenizers with a chat template, as directories that ``Tokenizer.load`` reads."""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

START, END, TEXT_END, BOS = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DATED = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}{%- endif %}"
    "{{ 'Today: ' + date_string }}" + CHATML
)
"""It writes the date in the form of Llama 3.2's template."""
MERGES = [(".", "Ċ"), (".Ċ", "Q"), ("Ċ", "Ċ"), ("Ã", "©"), ("e", "n"), ("en", "d")]
"""Tokens of more than a byte: ``.\\nQ`` and its beginning, ``\\n\\n``, ``é``, ``end``."""


def write(
    directory: Path,
    tokenizer: Tokenizer,
    *,
    special: Sequence[str] = (TEXT_END, START, END),
    template: str | None = CHATML,
    files: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Writes a tokenizer's directory.

    Args:
      files: name -> what further JSON files say.
      settings: of ``tokenizer_config.json``.
    """
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    says = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[0]} | settings
    says["clean_up_tokenization_spaces"] = False
    for name, content in {"tokenizer_config.json": says, **(files or {})}.items():
        (directory / name).write_text(json.dumps(content))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def byte_level(directory: Path, **options: Any) -> Path:
    """Byte-level BPE with a token for each byte and those of ``MERGES``; 3 special tokens last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *("".join(pair) for pair in MERGES)]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return write(directory, tokenizer, **options)


def byte_fallback(directory: Path, **options: Any) -> Path:
    """Words with a space before them, other characters as bytes, and a BOS put in front."""
    words = ["▁", "▁the", "▁cat", "c", "a", "t", "h", "e"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [("c", "a"), ("ca", "t"), ("▁", "cat"), ("t", "h"), ("th", "e"), ("▁", "the")]
    tokens += [t for t in ("ca", "cat", "th", "the") if t not in tokens]
    model = models.BPE(
        {t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(BOS, special=True, normalized=False)])
    first = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", None, [(BOS, first)])
    return write(directory, tokenizer, bos_token=BOS, **options)


def characters(directory: Path, **options: Any) -> Path:
    """A token for each of 61 characters, and 3 special tokens: as many as the toy policy knows."""
    known = string.ascii_lowercase + string.ascii_uppercase[:11] + string.digits + "+-*=\n <>/.,:?!"
    assert len(known) == 61
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(known)}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return write(directory, tokenizer, **options)
