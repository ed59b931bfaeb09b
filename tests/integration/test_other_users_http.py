"""Another user of the machine at the HTTP port of a served run: he gets in nobody's way."""

import json
import resource
import urllib.request
from pathlib import Path

import pytest
from finished_run import FinishedRun
from other_users import attack, common_home, need_another_user
from processes import python_path
from runs import DEADLINE_S
from served_runs import Server

from rlax_plugin.rpc.security.key_ring import token_path
from rlax_plugin.rpc.security.secret import read_secret

FILES = 512
ENGINE = (
    "rlax.plugins=[rlax_plugin.testing, bigram_slots]",
    "rlax.rollouts.engine={name: bigram_slots, at_least: 5}",
)


@pytest.mark.slow
@pytest.mark.ci
def test_forged_keys_and_idle_connections_keep_nobody_out(
    finished_run: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_another_user()
    monkeypatch.setenv("PYTHONPATH", python_path(Path(__file__).parent))
    run = finished_run.copied_to(tmp_path).dir
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with common_home():
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, before[1]))  # which it inherits
        try:
            server = Server(run, *ENGINE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        with server:
            address = server.until_ready()
            port = int(server.http.removesuffix("/v1").rpartition(":")[2])
            key = read_secret(token_path(address), "token").token
            _, *found = attack("other_user_http.py", port=port, old_key=key[::-1])
            assert [one["status"] for one in found] == [401] * 5, found
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            body = json.dumps({"prompt": "1", "max_tokens": 1}).encode()
            request = urllib.request.Request(f"{server.http}/completions", body, headers)
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                assert len(json.load(answer)["choices"]) == 1
            status, errors = server.end()
            assert status == 0 and "ERROR" not in errors, errors[-2000:]
