"""Commands that bring models in and take them out: convert, export."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from rlax_plugin.tools.cli.common import CONFIGURE, RUNNING, Overrides, command, exit_status


class Dtype(StrEnum):
    """Data types in which weights can be written."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@command(CONFIGURE, "rlax convert ~/models/SmolLM2-135M-Instruct --out models/smollm2")
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="a Hugging Face directory (config.json, safetensors, tokenizer), or a .gguf file",
        ),
    ],
    *,
    out: Annotated[str, typer.Option(help="directory to write, which must not exist")],
    dtype: Annotated[
        Dtype, typer.Option(help="of the weights; bfloat16 takes half the space")
    ] = Dtype.float32,
    scan_layers: Annotated[
        bool,
        typer.Option(
            help="store all layers as one scanned layer, which compiles faster; a run must have "
            "the same scan_layers"
        ),
    ] = True,
    trainer: Annotated[str, typer.Option(help="trainer whose checkpoint is written")] = "maxtext",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="compare logits and greedy tokens with transformers, which needs torch; if they "
            "differ, nothing is kept",
        ),
    ] = False,
    verify_python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="--verify with the Python of another environment, which has torch and "
            "transformers",
        ),
    ] = None,
) -> None:
    """Makes a pretrained model ready for training: weights, tokenizer and the config's keys.

    Supported are Llama (also SmolLM2), Mistral, Mixtral, Qwen2, Qwen3 (also with experts), Gemma 2
    and Gemma 3 (text): as a Hugging Face directory with safetensors in one file or several. Llama,
    Qwen2 and Qwen3 may be a GGUF file, whose weights are dequantised. The type of the model is read
    from its config; keys that MaxText would compute differently are rejected. Names and shapes of
    all tensors are checked first; the directory appears only when it is complete.

    OUT has the checkpoint in 0/items, the tokenizer and config.json in huggingface/, and MaxText's
    keys of the model in model.yml. Then rlax init run.yml --model OUT writes a whole config.

    With --verify, the written model computes a prompt of 64 tokens, or one longer than its window,
    and 16 greedy tokens. Logits may differ by 2e-4 from those of transformers. Both models are in
    memory in float32, one after the other.
    """
    with exit_status():
        from rlax_plugin.tools.commands.convert import convert as write

        python = verify_python or (sys.executable if verify else None)
        write(
            source,
            out,
            dtype=dtype.value,
            scan_layers=scan_layers,
            trainer=trainer,
            verify_python=python,
        )


@command(RUNNING, "rlax export runs/demo --out exported")
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="directory of a run; RUN@VERSION; RUN/checkpoints/NAME; what rlax convert has "
            "written; or, with --config, any MaxText checkpoint",
        ),
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[str, typer.Option(help="directory to write, which must not exist")],
    dtype: Annotated[
        Dtype, typer.Option(help="of the tensors; bfloat16 takes half the space")
    ] = Dtype.float32,
    config: Annotated[
        str | None, typer.Option(help="file (.yml) with MaxText's keys of a checkpoint's model")
    ] = None,
    shard_gb: Annotated[
        float,
        typer.Option(
            min=0.001, help="largest size of one file of weights, in GB; --peft writes one"
        ),
    ] = 2.0,
    peft: Annotated[
        bool,
        typer.Option(
            "--peft", help="write only the low-rank adapters, as a directory that PEFT loads"
        ),
    ] = False,
) -> None:
    """Writes a model as a Hugging Face directory: safetensors, config, tokenizer, chat template.

    For a run without VERSION it exports the newest weights: those of the last checkpoint, or of the
    newest weight version if that is newer. The tokenizer's files are those of tokenizer_path in the
    run's config; KEY=VALUE arguments override it. Optimizer state is not read. The directory
    appears only when it is complete.
    """
    with exit_status():
        from rlax_plugin.base.files.places import check_new_directory
        from rlax_plugin.tools.commands.export import export_and_show, find_source

        check_new_directory("--out", out)
        found = find_source(source, config, overrides or ())
        size = int(shard_gb * 1e9)
        export_and_show(found, out, dtype=dtype.value, most_bytes=size, peft=peft)
