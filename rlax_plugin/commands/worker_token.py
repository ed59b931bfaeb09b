"""``rlax token``: the file that lets workers into a run, and a new token in it."""

from __future__ import annotations

from rlax_plugin.config.loading import of_yaml
from rlax_plugin.errors import ConfigError
from rlax_plugin.records.files import CONFIG, RunFiles
from rlax_plugin.rpc.run_secrets import known_secrets, rotate
from rlax_plugin.start.run_directory import state_directory
from rlax_plugin.text.amounts import in_seconds


def worker_token(run: str, old_s: float | None) -> str:
    """Returns text on the token file of a run's workers, never the token.

    Args:
      run: the run's directory.
      old_s: seconds for which the token before a rotation is accepted; None: nothing is changed.

    Raises:
      ConfigError: there is no such run, or it has no secrets on this machine.
    """
    files = RunFiles(run)
    section = of_yaml(files.config(), files.location(CONFIG)).section
    state_dir = state_directory(section, files)
    if old_s is None:
        found = known_secrets(state_dir)
        if found is None:
            reason = f"has no usable secrets in {state_dir}: start the run on this machine first"
            raise ConfigError("RUN", run, reason)
        return f"workers join with the token in {found.worker_file}"
    made = rotate(state_dir, old_s)
    kept = f"for {in_seconds(old_s)}" if old_s else "no longer"
    return (
        f"{made.worker_file} has a new token: copy it to the machines of the workers. The one "
        f"before is accepted {kept}"
    )
