"""The tokenizer ``bytes``: each byte of a text in UTF-8 is a token, so no model has to bring one.

Its files lie in the folder ``bytes`` beside this module, and are read like those of any model.
Token ids 0 to 255 are the bytes themselves; the special tokens follow.
"""

from __future__ import annotations

import json
from pathlib import Path

BYTES = "bytes"
"""Name of this tokenizer in a config."""

DIRECTORY = Path(__file__).parent / BYTES
"""Directory of its files."""

ROLES = ("system", "user", "assistant", "tool")
SPECIAL = ("<|pad|>", "<|end|>", *(f"<|{role}|>" for role in ROLES))
SIZE = 256 + len(SPECIAL)
"""Number of its token ids."""

# A message is its role and its text. Only an answer needs an end: the next role ends the others.
_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role not in ROLES -%}
{{- raise_exception('knows the roles LISTED, and not ' + message.role) -}}
{%- endif -%}
{{- '<|' + message.role + '|>' + message.content -}}
{%- if message.role == 'assistant' -%}{{- '<|end|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def write_files(directory: Path) -> None:
    """Writes the files, as they are in ``DIRECTORY``; ``tokenizers`` is imported only here."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=_characters(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000_000,
    }
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    text = json.dumps(settings, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
    template = _TEMPLATE.replace("ROLES", str(ROLES)).replace("LISTED", ", ".join(ROLES))
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def _characters() -> dict[str, int]:
    """The characters by which ``tokenizers`` names bytes, each with its byte as id.

    A byte that is a visible character of Latin-1 is named by it. The others have, in order, the
    characters from 256 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (byte for byte in range(256) if byte not in visible)
    named = {byte: chr(byte) for byte in visible}
    named |= {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    return {named[byte]: byte for byte in range(256)}
