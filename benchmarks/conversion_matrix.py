"""Converts, trains and exports models of every family, and compares them with transformers.

    python -m venv torchenv; torchenv/bin/pip install torch transformers safetensors tokenizers
    python benchmarks/conversion_matrix.py --torch-python torchenv/bin/python --work matrix
    python benchmarks/conversion_matrix.py --torch-python torchenv/bin/python gemma3 mixtral

Random models of some ten thousand parameters are made with transformers. Each is converted, and
MaxText's logits and greedy tokens are compared with those of transformers, at 64 tokens or more and
beyond every window. It is exported again, and transformers computes the same from the export. Then
it is trained for three steps and exported, and transformers' logits and greedy tokens of that are
compared with those that MaxText computes with the trained checkpoint.

The first 64 tokens are also compared at far positions, up to 8,064. The exit status is 1 if a
difference is above 2e-4, in proportion beyond 128 tokens, or a greedy token differs. Results in
``--work`` are not computed again. ``--markdown`` prints the table of docs/your_model.md.

Three processes are used: the second is this one, the others run with the Python that has torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
ANSWER, STEPS, LIMIT_S = 16, 3, 3600
# Difference of two logits in float32, in nats; beyond that many tokens it grows in proportion.
LARGEST, EXACT_TO = 2e-4, 128
STEP = 128  # between far positions
SMALL = dict(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=131_072,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
    dtype="float32",
)


def rope(theta: float, kind: str = "default", **more: float) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_type": kind, **more}


def llama3(factor: float) -> dict[str, Any]:
    whole = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    of = {"original_max_position_embeddings": 8192}
    return rope(500_000.0, "llama3", factor=factor, **whole, **of)


def gemma3_rope(local: float, full: dict[str, Any]) -> dict[str, Any]:
    return {"sliding_attention": rope(local), "full_attention": full}


UNSCANNED = ("llama32", "qwen2", "mixtral_wide", "qwen3_moe_top4", "gemma2_other", "gemma3_linear")
WIDE = dict(hidden_size=96, num_attention_heads=6, intermediate_size=160, vocab_size=320)
# Name -> class of transformers, what differs from SMALL, and the same in words.
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": (
        "Llama",
        dict(num_key_value_heads=4, num_hidden_layers=3, rope_parameters=rope(500_000.0)),
        "theta 5e5",
    ),
    "llama_tied": ("Llama", {**WIDE, "tie_word_embeddings": True}, "tied, 3 queries per key"),
    "llama_head_dim": (
        "Llama",
        dict(head_dim=40, num_key_value_heads=1, rms_norm_eps=1e-5),
        "heads of 40 in a width of 64",
    ),
    "llama_linear": ("Llama", dict(rope_parameters=rope(1e4, "linear", factor=4.0)), "linear by 4"),
    "llama31": ("Llama", dict(rope_parameters=llama3(8.0)), "llama3 by 8"),
    "llama32": (
        "Llama",
        dict(rope_parameters=llama3(32.0), tie_word_embeddings=True, num_attention_heads=8),
        "llama3 by 32, tied",
    ),
    "mistral": ("Mistral", dict(head_dim=24, sliding_window=None), "heads of 24"),
    "mistral_wide": (
        "Mistral",
        {**WIDE, "sliding_window": None, "rope_parameters": rope(1_000_000.0)},
        "theta 1e6, not tied",
    ),
    "qwen2": ("Qwen2", dict(num_key_value_heads=1, num_hidden_layers=3), "one key head"),
    "qwen2_tied": (
        "Qwen2",
        {**WIDE, "tie_word_embeddings": True, "rope_parameters": rope(1_000_000.0)},
        "tied, theta 1e6",
    ),
    "qwen3": ("Qwen3", dict(head_dim=32, num_attention_heads=8), "heads of 32, 4 queries per key"),
    "qwen3_tied": (
        "Qwen3",
        dict(head_dim=16, tie_word_embeddings=True, rope_parameters=rope(5_000_000.0)),
        "tied, theta 5e6",
    ),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2), "2 of 4 experts"),
    "mixtral_wide": (
        "Mixtral",
        {
            **WIDE,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "head_dim": 24,
            "rope_parameters": rope(500_000.0),
        },
        "3 of 6 experts, heads of 24",
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        dict(
            head_dim=32,
            moe_intermediate_size=48,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        ),
        "2 of 8 experts",
    ),
    "qwen3_moe_top4": (
        "Qwen3Moe",
        dict(
            head_dim=24,
            moe_intermediate_size=32,
            num_experts=12,
            num_experts_per_tok=4,
            norm_topk_prob=True,
            num_hidden_layers=3,
            rope_parameters=rope(10_000_000.0),
        ),
        "4 of 12 experts, theta 1e7",
    ),
    "gemma2": (
        "Gemma2",
        dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=64),
        "window 64, soft caps as published",
    ),
    "gemma2_other": (
        "Gemma2",
        dict(
            num_hidden_layers=4,
            head_dim=24,
            query_pre_attn_scalar=40,
            sliding_window=20,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=4.0,
            rope_parameters=rope(100_000.0),
        ),
        "window 20, other caps, scale and theta",
    ),
    "gemma2_long": (
        "Gemma2",
        dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=4096),
        "window 4096, as published",
    ),
    "gemma3": (
        "Gemma3Text",
        dict(
            num_hidden_layers=8,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=24,
            rope_parameters=gemma3_rope(5_000.0, rope(500_000.0)),
        ),
        "8 layers, window 24, own thetas",
    ),
    "gemma3_linear": (
        "Gemma3Text",
        dict(
            num_hidden_layers=6,
            head_dim=24,
            query_pre_attn_scalar=16,
            sliding_window=512,
            rope_parameters=gemma3_rope(10_000.0, rope(1_000_000.0, "linear", factor=8.0)),
        ),
        "window 512, linear by 8, other scale",
    ),
}
WHOLE: dict[str, Any] = {"dtype": "float32", "most_bytes": 2**30}  # of an export
COLUMNS = ("logits", "back", "trained")  # differences: of what HEADS says in more words


def make(work: Path, names: Sequence[str]) -> None:
    """Makes the models, and computes their logits with transformers; needs torch."""
    import tiny_models
    import transformers
    from safetensors import safe_open
    from safetensors.numpy import save_file
    from transformers_program import greedy, loaded, logits

    for name in names:
        kind, keys, _ = CONFIGURATIONS[name]
        config = getattr(transformers, f"{kind}Config")(**SMALL | keys)
        source = work / name / "source"
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(source)
        with safe_open(source / "model.safetensors", "np") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
        gemma = kind.startswith("Gemma")
        # With a small embedding, a tied head does not repeat the last token.
        weights = tiny_models.weights(shapes, config.model_type, 0.2 if gemma else 1.0)
        save_file(weights, source / "model.safetensors", {"format": "pt"})
        tiny_models.write_tokenizer(config.vocab_size, source)
        window = getattr(config, "sliding_window", None) or 0
        length = max(64, window + 16)
        prompt = np.random.default_rng(7).integers(0, config.vocab_size, length)
        model = loaded(source)
        answer, _ = greedy(model, prompt, ANSWER)
        row = np.concatenate([prompt, answer])
        far = np.arange(0 if 0 < window < 64 else 64)
        np.savez(
            work / name / "reference.npz",
            prompt=prompt,
            answer=answer,
            logits=logits(model, row, np.arange(len(row))),
            far=far * STEP,
            far_logits=logits(model, prompt[: len(far)], far, far * STEP) if len(far) else [],
        )
        print(f"{name}: made, {length} tokens", flush=True)


def convert_and_train(work: Path, name: str) -> None:
    """Converts, exports and trains a model, and computes its logits with MaxText."""
    from tiny_loop import TINY, Recorder, train

    from maxtext_overrides.models.verify import Agreement, Expected
    from rlax_plugin.config.loading import merged
    from rlax_plugin.tools.commands.convert import convert
    from rlax_plugin.tools.commands.export import export, find_source

    home, scanned = work / name, name not in UNSCANNED
    source, converted = str(home / "source"), home / "converted"
    convert(source, str(converted), dtype="float32", scan_layers=scanned, trainer="maxtext")
    with np.load(home / "reference.npz") as file:
        prompt, answer, logits = file["prompt"], file["answer"], file["logits"]
        far, far_logits = file["far"], file["far_logits"]
    tokens = np.concatenate([prompt, answer])
    places = np.arange(len(tokens))
    found, away, model = Agreement(), Agreement(), forward(str(converted), None, (), len(tokens))
    found.add(Expected(tokens=tokens, at=places, logits=logits, answer=ANSWER), model)
    if len(far):
        row, at = prompt[: len(far)], np.arange(len(far))
        away.add(Expected(tokens=row, positions=far, at=at, logits=far_logits), model)
    export(find_source(str(converted), None, ()), str(home / "back"), **WHOLE)

    keys = merged(converted / "model.yml", ())
    argv = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    train(home, *argv, "enable_checkpointing=true", recorder=Recorder(stop_after=STEPS))
    checkpoint = str(home / "tiny" / "checkpoints" / str(STEPS - 1))
    export(find_source(checkpoint, TINY, argv), str(home / "trained"), **WHOLE)
    trained = forward(checkpoint, TINY, argv, len(tokens))
    row = np.concatenate([prompt, np.zeros(ANSWER, int)])
    for place in range(len(prompt), len(row)):
        row[place] = trained(row, np.array([place - 1]))[0].argmax()
    np.savez(home / "trained.npz", row=row, logits=trained(row, places))
    result = {
        "tokens": len(prompt),
        "logits": found.largest,
        "best": [found.best, found.places],
        "greedy": [found.greedy, found.tokens],
        "far": away.largest if len(far) else None,
        "shares": max(found.share, away.share),
    }
    (home / "converted.json").write_text(json.dumps(result))


def forward(source: str, config: str | None, argv: Sequence[str], length: int) -> Any:
    """Returns MaxText's own forward pass with a checkpoint."""
    from maxtext_overrides.config.loading import load_to_check
    from maxtext_overrides.models.forward import EXACT, Forward
    from maxtext_overrides.models.reading import Checkpoint
    from rlax_plugin.tools.commands.export import find_source

    exact = [f"{key}={value}" for key, value in EXACT.items()]
    found = find_source(source, config, [*argv, *exact])
    loaded = load_to_check(found.config, max_target_length=length)
    return Forward(loaded, Checkpoint(found.checkpoint))


def check(work: Path, names: Sequence[str]) -> None:
    """Computes logits of the exports with transformers; needs torch."""
    from transformers_program import greedy, loaded, logits

    for name in names:
        home = work / name
        result = json.loads((home / "converted.json").read_text())
        with np.load(home / "reference.npz") as file:
            row = np.concatenate([file["prompt"], file["answer"]])
            back = logits(loaded(home / "back"), row, np.arange(len(row)))
            result["back"] = float(np.abs(back - file["logits"]).max())
        with np.load(home / "trained.npz") as file:
            row, ours = file["row"], file["logits"]
        model = loaded(home / "trained")
        theirs = logits(model, row, np.arange(len(row)))
        answer, _ = greedy(model, row[:-ANSWER], ANSWER)
        result["trained"] = float(np.abs(theirs - ours).max())
        result["trained_greedy"] = [int((answer == row[-ANSWER:]).sum()), ANSWER]
        (home / "result.json").write_text(json.dumps(result))


def half(python: str, what: str, work: Path, names: Sequence[str]) -> None:
    """Runs ``make`` or ``check`` with the Python that has torch."""
    folders = ("tests/helpers", "maxtext_overrides/models")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / f) for f in folders)}
    command = [python, __file__, "--half", what, "--work", str(work), *names]
    subprocess.run(command, env=environment, timeout=LIMIT_S, check=True)


def holds(result: dict[str, Any]) -> bool:
    """True if no difference exceeds the limit."""
    same = all(result[key][0] == result[key][1] for key in ("best", "greedy", "trained_greedy"))
    accepted = LARGEST * max(1.0, result["tokens"] / EXACT_TO)
    return same and result["shares"] <= 1.0 and all(result[key] <= accepted for key in COLUMNS)


def row(name: str, result: dict[str, Any], mark: str) -> str:
    kind, _, options = CONFIGURATIONS[name]
    far = "" if result["far"] is None else f"{result['far']:.1e}"
    figures = [f"{result[key]:.1e}" for key in COLUMNS]
    same = ["/".join(map(str, result[key])) for key in ("greedy", "trained_greedy")]
    family = kind.removesuffix("Text").replace("Moe", "-MoE").replace("Gemma", "Gemma ")
    cells = [family, options, str(result["tokens"]), figures[0], same[0], far]
    cells += [*figures[1:], same[1]]
    return f"| {' | '.join(cells)} |" if mark else f"{name:16} {'  '.join(cells[2:])}"


HEADS = (
    "family",
    "options",
    "tokens",
    "logits",
    "greedy",
    "far positions",
    "logits of the export",
    "logits after training",
    "greedy after training",
)


def run(work: Path, python: str, names: Sequence[str]) -> None:
    """Runs the given configurations that are not finished."""
    left = [name for name in names if not (work / name / "result.json").exists()]
    for name in left:
        shutil.rmtree(work / name, ignore_errors=True)
    if not left:
        return
    half(python, "make", work, left)
    sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "tests" / "maxtext")]
    from rlax_plugin.base.text.terminal import quiet

    for name in left:
        begun = time.monotonic()
        with quiet(work / name / "log"):
            convert_and_train(work, name)
        print(f"{name}: converted and trained, {time.monotonic() - begun:.0f} s", flush=True)
    half(python, "check", work, left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CONFIGURATIONS)}; none: all")
    parser.add_argument("--torch-python", help="a Python with torch and transformers")
    parser.add_argument("--work", type=Path, help="directory that keeps what is finished")
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs")
    parser.add_argument("--half", choices=("make", "check"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.names or list(CONFIGURATIONS)
    if unknown := [name for name in names if name not in CONFIGURATIONS]:
        parser.error(f"there is no configuration {unknown[0]}")
    if given.half:
        {"make": make, "check": check}[given.half](given.work, names)
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = (given.work or Path(temporary)).absolute()
        run(work, given.torch_python or sys.executable, names)
        results = {name: json.loads((work / name / "result.json").read_text()) for name in names}
    if given.markdown:
        print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}")
    for name, result in results.items():
        print(row(name, result, given.markdown))
    wrong = [name for name, result in results.items() if not holds(result)]
    sys.exit(f"not the same model: {', '.join(wrong)}" if wrong else None)


if __name__ == "__main__":
    main()
