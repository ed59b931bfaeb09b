"""``rlax status``, from the command line: once, as JSON, or until Ctrl-C."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from rich.live import Live

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.terminal import HarmlessConsole
from rlax_plugin.rpc.security.secret import read_secret
from rlax_plugin.tools.commands.status.bottleneck import bottleneck
from rlax_plugin.tools.commands.status.place import place_of
from rlax_plugin.tools.commands.status.show import rendered
from rlax_plugin.tools.commands.status.source import Seen, seen_here, seen_there

_EVERY_S = 1.0
_ANSWER_S = 10.0  # for a controller elsewhere


def source(run: str | None, controller: str, token_file: str) -> Callable[[], Seen]:
    """Returns a function that reads the present status.

    Raises:
      ConfigError: it is not said which run, or there is none.
    """
    if (run is None) == (not controller):
        reason = "must be a run directory on this machine; for a run elsewhere give --controller"
        raise ConfigError("RUN", run, reason)
    if controller:
        if not token_file:
            reason = "must name client-token.json of the run, which the trainer's machine has"
            raise ConfigError("--token-file", None, reason)
        secret = read_secret(token_file, "--token-file")
        return lambda: seen_there(controller, secret, _ANSWER_S)
    assert run is not None
    place = place_of(run)
    return lambda: seen_here(place.state_dir, place.files)


def to_json(seen: Seen) -> str:
    """Returns a status as JSON, with the bottleneck and what is wrong with it."""
    status = None if seen.status is None else seen.status.model_dump(mode="json")
    said = "" if seen.status is None or seen.problem else bottleneck(seen.status)
    document = {
        "problem": seen.problem,
        "ended": seen.ended,
        "outcome": seen.outcome,
        "frozen_workers": sorted(seen.frozen),
        "bottleneck": said,
        "status": status,
    }
    return json.dumps(document, indent=2)


def show_status(look: Callable[[], Seen], *, once: bool) -> bool:
    """Prints the status; on a terminal until Ctrl-C or the end of the run, unless ``once``.

    Returns:
      True if the run goes on; False if it has ended, or its trainer does not go on.

    Raises:
      RlaxError: the status cannot be read.
    """
    console = HarmlessConsole()
    seen = look()
    if once or seen.ended or not console.is_terminal:
        console.print(rendered(seen), soft_wrap=not console.is_terminal)
        return seen.goes_on
    with Live(rendered(seen), console=console, auto_refresh=False) as live:
        while not seen.ended:
            time.sleep(_EVERY_S)
            seen = look()
            live.update(rendered(seen), refresh=True)
    return False
