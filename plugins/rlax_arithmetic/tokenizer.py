"""A character tokenizer, as a plain table here and as HuggingFace files for MaxText.

MaxText reads the files with ``tokenizer_type: huggingface`` and ``tokenizer_path`` set to
`TOKENIZER_DIR`. Both give the same ids. The files have no unknown token: text outside the
vocabulary is an error, as in `encode`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
SPECIAL = ("<pad>", "<bos>", "<eos>")
CHARACTERS = "0123456789+-*="
VOCAB = (*SPECIAL, *CHARACTERS)
VOCAB_SIZE = len(VOCAB)

TOKENIZER_DIR = Path(__file__).parent / "tokenizer_files"
"""Its files, for ``tokenizer_path`` in a config."""

_IDS = {character: i for i, character in enumerate(VOCAB)}
_UNKNOWN = "\ufffd"  # ids the model has and the tokenizer has not (a padded vocabulary)


def encode(text: str) -> list[int]:
    """Returns the id of each character, without special tokens.

    Raises:
      ValueError: a character is not in the vocabulary.
    """
    try:
        return [_IDS[character] for character in text]
    except KeyError as error:
        raise ValueError(f"{text!r:.80}: {error} is not one of {CHARACTERS!r}") from None


def decode(tokens: np.ndarray) -> str:
    """Returns the text up to the first end-of-sequence token, or else without trailing padding.

    Other special tokens stay visible ("<bos>", "<pad>"), so that a completion that contains one is
    not accepted as a right answer.

    Args:
      tokens: int32 [length].
    """
    ids = np.asarray(tokens).tolist()
    if EOS_ID in ids:
        ids = ids[: ids.index(EOS_ID)]
    else:
        while ids and ids[-1] == PAD_ID:
            ids.pop()
    return "".join(VOCAB[i] if 0 <= i < VOCAB_SIZE else _UNKNOWN for i in ids)
