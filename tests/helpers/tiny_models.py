"""Tiny random Hugging Face models, the same on every machine, without torch.

``tests/data/tiny_models/<family>.json`` has what transformers says of each: config.json as it
writes it, the names and shapes of the tensors that it saves, some of its logits, and a greedy
continuation of ``prompt``. The weights
come from a random generator seeded with a tensor's name, here and where the logits were computed.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

DATA = Path(__file__).parents[1] / "data" / "tiny_models"
FAMILIES = tuple(sorted(path.stem for path in DATA.glob("*.json")))
ROWS, LENGTH, PROMPT = 2, 24, 8

CHAT = "{% for message in messages %}<s> {{ message['content'] }} {% endfor %}"


@cache
def known(family: str) -> Mapping[str, Any]:
    """The family's file."""
    return json.loads((DATA / f"{family}.json").read_text())


def weights(
    shapes: Mapping[str, Sequence[int]], model_type: str, embedding: float = 1.0
) -> dict[str, np.ndarray]:
    """Name -> float32: logits differ by a few nats, and no norm or bias is neutral.

    Args:
      embedding: factor of the embedding; the last norm makes up for it. A small one keeps a tied
        head from repeating the last token, as it does where the embedding outweighs the layers.
    """
    found = {name: _tensor(name, tuple(shape), model_type) for name, shape in shapes.items()}
    if embedding != 1.0:
        found["model.embed_tokens.weight"] *= np.float32(embedding)
        one = np.float32(model_type.startswith("gemma"))  # which these models add to a norm
        norm = found["model.norm.weight"]
        norm[...] = (norm + one) / np.float32(embedding) - one
    return found


def weights_of(family: str) -> dict[str, np.ndarray]:
    """The weights of the family's model."""
    reference = known(family)
    kind, factor = reference["config"]["model_type"], reference.get("embedding", 1.0)
    return weights(reference["tensors"], kind, factor)


def _tensor(name: str, shape: tuple[int, ...], model_type: str) -> np.ndarray:
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if "norm" in name:
        return np.float32(not model_type.startswith("gemma")) + np.float32(0.2) * values
    if len(shape) == 1:
        return np.float32(0.3) * values
    return values / np.float32(np.sqrt(shape[1] / 3))


def tokens(vocab_size: int) -> np.ndarray:
    """int64 [ROWS, LENGTH]: what the reference logits were computed for."""
    return np.random.default_rng(14).integers(0, vocab_size, (ROWS, LENGTH))


def prompt(vocab_size: int) -> list[int]:
    """The tokens that the reference's ``greedy`` continues, at the positions 0, 1, 2, ..."""
    return tokens(vocab_size)[0, :PROMPT].tolist()


def positions(stride: int) -> np.ndarray:
    """int64 [ROWS, LENGTH]: the tokens' positions; far apart where scaling acts on long ranges."""
    return np.broadcast_to(np.arange(LENGTH) * stride, (ROWS, LENGTH)).copy()


def write(family: str, directory: Path) -> Path:
    """Makes the family's model a Hugging Face directory with a tokenizer and a chat template."""
    reference = known(family)
    config = reference["config"]
    directory.mkdir(parents=True)
    tensors = weights_of(family)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    _put(directory / "config.json", config)
    _put(directory / "generation_config.json", {"eos_token_id": [1, 2], "do_sample": True})
    (directory / "chat_template.jinja").write_text(CHAT)
    return write_tokenizer(config["vocab_size"], directory)


def write_tokenizer(vocab_size: int, directory: Path) -> Path:
    """A tokenizer of words w3, w4, ... with ids 3, 4, ... and three special ones."""
    directory.mkdir(exist_ok=True)
    words = {"<s>": 0, "</s>": 1, "<stop>": 2}
    words |= {f"w{number}": number for number in range(3, vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", "<stop>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    # Classes of tokenizers add tokens of their own where these are not given.
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<s>"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    _put(directory / "tokenizer_config.json", kind | special)
    return directory


def _put(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")
