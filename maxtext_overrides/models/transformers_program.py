"""Computes a model's logits with transformers; a program for a Python that has torch.

    python transformers_program.py SOURCE ASKED.npz ANSWERED.npz

This project's own environment has no torch, so the program imports nothing of the project: the
Python of another environment can run it. Both files hold NumPy arrays:

ASKED:    prompt int64 [n]; answer int64 []: number of tokens to add to it; at int64 [k]: positions
          in prompt and answer whose logits are wanted; far int64 [f]: other positions of the first
          f tokens, whose logits are wanted too
ANSWERED: answer int64 [answer]: the greedy one; logits float32 [k, vocabulary]; far float32
          [f, vocabulary]; rounding float64 []: largest difference of the answer's logits if its
          tokens are computed one by one; made_with str []

It computes in float32, and with the plain ("eager") attention, which every family has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


def loaded(source: Path) -> Any:
    """Loads a model from a Hugging Face directory or a GGUF file, without executing code in it."""
    place = {} if source.is_dir() else {"gguf_file": source.name}
    return transformers.AutoModelForCausalLM.from_pretrained(
        source if source.is_dir() else source.parent,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        **place,
    ).eval()


def greedy(model: Any, prompt: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Generates greedily from the prompt; stop tokens do not end it.

    Returns:
      int64 [count], the tokens; float32 [count, vocabulary], the logits they were chosen from.
    """
    tokens, past, found = torch.tensor(prompt[None]), None, []
    with torch.inference_mode():
        for _ in range(count):
            out = model(tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, tokens = out.past_key_values, out.logits[:, -1:].argmax(-1)
            found.append(out.logits[0, -1].float().numpy())
    logits = np.stack(found)
    return logits.argmax(1), logits


def logits(
    model: Any, tokens: np.ndarray, at: np.ndarray, positions: np.ndarray | None = None
) -> np.ndarray:
    """Returns float32 [len(at), vocabulary]: the logits at some positions of one row."""
    places = np.arange(len(tokens)) if positions is None else positions
    with torch.inference_mode():
        out = model(
            torch.tensor(tokens[None]),
            position_ids=torch.tensor(places[None]),
            # Without a cache, positions that are far apart would begin texts of their own.
            use_cache=True,
            logits_to_keep=torch.tensor(at),
        )
        return out.logits[0].float().numpy()


def main(source: Path, asked: Path, answered: Path) -> None:
    model = loaded(source)
    with np.load(asked) as file:
        prompt, count, at, far = (file[key] for key in ("prompt", "answer", "at", "far"))
    answer, one_by_one = greedy(model, prompt, int(count))
    row = np.concatenate([prompt, answer])
    found = {"logits": logits(model, row, at)}
    together = logits(model, row, np.arange(len(prompt), len(row)) - 1)
    found["rounding"] = np.abs(together - one_by_one).max()
    if len(far):
        found["far"] = logits(model, prompt[: len(far)], np.arange(len(far)), far)
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    np.savez(answered, answer=answer, made_with=made_with, **found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
