"""Commands that measure a policy: eval."""

from __future__ import annotations

from typing import Annotated

import typer

from rlax_plugin.cli.common import (
    RUNNING,
    AsJson,
    CheckpointStep,
    Overrides,
    Version,
    command,
    exit_status,
    first_words,
)


@command(RUNNING, "rlax eval runs/demo --problems 100 rlax.evaluation.temperature=0.6", name="eval")
def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="directory of a run; RUN@VERSION; or RUN/checkpoints/NAME",
        ),
    ],
    overrides: Overrides = None,
    *,
    version: Version = None,
    step: CheckpointStep = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            show_default=False,
            help="evaluation set of the config; may be repeated; default: all sets",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(show_default=False, help="split of the main set: test or validation"),
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="number of problems, for sets that do not set their own number",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="number of completions per problem, for sets that do not set their own number",
        ),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", min=1, show_default=False, help="k of pass@k; may be repeated"),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            show_default=False, help="file of the result; default: RUN/evaluation/eval-VERSION.json"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluates a weight version or a checkpoint of a run, on workers that it starts itself.

    By default it evaluates the newest version that the run still keeps. The run may be training: a
    lease keeps the version until the evaluation ends. Problems, samples and sets are those of
    rlax.evaluation unless options or KEY=VALUE arguments override them. The output has pass@k,
    majority@k, reward, lengths and truncation with 95 % confidence intervals.
    """
    with exit_status():
        if not as_json:
            first_words(f"rlax eval {target}")
        from rlax_plugin.commands.evaluate.command import evaluate as measure
        from rlax_plugin.commands.target import find_target

        given = {
            "split": split,
            "problems": problems,
            "samples": samples,
            "k": f"[{','.join(map(str, k))}]" if k else None,
        }
        keys = [f"rlax.evaluation.{key}={v}" for key, v in given.items() if v is not None]
        measure(
            find_target(target, version, step),
            (*keys, *(overrides or ())),
            sets=only or (),
            out=out,
            as_json=as_json,
        )
