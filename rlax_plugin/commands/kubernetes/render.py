"""Writes the manifests of a run and the commands that apply them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rlax_plugin.commands.kubernetes.commands import Commands, certificates
from rlax_plugin.commands.kubernetes.grace import SPOT_S, worker_grace_s
from rlax_plugin.commands.kubernetes.manifests import Manifest, Manifests
from rlax_plugin.commands.kubernetes.options import Options, check_devices
from rlax_plugin.commands.kubernetes.places import (
    CONFIG_FILE,
    FILES,
    HOST_SECRETS,
    SECRET,
    Places,
    places,
)
from rlax_plugin.commands.kubernetes.several_hosts import HostManifests
from rlax_plugin.config.functions import parse_function
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import ConfigError
from rlax_plugin.records.private import make_private
from rlax_plugin.rpc.operator_certificate import authority_of
from rlax_plugin.rpc.role_secret import role_secret
from rlax_plugin.rpc.run_secrets import run_secrets

_MEMORY = "16Gi"
_HEADER = "# Written by rlax launch, which replaces this file.\n"


@dataclass(frozen=True, slots=True)
class Rendered:
    """The outcome of ``render``.

    Attributes:
      files: those that were written.
      commands: to start the run, each with the reason before it.
      notes: warnings, in sentences.
    """

    files: Sequence[Path]
    commands: Sequence[tuple[str, Sequence[str]]]
    notes: Sequence[str]

    @property
    def text(self) -> str:
        """The commands as a script with comments."""
        lines = [f"# {why}\n" + "\n".join(lines) for why, lines in self.commands]
        return "\n\n".join(lines) + "\n"


def with_defaults(config: ResolvedConfig, options: Options) -> Options:
    """Returns the options with resources for those that are not given."""
    cores = 2 + config.section.reward_processes
    return replace(
        options,
        trainer_resources={"cpu": str(cores), "memory": _MEMORY, **options.trainer_resources},
        worker_resources={"cpu": "2", "memory": _MEMORY, **options.worker_resources},
    )


def render(config: ResolvedConfig, options: Options, directory: Path) -> Rendered:
    """Writes manifests, the files of the config's Secret, and ``commands.sh`` into a directory.

    Raises:
      ConfigError: the config cannot run like this, or the directory cannot be written.
    """
    options = with_defaults(config, options)
    check_devices(options, config.maxtext)
    where = places(config, options)
    several = options.hosts > 1
    manifests = (HostManifests if several else Manifests)(config.section, options, where)
    tls = certificates(options) if several else None
    written = [
        (directory / FILES[0], _yaml(manifests.trainer())),
        (directory / FILES[1], _yaml(manifests.workers())),
    ]
    secrets = [
        (directory / SECRET / key, text) for key, text in _secret_files(config, where).items()
    ]
    commands = Commands(options, where, directory).all()
    notes = _notes(config, options)
    rendered = Rendered([], commands, notes)
    script = directory / "commands.sh"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        make_private(directory / SECRET)
        for path, text in (*written, (script, rendered.text.encode())):
            path.write_bytes(text)
        for path, text in secrets:
            _write_private(path, text)
        if tls is not None:
            made = run_secrets(directory / SECRET, authority_of(tls))
            role_secret(directory / SECRET, made, "host")
            secrets += [(directory / SECRET / file, b"") for file in HOST_SECRETS]
    except OSError as error:
        reason = f"cannot be written: {error.filename}: {error.strerror}"
        raise ConfigError("--render", str(directory), reason) from None
    return replace(rendered, files=[path for path, _ in (*written, *secrets)] + [script])


def _secret_files(config: ResolvedConfig, where: Places) -> dict[str, bytes]:
    sources = {}
    for name in config.section.functions_named:
        function = parse_function(name)
        if function.file:
            sources[function.copy.replace("/", "-")] = config.functions[function.file]
    found = {CONFIG_FILE: config.to_yaml()}
    for key, source in sources.items():
        try:
            found[key] = Path(source).read_bytes()
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            raise ConfigError("function", source, reason) from None
    assert found.keys() == where.files.keys()
    return found


def _write_private(path: Path, text: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)


def _yaml(manifests: Sequence[Manifest]) -> bytes:
    text = yaml.safe_dump_all(manifests, sort_keys=False, width=1000)
    return (_HEADER + text).encode()


def _notes(config: ResolvedConfig, options: Options) -> list[str]:
    notes = []
    grace_s = worker_grace_s(config.section)
    if options.spot and grace_s > SPOT_S:
        drain_s = config.section.deadlines.drain_s
        notes.append(
            f"a worker may need {grace_s} s to end (rlax.deadlines.drain_s = {drain_s:g}), and a "
            f"spot node gives it at most {SPOT_S} s: what it has not finished by then is generated "
            "again. rlax.rollouts.on_new_weights=continue loses only what was not reported"
        )
    if config.section.launcher.plain_name != "static":
        notes.append(
            f"the config's rlax.launcher {config.section.launcher.name} is replaced by static: "
            "Kubernetes starts the workers"
        )
    return notes
