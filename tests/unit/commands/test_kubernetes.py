"""``rlax launch``: manifests that Kubernetes accepts, and in them a run of this config."""

from __future__ import annotations

import copy
import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from command_line import rlax

from rlax_plugin.cli import app
from rlax_plugin.commands.kubernetes.grace import trainer_grace_s, worker_grace_s
from rlax_plugin.commands.kubernetes.options import name_of_run
from rlax_plugin.config.loading import resolve

TESTING = str(Path(__file__).parents[2] / "configs/testing.yml")
IMAGE = ("--image", "registry.example/rlax:1")
CLAIM = ("--weights-claim", "shared")
BUCKET = "base_output_directory=gs://bucket/runs"
KUBERNETES = kubernetes_validate.latest_version()
ALL_OPTIONS = (
    *CLAIM,
    *("--workers", "3", "--spot", "--storage", "20Gi", "--storage-class", "fast"),
    *("--trainer-resource", "google.com/tpu=4", "--worker-resource", "memory=64Gi"),
    *("--worker-resource", "google.com/tpu=8", "--namespace", "research"),
    *("--trainer-node", "cloud.google.com/gke-tpu-topology=2x2", "--service-account", "trainer"),
    *("--env-secret", "huggingface", "--metrics-secret", "scrapes"),
)


class Rendered:
    """The files that a command has written."""

    def __init__(self, directory: Path, *arguments: str, config: str = TESTING):
        self.directory = directory / "out"
        result = rlax("launch", config, *IMAGE, "--render", str(self.directory), *arguments)
        assert result.exit_code == 0, result.output
        self.said = result.stdout
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        for file in ("trainer.yml", "workers.yml"):
            for manifest in yaml.safe_load_all((self.directory / file).read_text()):
                self.objects[manifest["kind"], manifest["metadata"]["name"]] = manifest

    def pod(self, role: str) -> dict[str, Any]:
        kind = {"trainer": "StatefulSet", "worker": "Deployment"}[role]
        ((_, found),) = [one for one in self.objects.items() if one[0][0] == kind]
        return found["spec"]["template"]["spec"]

    def container(self, role: str) -> dict[str, Any]:
        (found,) = self.pod(role)["containers"]
        return found

    def keys(self) -> dict[str, str]:
        """The keys that the trainer's command sets."""
        command = self.container("trainer")["command"]
        assert command[:3] == ["rlax", "train", "/etc/rlax/config.yml"]
        return dict(word.split("=", 1) for word in command[3:])


def rejected(tmp_path: Path, *arguments: str, config: str = TESTING) -> str:
    result = rlax("launch", config, *IMAGE, "--render", str(tmp_path / "out"), *arguments)
    assert result.exit_code == 2 and result.stdout == "" and not (tmp_path / "out").exists()
    return result.stderr


@pytest.mark.parametrize("arguments", [CLAIM, (BUCKET,), ALL_OPTIONS], ids=["few", "url", "all"])
def test_the_manifests_keep_the_schemas_of_kubernetes(tmp_path: Path, arguments: Any) -> None:
    objects = Rendered(tmp_path, *arguments).objects
    assert sorted(objects) == [
        ("Deployment", "testing-worker"),
        ("PodDisruptionBudget", "testing-trainer"),
        ("PodDisruptionBudget", "testing-worker"),
        ("Service", "testing-trainer"),
        ("StatefulSet", "testing-trainer"),
    ]
    for manifest in objects.values():
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        # An error in any place of a pod would be found.
        if "template" in manifest["spec"]:
            wrong = copy.deepcopy(manifest)
            wrong["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_selectors_and_names_meet(tmp_path: Path) -> None:
    run = Rendered(tmp_path, *CLAIM, "--name", "mine", "--port", "5000")
    service = run.objects["Service", "mine-trainer"]["spec"]
    trainer = run.objects["StatefulSet", "mine-trainer"]["spec"]
    worker = run.objects["Deployment", "mine-worker"]["spec"]
    for role, spec in (("trainer", trainer), ("worker", worker)):
        labels = spec["template"]["metadata"]["labels"]
        budget = run.objects["PodDisruptionBudget", f"mine-{role}"]["spec"]
        assert spec["selector"]["matchLabels"] == budget["selector"]["matchLabels"] == labels
    assert service["selector"] == trainer["template"]["metadata"]["labels"]
    assert service["selector"] != worker["template"]["metadata"]["labels"]
    assert trainer["serviceName"] == "mine-trainer" and trainer["replicas"] == 1
    assert service["ports"] == [{"name": "controller", "port": 5000}]
    assert run.keys()["rlax.network.port"] == "5000"
    assert run.keys()["rlax.network.advertised_host"] == "mine-trainer"
    command = run.container("worker")["command"]
    assert command[:4] == ["rlax", "serve", "--controller", "mine-trainer:5000"]
    variables = {one["name"] for one in run.container("worker")["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(command))) == variables
    for role in ("trainer", "worker"):
        pod = run.pod(role)
        claims = {"runs"} if role == "trainer" else set()
        volumes = {one["name"] for one in pod["volumes"]} | claims
        containers = [*pod["containers"], *pod.get("initContainers", ())]
        mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
        assert mounted == volumes


def test_no_manifest_has_a_secret_and_their_files_are_private(tmp_path: Path) -> None:
    secret = "hf_4711aBcDe"
    run = Rendered(tmp_path, *ALL_OPTIONS, f"hf_access_token={secret}")
    for path in run.directory.glob("*.*"):
        assert secret not in path.read_text()
    assert secret not in run.said
    config = run.directory / "secret/config.yml"
    assert yaml.safe_load(config.read_text())["hf_access_token"] == secret
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
    # Every Secret that a pod needs is created by a command, or was named by the user.
    created = set(re.findall(r"create secret generic (\S+)", run.said))
    named = {"huggingface", "scrapes"}
    needed = {one["secret"]["secretName"] for role in ("trainer", "worker")
              for one in run.pod(role)["volumes"] if "secret" in one}  # fmt: skip
    volumes = [one for role in ("trainer", "worker") for one in run.pod(role)["volumes"]]
    modes = {one["secret"]["defaultMode"] for one in volumes if "secret" in one}
    assert modes == {0o440}
    assert needed <= created | named and created == {"testing-config", "testing-worker-token"}
    assert run.container("worker")["envFrom"] == [{"secretRef": {"name": "huggingface"}}]


def test_tokens_are_copied_for_the_user_of_the_process(tmp_path: Path) -> None:
    """Files of a mounted Secret belong to root and a group, and are not accepted as token files."""
    run = Rendered(tmp_path, *ALL_OPTIONS)
    (copying,) = run.pod("worker")["initContainers"]
    directories = {mount["mountPath"]: mount["name"] for mount in copying["volumeMounts"]}
    # The command is executed, with the volumes as directories.
    script = copying["command"][2]
    for path, name in directories.items():
        (tmp_path / name).mkdir()
        script = script.replace(path, str(tmp_path / name))
    (tmp_path / "worker-token-json/worker-token.json").write_text("worker")
    (tmp_path / "metrics-token/token").write_text("metrics")
    for file in tmp_path.glob("*-*/*token*"):
        file.chmod(0o440)
    subprocess.run(["sh", "-c", script], check=True, timeout=60)
    copies = {path.name: path for path in (tmp_path / "secrets").iterdir()}
    assert {name: path.read_text() for name, path in copies.items()} == {
        "worker-token.json": "worker",
        "metrics-token": "metrics",
    }
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in copies.values())
    said = " ".join(run.container("worker")["command"])
    assert "--token-file /run/rlax/worker-token.json" in said
    assert "--prometheus-token-file /run/rlax/metrics-token" in said
    emptied = {one["name"]: one for one in run.pod("worker")["volumes"]}["secrets"]
    assert emptied == {"name": "secrets", "emptyDir": {"medium": "Memory"}}


def test_pods_get_the_time_that_the_deadlines_say(tmp_path: Path) -> None:
    section = resolve(TESTING).section  # drain_s 30, rpc_s 60, the others by default
    assert worker_grace_s(section) == 30 + 2 * 60 + 10
    assert trainer_grace_s(section) == 300 + 2 * 120 + 2 * 60 + 70
    going_on = ("rlax.rollouts.on_new_weights=continue", "rlax.rollouts.progress_s=4")
    assert worker_grace_s(resolve(TESTING, going_on).section) == 30 + 8 + 120 + 10
    run = Rendered(tmp_path, *CLAIM, "rlax.deadlines.drain_s=7", "rlax.deadlines.rpc_s=2.25")
    assert run.pod("worker")["terminationGracePeriodSeconds"] == 22  # 21.5, rounded up
    assert run.pod("trainer")["terminationGracePeriodSeconds"] == 730


def test_the_volumes_of_a_local_run(tmp_path: Path) -> None:
    run = Rendered(tmp_path, *CLAIM)
    keys = run.keys()
    assert keys["base_output_directory"] == "/runs" and "rlax.state_dir" not in keys
    assert keys["rlax.weights.path"] == "/weights/testing"
    assert keys["rlax.launcher"] == "{name: static}"
    for role in ("trainer", "worker"):
        mounts = {one["name"]: one for one in run.container(role)["volumeMounts"]}
        assert mounts["weights"]["mountPath"] == "/weights"
        assert mounts["weights"].get("readOnly", False) == (role == "worker")
        assert ("runs" in mounts) == (role == "trainer")
    assert "cat /runs/testing/worker-token.json" in run.said
    assert "Kubernetes starts the workers" in run.said


def test_workers_that_are_sent_their_weights_share_no_volume(tmp_path: Path) -> None:
    run = Rendered(tmp_path, "rlax.weights.transfer=stream", "rlax.weights.path=/somewhere")
    assert run.keys()["rlax.weights.path"] == "/runs/weights/testing"
    assert "rlax.weights.stream_dir=/weights" in run.container("worker")["command"]
    assert {"name": "weights", "emptyDir": {}} in run.pod("worker")["volumes"]
    mounts = {one["name"]: one for one in run.container("worker")["volumeMounts"]}
    assert mounts["weights"] == {"name": "weights", "mountPath": "/weights"}
    assert "weights" not in {one["name"] for one in run.container("trainer")["volumeMounts"]}


def test_a_run_on_an_object_store_needs_only_a_state_directory(tmp_path: Path) -> None:
    run = Rendered(tmp_path, BUCKET)
    keys = run.keys()
    assert "base_output_directory" not in keys and "rlax.weights.path" not in keys
    assert keys["rlax.state_dir"] == "/runs/state/testing"
    assert "cat /runs/state/testing/worker-token.json" in run.said
    mounts = {one["name"] for one in run.container("worker")["volumeMounts"]}
    assert mounts == {"secrets"}
    kept = yaml.safe_load((run.directory / "secret/config.yml").read_text())
    assert kept["base_output_directory"] == "gs://bucket/runs"
    run = Rendered(tmp_path, "rlax.weights.path=gs://bucket/w", "rlax.state_dir=/elsewhere")
    assert run.keys()["rlax.state_dir"] == "/runs/state/testing"
    assert run.keys()["base_output_directory"] == "/runs"


def test_functions_come_with_the_config(tmp_path: Path) -> None:
    source = tmp_path / "here"
    (source / "more").mkdir(parents=True)
    config = yaml.safe_load(Path(TESTING).read_text())
    names = ("mine.py:one", "more/mine.py:two")
    config["rlax"]["rewards"] = [{"function": name} for name in names]
    (source / "run.yml").write_text(yaml.safe_dump(config))
    (source / "mine.py").write_text("def one(text): return 1.0\n")
    (source / "more/mine.py").write_text("def two(text): return 2.0\n")
    run = Rendered(tmp_path, *CLAIM, config=str(source / "run.yml"))
    volumes = {one["name"]: one for one in run.pod("trainer")["volumes"]}
    items = {one["key"]: one["path"] for one in volumes["config"]["secret"]["items"]}
    assert sorted(items.values()) == ["config.yml", "mine.py", "more/mine.py"]
    # As the pod sees them, from the Secret that the command creates.
    given = dict(re.findall(r"--from-file=([\w.-]+)=(\S+)", run.said))
    seen = tmp_path / "etc"
    for key, path in items.items():
        (seen / path).parent.mkdir(parents=True, exist_ok=True)
        (seen / path).write_bytes(Path(given[key]).read_bytes())
    resolved = resolve(str(seen / "config.yml"))
    texts = {name: Path(path).read_text() for name, path in resolved.functions.items()}
    assert texts == {"mine.py": "def one(text): return 1.0\n",
                     "more/mine.py": "def two(text): return 2.0\n"}  # fmt: skip
    for elsewhere in ("../mine.py:one", f"{source}/mine.py:one"):
        said = rejected(
            tmp_path / "no", *CLAIM, f"rlax.rewards=[{{function: {elsewhere}}}]",
            config=str(source / "run.yml"),
        )  # fmt: skip
        assert "must be below the directory of the config" in " ".join(said.split())


def test_devices_spot_nodes_and_probes(tmp_path: Path) -> None:
    run = Rendered(tmp_path, *ALL_OPTIONS, "hardware=tpu", "rlax.reward_processes=5")
    assert run.objects["Deployment", "testing-worker"]["spec"]["replicas"] == 3
    assert run.container("trainer")["resources"]["requests"] == {
        "cpu": "7", "memory": "16Gi", "google.com/tpu": "4"
    }  # fmt: skip
    resources = run.container("worker")["resources"]
    assert resources["requests"] == {"cpu": "2", "memory": "64Gi", "google.com/tpu": "8"}
    assert resources["limits"] == {"memory": "64Gi", "google.com/tpu": "8"}
    trainer, worker = run.pod("trainer"), run.pod("worker")
    assert trainer["nodeSelector"] == {"cloud.google.com/gke-tpu-topology": "2x2"}
    assert worker["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert {one["key"] for one in worker["tolerations"]} == {
        "cloud.google.com/gke-spot", "google.com/tpu"
    }  # fmt: skip
    assert {one["key"] for one in trainer["tolerations"]} == {"google.com/tpu"}
    assert "a spot node gives it at most 15 s" in run.said
    ports = {"trainer": {"controller": 4711, "metrics": 9401}, "worker": {"metrics": 9400}}
    for role, wanted in ports.items():
        container = run.container(role)
        opened = {one["name"]: one["containerPort"] for one in container["ports"]}
        assert opened == wanted
        assert container["readinessProbe"]["tcpSocket"]["port"] in wanted
        assert "livenessProbe" not in container
    assert run.keys()["rlax.network.prometheus_port"] == "9401"
    # In time: no warning.
    quick = ("rlax.deadlines.drain_s=3", "rlax.deadlines.rpc_s=1")
    assert "spot" not in Rendered(tmp_path, *CLAIM, "--spot", *quick).said.split("wrote")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--weights-claim: must name a PersistentVolumeClaim that all pods can mount"),
        ((*CLAIM, "hardware=gpu"), "--trainer-resource: must name nvidia.com/gpu, because"),
        (
            (*CLAIM, "hardware=tpu", "--trainer-resource", "google.com/tpu=4"),
            "--worker-resource: must name google.com/tpu, because the config has hardware: tpu",
        ),
        ((*CLAIM, "--worker-resource", "memory"), "--worker-resource = 'memory': must be KEY=VALU"),
        ((*CLAIM, "--worker-resource", "memory=lots"), "must be KEY=VALUE, such as memory=64Gi"),
        ((*CLAIM, "--trainer-node", "a b=c"), "--trainer-node = 'a b=c': must be KEY=VALUE"),
        ((*CLAIM, "--name", "Mine"), "--name = 'Mine': must be at most 40 lower-case letters"),
        ((*CLAIM, "--storage", "much"), "--storage = 'much': must be a quantity, such as 100Gi"),
        ((*CLAIM, "--env-secret", "a/b"), "--env-secret = 'a/b': must be the name of an object"),
        ((*CLAIM, "rlax.rollouts.slotz=3"), "rlax.rollouts.slotz = 3: unknown key"),
        ((*CLAIM, "rlax.trainer.name=bigramm"), "rlax.trainer.name = 'bigramm'"),
        ((*CLAIM, "run_name="), "run_name: must be set in the config"),
    ],
)
def test_what_cannot_run_is_rejected(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in " ".join(rejected(tmp_path, *arguments).split())


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = rlax("launch", TESTING, *IMAGE, *CLAIM, "--render", str(tmp_path / "file/out"))
    assert result.exit_code == 2 and "--render = " in result.stderr
    assert "cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("run_name", "name"),
    [("demo", "demo"), ("My run_2", "my-run-2"), ("4711", "run-4711"), ("ä" * 90, "run")],
)
def test_names_of_runs_become_names_of_objects(run_name: str, name: str) -> None:
    assert name_of_run(run_name) == name


def test_the_commands_are_a_script_in_their_order(tmp_path: Path) -> None:
    here = tmp_path / "a b"
    here.mkdir()
    run = Rendered(here, *CLAIM, "--namespace", "research")
    script = run.directory / "commands.sh"
    assert run.said.endswith(script.read_text())
    fake = tmp_path / "bin/kubectl"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\nprintf "%s|" "$@" >> "$CALLS"; echo >> "$CALLS"\n'
        'case "$*" in *cat*) echo token;; esac\n'
    )
    fake.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{fake.parent}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")
    }  # fmt: skip
    subprocess.run(["sh", "-eu", str(script)], check=True, env=environment, timeout=60)
    calls = [line.split("|")[:-1] for line in (tmp_path / "calls").read_text().splitlines()]
    assert all(call[:2] == ["--namespace", "research"] for call in calls)
    assert [call[2] for call in calls] == ["create", "apply", "rollout", "exec", "create", "apply"]
    files = [word.split("=")[-1] for call in calls for word in call if str(here) in word]
    assert len(files) == 4 and all(Path(file).exists() for file in files)
    token = run.directory / "secret/worker-token.json"
    assert token.read_text() == "token\n" and stat.S_IMODE(token.stat().st_mode) == 0o600
    assert shlex.quote(str(token)) in run.said


def test_the_commands_of_the_pods_are_accepted(tmp_path: Path) -> None:
    """They are parsed and resolved as in a pod, and nothing is run."""
    run = Rendered(tmp_path, *ALL_OPTIONS)
    config = run.directory / "secret/config.yml"
    overrides = run.container("trainer")["command"][3:]
    section = resolve(str(config), overrides).section
    assert section.launcher.name == "static" and section.network.host == "0.0.0.0"
    assert section.network.place.reached_at == "testing-trainer"
    group: Any = typer.main.get_command(app)
    command = ["10.0.0.7" if word == "$(POD_IP)" else word
               for word in run.container("worker")["command"][1:]]  # fmt: skip
    context = group.make_context("rlax", command)
    name, serve, rest = group.resolve_command(context, command)
    given = serve.make_context(name, rest, parent=context).params
    assert given["advertised_host"] == "10.0.0.7" and given["host"] == "0.0.0.0"
    assert given["controller"] == "testing-trainer:4711"
