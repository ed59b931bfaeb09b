"""Shared parts of the commands: the application, common arguments, and exit statuses.

Each command imports what it needs when it runs, so that help is instant.

Exit status: 0 done, 1 the run failed or an audit or replay found a difference, 2 the config or a
plug-in is wrong, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TextIO, TypeVar

import typer

from rlax_plugin.base.errors import ConfigError, Finding, PluginError, RlaxError, UnknownKeyError
from rlax_plugin.base.text.harmless import one_line

F = TypeVar("F", bound=Callable[..., Any])

_FIRST_S = 3  # with a local file, on a slow machine

RUN_FAILED, BAD_CONFIG, INTERRUPTED = 1, 2, 130

# Headings of ``rlax --help``.
CONFIGURE = "Write and understand a config"
RUNNING = "Run"
LOOK = "Look at runs"
AUTHORS = "Write plug-ins"

app = typer.Typer(
    name="rlax",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement learning for language models on MaxText, as plug-ins.\n\n"
    "A run is described by one MaxText config with a section [bold]rlax:[/bold]. Arguments "
    "key=value after the config override its keys, both MaxText's and [bold]rlax.*[/bold].",
    epilog="Start with:  rlax check configs/demo.yml  then  rlax train configs/demo.yml",
)

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="MaxText config (.yml) with a section rlax:")
]
Version = Annotated[int | None, typer.Option(min=0, help="weight version; default: the newest")]
CheckpointStep = Annotated[
    int | None, typer.Option(min=0, help="step of a checkpoint, to measure it instead of a version")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...",
        help="keys to override, such as steps=10 or rlax.rollouts.group_size=4; values are YAML",
    ),
]

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="directory of a run: a path or a URL such as gs://...")
]


def command(
    panel: str | None, example: str, name: str | None = None, group: typer.Typer = app
) -> Callable[[F], F]:
    """Registers a command; its docstring, paragraph by paragraph, becomes the help.

    Args:
      panel: the heading under which the help of its group lists it.
    """

    def register(function: F) -> F:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        return group.command(name, help=text, epilog=f"Example:  {example}", rich_help_panel=panel)(
            function
        )

    return register


def first_words(command: str) -> None:
    """Prints what a command waits for first; call it before long imports.

    If nothing can be written, as to a full disk, the command goes on without standard output; and
    if writing would block, as to a full pipe that no process reads, without these words.
    """
    with suppress(OSError, TypeError, ValueError):  # a stream that is no file
        if not select.select([], [sys.stdout], [], 0)[1]:
            return
    text = f"{command}: importing rlax and reading the config, typically about {_FIRST_S} s"
    try:
        typer.echo(one_line(text))
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())  # the stream would try again at its next flush
        os.close(nothing)


@contextmanager
def exit_status() -> Iterator[None]:
    """Turns an error into one message and an exit status."""
    try:
        yield
    except UnknownKeyError as error:
        from rlax_plugin.tools.commands.reference import of_a_part

        print_error(of_a_part(error))
        raise typer.Exit(BAD_CONFIG) from error
    except (ConfigError, PluginError) as error:
        from rlax_plugin.base.liveness.exhausted import may_pass

        print_error(error)
        raise typer.Exit(RUN_FAILED if may_pass(error) else BAD_CONFIG) from error
    except RlaxError as error:
        print_error(error)
        raise typer.Exit(RUN_FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        from rlax_plugin.base.liveness.exhausted import exhausted

        if not (said := exhausted(error)):
            raise
        print_error(RlaxError(said))
        raise typer.Exit(RUN_FAILED) from error


@contextmanager
def ending_at_once(host: int | None) -> Iterator[None]:
    """Ends this process with the block if it is a host of a trainer that need not wait any more.

    Host 0 ends so if it has failed: JAX would wait for the other hosts, for ``host_s``, and then
    abort this process. The other hosts always do: threads of libraries would keep them for seconds.

    Args:
      host: its number; None: the trainer has one host.
    """
    try:
        yield
    except BaseException as error:
        jax = sys.modules.get("jax")
        joined = jax is not None and jax.distributed.is_initialized()
        if host is None or not (host or joined):
            raise
        status = RUN_FAILED
        if isinstance(error, typer.Exit):
            status = error.exit_code
        else:
            traceback.print_exception(error)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def print_error(error: RlaxError | Finding) -> None:
    """Prints an error message on standard error, without waiting for its reader."""
    from rich.text import Text

    from rlax_plugin.base.text.terminal import HarmlessConsole, threaded_text

    out: TextIO = sys.stderr
    # io.UnsupportedOperation: it is no file; RuntimeError: no thread can be started.
    with contextlib.suppress(OSError, RuntimeError):
        out = threaded_text(os.dup(out.fileno()), "rlax-error")
    message = Text.assemble(("error: ", "bold red"), str(error))
    HarmlessConsole(file=out).print(message, soft_wrap=True)
    if out is not sys.stderr:
        out.close()
