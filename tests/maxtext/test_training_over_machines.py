"""The demo, shortened, over three machines and a network that is slow and breaks connections.

The trainer is on one machine. A worker on the second reads the weights from a common directory, and
a worker on the third, which does not see it, is sent them. A gateway is between the third and the
trainer. Meanwhile the operator's certificate is renewed and the token of the workers rotated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos.network import Conditions
from command_line import rlax
from namespaces import Machine, need_machines, network
from proxied import threaded
from runs import Records, digests
from waiting import wait_until

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles
from rlax_plugin.rpc.authority import CA, SERVER, SERVER_KEY

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
RLAX = (sys.executable, "-m", "rlax_plugin")
PORT, WORKER_PORT = 4711, 4712
LIMIT_S, STEPS, MAX_STALENESS = 900.0, 80, 1
FAR = Conditions(delay_s=0.05, jitter_s=0.01, resets_s=(4.0, 12.0))
SETTINGS = (
    *("run_name=testing", f"steps={STEPS}", "checkpoint_period=30"),
    *(
        "per_device_batch_size=128",
        f"tokenizer_path={ROOT}/plugins/rlax_arithmetic/tokenizer_files",
    ),
    *("rlax.rollouts.groups_per_step=16", "rlax.rollouts.slots=64"),
    "rlax.trainer.warm_start.enabled=false",
    "rlax.rewards=[{name: token_parity}]",  # an untrained model gets different ones of it
    "rlax.curation.filters=[]",  # and learns in 60 steps to get equal ones
    "rlax.evaluation={split: test, problems: 16, samples: 2, k: [1]}",
    *("rlax.launcher={name: static}", "rlax.trackers=[]"),
    f"rlax.staleness.max_staleness={MAX_STALENESS}",
)
PATIENCE = "rlax.deadlines={startup_s: 600, rpc_s: 60, heartbeat_s: 0.5, heartbeats_lost: 120}"


def test_maxtext_trains_with_workers_on_other_machines(tmp_path: Path) -> None:
    need_machines()
    weights, certs = tmp_path / "weights", tmp_path / "certs"
    weights.mkdir()
    with network(4, tmp_path) as machines, ExitStack() as stack:
        trainer, near, far, gateway = machines
        far.run("mount", "-t", "tmpfs", "rlax", str(weights))
        names = ("--name", trainer.address, "--name", gateway.address)
        trainer.run(*RLAX, "certs", str(certs), *names, timeout_s=LIMIT_S)

        at = f"{trainer.address}:{PORT}"
        calls = stack.enter_context(threaded(at, FAR, 1, machine=gateway, port=PORT))
        own = f"{far.address}:{WORKER_PORT}"
        called = stack.enter_context(threaded(own, FAR, 2, machine=gateway, port=WORKER_PORT))

        def started(machine: Machine, name: str, *words: str):
            process = machine.process(tmp_path / f"{name}.log", *RLAX, *words)
            return stack.enter_context(process)

        def said(name: str) -> str:
            return (tmp_path / f"{name}.log").read_text()

        def until(condition: Callable[[], object], what: str) -> None:
            def ended_or() -> bool:
                time.sleep(0.2)  # a look reads files
                ended = run.poll() is not None
                seen = bool(condition())
                assert seen or not ended, said("trainer")
                return seen

            wait_until(ended_or, what, limit_s=LIMIT_S)

        run = started(
            trainer, "trainer", "train", str(ROOT / "configs/demo.yml"), *SETTINGS, PATIENCE,
            f"base_output_directory={trainer.home}/runs", f"rlax.weights.path={weights}",
            f"rlax.network={{host: {trainer.address}, advertised_host: {gateway.address}, "
            f"port: {PORT}, tls: {{certificate: {certs / SERVER}, key: {certs / SERVER_KEY}, "
            f"ca: {certs / CA}}}}}",
        )  # fmt: skip
        records = Records(trainer.seen(trainer.home))
        log = records.dir / "logs/trainer.log"
        token = records.dir / "worker-token.json"
        copy = {machine: machine.seen(machine.home) / "token.json" for machine in (near, far)}

        def hand_out() -> None:
            for path in copy.values():
                path.touch(0o600)
                path.write_text(token.read_text())

        until(token.exists, "the token file")
        hand_out()
        joined = {}
        for machine, name, controller, *more in (
            (near, "near", trainer),
            (far, "far", gateway, "--advertised-host", gateway.address, "--port", str(WORKER_PORT),
             "rlax.weights.transfer=stream"),
        ):  # fmt: skip
            serve = ("serve", "--controller", f"{controller.address}:{PORT}", "--name", name)
            files = ("--token-file", f"{machine.home}/token.json", "--ca", str(certs / CA))
            joined[name] = started(machine, name, *serve, *files, *more, PATIENCE)

        def samples_of(name: str, since: int = 0) -> bool:
            return any(
                name in row["workers"] and min(row["versions"]) >= since
                for row in records.trained()
            )

        until(lambda: samples_of("near") and samples_of("far"), "samples of both workers")
        certificate = (certs / SERVER).read_text()
        for command in (("certs", certs), ("token", records.dir, "--rotate", "--old-for", "1")):
            assert rlax(*map(str, command)).exit_code == 0
        assert (certs / SERVER).read_text() != certificate
        hand_out()
        until(lambda: "is not accepted any more" in log.read_text(), "the end of the old token")
        rotated = len(records.steps())
        assert rotated < STEPS - 5

        assert run.wait(LIMIT_S) == 0, said("trainer")
        assert [worker.wait(60) for worker in joined.values()] == [0, 0]

        assert "rlax.network.tls has changed: it is used from now on" in log.read_text()
        steps = records.steps()
        assert [step["step"] for step in steps] == [*range(1, STEPS + 1)]
        assert records.summary()["steps"] == STEPS
        # Both went on with versions that only the new token gives them.
        assert samples_of("near", rotated + 2) and samples_of("far", rotated + 2)
        assert min(calls.proxy.accepted, called.proxy.accepted) >= 3
        assert "quarantined" not in said("trainer")
        assert list(far.seen(weights).iterdir()) == []

        report = audit(RunFiles(records.dir))
        assert report.clean, report.violation
        assert report.figures.max_staleness <= MAX_STALENESS
        assert max(step["staleness/max"] for step in steps) <= MAX_STALENESS
        # Each token has the log-prob that the trainer computes with the version that it names.
        published = digests(records.dir)
        assert all(len(found) == 1 for found in published.values())
        assert {v for row in records.trained() for v in row["versions"]} <= published.keys()
        assert max(step["logprob_gap/p95"] for step in steps) < 1e-4
        assert any(step.get("rollout/stream_bytes", 0) > 0 for step in steps)
