"""The tokenizer ``bytes``: each byte of a text in UTF-8 is a token, so no model has to bring one.

Its files lie in the folder ``bytes`` beside this module, and are read like those of any model.
Token ids 0 to 255 are the bytes themselves; the special tokens ``<|pad|>`` and ``<|end|>`` and one
for each role of a chat follow. In the vocabulary a byte that is a visible character of Latin-1 has
its name, and the others have, in order, the characters from 256 on, as ``tokenizers`` names bytes.
"""

from __future__ import annotations

from pathlib import Path

BYTES = "bytes"
"""Name of this tokenizer in a config."""

DIRECTORY = Path(__file__).parent / BYTES
"""Directory of its files."""

SIZE = 262
"""Number of its token ids."""
