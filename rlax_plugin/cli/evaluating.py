"""Commands that measure a policy: eval."""

from __future__ import annotations

from typing import Annotated

import typer

from rlax_plugin.cli.common import RUNNING, Overrides, command, exit_status


@command(RUNNING, "rlax eval runs/demo --problems 100 rlax.rollouts.temperature=0.6", name="eval")
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
    version: Annotated[
        int | None, typer.Option(min=0, show_default=False, help="a weight version; or the newest")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, show_default=False, help="the checkpoint of that step")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--set", show_default=False, help="a set of the config; may be repeated"),
    ] = None,
    split: Annotated[
        str | None, typer.Option(show_default=False, help="of the main set: test, validation")
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(min=1, show_default=False, help="asked, where a set has no number of its own"),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, show_default=False, help="per problem, likewise")
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
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Measures a weight version or a checkpoint of a run, on workers of its own.

    Takes the newest version that is left, also of a run that is going on: a lease keeps it until
    the end. Problems, samples and sets are those of rlax.evaluation unless given otherwise; any
    key may be set. Prints pass@k, majority@k, reward, lengths and truncation with 95 % intervals.
    """
    with exit_status():
        from rlax_plugin.commands.evaluate.command import evaluate as measure
        from rlax_plugin.commands.evaluate.target import find_target

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
