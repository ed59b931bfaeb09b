"""Commands that choose prompts before training: measure, curate."""

from __future__ import annotations

import sys
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


@command(RUNNING, "rlax measure run.yml --samples 8 --out rates.parquet")
def measure(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="directory of a run; RUN@VERSION; RUN/checkpoints/NAME; or a config (.yml)",
        ),
    ],
    overrides: Overrides = None,
    *,
    samples: Annotated[int, typer.Option(min=1, help="number of completions per prompt")] = 8,
    split: Annotated[str, typer.Option(help="split whose prompts are measured")] = "train",
    version: Version = None,
    step: CheckpointStep = None,
    out: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="new Parquet file of the pass rates; default: RUN/pass_rates/SPLIT.parquet, or "
            "CONFIG-SPLIT.parquet",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measures the pass rate of each training prompt, on workers that it starts itself.

    For a config it measures the weights that training would start from, such as those of the base
    model. Sampling, rewards and prompts are those of the config; KEY=VALUE arguments override them.
    Samples whose reward failed count neither as passed nor as failed.

    Finished prompts are saved every few seconds in OUT.parts/. After an interruption the same
    command continues from there, and ends with the same table. rlax curate chooses prompts by such
    tables, and rlax.curation.prior starts a run with them.
    """
    with exit_status():
        if not as_json:
            first_words(f"rlax measure {target}")
        from rlax_plugin.commands.measure.command import Asked
        from rlax_plugin.commands.measure.command import measure as run

        asked = Asked(target, version, step, samples, split, out, tuple(overrides or ()))
        run(asked, as_json=as_json)


@command(RUNNING, "rlax curate rates.parquet --keep 0.2..0.8 --config run.yml --out kept.parquet")
def curate(
    tables: Annotated[
        list[str],
        typer.Argument(metavar="TABLE...", help="pass rates: files of rlax measure, or snapshots"),
    ],
    *,
    keep: Annotated[str, typer.Option(help="range of pass rates that is kept")] = "0.2..0.8",
    out: Annotated[str, typer.Option(help="new Parquet file, with a page OUT.html")],
    bound: Annotated[
        str,
        typer.Option(
            help="quantity that must lie in the range: mean, the share of samples that passed; "
            "posterior, any part of the 90 % interval of the pass rate"
        ),
    ] = "mean",
    per_domain: Annotated[
        int | None,
        typer.Option(min=1, show_default=False, help="largest number of prompts of each domain"),
    ] = None,
    drop_unmeasured: Annotated[
        bool, typer.Option("--drop-unmeasured", help="drop prompts without a measurement")
    ] = False,
    without: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="file of rlax prompts --contamination whose prompts are dropped",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="config or run whose prompts these are: the page shows texts, and prompts that no "
            "table has are kept as unmeasured",
        ),
    ] = None,
    any_sampling: Annotated[
        bool,
        typer.Option("--any-sampling", help="join tables that were sampled with other settings"),
    ] = False,
) -> None:
    """Keeps the prompts whose measured pass rates lie in a range.

    OUT has a row for each prompt: its counts, the mean and the 90 % interval of the pass rate,
    whether it is kept, and the reason. OUT.html shows the pass rates before and after, by domain,
    with example prompts. rlax.curation.only=OUT trains on the kept prompts.
    """
    with exit_status():
        from rlax_plugin.commands.curate import command as curating
        from rlax_plugin.curation.choosing import rule_of
        from rlax_plugin.text.terminal import console, counting

        rule = rule_of(keep, bound, per_domain=per_domain, drop_unmeasured=drop_unmeasured)
        with counting(console(sys.stderr)) as progress:
            found = curating.curate(
                tables,
                rule,
                out,
                without=without,
                config=config,
                any_sampling=any_sampling,
                progress=progress,
            )
        shown = console(sys.stdout)
        shown.print(curating.counts_table(curating.counts(found)))
        shown.print(f"written to {out} and {out}.html; train with rlax.curation.only={out}")
