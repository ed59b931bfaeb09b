"""The files of ``configs/kubernetes``: Kubernetes accepts them, and their commands are rlax's."""

import copy
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from command_line import rlax
from documents import ROOT, fences, read, sections

from rlax_plugin.config import Deadlines
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.rpc.security.run_secrets import run_secrets
from rlax_plugin.rpc.security.secret import read_secret
from rlax_plugin.run.start.places import Places
from rlax_plugin.tools.cli import app

KUBERNETES = kubernetes_validate.latest_version()
INDEX = "batch.kubernetes.io/job-completion-index"
GROUP: Any = typer.main.get_command(app)
DOCKERFILE = (ROOT / "Dockerfile").read_text()
TOKENS = ["host-token.json", "secrets.json", "worker-token.json"]


class Manifests:
    """The objects of a file, and the pods in them."""

    def __init__(self, name: str):
        self.text = (ROOT / "configs/kubernetes" / name).read_text()
        self.objects: dict[tuple[str, str], Any] = {
            (manifest["kind"], manifest["metadata"]["name"]): manifest
            for manifest in yaml.safe_load_all(self.text)
        }
        trainer = self.objects.get(("StatefulSet", "demo-trainer"))
        if trainer is None:
            self.jobset = self.objects["JobSet", "demo"]["spec"]
            (replicated,) = self.jobset["replicatedJobs"]
            trainer = replicated["template"]
        self.trainer = trainer["spec"]
        self.worker = self.objects["Deployment", "demo-worker"]["spec"]
        self.service = self.objects["Service", "demo-trainer"]["spec"]
        self.pods: dict[str, Any] = {
            "trainer": self.trainer["template"],
            "worker": self.worker["template"],
        }

    def container(self, role: str) -> dict[str, Any]:
        (container,) = self.pods[role]["spec"]["containers"]
        return container

    def volumes(self, role: str) -> dict[str, dict[str, Any]]:
        return {volume["name"]: volume for volume in self.pods[role]["spec"]["volumes"]}


ONE_HOST, SEVERAL_HOSTS = Manifests("one_host.yml"), Manifests("several_hosts.yml")
both = pytest.mark.parametrize("run", [ONE_HOST, SEVERAL_HOSTS], ids=["one", "several"])


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of a command line, as the command would get them."""
    context = GROUP.make_context("rlax", list(words))
    name, command, rest = GROUP.resolve_command(context, list(words))
    return command.make_context(name, rest, parent=context).params


def resolved(parameters: dict[str, Any]) -> ResolvedConfig:
    assert parameters["config"] == "/etc/rlax/config.yml"
    return resolve(str(ROOT / "configs/demo.yml"), parameters["overrides"])


@both
def test_the_manifests_keep_the_schemas_of_kubernetes(run: Manifests) -> None:
    objects = dict(run.objects)
    kind, name = ("StatefulSet", "demo-trainer") if run is ONE_HOST else ("JobSet", "demo")
    trainer = objects[kind, name]
    common = {("Deployment", "demo-worker"), ("Service", "demo-trainer")}
    budgets = {("PodDisruptionBudget", f"demo-{role}") for role in ("trainer", "worker")}
    assert set(objects) == {(kind, name)} | common | budgets
    if run is SEVERAL_HOSTS:  # whose Job is an object of Kubernetes
        metadata = {"name": "trainer"}
        del objects[kind, name]
        trainer = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        objects["Job", "trainer"] = trainer | {"spec": run.trainer}
    for manifest in objects.values():
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        # An error in any place of a pod would be found.
        if "template" in manifest["spec"]:
            wrong = copy.deepcopy(manifest)
            wrong["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@both
def test_labels_volumes_ports_and_devices_meet(run: Manifests) -> None:
    for role, spec in (("trainer", run.trainer), ("worker", run.worker)):
        pod = run.pods[role]["spec"]
        labels = run.pods[role]["metadata"]["labels"]
        budget = run.objects["PodDisruptionBudget", f"demo-{role}"]["spec"]
        assert budget["selector"]["matchLabels"] == labels
        assert spec.get("selector", {"matchLabels": labels})["matchLabels"] == labels
        containers = [*pod["containers"], *pod["initContainers"]]
        mounts = [(mount["name"], mount["mountPath"]) for container in containers
                  for mount in container["volumeMounts"]]  # fmt: skip
        claims = {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())}
        assert {name for name, _ in mounts} == set(run.volumes(role)) | claims
        assert len(set(mounts)) == len(dict(mounts))  # a volume has one path in all containers
        secrets = [one["secret"] for one in pod["volumes"] if "secret" in one]
        assert {secret["defaultMode"] for secret in secrets} == {0o440}
        assert len({container["image"] for container in containers}) == 1
        resources = run.container(role)["resources"]
        requests = {name: n for name, n in resources["requests"].items() if name != "cpu"}
        assert requests == resources["limits"] and "google.com/tpu" in requests
        assert "google.com/tpu" in {one["key"] for one in pod["tolerations"]}
        security = pod["securityContext"]
        users = {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")}
        assert users == {int(user) for user in re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)}
        probe = run.container(role)["readinessProbe"].get("tcpSocket", {"port": "controller"})
        assert probe["port"] in {port["name"] for port in run.container(role)["ports"]}
        assert "livenessProbe" not in run.container(role)
        variables = {one["name"] for one in run.container(role)["env"]}
        used = re.findall(r"\$\((\w+)\)", " ".join(run.container(role)["command"]))
        assert set(used) <= variables
    labels = run.pods["trainer"]["metadata"]["labels"]
    index = {} if run is ONE_HOST else {INDEX: "0"}
    assert run.service["selector"] == labels | index
    assert labels != run.pods["worker"]["metadata"]["labels"]
    assert run.service["publishNotReadyAddresses"] is True
    opened = {one["name"]: one["containerPort"] for one in run.container("trainer")["ports"]}
    assert opened.items() >= {one["name"]: one["port"] for one in run.service["ports"]}.items()


@both
def test_pods_get_the_time_that_the_deadlines_say(run: Manifests) -> None:
    deadlines = Deadlines()
    trainer = deadlines.batch_s + 2 * deadlines.weights_s + 2 * deadlines.close_s + 70
    worker = deadlines.drain_s + 2 * deadlines.rpc_s + 10
    assert (trainer, worker) == (730, 50)
    for role, seconds in (("trainer", trainer), ("worker", worker)):
        assert run.pods[role]["spec"]["terminationGracePeriodSeconds"] == seconds


@both
def test_the_command_of_the_workers_is_accepted(run: Manifests) -> None:
    words = [word.replace("$(POD_IP)", "10.0.0.7") for word in run.container("worker")["command"]]
    assert words[0] == "rlax"
    serve = parsed(words[1:])
    port = run.service["ports"][0]["port"]
    assert serve["controller"] == f"demo-trainer:{port}"
    assert (serve["advertised_host"], serve["host"]) == ("10.0.0.7", "0.0.0.0")
    (metrics,) = run.container("worker")["ports"]
    assert serve["prometheus_port"] == metrics["containerPort"]
    for key in ("token_file", "prometheus_token_file"):
        assert str(serve[key]).startswith("/run/rlax/")
    keys = dict(word.split("=") for word in serve["arguments"] or ())
    assert keys == ({"rlax.weights.stream_dir": "/weights"} if run is ONE_HOST else {})
    resolve(str(ROOT / "configs/demo.yml"), [f"{key}={value}" for key, value in keys.items()])


def check_trainer(run: Manifests, config: ResolvedConfig) -> None:
    section, ports = config.section, {one["name"]: one["port"] for one in run.service["ports"]}
    assert (config.maxtext["hardware"], config.maxtext["run_name"]) == ("tpu", "demo")
    assert section.launcher.name == "static" and section.network.host == "0.0.0.0"
    assert section.network.place.reached_at == "demo-trainer"
    assert section.network.port == ports["controller"]
    opened = {one["name"]: one["containerPort"] for one in run.container("trainer")["ports"]}
    assert section.network.prometheus_port == opened["metrics"]
    cpu = run.container("trainer")["resources"]["requests"]["cpu"]
    assert int(cpu) == 2 + section.reward_processes


def test_the_command_of_one_host_is_accepted() -> None:
    command = ONE_HOST.container("trainer")["command"]
    assert command[:2] == ["rlax", "train"]
    config = resolved(parsed(command[1:]))
    check_trainer(ONE_HOST, config)
    assert config.section.weights.transfer == "stream"
    (claim,) = ONE_HOST.trainer["volumeClaimTemplates"]
    mounts = {one["name"]: one for one in ONE_HOST.container("trainer")["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]]["mountPath"] == "/runs"
    assert config.maxtext["base_output_directory"] == "/runs"


def started(directory: Path, index: int, program: str) -> subprocess.Popen[str]:
    """Starts the command of a host's pod, with a program in place of rlax."""
    (directory / "bin").mkdir(exist_ok=True)
    (directory / "bin/rlax").write_text(f"#!/bin/sh\n{program}\n")
    (directory / "bin/rlax").chmod(0o755)
    container = SEVERAL_HOSTS.container("trainer")
    env = {one["name"]: one for one in container["env"]}
    field = env["JOB_COMPLETION_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == f"metadata.annotations['{INDEX}']"
    command = [
        word.replace("$(JOB_COMPLETION_INDEX)", str(index)).replace("/state/", f"{directory}/")
        for word in container["command"]
    ]
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "JOB_COMPLETION_INDEX": str(index)}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_every_pod_is_the_host_of_its_index(tmp_path: Path) -> None:
    count = SEVERAL_HOSTS.trainer["completions"]
    budget = SEVERAL_HOSTS.objects["PodDisruptionBudget", "demo-trainer"]["spec"]
    assert SEVERAL_HOSTS.trainer["parallelism"] == count == budget["minAvailable"]
    for index in range(count):
        process = started(tmp_path, index, 'printf "%s\\n" "$@"')
        train = parsed(process.communicate(timeout=60)[0].splitlines())
        assert process.returncode == 0 and (train["hosts"], train["host"]) == (count, index)
        assert train["coordinator"] == "demo-trainer:8476" and train["token_file"] == ""
        assert train["controller"] == ("" if index == 0 else "demo-trainer:4711")
        place = Places(count, index, train["coordinator"], train["controller"]).place()
        assert place is not None and (place.index, place.count) == (index, count)
        config = resolved(train)
        check_trainer(SEVERAL_HOSTS, config)
        assert config.section.network.tls.key == "/run/rlax/server-key.pem"
        assert config.section.state_dir == f"{tmp_path}/demo"
        assert config.maxtext["base_output_directory"].startswith("gs://")


def test_a_host_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "demo/logs").mkdir(parents=True)
    lines = [f"line {i}" for i in range(40)]
    (tmp_path / "demo/logs/host-1.log").write_text("\n".join(lines) + "\n")
    failed = started(tmp_path, 1, "exit 134")
    assert failed.communicate(timeout=60)[1].splitlines() == lines[10:]
    assert failed.returncode == 134
    # A signal reaches the program, which has the time that it needs, and its status counts.
    patient = "trap 'echo told; sleep 0.3; exit 130' TERM; echo runs; while :; do sleep 0.05; done"
    process = started(tmp_path, 0, patient)
    try:
        assert process.stdout is not None and process.stdout.readline() == "runs\n"
        process.terminate()
        assert process.communicate(timeout=60)[0] == "told\n" and process.returncode == 130
    finally:
        process.kill()


def test_only_host_0_must_have_written_its_addresses_to_be_ready(tmp_path: Path) -> None:
    command = SEVERAL_HOSTS.container("trainer")["readinessProbe"]["exec"]["command"]
    probe = [word.replace("/state/", f"{tmp_path}/") for word in command]

    def ready(index: int) -> bool:
        environment = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(index)}
        return subprocess.run(probe, env=environment, timeout=60).returncode == 0

    assert [ready(0), ready(1)] == [False, True]
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/endpoints.json").touch()
    assert ready(0)


def page_secrets(heading: str) -> Iterator[tuple[str, list[str]]]:
    """The Secrets that a section of docs/operate.md makes: name and keys."""
    text = sections(read("operate.md"), 2)["Kubernetes"]
    text = sections(text, 3)[heading] if heading else text[: text.index("\n### ")]
    for block in fences(text, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if "generic" in words:
                name, *options = words[words.index("generic") + 1 :]
                assert all(re.match("--from-(file|literal)=", option) for option in options)
                yield name, [Path(option.split("=")[1]).name for option in options]


@pytest.mark.parametrize(
    ("run", "heading"),
    [(ONE_HOST, ""), (SEVERAL_HOSTS, "Several hosts on Kubernetes")],
    ids=["one", "several"],
)
def test_the_page_makes_every_secret(tmp_path: Path, run: Manifests, heading: str) -> None:
    """The init containers run, with volumes as directories; only the user can read the copies."""
    as_above = {k: v for k, v in page_secrets("") if k in ("demo-config", "demo-metrics")}
    made = dict(page_secrets(heading)) | as_above
    certs = tmp_path / "certs"
    command = ("certs", "make", str(certs), "--name", "demo-trainer", "--tokens")
    assert rlax(*command).exit_code == 0
    before = {name: (certs / name).read_text() for name in TOKENS}
    assert rlax(*command).exit_code == 0  # a renewed certificate keeps them
    assert {name: (certs / name).read_text() for name in TOKENS} == before
    needed = set()
    for role in ("trainer", "worker"):
        (copying,) = run.pods[role]["spec"]["initContainers"]
        script, here = copying["command"][2], tmp_path / role
        for mount in copying["volumeMounts"]:
            place = here / mount["name"]
            place.mkdir(parents=True)
            script = script.replace(f"{mount['mountPath']}/", f"{place}/")
        for name, volume in run.volumes(role).items():
            if secret := volume.get("secret"):
                needed.add(secret["secretName"])
                for key in made[secret["secretName"]]:
                    if (here / name).exists():
                        source = certs / key
                        text = source.read_text() if source.exists() else "token"
                        (here / name / key).write_text(text)
                        (here / name / key).chmod(0o440)
        subprocess.run(["sh", "-c", script], check=True, timeout=60)
        own = [path for path in here.rglob("*") if path.is_file()]
        copies = [path for path in own if path.relative_to(here).parts[0] in ("secrets", "state")]
        assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in copies)
        names = {path.name for path in copies}
        command = " ".join(run.container(role)["command"])
        assert set(re.findall(r"/run/rlax/([\w.-]+)", command)) <= names
        if run is SEVERAL_HOSTS and role == "trainer":
            # Host 0 finds the run's secrets in its state directory, and keeps them.
            state = here / "state/demo"
            found = run_secrets(state, (certs / "ca.pem").read_text())
            token = read_secret(certs / "host-token.json", "").token
            assert found.share("host") == token
            assert {name: (state / name).read_text() for name in TOKENS} == before
    assert needed == set(made)
