"""Commands before anything runs: init, check, score, prompts, plugins, explain, version."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rlax_plugin.base.text.command_lines import pasteable
from rlax_plugin.tools.cli.common import (
    CONFIGURE,
    RUN_FAILED,
    AsJson,
    Config,
    Overrides,
    app,
    command,
    exit_status,
)
from rlax_plugin.tools.commands.answers import declared

_COMPILE_S = 1800.0  # a 70B model takes minutes


def _with_answers(function: Callable[..., None]) -> Callable[..., None]:
    """Puts an option for each of ``Answers`` in the place of ``**given``."""
    options = [
        inspect.Parameter(
            choice.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                choice.type | None,
                typer.Option(
                    *([f"--{choice.name}"] if choice.type is bool else []),
                    min=1 if choice.type is int else None,
                    show_default=False,
                    help=choice.text,
                ),
            ],
        )
        for choice in declared()
    ]
    file, *switches, _ = inspect.signature(function, eval_str=True).parameters.values()
    function.__signature__ = inspect.Signature([file, *options, *switches])  # pyright: ignore
    return function


@command(CONFIGURE, "rlax init run.yml --preset dapo --steps 100 --yes")
@_with_answers
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="config to write; default: run.yml")
    ] = None,
    *,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="do not ask questions; options that are not given have defaults"
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace FILE if it exists")] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="copy a complete config for a model and a machine, with its other files, in place "
            "of writing one; list: show the names",
        ),
    ] = None,
    **given: Any,
) -> None:
    """Writes a commented config as a starting point.

    Without options, it asks questions if it runs on a terminal. Options that are not given have
    defaults for a run like configs/demo.yml, in which a tiny model learns sums on two CPU cores.
    With --data, such a model learns to answer your own questions.
    The file explains every key it sets; rlax explain rlax has all other keys and their defaults.
    With --recipe it copies a complete config to FILE, by default under the recipe's name.
    """
    with exit_status():
        from rlax_plugin.tools.commands import init

        answers: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        if recipe is not None:
            _init_recipe(recipe, file, force, answers)
            return
        path = file or Path("run.yml")
        init.check_target(path, force)
        if not answers and not yes and sys.stdin.isatty():
            for question in init.questions(answers):
                answers[question.name] = typer.prompt(
                    question.text, default=question.default, type=type(question.default)
                )
        notes = init.write(path, answers)
        commands = (pasteable("rlax", verb, str(path)) for verb in ("check", "train"))
        typer.echo("\n  ".join((f"wrote {path}", *notes)))
        typer.echo("\n  ".join(("", *commands)))


def _init_recipe(name: str, file: Path | None, force: bool, answers: dict[str, Any]) -> None:
    from rlax_plugin.base.errors import ConfigError
    from rlax_plugin.tools.commands import init, recipe_files

    if answers:
        option = f"--{next(iter(answers)).replace('_', '-')}"
        raise ConfigError(option, None, "cannot be combined with --recipe: change the copied file")
    if name == "list":
        for recipe, about in recipe_files.described().items():
            typer.echo(f"{recipe}\n  {about}")
        return
    if file is not None:
        init.check_target(file, force=True)
    copied, comments = recipe_files.copy(name, file, force)
    config = copied[0]
    there = [] if config.parent == Path() else [pasteable("cd", str(config.parent))]
    about = [line.replace(f"{name}.yml", config.name) for line in comments]
    typer.echo("\n".join([f"wrote {', '.join(map(str, copied))}", *there, "", *about]))


@command(CONFIGURE, "rlax check configs/demo.yml rlax.staleness.max_staleness=2")
def check(
    config: Config,
    overrides: Overrides = None,
    *,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="check only the section rlax: and its plug-ins, in seconds"),
    ] = False,
    compile_for: Annotated[
        str | None,
        typer.Option(
            "--compile",
            metavar="SLICE",
            help="also compile the run's programs for a slice of TPUs, such as v5e-16",
        ),
    ] = None,
    compile_worker: Annotated[
        str | None,
        typer.Option(
            metavar="SLICE",
            help="--compile: slice of a worker; default: one host of the same chips",
        ),
    ] = None,
    compile_s: Annotated[
        float | None,
        typer.Option(
            help="--compile: time limit in seconds for the trainer's program, and for a worker's "
            "programs; default: 1800"
        ),
    ] = None,
    numerics: Annotated[
        bool,
        typer.Option(
            "--numerics",
            help="also compare the log-probs of trainer and rollout engine, on this machine's "
            "devices",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
) -> None:
    """Finds errors in a config and explains it, without starting a run or using a device.

    First it checks the section rlax: and its plug-ins, without loading a model. Then each part
    checks its own keys, the trainer all of its own, the environment is built, and the prompts are
    read. The output says what will run where, the sizes of batches, the memory needed, the minimum
    deadlines, and warnings.

    With --compile it then compiles the train step, and a worker's prefill and decode loop, for
    TPUs that this machine need not have: minutes for a large model. A table has the memory that
    each program needs on a chip, its floating-point operations and its collective operations. The
    exit status is 1 if the compiler rejects a program, or if one does not fit into the memory of a
    chip.

    With --numerics it starts the trainer and the rollout engine in one process, with the weights
    that the run would start from. The engine generates before and after one update: single tokens
    behind contexts of all lengths (prefill), samples alone and in company, of a shared prompt, and
    behind kept contexts. The trainer computes the log-probs of the same tokens, in rows of their
    own and as the run packs them. A table has the differences by depth, the number of tokens before
    a token. The exit status is 1 if one is larger than rounding explains; the last line then says
    what the wrong ones have in common, and what to do.
    """
    with exit_status():
        from rlax_plugin.base.text.terminal import console as harmless
        from rlax_plugin.base.text.terminal import counting
        from rlax_plugin.build import registry_for
        from rlax_plugin.config.loading import repeated_keys, resolve
        from rlax_plugin.run.start.preflight import check_own_run
        from rlax_plugin.tools.commands import check
        from rlax_plugin.tools.commands import compile as compiling
        from rlax_plugin.tools.commands import numerics as comparing
        from rlax_plugin.tools.commands.check.words import plural
        from rlax_plugin.tools.commands.numerics import show as show_numerics

        wanted = None
        if compile_for is not None:
            limit_s = _COMPILE_S if compile_s is None else compile_s
            wanted = compiling.Wanted.of(compile_for, compile_worker, limit_s)
        _only_with_compile(compile_for, worker=compile_worker, s=compile_s)
        resolved = resolve(config, overrides or ())
        section = resolved.section
        examined = check.examine(resolved, registry_for(section))
        repeated = repeated_keys(overrides or ())
        examined = replace(examined, warnings=[*repeated, *examined.warnings])
        check_own_run(resolved, (config, *(overrides or ())))
        listed = f" and {plural(len(section.plugins), 'plug-in')}" if section.plugins else ""
        lines = [f"ok  section rlax:{listed} of {config}"]
        if not as_json:
            typer.echo(lines[-1])
        if not fast:
            with counting(harmless(sys.stderr)) as progress:
                examined = check.examine_parts(examined, progress)
            checks = ", ".join(examined.checked or ()) or "none of them has checks of its own"
            lines.append(f"ok  the parts' own checks: {checks}")
            if not as_json:
                typer.echo(lines[-1])
        document = check.explanation(examined)
        from rich.console import Console

        console = Console()
        console = console if console.is_terminal else Console(width=100)
        if not as_json:
            check.show(console, document)
            if fast:
                left = "MaxText's keys, trainer, memory, environment, prompts"
                typer.echo(f"\nNot checked with --fast: {left}")
        parts = []
        if wanted is not None:
            out = None if as_json else console
            parts = compiling.compile_run(resolved, wanted, harmless(sys.stderr), out)
            document["compiled"] = compiling.document(parts)
        measured = None
        if numerics:
            measured = comparing.check_numerics(resolved, harmless(sys.stderr))
            document["numerics"] = comparing.document(measured)
            if not as_json:
                show_numerics(console, measured)
        if as_json:
            typer.echo(json.dumps({"checked": lines, **document}, indent=2))
        if not all(part.all_fit for part in parts) or (measured and not measured.passes):
            raise typer.Exit(RUN_FAILED)


def _only_with_compile(compile_for: str | None, **options: object) -> None:
    from rlax_plugin.base.errors import ConfigError

    for name, value in options.items():
        if compile_for is None and value is not None:
            raise ConfigError(f"--compile-{name}", value, "is an option of --compile only")


@command(CONFIGURE, "rlax score configs/demo.yml completions.jsonl")
def score(
    config: Config,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="completions as JSON lines; -: standard input")
    ],
    overrides: Overrides = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Tries the rewards of a config on completions of a file.

    The rewards run as in training: in reward processes, with the same deadlines and weights. The
    table has the value of each reward without its weight, the reward of the sample, and errors.

    Each line of FILE is an object with these keys: completion, a text, is needed. prompt, reference
    (or answer) and metadata (an object) are what rewards see of the prompt; instead, id may name a
    prompt of the config's prompt source. tokens, a list of token ids, and finish (stop or length)
    are for rewards that see tokens; without tokens, the completion is encoded. Lines with the same
    prompt form a group.

    The exit status is 1 if a line has no reward, because a reward failed.
    """
    with exit_status():
        from rlax_plugin.base.text.terminal import HarmlessConsole
        from rlax_plugin.config.loading import resolve
        from rlax_plugin.tools.commands import score

        scored = score.score_file(resolve(config, overrides or ()), file)
        if as_json:
            typer.echo(json.dumps(score.document(scored), indent=2))
        else:
            console = HarmlessConsole()
            score.show(console if console.is_terminal else HarmlessConsole(width=120), scored)
        if scored.failed:
            raise typer.Exit(RUN_FAILED)


@command(CONFIGURE, "rlax prompts run.yml --split test --count 5")
def prompts(
    config: Config,
    overrides: Overrides = None,
    *,
    split: Annotated[str | None, typer.Option(help="only this split; default: all of them")] = None,
    count: Annotated[int, typer.Option(min=0, help="number of prompts to print of each split")] = 3,
    prompt_id: Annotated[
        str | None,
        typer.Option("--id", help="print only the prompt with this id, as records name it"),
    ] = None,
    contamination: Annotated[
        bool,
        typer.Option(
            "--contamination",
            help="compare the training prompts with the sets of rlax.evaluation instead",
        ),
    ] = False,
    words: Annotated[
        int | None,
        typer.Option(min=2, help="--contamination: shared words in a row that count; default: 13"),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="--contamination: Parquet file of the prompts found, for rlax curate --without"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
) -> None:
    """Shows the prompts of a config as the model reads them, and which rows were left out and why.

    For each split it prints the number of prompts, their lengths in tokens, the
    domains with their weights, and the rows that were left out: too long, duplicate, broken or
    also in another split, with the file and line of some of them. Then it prints the first
    prompts with all special tokens, the reference and the metadata that rewards get.

    A data set is read and tokenised the first time, as rlax train would do it; later commands and
    runs open what was prepared. Neither the model nor a device is needed.

    With --contamination it reports which training prompts are in an evaluation set too: with the
    same id, the same text, the same words (without case, punctuation, white space and Unicode
    variants), or sharing a stretch of 13 words.
    """
    with exit_status():
        from rlax_plugin.base.errors import ConfigError
        from rlax_plugin.base.text.terminal import HarmlessConsole, counting
        from rlax_plugin.base.text.terminal import console as harmless_console
        from rlax_plugin.config.loading import resolve
        from rlax_plugin.tools.commands import contamination as comparing
        from rlax_plugin.tools.commands import prompts as command

        if contamination:
            with counting(harmless_console(sys.stderr)) as progress:
                resolved = resolve(config, overrides or ())
                compared = comparing.contamination(resolved, words, out, progress)
            if as_json:
                typer.echo(json.dumps(compared, indent=2))
            else:
                comparing.show(HarmlessConsole(highlight=False, soft_wrap=True), compared)
            return
        for name, value in (("--out", out), ("--words", words)):
            if value is not None:
                raise ConfigError(name, value, "is an option of --contamination only")
        wanted = command.Wanted(split or "", count, prompt_id or "")
        with counting(harmless_console(sys.stderr)) as progress:
            shown = command.document(resolve(config, overrides or ()), wanted, progress)
        if as_json:
            typer.echo(json.dumps(shown, indent=2, default=str))
            return
        command.show(HarmlessConsole(highlight=False, soft_wrap=True), shown)


@command(CONFIGURE, "rlax plugins configs/demo.yml")
def plugins(
    config: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="config whose parts are listed first")
    ] = None,
    overrides: Overrides = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Lists the installed plug-ins, and the parts that a config uses.

    Built-in plug-ins are always available; a run loads other plug-ins only if rlax.plugins names
    them. The parts of a config are listed with the value and the meaning of each option.
    """
    with exit_status():
        from rich.console import Console

        from rlax_plugin.tools.commands import listing

        document = listing.document(config, overrides or ())
        if as_json:
            typer.echo(json.dumps(document, indent=2, default=str))
        else:
            listing.show(Console(), config, document)


@command(CONFIGURE, "rlax explain dapo rlax.objective.entropy_coefficient=0.01")
def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="section, key, part, preset or metric, such as rlax.rollouts, group_size, wandb, "
            "grpo or time/step_s; or a config (.yml), whose objective is explained; default: list "
            "the names",
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE...]",
            help="a config whose plug-ins are loaded; then, for a preset, keys below "
            "rlax.objective, such as rlax.objective.kl.coefficient=0.04",
        ),
    ] = None,
    *,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            help="module to load although it is not installed as a plug-in; may be repeated"
        ),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="PAGE",
            help="print the generated text of a page of docs/ instead: config, metrics, objectives",
        ),
    ] = None,
) -> None:
    """Explains a name: a key of the config, a part, an algorithm, or a metric.

    Keys are shown with their types, units, defaults and meanings; parts with their options;
    metrics with their units, and the steps in which they are reported. The last word of a name is
    enough; if it has several meanings, all are shown. If nothing has this name, metrics are
    searched for it.

    A preset is shown with its formula, paper, parts and options. An objective is one sum with five
    slots: aggregation, importance weight, advantage, grad_1 and grad_2. A preset fills the slots. A
    config can replace each of them, and add corrections, KL to a reference policy or an entropy
    bonus. The worked example has four samples of one prompt, with rewards 1, 0, 0 and 1. It shows
    the advantage of each sample, and for each token its ratios, its weight and the gradient of the
    loss, as rlax train would compute them.
    """
    with exit_status():
        from rich.console import Console

        from rlax_plugin.base.errors import ConfigError, alternatives
        from rlax_plugin.tools.commands import explain, reference

        if markdown is not None:
            if markdown not in reference.PAGES:
                pages = alternatives(markdown, reference.PAGES)
                raise ConfigError("--markdown", markdown, f"no such page; {pages}")
            typer.echo(reference.PAGES[markdown](), nl=False)
        elif name is None:
            explain.overview(Console())
        else:
            explain.explain(Console(), name, arguments or (), plugin or ())


def _print_versions(asked: bool) -> None:
    import importlib.metadata

    if not asked:
        return
    for name in ("rlax-plugin", "maxtext", "jax", "google-jetstream", "orbax-checkpoint", "pluggy"):
        try:
            typer.echo(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            typer.echo(f"{name} not installed")
    raise typer.Exit


@app.callback(help=str(app.info.help))
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="prints the versions of rlax_plugin and of the libraries it uses",
        ),
    ] = False,
) -> None:
    pass
