"""The manifests of a run as plain dicts, in the order in which they are applied.

Only kinds of Kubernetes itself occur; ``several_hosts`` adds a JobSet. No manifest contains a
secret: pods mount Secrets that ``kubectl create secret`` makes from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlax_plugin.commands.kubernetes.grace import trainer_grace_s, worker_grace_s
from rlax_plugin.commands.kubernetes.options import Options
from rlax_plugin.commands.kubernetes.places import (
    CONFIG,
    CONFIG_FILE,
    METRICS_TOKEN,
    RUNS,
    SECRETS,
    TOKEN,
    WEIGHTS,
    Places,
)
from rlax_plugin.config import RlaxSection

Manifest = dict[str, Any]

USER = 1000
"""User and group of all processes, the image's ``rlax``."""

_METRICS = {"trainer": 9401, "worker": 9400}
_SPOT = "cloud.google.com/gke-spot"
_GIVEN = "/secrets"  # Secrets as Kubernetes mounts them, for the init container only
_PROBE_S = 10
_MODE = 0o440  # of mounted files, which belong to root and the group of the pod


class Manifests:
    """The manifests of one run.

    Args:
      section: of the config that the pods get.
    """

    def __init__(self, section: RlaxSection, options: Options, places: Places):
        self._section, self._options, self._places = section, options, places
        self._name = options.name

    def trainer(self) -> list[Manifest]:
        """The trainer's Service, StatefulSet and PodDisruptionBudget."""
        name = f"{self._name}-trainer"
        spec = {
            "clusterIP": "None",
            # A worker may look for the controller before it is ready, and waits for it.
            "publishNotReadyAddresses": True,
            "selector": self._labels("trainer"),
            "ports": [{"name": "controller", "port": self._options.port}],
        }
        claim = {
            "metadata": {"name": "runs"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": self._options.storage}},
            },
        }
        if storage_class := self._options.storage_class:
            claim["spec"]["storageClassName"] = storage_class
        stateful = {
            "serviceName": name,
            "replicas": 1,
            "selector": {"matchLabels": self._labels("trainer")},
            "template": self._pod("trainer"),
            "volumeClaimTemplates": [claim],
        }
        return [
            self._object("v1", "Service", name, spec),
            self._object("apps/v1", "StatefulSet", name, stateful),
            # A node is not drained under it. To move it, delete its pod: it resumes.
            self._budget("trainer", {"minAvailable": 1}),
        ]

    def workers(self) -> list[Manifest]:
        """The Deployment of the workers, and its PodDisruptionBudget."""
        spec = {
            "replicas": self._options.workers,
            "selector": {"matchLabels": self._labels("worker")},
            # No more pods than devices: a pod of the new image waits for one of the old.
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": self._pod("worker"),
        }
        return [
            self._object("apps/v1", "Deployment", f"{self._name}-worker", spec),
            self._budget("worker", {"maxUnavailable": "50%"}),
        ]

    def trainer_command(self) -> list[str]:
        """The command line of the trainer."""
        keys = {
            "rlax.launcher": "{name: static}",
            "rlax.network.host": "0.0.0.0",
            "rlax.network.advertised_host": f"{self._name}-trainer",
            "rlax.network.port": str(self._options.port),
            **self._places.keys,
        }
        if self._options.metrics_secret:
            keys["rlax.network.prometheus_port"] = str(_METRICS["trainer"])
            keys["rlax.network.prometheus_token_file"] = f"{SECRETS}/{METRICS_TOKEN}"
        overrides = [f"{key}={value}" for key, value in keys.items()]
        return ["rlax", "train", f"{CONFIG}/{CONFIG_FILE}", *overrides]

    def worker_command(self) -> list[str]:
        """The command line of a worker, with variables that Kubernetes replaces."""
        command = ["rlax", "serve", "--controller", f"{self._name}-trainer:{self._options.port}"]
        command += ["--token-file", f"{SECRETS}/{TOKEN}", "--name", "$(POD_NAME)"]
        command += ["--host", "0.0.0.0", "--advertised-host", "$(POD_IP)"]
        if self._places.streams_weights:
            command.append(f"rlax.weights.stream_dir={WEIGHTS}")
        if self._options.metrics_secret:
            command += ["--prometheus-port", str(_METRICS["worker"])]
            command += ["--prometheus-token-file", f"{SECRETS}/{METRICS_TOKEN}"]
        return command

    def _labels(self, role: str) -> dict[str, str]:
        return {"app.kubernetes.io/instance": self._name, "app.kubernetes.io/component": role}

    def _object(self, version: str, kind: str, name: str, spec: Mapping[str, Any]) -> Manifest:
        role = "worker" if name == f"{self._name}-worker" else "trainer"
        metadata: Manifest = {"name": name, "labels": self._labels(role)}
        if self._options.namespace:
            metadata["namespace"] = self._options.namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": dict(spec)}

    def _budget(self, role: str, amount: Mapping[str, Any]) -> Manifest:
        spec = {**amount, "selector": {"matchLabels": self._labels(role)}}
        return self._object("policy/v1", "PodDisruptionBudget", f"{self._name}-{role}", spec)

    def _pod(self, role: str) -> Manifest:
        options, is_trainer = self._options, role == "trainer"
        grace_s = trainer_grace_s if is_trainer else worker_grace_s
        copied = self._secrets(role)
        spec: Manifest = {
            "terminationGracePeriodSeconds": grace_s(self._section),
            "automountServiceAccountToken": bool(options.service_account),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [self._copying(copied)] if copied else [],
            "containers": [self._container(role)],
            "volumes": self._volumes(role, copied),
        }
        if not copied:
            del spec["initContainers"]
        if options.service_account:
            spec["serviceAccountName"] = options.service_account
        nodes = dict(options.trainer_nodes if is_trainer else options.worker_nodes)
        tolerations = []
        if options.spot and not is_trainer:
            nodes[_SPOT] = "true"
            taint = {"key": _SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
            tolerations.append(taint)
        resources = options.trainer_resources if is_trainer else options.worker_resources
        for device in (name for name in resources if "/" in name):
            # Nodes with devices have a taint of that name.
            tolerations.append({"key": device, "operator": "Exists", "effect": "NoSchedule"})
        if nodes:
            spec["nodeSelector"] = nodes
        if tolerations:
            spec["tolerations"] = tolerations
        return {"metadata": {"labels": self._labels(role)}, "spec": spec}

    def _container(self, role: str) -> Manifest:
        options, is_trainer = self._options, role == "trainer"
        command = self.trainer_command() if is_trainer else self.worker_command()
        container: Manifest = {
            "name": role,
            "image": options.image,
            "command": command,
            "env": _fields({"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}),
            "resources": resources_of(
                options.trainer_resources if is_trainer else options.worker_resources
            ),
            "securityContext": CONFINED,
            "volumeMounts": self._mounts(role),
        }
        ports = {"controller": options.port} if is_trainer else {}
        if options.metrics_secret:
            ports["metrics"] = _METRICS[role]
        if ports:
            container["ports"] = [{"name": n, "containerPort": p} for n, p in ports.items()]
            # No liveness: every wait has a deadline, and a process that cannot go on ends.
            probed = next(iter(ports))
            container["readinessProbe"] = {
                "tcpSocket": {"port": probed}, "periodSeconds": _PROBE_S
            }  # fmt: skip
        if is_trainer:
            # What was prepared or downloaded is there after a restart on another node.
            container["env"].append({"name": "XDG_CACHE_HOME", "value": f"{RUNS}/cache"})
        if options.env_secret:
            container["envFrom"] = [{"secretRef": {"name": options.env_secret}}]
        return container

    def _secrets(self, role: str) -> dict[str, tuple[str, str]]:
        """File below ``SECRETS`` -> the Secret, and its key."""
        found = {}
        if role == "worker":
            found[TOKEN] = (f"{self._name}-worker-token", TOKEN)
        if self._options.metrics_secret:
            found[METRICS_TOKEN] = (self._options.metrics_secret, "token")
        return found

    def _copying(self, secrets: Mapping[str, tuple[str, str]]) -> Manifest:
        """Copies secrets to files of the process's own user, which Kubernetes' are not."""
        lines = [f"cp {_GIVEN}/{file}/{key} {SECRETS}/{file}" for file, (_, key) in secrets.items()]
        mounts = [
            {"name": _volume(file), "mountPath": f"{_GIVEN}/{file}", "readOnly": True}
            for file in secrets
        ]
        return {
            "name": "secrets",
            "image": self._options.image,
            "command": ["sh", "-c", " && ".join(("umask 077", *lines))],
            "resources": resources_of({"cpu": "10m", "memory": "32Mi"}),
            "securityContext": CONFINED,
            "volumeMounts": [*mounts, {"name": "secrets", "mountPath": SECRETS}],
        }

    def _mounts(self, role: str) -> list[Manifest]:
        mounts: list[Manifest] = []
        if self._secrets(role):
            mounts.append({"name": "secrets", "mountPath": SECRETS})
        if role == "trainer":
            mounts.append({"name": "config", "mountPath": CONFIG, "readOnly": True})
            mounts.append({"name": "runs", "mountPath": RUNS})
        if self._places.shares_weights:
            read_only = {"readOnly": True} if role == "worker" else {}
            mounts.append({"name": "weights", "mountPath": WEIGHTS, **read_only})
        elif self._places.streams_weights and role == "worker":
            mounts.append({"name": "weights", "mountPath": WEIGHTS})
        return mounts

    def _volumes(self, role: str, secrets: Mapping[str, tuple[str, str]]) -> list[Manifest]:
        volumes: list[Manifest] = [
            {"name": _volume(file), "secret": {"secretName": secret, "defaultMode": _MODE}}
            for file, (secret, _) in secrets.items()
        ]
        if secrets:
            volumes.append({"name": "secrets", "emptyDir": {"medium": "Memory"}})
        if role == "trainer":
            items = [{"key": key, "path": path} for key, path in self._places.files.items()]
            name = f"{self._name}-config"
            secret = {"secretName": name, "defaultMode": _MODE, "items": items}
            volumes.append({"name": "config", "secret": secret})
        if self._places.shares_weights:
            claim = {"claimName": self._options.weights_claim}
            volumes.append({"name": "weights", "persistentVolumeClaim": claim})
        elif self._places.streams_weights and role == "worker":
            volumes.append({"name": "weights", "emptyDir": {}})
        return volumes


CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _volume(file: str) -> str:
    return file.replace(".", "-")


def _fields(paths: Mapping[str, str]) -> list[Manifest]:
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in paths.items()
    ]


def resources_of(amounts: Mapping[str, str]) -> Manifest:
    """Requests and limits of a container; CPU is only requested."""
    limits = {name: amount for name, amount in amounts.items() if name != "cpu"}
    return {"requests": dict(amounts), "limits": limits}
