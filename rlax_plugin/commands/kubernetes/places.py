"""Paths inside the pods of a run: its config, secrets, directory and weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from rlax_plugin.commands.kubernetes.options import Options
from rlax_plugin.config.functions import parse_function
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import ConfigError
from rlax_plugin.records.files import RunFiles
from rlax_plugin.rpc.authority import CA, SERVER, SERVER_KEY
from rlax_plugin.start.run_directory import run_directory

CONFIG = "/etc/rlax"
SECRETS = "/run/rlax"
"""A directory in memory with copies that only the process's user can read."""

RUNS = "/runs"
"""The trainer's own volume."""

WEIGHTS = "/weights"
TOKEN = "worker-token.json"
METRICS_TOKEN = "metrics-token"
CONFIG_FILE = "config.yml"
FILES = ("trainer.yml", "workers.yml")
SECRET = "secret"
"""Directory of files that become Secrets, beside the manifests."""

STATE = "/state"
"""Local volume of each host of a trainer over several hosts; it ends with the pod."""

HOST_SECRETS = ("secrets.json", TOKEN, "host-token.json")
"""Files of the state directory that a restart on other nodes must find again."""

TLS_FILES = {"certificate": SERVER, "key": SERVER_KEY, "ca": CA}
"""Key of ``rlax.network.tls`` -> its file in the directory of ``rlax certs``."""


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of a run inside its pods.

    Attributes:
      keys: settings in the trainer's command, in addition to the config.
      run_directory: a path on the trainer's volume, or a URL.
      state: directory of the trainer's token file; on its volume, or on one that ends with the
        pod if there are several hosts.
      shares_weights: True if all pods mount the volume of the weights.
      streams_weights: True if the trainer's pod sends the weights to the others.
      files: key of the config's Secret -> path below ``CONFIG``; the config and its functions.
    """

    keys: Mapping[str, str]
    run_directory: str
    state: str
    shares_weights: bool
    streams_weights: bool
    files: Mapping[str, str]


def places(config: ResolvedConfig, options: Options) -> Places:
    """Decides where everything is.

    Raises:
      ConfigError: workers could not read the weights, or a file would not be in the pods.
    """
    directory, section = run_directory(config.maxtext), config.section
    run_name = str(config.maxtext["run_name"])
    keys: dict[str, str] = {}
    if is_local := RunFiles(directory).is_local:
        directory = f"{RUNS}/{run_name}"
        keys["base_output_directory"] = RUNS
    if options.hosts > 1 and is_local and not options.runs_claim:
        reason = (
            "must name a PersistentVolumeClaim that all hosts can mount (ReadWriteMany), because "
            "each of them writes its part of a checkpoint; or set base_output_directory to a URL, "
            "such as gs://bucket/runs"
        )
        raise ConfigError("--runs-claim", None, reason)
    state = directory
    if options.hosts > 1:
        # Not on a volume of several nodes: the ledger there needs a local file system.
        state = keys["rlax.state_dir"] = f"{STATE}/{run_name}"
        for key, file in TLS_FILES.items():
            keys[f"rlax.network.tls.{key}"] = f"{SECRETS}/{file}"
    elif section.state_dir or not is_local:
        state = keys["rlax.state_dir"] = f"{RUNS}/state/{run_name}"
    weights = section.weights.path or directory
    is_stream = section.weights.transfer == "stream"
    shares = RunFiles(weights).is_local and not is_stream
    if shares and not options.weights_claim:
        reason = (
            "must name a PersistentVolumeClaim that all pods can mount (ReadWriteMany), because "
            "workers read the weights; or set rlax.weights.path to a URL, such as "
            "gs://bucket/weights, or rlax.weights.transfer to stream: then the trainer sends them"
        )
        raise ConfigError("--weights-claim", None, reason)
    if shares:
        keys["rlax.weights.path"] = f"{WEIGHTS}/{run_name}"
    elif is_stream and section.weights.path:
        keys["rlax.weights.path"] = f"{RUNS}/weights/{run_name}"
    return Places(keys, directory, state, shares, is_stream, _files(config))


def _files(config: ResolvedConfig) -> dict[str, str]:
    files = {CONFIG_FILE: CONFIG_FILE}
    for name in config.section.functions_named:
        function = parse_function(name)
        path = PurePosixPath(os.path.normpath(function.file or "."))
        if path.is_absolute() or path.parts[:1] == ("..",):
            reason = (
                "must be below the directory of the config, from which the pods get it; or be a "
                "module of the image, as package.module:NAME"
            )
            raise ConfigError("function", name, reason)
        if function.file:
            files[function.copy.replace("/", "-")] = str(path)
    return files
