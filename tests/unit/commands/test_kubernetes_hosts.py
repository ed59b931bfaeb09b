"""``rlax launch --hosts``: a JobSet whose pods are the hosts of one trainer."""

from __future__ import annotations

import copy
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from certificates import made
from command_line import rlax

from rlax_plugin.cli import app
from rlax_plugin.config.loading import resolve
from rlax_plugin.rpc.role_secret import role_secret
from rlax_plugin.rpc.run_secrets import run_secrets
from rlax_plugin.rpc.secret import read_secret
from rlax_plugin.start.places import Places

TESTING = str(Path(__file__).parents[2] / "configs/testing.yml")
BUCKET = "base_output_directory=gs://bucket/runs"
CLAIMS = ("--weights-claim", "shared", "--runs-claim", "runs")
KUBERNETES = kubernetes_validate.latest_version()
INDEX = "batch.kubernetes.io/job-completion-index"
FILES = ["server.pem", "server-key.pem", "ca.pem"]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    made(directory, "testing-trainer")
    return directory


def launched(directory: Path, certs: Path | None, *arguments: str) -> Any:
    command = ["launch", TESTING, "--image", "registry.example/rlax:1", "--hosts", "3"]
    given = ["--certs", str(certs)] if certs else []
    return rlax(*command, "--render", str(directory / "out"), *given, *arguments)


class Rendered:
    """The objects of a trainer over three hosts."""

    def __init__(self, directory: Path, certs: Path, *arguments: str):
        result = launched(directory, certs, *arguments)
        assert result.exit_code == 0, result.output
        self.said, self.directory = result.stdout, directory / "out"
        text = (self.directory / "trainer.yml").read_text()
        self.service, self.jobset, self.budget = yaml.safe_load_all(text)
        (self.replicated,) = self.jobset["spec"]["replicatedJobs"]
        self.job = self.replicated["template"]["spec"]
        self.pod = self.job["template"]["spec"]
        (self.container,) = self.pod["containers"]
        (self.init,) = [one for one in self.pod["initContainers"] if one["name"] == "state"]

    def as_job(self) -> dict[str, Any]:
        metadata = {"name": f"{self.jobset['metadata']['name']}-trainer-0"}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": self.job}


@pytest.mark.parametrize(
    "arguments", [(BUCKET,), (*CLAIMS, "--metrics-secret", "scrapes")], ids=["url", "claims"]
)
def test_what_is_inside_the_jobset_keeps_the_schemas_of_kubernetes(
    tmp_path: Path, certs: Path, arguments: Any
) -> None:
    run = Rendered(tmp_path, certs, *arguments)
    for manifest in (run.service, run.budget, run.as_job()):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    wrong = copy.deepcopy(run.as_job())
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["command"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)
    containers = [run.container, *run.pod["initContainers"]]
    mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
    assert mounted == {one["name"] for one in run.pod["volumes"]}


def test_the_jobset_starts_all_hosts_again_when_one_is_lost(tmp_path: Path, certs: Path) -> None:
    run = Rendered(tmp_path, certs, BUCKET)
    assert run.jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert run.jobset["kind"] == "JobSet" and run.jobset["metadata"]["name"] == "testing"
    assert set(run.jobset["spec"]) == {"network", "failurePolicy", "replicatedJobs"}
    assert run.replicated["name"] == "trainer" and run.replicated["replicas"] == 1
    assert (run.job["parallelism"], run.job["completions"]) == (3, 3)
    assert run.job["completionMode"] == "Indexed" and run.job["backoffLimit"] == 0
    assert run.pod["restartPolicy"] == "Never"
    # No other action than the default, a restart of all, except for a wrong config.
    policy = run.jobset["spec"]["failurePolicy"]
    (rule,) = policy["rules"]
    assert policy["maxRestarts"] == 100 and rule["action"] == "FailJobSet"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    (failing,) = run.job["podFailurePolicy"]["rules"]
    assert failing["action"] == "FailJob" and failing["onExitCodes"]["values"] == [2]
    assert failing["onExitCodes"]["containerName"] == run.container["name"]
    assert run.budget["spec"]["minAvailable"] == 3
    assert run.pod["terminationGracePeriodSeconds"] == 730
    tpu = Rendered(tmp_path, certs, BUCKET, "--trainer-resource", "google.com/tpu=4")
    (where,) = tpu.jobset["metadata"]["annotations"].items()
    assert where == (
        "alpha.jobset.sigs.k8s.io/exclusive-topology",
        "cloud.google.com/gke-nodepool",
    )
    assert "annotations" not in run.jobset["metadata"]


def test_the_name_of_host_0_selects_host_0_alone(tmp_path: Path, certs: Path) -> None:
    run = Rendered(tmp_path, certs, BUCKET, "--port", "5000")
    labels = run.job["template"]["metadata"]["labels"]
    assert run.service["spec"]["selector"] == {**labels, INDEX: "0"}
    assert run.budget["spec"]["selector"]["matchLabels"] == labels
    assert run.service["spec"]["clusterIP"] == "None"
    assert run.service["spec"]["publishNotReadyAddresses"] is True
    assert run.jobset["spec"]["network"]["subdomain"] != run.service["metadata"]["name"]
    ports = {one["name"]: one["port"] for one in run.service["spec"]["ports"]}
    assert ports == {"controller": 5000, "coordinator": 8476}
    assert {one["name"]: one["containerPort"] for one in run.container["ports"]} == ports
    workers = (run.directory / "workers.yml").read_text()
    assert "testing-trainer:5000" in workers and "StatefulSet" not in workers


def host(run: Rendered, directory: Path, index: int, program: str) -> subprocess.Popen[str]:
    """Starts the command of a pod, with a program in place of rlax."""
    (directory / "bin").mkdir(exist_ok=True)
    (directory / "bin/rlax").write_text(f"#!/bin/sh\n{program}\n")
    (directory / "bin/rlax").chmod(0o755)
    env = {one["name"]: one for one in run.container["env"]}
    field = env["JOB_COMPLETION_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == f"metadata.annotations['{INDEX}']"
    command = [
        word.replace("$(JOB_COMPLETION_INDEX)", str(index)).replace("/state/", f"{directory}/")
        for word in run.container["command"]
    ]
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "JOB_COMPLETION_INDEX": str(index)}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_every_pod_is_the_host_of_its_index(tmp_path: Path, certs: Path) -> None:
    run = Rendered(tmp_path, certs, BUCKET)
    group: Any = typer.main.get_command(app)
    for index in range(3):
        process = host(run, tmp_path, index, 'printf "%s\\n" "$@"')
        words = process.communicate(timeout=60)[0].splitlines()
        assert process.returncode == 0
        context = group.make_context("rlax", list(words))
        name, command, rest = group.resolve_command(context, list(words))
        given = command.make_context(name, rest, parent=context).params
        assert (given["hosts"], given["host"]) == (3, index)
        assert given["coordinator"] == "testing-trainer:8476" and given["token_file"] == ""
        assert given["controller"] == ("" if index == 0 else "testing-trainer:4711")
        place = Places(given["hosts"], given["host"], given["coordinator"], given["controller"])
        found = place.place()
        assert found is not None and (found.index, found.count) == (index, 3)
    section = resolve(str(run.directory / "secret/config.yml"), given["overrides"]).section
    assert section.network.tls.key == "/run/rlax/server-key.pem"
    assert section.state_dir == f"{tmp_path}/testing"


def test_a_host_that_fails_shows_the_end_of_its_log(tmp_path: Path, certs: Path) -> None:
    run = Rendered(tmp_path, certs, BUCKET)
    (tmp_path / "testing/logs").mkdir(parents=True)
    lines = [f"line {i}" for i in range(40)]
    (tmp_path / "testing/logs/host-1.log").write_text("\n".join(lines) + "\n")
    failed = host(run, tmp_path, 1, "exit 134")
    assert failed.communicate(timeout=60)[1].splitlines() == lines[10:]
    assert failed.returncode == 134
    # A signal reaches the program, which has the time that it needs, and its status counts.
    patient = "trap 'echo told; sleep 0.3; exit 130' TERM; echo runs; while :; do sleep 0.05; done"
    process = host(run, tmp_path, 0, patient)
    try:
        assert process.stdout is not None and process.stdout.readline() == "runs\n"
        process.terminate()
        assert process.communicate(timeout=60)[0] == "told\n" and process.returncode == 130
    finally:
        process.kill()


def test_only_host_0_must_have_written_its_addresses_to_be_ready(
    tmp_path: Path, certs: Path
) -> None:
    run = Rendered(tmp_path, certs, BUCKET)
    command = run.container["readinessProbe"]["exec"]["command"]
    probe = [word.replace("/state/", f"{tmp_path}/") for word in command]

    def ready(index: int) -> bool:
        environment = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(index)}
        return subprocess.run(probe, env=environment, timeout=60).returncode == 0

    assert [ready(0), ready(1)] == [False, True]
    (tmp_path / "testing").mkdir()
    (tmp_path / "testing/endpoints.json").touch()
    assert ready(0)


def test_the_secrets_of_a_run_are_made_once_and_are_those_that_host_0_uses(
    tmp_path: Path, certs: Path
) -> None:
    run = Rendered(tmp_path, certs, *CLAIMS, "--metrics-secret", "scrapes")
    secret = run.directory / "secret"
    names = ["secrets.json", "worker-token.json", "host-token.json"]
    before = {name: (secret / name).read_text() for name in names}
    assert all(stat.S_IMODE((secret / name).stat().st_mode) == 0o600 for name in names)
    for text in (run.said, (run.directory / "trainer.yml").read_text()):
        assert "BEGIN" not in text and read_secret(secret / names[2], "").token not in text
    Rendered(tmp_path, certs, *CLAIMS)
    assert {name: (secret / name).read_text() for name in names} == before
    # The init container copies them, and then host 0 finds them in its state directory.
    created = dict(re.findall(r"generic (\S+) ((?:--from-file=\S+ ?)+)", run.said))
    assert set(created) == {
        "testing-config", "testing-secrets", "testing-worker-token", "testing-certs"
    }  # fmt: skip
    mounts = {one["name"]: one["mountPath"] for one in run.init["volumeMounts"]}
    volumes = {one["name"]: one for one in run.pod["volumes"]}
    script, place = run.init["command"][2], {name: tmp_path / name for name in mounts}
    for name, path in mounts.items():
        place[name].mkdir()
        script = script.replace(f"{path}/", f"{place[name]}/")
        if "secret" in volumes[name]:
            given = created[volumes[name]["secret"]["secretName"]]
            for key, file in re.findall(r"--from-file=([\w.-]+)=(\S+)", given):
                (place[name] / key).write_bytes(Path(file).read_bytes())
                (place[name] / key).chmod(0o440)
    subprocess.run(["sh", "-c", script], check=True, timeout=60)
    state = place["state"] / "testing"
    assert sorted(path.name for path in place["secrets"].iterdir()) == sorted(FILES)
    copies = [place["secrets"] / "server-key.pem", *(state / name for name in names)]
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in copies)
    found = run_secrets(state, (certs / "ca.pem").read_text())
    assert role_secret(state, found, "host").token == read_secret(secret / names[2], "").token
    assert {name: (state / name).read_text() for name in names} == before


def test_the_volumes_of_hosts(tmp_path: Path, certs: Path) -> None:
    run = Rendered(tmp_path, certs, *CLAIMS)
    mounts = {one["name"]: one["mountPath"] for one in run.container["volumeMounts"]}
    assert mounts["runs"] == "/runs" and mounts["state"] == "/state"
    volumes = {one["name"]: one for one in run.pod["volumes"]}
    assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert volumes["state"] == {"name": "state", "emptyDir": {}}
    words = run.container["command"]
    assert "base_output_directory=/runs" in words and "rlax.weights.path=/weights/testing" in words
    cache = {one["name"]: one.get("value") for one in run.container["env"]}["XDG_CACHE_HOME"]
    assert cache == "/runs/cache"
    run = Rendered(tmp_path, certs, BUCKET)
    assert "runs" not in {one["name"] for one in run.container["volumeMounts"]}
    assert not any(word.startswith("base_output_directory") for word in run.container["command"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--weights-claim", "shared"), "--runs-claim: must name a PersistentVolumeClaim that all"),
        ((BUCKET, "--name", "mine"), "is not for mine-trainer, by which workers reach the run"),
        ((BUCKET, "--storage", "1Gi"), "--storage: has no effect with several hosts"),
        ((BUCKET, "--storage-class", "x"), "--storage-class: has no effect with several hosts"),
        ((BUCKET, "--port", "8476"), "--port = 8476: is the port of the hosts' coordinator"),
        ((BUCKET, "--hosts", "1"), "has an effect only with --hosts of 2 or more"),
        ((BUCKET, "--hosts", "1", "--runs-claim", "a"), "--runs-claim = 'a': has an effect only"),
    ],
)
def test_what_cannot_run_on_hosts_is_rejected(
    tmp_path: Path, certs: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = launched(tmp_path, certs, *arguments)
    assert result.exit_code == 2 and not (tmp_path / "out").exists()
    assert said in " ".join(result.stderr.split())


def test_hosts_need_certificates_that_clients_may_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = launched(tmp_path, None, BUCKET)
    assert "--certs: must name a directory with certificates" in " ".join(result.stderr.split())
    assert result.exit_code == 2
    from cryptography.x509.oid import ExtendedKeyUsageOID

    # As certificates were made before hosts showed them.
    monkeypatch.setattr(ExtendedKeyUsageOID, "CLIENT_AUTH", ExtendedKeyUsageOID.CODE_SIGNING)
    made(tmp_path / "old", "testing-trainer")
    monkeypatch.undo()
    result = launched(tmp_path, tmp_path / "old", BUCKET)
    assert result.exit_code == 2
    assert "is for servers only, but each host shows it" in " ".join(result.stderr.split())
