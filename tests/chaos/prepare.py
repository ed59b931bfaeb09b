"""From the settings of ``make chaos`` to a run that is ready to start, with its faults."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos.blows import Fault, Target
from chaos.faults import NetworkTrouble, StoreTrouble, Trouble
from chaos.network import ThreadedProxy, threaded
from chaos.supervised import SupervisedRun
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.marks import STATE_DIR
from rlax_plugin.config.loading import resolve
from rlax_plugin.run.start.hosts import free_port
from rlax_plugin.run.start.run_directory import run_directory, state_directory

_END_S = 20.0  # for processes to end, besides drain_s
_FAR, _SEEN = "127.0.0.2", "127.0.0.3"  # where the far worker listens, and where it is called
_UNRELIABLE = "chaos.unreliable_store"  # a plug-in


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of the user.

    Attributes:
      config, overrides: of the run.
      kills: number of blows of each seed.
      own_server: True to run the parameter server as a process of its own.
      faults: kinds of faults besides those of processes.
      out: folder for the logs.
    """

    config: str
    overrides: tuple[str, ...]
    kills: int
    own_server: bool
    faults: tuple[Fault, ...]
    out: Path


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is not started yet.

    Attributes:
      end_s: seconds in which its processes must have ended after it.
      troubles: the faults that may be let loose on it, by the target of a blow.
    """

    run: SupervisedRun
    files: RunFiles
    end_s: float
    troubles: dict[Target, Trouble] = field(default_factory=dict)


def targets(settings: Settings) -> list[Target]:
    """Returns what the blows of a run may hit; what is listed twice is hit twice as often."""
    hit: list[Target] = ["worker", "worker", "rewards", "trainer", "trainer"]
    if settings.own_server:
        hit.append("parameter server")
    for fault in settings.faults:
        hit.extend((fault, fault))
    return hit


@contextmanager
def prepared(settings: Settings, name: str) -> Iterator[Prepared]:
    """Prepares a run of that name; its proxies last until the end of the block.

    Raises:
      ConfigError: a setting or the config is wrong, or the run exists already.
    """
    with ExitStack() as stack:
        made = _Preparation(settings, name, stack)
        if "store" in settings.faults:
            made.wrap_store()
        if settings.own_server:
            made.add_server()
        if "network" in settings.faults:
            made.add_far_worker()
        made.add_trainer()
        yield Prepared(made.run, made.files, made.end_s, made.troubles)


class _Preparation:
    """A run whose processes are added one after the other.

    Attributes:
      run, files, troubles: see ``Prepared``.
    """

    def __init__(self, settings: Settings, name: str, stack: ExitStack):
        self._settings, self._stack = settings, stack
        self._overrides = [*settings.overrides, f"run_name={name}"]
        self.files, state_dir, self.end_s = check(settings, name)
        directory = settings.out / name
        try:
            settings.out.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir()
        except OSError as error:
            reason = f"cannot be made: {error.strerror}"
            raise ConfigError("--out", str(directory), reason) from error
        self.run = SupervisedRun(directory, state_dir)
        self.troubles: dict[Target, Trouble] = {}
        self._proxies: dict[str, ThreadedProxy] = {}
        if "network" in settings.faults:
            self.troubles["network"] = NetworkTrouble(self._proxies)

    def _proxy(self, way: str, target: str, host: str = "127.0.0.1", port: int = 0) -> str:
        """Returns the address by which a target is called: that of a proxy, if networks fail."""
        if "network" not in self._settings.faults:
            return target
        made = self._stack.enter_context(threaded(target, host=host, port=port))
        self._proxies[way] = made
        return made.address

    def wrap_store(self) -> None:
        """Puts a store that can be unreliable between the run and its weight store."""
        section = resolve(self._settings.config, self._overrides).section
        switch = self.run.directory.absolute() / "store"
        store = section.weights.store.model_dump()
        options = {"name": f"{_UNRELIABLE}:unreliable", "store": store, "switch": str(switch)}
        plugins = list(dict.fromkeys((*section.plugins, _UNRELIABLE)))
        self._overrides.append(f"rlax.plugins={json.dumps(plugins)}")
        self._overrides.append(f"rlax.weights.store={json.dumps(options)}")
        self.troubles["store"] = StoreTrouble(switch, self.run.events)

    def add_server(self) -> None:
        """Adds a separate parameter server."""
        part, port = "parameter server", free_port()
        index = self.run.directory.absolute() / "index"
        arguments = ("parameter-server", self._settings.config, *self._overrides)
        arguments += ("--port", str(port), "--index", str(index))
        self.run.add(part, *arguments)
        address = self._proxy("to the parameter server", f"127.0.0.1:{port}")
        self._overrides.append(f"rlax.weights.parameter_server={address}")

    def add_far_worker(self) -> None:
        """Adds a worker that calls the controller, and is called by it, through proxies."""
        part, called, calling = "far worker", free_port(), free_port()
        self._overrides.append(f"rlax.network.port={calling}")
        way = self._proxy("from the far worker", f"127.0.0.1:{calling}")
        self._proxy("to the far worker", f"{_FAR}:{called}", _SEEN, called)
        token = self.run.state_dir / "worker-token.json"
        arguments = ("serve", "--controller", way, "--token-file", str(token), "--name", "far")
        arguments += ("--with-parent",)
        arguments += ("--host", _FAR, "--advertised-host", _SEEN, "--port", str(called))
        environment = {STATE_DIR: str(self.run.state_dir)}
        self.run.add(part, *arguments, environment=environment, after=token, always=True)

    def add_trainer(self) -> None:
        """Adds the trainer, after all that has changed its config."""
        arguments = ("train", self._settings.config, *self._overrides, "--with-parent")
        self.run.add("trainer", *arguments)


def check(settings: Settings, name: str) -> tuple[RunFiles, Path, float]:
    """Returns the files and the state directory of a run, and the seconds in which it ends.

    Raises:
      ConfigError: a setting or the config is wrong, or the run exists already.
    """
    config = resolve(settings.config, [*settings.overrides, f"run_name={name}"])
    if config.section.state_dir:
        reason = "must not be set: the runs of all seeds, and your own, would share it"
        raise ConfigError("rlax.state_dir", config.section.state_dir, reason)
    files = RunFiles(run_directory(config.maxtext))
    if files.exists("config.yml"):
        reason = "is a run already: remove it, or choose another seed"
        raise ConfigError("run_name", files.url, reason)
    end_s = config.section.deadlines.drain_s + _END_S
    return files, state_directory(config.section, files), end_s
