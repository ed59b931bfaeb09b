"""The options of ``rlax launch``, and their check against the config."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlax_plugin.errors import ConfigError

DEFAULT_STORAGE = "100Gi"
COORDINATOR_PORT = 8476
"""The port of jax.distributed in the pod of host 0."""

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_SECRET = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][\w.:/@-]*")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_KEY = re.compile(r"([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?")
# What a config's ``hardware`` needs; values that are not here need nothing.
_DEVICES = {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu", "gpu_multiprocess": "nvidia.com/gpu"}


@dataclass(frozen=True, slots=True)
class Options:
    """The properties of a cluster that no config has.

    Attributes:
      image: with ``rlax`` and everything that the config needs.
      name: prefix of the names of all objects.
      namespace: empty: that of kubectl's context.
      workers: number of worker pods.
      port: of the controller.
      trainer_resources, worker_resources: name -> quantity, both requested and the limit; CPU is
        only requested.
      trainer_nodes, worker_nodes: labels of the nodes.
      spot: True if workers run on spot nodes of GKE.
      storage: size of the trainer's volume.
      storage_class: of this volume; empty: the cluster's default.
      weights_claim: claim of a volume that all pods mount; empty: weights are at a URL.
      service_account: of all pods; empty: none that a pod could use.
      env_secret: Secret whose keys become environment variables; empty: none.
      metrics_secret: Secret with the key ``token`` for scrapes; empty: no metrics.
      hosts: number of hosts of the trainer.
      runs_claim: with several hosts, claim of a volume that all of them mount, for the run's
        directory; empty: that is at a URL.
      certs: with several hosts, directory of ``rlax certs``.
    """

    image: str
    name: str
    namespace: str = ""
    workers: int = 2
    port: int = 4711
    trainer_resources: Mapping[str, str] = field(default_factory=dict)
    worker_resources: Mapping[str, str] = field(default_factory=dict)
    trainer_nodes: Mapping[str, str] = field(default_factory=dict)
    worker_nodes: Mapping[str, str] = field(default_factory=dict)
    spot: bool = False
    storage: str = DEFAULT_STORAGE
    storage_class: str = ""
    weights_claim: str = ""
    service_account: str = ""
    env_secret: str = ""
    metrics_secret: str = ""
    hosts: int = 1
    runs_claim: str = ""
    certs: str = ""

    def __post_init__(self) -> None:
        if not _IMAGE.fullmatch(self.image):
            reason = "must be the name of an image, such as europe-docker.pkg.dev/me/rlax:1"
            raise ConfigError("--image", self.image, reason)
        if not _LABEL.fullmatch(self.name):
            reason = "must be at most 40 lower-case letters, digits and dashes, a letter first"
            raise ConfigError("--name", self.name, reason)
        if not _QUANTITY.fullmatch(self.storage):
            raise ConfigError("--storage", self.storage, "must be a quantity, such as 100Gi")
        for key in ("namespace", "storage_class", "weights_claim", "service_account"):
            self._check_name(key)
        for key in ("env_secret", "metrics_secret", "runs_claim"):
            self._check_name(key)
        self._check_hosts()

    def _check_hosts(self) -> None:
        if self.hosts == 1:
            for option, value in (("--runs-claim", self.runs_claim), ("--certs", self.certs)):
                if value:
                    raise ConfigError(option, value, "has an effect only with --hosts of 2 or more")
            return
        ignored = {
            "--storage": self.storage != DEFAULT_STORAGE,
            "--storage-class": self.storage_class,
        }
        for option, given in ignored.items():
            if given:
                reason = "has no effect with several hosts, whose volumes are claims that you make"
                raise ConfigError(option, None, reason)
        if not self.certs:
            reason = (
                "must name a directory with certificates, by which the hosts verify each other: "
                f"make it with rlax certs DIR --name {self.name}-trainer"
            )
            raise ConfigError("--certs", None, reason)
        if self.port == COORDINATOR_PORT:
            reason = "is the port of the hosts' coordinator: choose another one"
            raise ConfigError("--port", self.port, reason)

    def _check_name(self, attribute: str) -> None:
        value = getattr(self, attribute)
        if value and not _SECRET.fullmatch(value):
            reason = "must be the name of an object: lower-case letters, digits, dashes and dots"
            raise ConfigError(f"--{attribute.replace('_', '-')}", value, reason)


def name_of_run(run_name: str) -> str:
    """Returns the name of a run's objects: its own, as far as a cluster accepts it."""
    plain = re.sub(r"[^a-z0-9]+", "-", run_name.lower()).strip("-")[:40].rstrip("-")
    return plain if _LABEL.fullmatch(plain) else f"run-{plain}"[:40].rstrip("-")


def pairs(option: str, given: Sequence[str], values: str) -> dict[str, str]:
    """Reads ``KEY=VALUE`` options.

    Args:
      values: ``quantities`` or ``labels``.

    Raises:
      ConfigError: one of them is not of that form.
    """
    pattern, example = {
        "quantities": (_QUANTITY, "memory=64Gi or google.com/tpu=4"),
        "labels": (_VALUE, "cloud.google.com/gke-tpu-topology=2x2"),
    }[values]
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not _KEY.fullmatch(key) or not pattern.fullmatch(value):
            raise ConfigError(option, text, f"must be KEY=VALUE, such as {example}")
        found[key] = value
    return found


def check_devices(options: Options, maxtext: Mapping[str, Any]) -> None:
    """Checks that pods get the devices that the config's ``hardware`` names.

    Raises:
      ConfigError: a resource is missing.
    """
    hardware = maxtext.get("hardware")
    wanted = _DEVICES.get(str(hardware))
    roles = {"trainer": options.trainer_resources, "worker": options.worker_resources}
    for role, resources in roles.items():
        if wanted and wanted not in resources:
            reason = (
                f"must name {wanted}, because the config has hardware: {hardware}; such as "
                f"{wanted}=4"
            )
            raise ConfigError(f"--{role}-resource", None, reason)
