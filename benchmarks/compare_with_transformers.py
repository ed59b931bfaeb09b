"""Compares MaxText and a worker with transformers on the exported model.

The project's environment has no torch, and transformers' models need it. So there are two halves:

    rlax export runs/mine --out exported
    python benchmarks/compare_with_transformers.py answers runs/mine answers.json
    python benchmarks/compare_with_transformers.py logits CONVERTED logits.npz

    python -m venv torchenv; torchenv/bin/pip install torch transformers
    torchenv/bin/python benchmarks/compare_with_transformers.py compare exported answers.json
    torchenv/bin/python benchmarks/compare_with_transformers.py compare CONVERTED_FROM logits.npz

``answers`` asks a worker (``rlax serve``) for greedy answers to 20 prompts. ``logits`` computes the
trainer's forward pass for a model that ``rlax convert`` has written. Both need a run in float32.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

TEXTS = [
    *(
        f"Numbers: {a}, {b}, {c}\nLargest: {max(a, b, c)}\n\nNumbers: {b}, {d}, {a}\nLargest:"
        for a, b, c, d in [(3, 41, 17, 9), (88, 2, 54, 31), (7, 70, 77, 12), (65, 64, 8, 19)]
    ),
    *(f"The capital of {place} is" for place in ("France", "Japan", "Peru", "Norway", "Egypt")),
    *(f"Question: what is {a} + {b}?\nAnswer:" for a, b in [(2, 3), (10, 5), (7, 7)]),
    "Once upon a time there was",
    "def add(a, b):\n    return",
    "Water boils at",
    "1, 2, 3, 4,",
    "The opposite of hot is",
    "Monday, Tuesday,",
    "My favourite colour is",
    "In 1969, people first",
]
ANSWER_S = 120
NEAR = 1e-3  # two logits this near may change places


def answers(run: str, out: Path) -> None:
    """Writes a worker's greedy answers to ``TEXTS``."""
    from jetstream.core.proto import jetstream_pb2 as pb
    from jetstream.core.proto import jetstream_pb2_grpc as rpc

    from rlax_plugin.api import Tokenizer, client_channel
    from rlax_plugin.config.loading import of_yaml
    from rlax_plugin.records.files import RunFiles

    config = of_yaml(RunFiles(run).config(), run)
    tokenizer = Tokenizer.load(config.maxtext["tokenizer_path"], "tokenizer_path")
    longest = config.section.rollouts.max_prompt_tokens
    prompts = [tokenizer.encode(text)[:longest] for text in TEXTS]
    token_file = out.with_suffix(".token")
    command = [sys.executable, "-m", "rlax_plugin", "serve", run, "rlax.rollouts.temperature=0"]
    command += ["--token-file", str(token_file)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    found = []
    try:
        assert worker.stdout is not None
        lines = (re.search(r"is served on ([^\s,]+)", line) for line in worker.stdout)
        served = next(filter(None, lines))
        with client_channel(served[1], token_file) as channel:
            for prompt in prompts:
                content = pb.DecodeRequest.TokenContent(token_ids=prompt)
                asked = pb.DecodeRequest(
                    token_content=content, max_tokens=config.section.rollouts.max_new_tokens
                )
                replies = rpc.OrchestratorStub(channel).Decode(asked, timeout=ANSWER_S)
                parts = (reply.stream_content.samples[0].token_ids for reply in replies)
                found.append([token for part in parts for token in part])
    finally:
        worker.terminate()
        worker.wait(ANSWER_S)
        token_file.unlink(missing_ok=True)
    out.write_text(json.dumps({"prompts": prompts, "answers": found}))
    print(f"{len(found)} answers, {sum(map(len, found))} tokens")


def logits(source: str, out: Path, tokens: np.ndarray) -> None:
    """Writes the logits of one row of tokens, computed by the trainer's model."""
    from maxtext_overrides.config.loading import load_to_check
    from maxtext_overrides.models.forward import EXACT, Forward
    from maxtext_overrides.models.reading import Checkpoint
    from rlax_plugin.commands.export import find_source

    found = find_source(source, None, [f"{key}={value}" for key, value in EXACT.items()])
    config = load_to_check(found.config, max_target_length=len(tokens))
    forward = Forward(config, Checkpoint(found.checkpoint))
    np.savez(out, tokens=tokens, logits=forward(tokens, np.arange(len(tokens))))
    print(f"logits of {len(tokens)} positions in {out}")


def compare(exported: str, ours: Path) -> bool:
    """Prints the differences between transformers and the results of the other half."""
    import torch
    import transformers

    torch.set_num_threads(1)  # more of them wait for each other where others use the cores
    model = transformers.AutoModelForCausalLM.from_pretrained(
        exported, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if ours.suffix == ".npz":
        given = np.load(ours)
        with torch.no_grad():
            theirs = model(torch.tensor(given["tokens"][None].astype(np.int64))).logits[0].numpy()
        largest = float(np.abs(theirs - given["logits"]).max())
        same = int((theirs.argmax(1) == given["logits"].argmax(1)).sum())
        print(f"largest difference {largest:.2e}; same best token at {same} of {len(theirs)}")
        return largest < 1e-2 and same == len(theirs)
    given = json.loads(ours.read_text())
    model.generation_config.eos_token_id = None
    same = close = 0
    for prompt, answer in zip(given["prompts"], given["answers"], strict=True):
        row = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(
                row,
                attention_mask=torch.ones_like(row),
                do_sample=False,
                max_new_tokens=len(answer),
                eos_token_id=None,  # an answer ends with its stop token
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
        if out == answer:
            same += 1
            continue
        at = next((i for i, (a, b) in enumerate(zip(out, answer, strict=False)) if a != b), None)
        if at is None:
            print(f"lengths differ: {len(out)} and {len(answer)}")
            continue
        with torch.no_grad():
            last = model(torch.tensor([prompt + answer[:at]])).logits[0, -1]
        gap = float(last[out[at]] - last[answer[at]])
        print(f"first difference at token {at}: logits {gap:.1e} apart")
        close += abs(gap) < NEAR
    count = len(given["answers"])
    tokens = sum(map(len, given["answers"]))
    print(f"{same} of {count} answers ({tokens} tokens) are the same; {close} differ at a tie")
    return same + close == count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("answers", "logits", "compare"))
    parser.add_argument("source", help="a run; a converted model; an exported directory")
    parser.add_argument("file", type=Path, help="answers.json or logits.npz")
    parser.add_argument("--tokens", type=Path, help=".npz with an array tokens, for logits")
    parser.add_argument("--positions", type=int, default=500, help="else this many random ones")
    given = parser.parse_args()
    if given.what == "answers":
        answers(given.source, given.file)
    elif given.what == "logits":
        if given.tokens:
            tokens = np.load(given.tokens)["tokens"]
        else:
            tokens = np.random.default_rng(0).integers(3, 90, given.positions)
        logits(given.source, given.file, tokens)
    elif not compare(given.source, given.file):
        sys.exit(1)


if __name__ == "__main__":
    main()
