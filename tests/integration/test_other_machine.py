"""A run with the operator's certificates, and workers that have nothing but a token file.

They are processes of this machine, on an address that is not loopback.
"""

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import processes
import pytest
from certificates import made
from command_line import rlax
from runs import DEADLINE_S, Run, free_port

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.rpc.security.authority import CA, SERVER
from rlax_plugin.rpc.transport.own_address import own_address
from rlax_plugin.tools.commands.audit import audit

OWN = own_address("192.0.2.1:80")  # sends nothing there

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(OWN == "127.0.0.1", reason="this machine has no other address"),
]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    Run.end_all()


@pytest.mark.long
def test_workers_join_with_a_copied_token_file_and_follow_a_rotation(
    tmp_path: Path, stack: ExitStack
) -> None:
    tls = made(tmp_path / "certs", OWN)
    address, elsewhere = f"{OWN}:{(port := free_port())}", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = Run(
        tmp_path,
        "steps=4000",
        "rlax.launcher={name: static}",
        "rlax.evaluation.problems=0",
        "rlax.trainer.learning_rate=1e-6",  # or the task would become too easy for its filter
        "rlax.rollouts.engine.token_s=0.01",
        f"rlax.network={{host: 0.0.0.0, advertised_host: '{OWN}', port: {port}, tls: "
        f"{{certificate: {tls.certificate}, key: {tls.key}, ca: {tls.ca}}}}}",
    )

    def worker(name: str, token: Path, *more: str):
        serve = ("serve", "--controller", address, "--name", name, "--token-file", str(token))
        log = tmp_path / f"{name}.log"
        started = processes.process(log, *serve, *more, cwd=elsewhere)
        return stack.enter_context(started), log

    source = run.dir / "worker-token.json"
    run.until(source.exists, "the token file")
    old, copy = elsewhere / "old.json", elsewhere / "token.json"
    shutil.copy(source, old)
    shutil.copy(source, copy)
    first, first_log = worker("first", copy, "--host", OWN)
    run.until(run.steps, "a step")
    assert f"worker first serves on {OWN}:" in first_log.read_text()

    # Another authority does not lead to the controller; the worker says so, and would wait on.
    made(tmp_path / "other", OWN)
    ca = str(tmp_path / "other" / CA)
    deceived, log = worker("deceived", copy, "--ca", ca, "rlax.deadlines.startup_s=10")
    assert deceived.wait(DEADLINE_S) == 1
    assert "is not signed by the expected authority" in log.read_text().splitlines()[-1]

    made(tmp_path / "certs", OWN)  # the certificate is renewed, and the token rotated
    rotated = rlax("certs", "token", str(run.dir), "--rotate", "--old-for", "0")
    assert rotated.exit_code == 0, rotated.stderr
    shutil.copy(source, copy)
    trainer_log = run.dir / "logs/trainer.log"
    ended = lambda: "is not accepted any more" in trainer_log.read_text()  # noqa: E731
    run.until(ended, "the end of the old token")
    late, log = worker("late", old)
    assert late.wait(DEADLINE_S) == 2
    assert "this run takes no such token" in log.read_text().splitlines()[-1]
    second, _ = worker("second", copy, "--host", OWN)
    names = lambda: {name for row in run.trained() for name in row["workers"]}  # noqa: E731
    run.until(lambda: "second" in names(), "a sample of the second worker")
    assert first.poll() is None is second.poll()  # it never had to be started again

    run.process.send_signal(signal.SIGINT)
    status, said = run.end()
    assert status == 130, said
    assert f"--controller {address}" in said and "the worker token was rotated" in said
    told = trainer_log.read_text()
    assert "rlax.network.tls has changed: it is used from now on" in told
    assert "shows a token that is not taken here" in told and f"from ipv4:{OWN}:" in told
    assert (tmp_path / "certs" / SERVER).exists() and audit(RunFiles(run.dir)).clean
