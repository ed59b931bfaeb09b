"""The manifests of a trainer over several hosts: a JobSet, in place of the StatefulSet.

All its pods share one template, so each pod decides by its index what it does. When a host is lost,
JAX ends the others, and the JobSet starts all of them again.
"""

from __future__ import annotations

import shlex
from typing import Any

from rlax_plugin.commands.kubernetes.manifests import CONFINED, Manifest, Manifests, resources_of
from rlax_plugin.commands.kubernetes.options import COORDINATOR_PORT
from rlax_plugin.commands.kubernetes.places import (
    HOST_SECRETS,
    RUNS,
    SECRETS,
    STATE,
    TLS_FILES,
)

MAX_RESTARTS = 100
_INDEX = "batch.kubernetes.io/job-completion-index"
_TPU, _EXCLUSIVE = "google.com/tpu", "alpha.jobset.sigs.k8s.io/exclusive-topology"
_WRONG_CONFIG = 2  # exit status of rlax, after which a restart would not help
_GIVEN = {"secrets": "/given/secrets", "certs": "/given/certs"}
_MODE = 0o440
_LOG_LINES = 30

# The shell stays: it shows the end of the logs, which the pod takes with it.
_SCRIPT = """\
[ "$JOB_COMPLETION_INDEX" = 0 ] || set -- "$@" --controller {controller}
trap 'kill -TERM $!' TERM
"$@" &
child=$!
wait $child
status=$?
while kill -0 $child 2>/dev/null; do wait $child; status=$?; done
[ $status = 0 ] || tail -n {lines} {state}/logs/*.log >&2
exit $status
"""


class HostManifests(Manifests):
    """The manifests of a run whose trainer has several hosts."""

    def trainer(self) -> list[Manifest]:
        """The Service of host 0, the JobSet and its PodDisruptionBudget."""
        name, count = f"{self._name}-trainer", self._options.hosts
        ports = {"controller": self._options.port, "coordinator": COORDINATOR_PORT}
        service = {
            "clusterIP": "None",
            # The hosts and the workers look for host 0 before it is ready, and wait for it.
            "publishNotReadyAddresses": True,
            "selector": {**self._labels("trainer"), _INDEX: "0"},
            "ports": [{"name": n, "port": port} for n, port in ports.items()],
        }
        wrong = {"containerName": "trainer", "operator": "In", "values": [_WRONG_CONFIG]}
        job = {
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": wrong}]},
            "template": self._pod("trainer"),
        }
        rule = {
            "name": "wrongConfig",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy"],
        }
        hosts = {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": f"{self._name}-hosts",
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": MAX_RESTARTS, "rules": [rule]},
            "replicatedJobs": [{"name": "trainer", "replicas": 1, "template": {"spec": job}}],
        }
        jobset = self._object("jobset.x-k8s.io/v1alpha2", "JobSet", self._name, hosts)
        if _TPU in self._options.trainer_resources:
            # The chips of one slice compute together: all hosts in one node pool.
            jobset["metadata"]["annotations"] = {_EXCLUSIVE: "cloud.google.com/gke-nodepool"}
        return [
            self._object("v1", "Service", name, service),
            jobset,
            # A drained node would end all hosts.
            self._budget("trainer", {"minAvailable": count}),
        ]

    def trainer_command(self) -> list[str]:
        """The command line of every host, with a variable that Kubernetes replaces."""
        address = f"{self._name}-trainer"
        controller = f"{address}:{self._options.port}"
        script = _SCRIPT.format(
            controller=controller, lines=_LOG_LINES, state=shlex.quote(self._places.state)
        )
        place = ["--hosts", str(self._options.hosts), "--host", "$(JOB_COMPLETION_INDEX)"]
        place += ["--coordinator", f"{address}:{COORDINATOR_PORT}"]
        return ["sh", "-c", script, "trainer", *super().trainer_command(), *place]

    def _pod(self, role: str) -> Manifest:
        pod = super()._pod(role)
        if role == "trainer":
            spec = pod["spec"]
            spec["restartPolicy"] = "Never"
            spec["initContainers"] = [*spec.get("initContainers", ()), self._preparing()]
        return pod

    def _container(self, role: str) -> Manifest:
        container = super()._container(role)
        if role == "worker":
            return container
        index: dict[str, Any] = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}
        cache = RUNS if self._options.runs_claim else STATE
        environment = [one for one in container["env"] if one["name"] != "XDG_CACHE_HOME"]
        container["env"] = [
            *environment,
            {"name": "JOB_COMPLETION_INDEX", "valueFrom": index},
            {"name": "XDG_CACHE_HOME", "value": f"{cache}/cache"},
        ]
        container["ports"].append({"name": "coordinator", "containerPort": COORDINATOR_PORT})
        # Host 0 writes this file once workers can register; only host 0 listens.
        ready = f'[ "$JOB_COMPLETION_INDEX" != 0 ] || [ -e {self._places.state}/endpoints.json ]'
        container["readinessProbe"] = {
            "exec": {"command": ["sh", "-c", ready]},
            "periodSeconds": container["readinessProbe"]["periodSeconds"],
        }
        return container

    def _preparing(self) -> Manifest:
        """Copies the run's secrets into its state directory, and certificates to a private one."""
        state = shlex.quote(self._places.state)
        copies = [f"cp {_GIVEN['secrets']}/{file} {state}/{file}" for file in HOST_SECRETS]
        copies += [f"cp {_GIVEN['certs']}/{file} {SECRETS}/{file}" for file in TLS_FILES.values()]
        mounts = [
            {"name": f"given-{name}", "mountPath": path, "readOnly": True}
            for name, path in _GIVEN.items()
        ]
        own = [{"name": "state", "mountPath": STATE}, {"name": "secrets", "mountPath": SECRETS}]
        return {
            "name": "state",
            "image": self._options.image,
            "command": ["sh", "-c", " && ".join(("umask 077", f"mkdir -p {state}", *copies))],
            "resources": resources_of({"cpu": "10m", "memory": "32Mi"}),
            "securityContext": CONFINED,
            "volumeMounts": [*mounts, *own],
        }

    def _mounts(self, role: str) -> list[Manifest]:
        mounts = super()._mounts(role)
        if role == "worker":
            return mounts
        kept = ["config", "runs"] if self._options.runs_claim else ["config"]
        mounts = [one for one in mounts if one["name"] in (*kept, "weights")]
        own = {"state": STATE, "secrets": SECRETS}
        return [*mounts, *({"name": name, "mountPath": path} for name, path in own.items())]

    def _volumes(self, role: str, secrets: Any) -> list[Manifest]:
        volumes = super()._volumes(role, secrets)
        if role == "worker":
            return volumes
        if not secrets:
            volumes.append({"name": "secrets", "emptyDir": {"medium": "Memory"}})
        volumes.append({"name": "state", "emptyDir": {}})
        if claim := self._options.runs_claim:
            volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": claim}})
        return volumes + [
            {
                "name": f"given-{name}",
                "secret": {"secretName": f"{self._name}-{name}", "defaultMode": _MODE},
            }
            for name in _GIVEN
        ]
