"""Commands that evaluate policies, and choose prompts by their pass rates: eval, curate."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from rlax_plugin.tools.cli.common import (
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
            help="directory of a run; RUN@VERSION; RUN/checkpoints/NAME; or a config (.yml)",
        ),
    ],
    overrides: Overrides = None,
    *,
    version: Version = None,
    step: CheckpointStep = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="evaluation set of the config; may be repeated; default: all sets"
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="split of the main set: test or validation; of a table of pass rates, the split "
            "whose prompts are measured, by default train"
        ),
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(min=1, help="number of problems, for sets that do not set their own number"),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="number of completions per problem, for sets that do not set their own number; of "
            "a table of pass rates, for each prompt, by default 8",
        ),
    ] = None,
    k: Annotated[
        list[int] | None, typer.Option("--k", min=1, help="k of pass@k; may be repeated")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="file of the result; default: RUN/evaluation/eval-VERSION.json. A new file that "
            "ends in .parquet gets a table of pass rates"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluates a weight version or a checkpoint of a run, on workers that it starts itself.

    By default it evaluates the newest version that the run still keeps. The run may be training: a
    lease keeps the version until the evaluation ends. Of a config it evaluates the weights that
    training would start from, such as those of the base model. Problems, samples and sets are those
    of rlax.evaluation unless options or KEY=VALUE arguments override them. The output has pass@k,
    majority@k, reward, lengths and truncation with 95 % confidence intervals.

    With --split train --out rates.parquet it measures the pass rate of each training prompt
    instead, sampled and rewarded as in training. Samples whose reward failed count neither as
    passed nor as failed. Finished prompts are saved every few seconds in OUT.parts/. After an
    interruption the same command continues from there, and ends with the same table. rlax curate
    chooses prompts by such tables, and rlax.curation.prior starts a run with them.
    """
    with exit_status():
        if not as_json:
            first_words(f"rlax eval {target}")
        from rlax_plugin.tools.commands.evaluate.command import Asked
        from rlax_plugin.tools.commands.evaluate.command import evaluate as run

        asked = Asked(
            target=target,
            version=version,
            step=step,
            split=split,
            problems=problems,
            samples=samples,
            k=tuple(k or ()),
            sets=tuple(only or ()),
            out=out,
            overrides=tuple(overrides or ()),
        )
        run(asked, as_json=as_json)


@command(RUNNING, "rlax curate rates.parquet --keep 0.2..0.8 --out kept.parquet")
def curate(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="pass rates: a file of rlax eval, or a snapshot")
    ],
    *,
    keep: Annotated[str, typer.Option(help="range of pass rates that is kept")] = "0.2..0.8",
    out: Annotated[str, typer.Option(help="new Parquet file")],
    bound: Annotated[
        Literal["mean", "posterior"],
        typer.Option(
            help="quantity that must lie in the range: mean, the share of samples that passed; "
            "posterior, any part of the 90 % interval of the pass rate"
        ),
    ] = "mean",
    drop_unmeasured: Annotated[
        bool, typer.Option("--drop-unmeasured", help="drop prompts without a measurement")
    ] = False,
    without: Annotated[
        str | None,
        typer.Option(help="file of rlax prompts --contamination whose prompts are dropped"),
    ] = None,
) -> None:
    """Keeps the prompts whose measured pass rates lie in a range.

    OUT has a row for each prompt: its counts, the mean and the 90 % interval of the pass rate,
    whether it is kept, and the reason. rlax.curation.only=OUT trains on the kept prompts.
    """
    with exit_status():
        from rlax_plugin.base.text.terminal import console
        from rlax_plugin.data.curation.choosing import Rule, parsed_range
        from rlax_plugin.tools.commands import curate as curating

        rule = Rule(*parsed_range(keep), bound, drop_unmeasured)
        chosen = curating.curate(table, rule, out, without=without)
        shown = console(sys.stdout)
        shown.print(curating.counts_table(curating.counts(chosen)))
        shown.print(f"written to {out}; train with rlax.curation.only={out}")
