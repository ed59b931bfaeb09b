"""Another user of the machine attacks a run that goes on: he learns nothing and changes nothing.

He is real: a process of another uid, which has what every user has, the ports and /proc. For the
second part he plays a worker, with the token of one. The run's digests are those of a run that
nobody disturbs.
"""

import asyncio
import json
import os
import re
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import other_user_calls as known
import psutil
import pytest
from attacked_parts import DIRECTORY
from google.protobuf.json_format import MessageToDict
from other_users import (
    attack,
    common_home,
    family,
    found_in,
    need_another_user,
    not_let_in,
    ports,
    secrets_of,
)
from runs import (
    CONFIG,
    DEADLINE_S,
    HELPERS,
    TWO_WORKERS,
    Run,
    digests,
    free_port,
    held,
    plugins,
    process,
)
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.identity import sample_hash
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.capabilities import to_proto
from rlax_plugin.rollout.fleet.package_versions import own_versions
from rlax_plugin.rollout.worker.joining import fetch_config
from rlax_plugin.rpc.security.callers import METHODS
from rlax_plugin.rpc.security.certificate import new_identity
from rlax_plugin.tools.commands.audit import audit

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(500)]

STEPS, HELD = 12, 6


def settings(go: Path) -> tuple[str, ...]:
    """Arguments of a run that begins no step from ``HELD`` on until a file is there."""
    return (
        f"steps={STEPS}",
        TWO_WORKERS,
        *held({HELD: go}, "train_s: 0.05", "checkpoint_every: 3"),
        plugins("held", "bigram_slots", "attacked_parts"),
        "rlax.deterministic=true",
        "rlax.rollouts.engine={name: bigram_slots}",  # with JetStream's service
        "rlax.rewards=[{name: even}, {name: boxed, weight: 0}]",
        "rlax.evaluation.problems=0",
        "rlax.network.serve_clients=true",
    )


def computed(run: Run) -> tuple[Any, ...]:
    """Every version and sample, which another run of the same config must have as well."""
    by_whom = ("workers", "attempt")
    trained = [{k: v for k, v in row.items() if k not in by_whom} for row in run.trained()]
    return digests(run.dir), trained


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory in which workers write what tells their processes apart."""
    need_another_user()
    told = tmp_path_factory.mktemp("processes")
    with pytest.MonkeyPatch.context() as patch:
        for path in (HELPERS, str(Path(__file__).parent)):
            patch.setenv("PYTHONPATH", path, prepend=os.pathsep)
        patch.setenv(DIRECTORY, str(told))
        yield told


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    directory = tmp_path_factory.mktemp("undisturbed")
    go = directory / "go"
    go.touch()
    run = Run(directory, *settings(go))
    status, out = run.end()
    assert status == 0, out
    found = computed(run)
    assert found[0].keys() == {*range(STEPS + 1)} and len(found[1]) == 16 * STEPS
    return found


@dataclass
class Attacked:
    """A run that was attacked and has ended, and what came of it.

    Attributes:
      workers: name -> port.
      grpc_ports: of workers, controller and parameter server.
      calls: without a token.
      with_tokens: calls, with the tokens of other roles.
      hostile: what a hostile worker tried.
      looked_at: by the other user, in files and processes.
      own_view: process -> environment and arguments, as the run's own user sees them.
      page: for Prometheus.
    """

    home: Path
    run: Run
    workers: dict[str, int]
    controller: int
    parameter_server: int
    prometheus: int
    secrets: dict[str, str] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    with_tokens: list[dict[str, Any]] = field(default_factory=list)
    hostile: list[dict[str, Any]] = field(default_factory=list)
    looked_at: dict[str, Any] = field(default_factory=dict)
    own_view: dict[str, str] = field(default_factory=dict)
    page: str = ""
    ended: tuple[int, str] = (-1, "")

    @property
    def grpc_ports(self) -> set[int]:
        return {*self.workers.values(), self.controller, self.parameter_server}

    def client_token(self, worker: str) -> str:
        return self.secrets[f"127.0.0.1:{self.workers[worker]}.json"]


def serving(run: Run) -> dict[str, int]:
    """Worker -> its port, of those that have registered."""
    told = [path.read_text() for path in run.dir.glob("logs/local-*.log")]
    found = re.findall(r"worker (\S+) serves on 127.0.0.1:(\d+)\s", "".join(told))
    return {name: int(port) for name, port in found}


@pytest.fixture(scope="module")
def attacked(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    go = tmp_path_factory.mktemp("held") / "go"
    controller, parameter_server, prometheus = (free_port() for _ in range(3))
    overrides = (
        *settings(go),
        f"rlax.network.port={controller}",
        f"rlax.network.prometheus_port={prometheus}",
        f"rlax.weights.parameter_server=127.0.0.1:{parameter_server}",
    )
    listen = ("parameter-server", CONFIG, *overrides, "--port", str(parameter_server))
    with common_home() as home, process(home, "server", *listen) as server:
        told = home / "server.log"
        wait_until(lambda: "listens on" in told.read_text(), "the server", limit_s=DEADLINE_S)
        run = Run(home, *overrides)
        run.until(lambda: len(run.steps()) == HELD - 1, f"step {HELD - 1}")
        workers = run.until(
            lambda: workers if len(workers := serving(run)) == 2 else None, "two workers"
        )
        found = Attacked(home, run, workers, controller, parameter_server, prometheus)
        processes = family(psutil.Process(one) for one in (run.process.pid, server.pid))
        assert found.grpc_ports | {prometheus} == ports(processes).keys()
        found.secrets = secrets_of(run.dir, home)
        call_everything(found)
        look_around(found, processes)
        play_a_worker(found, environment, processes)
        assert run.process.poll() is None and len(run.steps()) == HELD - 1
        go.touch()
        found.ended = run.end()
        yield found


def call_everything(found: Attacked) -> None:
    both = sorted(found.grpc_ports)
    everything = known.EVERYTHING

    def without(role: str) -> list[str]:
        return [m for m in everything if role not in METHODS.get(m, ())]

    tokens = {role: found.secrets[role] for role in ("worker", "trainer")}
    homes = {role: {found.controller, found.parameter_server} for role in tokens}
    for name, port in found.workers.items():
        tokens[f"client of {name}"] = found.client_token(name)
        homes[f"client of {name}"] = {port}
    orders = [
        {"port": port, "name": name, "token": token, "methods": methods}
        for name, token in tokens.items()
        for port in both
        for methods in [without(name.partition(" ")[0]) if port in homes[name] else everything]
    ]
    # A client may call the service of the engine; with it, and nothing else.
    for one in orders:
        if one["port"] in homes[one["name"]] and one["name"].startswith("client"):
            one["methods"] = [m for m in one["methods"] if m not in known.JETSTREAM]
    first, *made = attack("other_user_calls.py", ports=both, with_tokens=orders)
    assert found.grpc_ports | {found.prometheus} <= {*first["listening"]}  # he knows them himself
    found.calls = [one for one in made if one.get("token") not in tokens]
    found.with_tokens = [
        {**one, "known": one["port"] in homes[one["token"]]}
        for one in made
        if one.get("token") in tokens
    ]
    with urllib.request.urlopen(f"http://127.0.0.1:{found.prometheus}/metrics", timeout=60) as page:
        found.page = page.read().decode()


def look_around(found: Attacked, processes: list[psutil.Process]) -> None:
    paths = [str(path) for path in (found.home, *found.home.rglob("*"))]
    pids = [one.pid for one in processes]
    (found.looked_at,) = attack("other_user_files.py", paths=paths, pids=pids)
    for one in processes:
        environment = "\n".join(f"{k}={v}" for k, v in one.environ().items())
        found.own_view[f"{one.pid} {one.name()}"] = f"{environment}\n{' '.join(one.cmdline())}"


def play_a_worker(found: Attacked, told: Path, processes: list[psutil.Process]) -> None:
    (victim,) = (one for one in processes if "local-0" in one.cmdline())
    address = f"127.0.0.1:{found.controller}"
    config, secret = asyncio.run(
        fetch_config(address, str(found.run.dir / "worker-token.json"), 60)
    )
    port = found.workers["local-0"]
    slots = config.section.rollouts.slots
    has = Capabilities(slots, 64, seeded=True, logprobs=True, resumes=True, stop_strings=True)
    _, *found.hostile = attack(
        "other_user_worker.py",
        controller=found.controller,
        parameter_server=found.parameter_server,
        certificate=secret.certificate,
        token=secret.token,
        config_hash=sample_hash(config.content),
        versions=own_versions(config.section.plugins),
        capabilities=MessageToDict(to_proto(has), preserving_proto_field_name=True),
        own_certificate=new_identity().certificate,
        nobody_listens=free_port(),
        weights=str(found.run.dir / "weights"),
        newest=HELD - 1,
        victim={
            "name": "local-0",
            "process": (told / str(victim.pid)).read_text(),
            "port": port,
            "certificate": ssl.get_server_certificate(("127.0.0.1", port)),
        },
    )


def test_nobody_is_let_in_without_a_token(attacked: Attacked) -> None:
    ways = len(known.WITHOUT_A_TOKEN) + 2  # of them without TLS
    assert not_let_in(attacked.calls) == 4 * (2 * ways * len(known.EVERYTHING) + 3)


def test_a_token_opens_nothing_but_what_its_role_needs(attacked: Attacked) -> None:
    assert len(attacked.with_tokens) > 16 * 2 * len(METHODS)
    for one in attacked.with_tokens:
        expected = "PERMISSION_DENIED" if one["known"] else "UNAUTHENTICATED"
        assert one["status"] == expected, one


def tried(attacked: Attacked, what: str) -> list[dict[str, Any]]:
    found = [one for one in attacked.hostile if one["tries"] == what]
    assert found
    return found


def test_a_worker_speaks_for_itself_alone(attacked: Attacked) -> None:
    assert all(one["accepted"] for one in tried(attacked, "to join"))
    assert all(one["known"] for one in tried(attacked, "its own heartbeat"))
    assert {one["status"] for one in tried(attacked, "impersonation")} == {"PERMISSION_DENIED"}
    refused = {"PERMISSION_DENIED", "UNAUTHENTICATED"}  # known at the controller alone
    assert {one["status"] for one in tried(attacked, "publish")} == refused
    assert {one["status"] for one in tried(attacked, "victim")} == {"UNAUTHENTICATED"}


def test_no_odd_registration_is_accepted(attacked: Attacked) -> None:
    found = tried(attacked, "register")
    assert [one for one in found if one["accepted"] or one["status"] == "UNKNOWN"] == []


def test_the_run_ends_as_if_nobody_had_attacked_it(
    attacked: Attacked, undisturbed: tuple[Any, ...]
) -> None:
    status, out = attacked.ended
    assert status == 0, out
    assert computed(attacked.run) == undisturbed
    assert audit(RunFiles(attacked.run.dir)).violation is None
    # Those that were impersonated have stayed, and nobody was believed about them.
    assert "quarantined" not in out and not re.search("worker local-[01] (lost|was)", out), out
    assert attacked.run.summary()["worker_restarts"] == 0


def test_nothing_that_others_can_read_tells_a_secret(attacked: Attacked) -> None:
    looked_at, secrets = attacked.looked_at, attacked.secrets
    readable = [Path(path) for path in looked_at["readable"]]
    assert attacked.home / "anybody.txt" in readable  # he reads what he may
    for path in filter(Path.is_file, readable):
        assert found_in(path.read_bytes().decode("latin-1"), secrets) == [], path
    private = [path for path in readable if "token" in path.name or "secret" in path.name]
    assert private == [] and looked_at["writable"] == looked_at["grows"] == []
    assert found_in(attacked.page, secrets) == []
    assert found_in(attacked.run.dir.joinpath("logs/trainer.log").read_text(), secrets) == []
    assert found_in(attacked.ended[1], secrets) == []


def test_others_can_read_nothing_of_a_run(attacked: Attacked) -> None:
    run = attacked.run.dir
    readable = [Path(path) for path in attacked.looked_at["readable"]]
    assert [path for path in readable if path.is_relative_to(run)] == []


def test_the_processes_of_a_run_show_others_no_secret(attacked: Attacked) -> None:
    """Nor do they have any where children inherit it, which may be told to print it."""
    processes = attacked.looked_at["processes"]
    own = attacked.own_view
    # Of trainer, server, two workers; a reward process with its sandbox, which has two.
    assert len(processes) == len(own) >= 7
    for pid, shown in processes.items():
        assert shown.keys() <= {"cmdline", "task", "status"}, (pid, shown.keys())
        assert found_in(json.dumps(shown), attacked.secrets) == []
    assert {name: found_in(text, attacked.secrets) for name, text in own.items()} == {
        name: [] for name in own
    }
