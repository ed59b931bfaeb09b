"""Other programs ask for completions: JetStream's own stub against real processes of a real run.

The engine is the real one over slots without MaxText (``bigram_slots``).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import doors
import grpc
import numpy as np
import pytest
from jetstream.core.proto import jetstream_pb2 as jet
from jetstream.core.proto import jetstream_pb2_grpc as jet_rpc
from processes import python_path
from runs import DEADLINE_S, Run, free_port
from served_runs import (
    Server,
    generated,
    ids,
    is_live,
    orchestrator,
    page,
    sample,
    text,
    token_file,
)
from streamed import wholes
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.key_ring import token_path
from rlax_plugin.rpc.security.secret import read_secret
from rlax_plugin.testing.task import STOP, decode, encode
from rlax_plugin.weights.kept_versions import record_versions, versions_from_json, versions_to_json

PLUGINS = "rlax.plugins=[rlax_plugin.testing, bigram_slots]"
GREEDY = (
    "rlax.rollouts.engine={name: bigram_slots, at_least: 5}",
    "rlax.rollouts.temperature=0",
    "rlax.rollouts.top_k=7",  # like a temperature of 0 rejected for training alone
    "rlax.rollouts.max_new_tokens=40",
    "rlax.rollouts.slots=4",
)
FOREVER = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(Path(__file__).parent))
        yield


@dataclass
class Trained:
    """A run that has been stopped, and what it answered before."""

    dir: Path
    steps: list[dict[str, float]]
    scrape: dict[tuple[str, ...], float]  # of the trainer
    generated: list[int]  # by a worker, for a stock client


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    directory = tmp_path_factory.mktemp("serving")
    run = Run(
        directory,
        PLUGINS,
        "rlax.rollouts.engine={name: bigram_slots, step_s: 0.02}",
        "rlax.evaluation.problems=0",
        "rlax.network.prometheus_port=0",
        "rlax.network.serve_clients=true",
        f"rlax.network.prometheus_token_file={token_file(directory)}",
        "rlax.weights.keep=3",
        "steps=1000",
    )
    told = "".join(run.process.stdout.readline() for _ in range(5))
    url = re.search(r"http://127\.0\.0\.1:\d+/metrics", told)
    assert url, told + run.end()[1]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url[0], timeout=DEADLINE_S)
    scrapes = []

    def answers() -> bool:
        scrapes.append(page(url[0]))
        return scrapes[-1].get(("rlax_step",), 0) >= 2

    run.until(answers, "two steps")
    log = run.dir / "logs/local-0.log"
    address = re.search(r"worker local-0 serves on (\S+)", log.read_text())[1]
    stub = orchestrator(address)
    run.until(lambda: is_live(stub), "JetStream's service")
    asked = sample(stub, ids(encode("17").tolist(), 6))
    run.process.send_signal(signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    return Trained(run.dir, run.steps(), scrapes[-1], list(asked.token_ids))


@pytest.fixture(scope="module")
def server(trained: Trained) -> Iterator[Server]:
    with Server(trained.dir, *GREEDY) as server:
        server.until_ready()
        yield server
        assert server.end()[0] == 0


def test_a_worker_of_a_running_trainer_answers_a_stock_client(trained: Trained) -> None:
    assert 1 <= len(trained.generated) <= 6 and all(0 <= token < 64 for token in trained.generated)


def test_text_and_tokens_come_out_as_from_our_own_service(server: Server) -> None:
    stub = orchestrator(server.address)
    assert is_live(stub)
    for prompt in ("17", "2042", "9"):
        tokens = generated(server.address, encode(prompt))
        by_ids = sample(stub, ids(encode(prompt).tolist()))
        assert list(by_ids.token_ids) == tokens and by_ids.text == ""
        by_text = sample(stub, text(prompt))
        assert list(by_text.token_ids) == tokens and by_text.text == decode(np.array(tokens))
        assert len(by_text.text) == 5 and tokens[5:] == [STOP]
        short = sample(stub, text(prompt, max_tokens=3))
        assert list(short.token_ids) == tokens[:3]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (ids([2, 64]), "the prompt has token id 64, which must be from 0 to 63"),
        (text("12345"), "5 prompt tokens, rlax.rollouts.max_prompt_tokens is 4"),
        (text("1+1"), "text_content cannot be encoded"),
        (text("1", 41), "max_tokens = 41: must be from 1 to 40 (rlax.rollouts.max_new_tokens)"),
    ],
)
def test_a_request_that_cannot_be_answered_is_rejected(
    server: Server, request_: jet.DecodeRequest, said: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(orchestrator(server.address).Decode(request_, timeout=DEADLINE_S))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert said in caught.value.details()


def test_the_example_that_the_server_prints_runs(trained: Trained, server: Server) -> None:
    bare = os.environ | {"PATH": "/usr/bin:/bin"}  # an environment that is not activated
    out = subprocess.check_output(
        server.example, shell=True, text=True, env=bare, timeout=DEADLINE_S
    )
    expected = decode(np.array(generated(server.address, encode("0"))))
    assert f"version {len(trained.steps)} of" in server.line and f'text: "{expected}"' in out


def test_the_http_example_that_the_server_prints_runs(server: Server) -> None:
    out = subprocess.check_output(["bash", "-c", server.http_example], timeout=DEADLINE_S)
    (choice,) = json.loads(out)["choices"]
    expected = generated(server.address, encode("0"))
    assert choice["text"] == decode(np.array(expected)) and choice["finish_reason"] == "stop"


def test_http_says_the_same_as_our_own_service_also_in_a_stream(server: Server) -> None:
    key = read_secret(token_path(server.address), "token").token
    expected = generated(server.address, encode("17"))
    asked = {"token_ids": encode("17").tolist(), "sampling_params": {"logprobs": 0}}
    (choice,) = json.loads(posted(server.http, "/inference/v1/generate", asked, key))["choices"]
    assert choice["token_ids"] == expected and choice["finish_reason"] == "stop"
    stream = posted(server.http, "/inference/v1/generate", asked | {"stream": True}, key)
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    parts = [part for event in events for part in event["choices"]]
    assert [token for part in parts for token in part["token_ids"]] == expected
    logprobs = [p["logprob"] for one in parts for p in (one["logprobs"] or {}).get("content", ())]
    assert logprobs == [p["logprob"] for p in choice["logprobs"]["content"]]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        posted(server.http, "/inference/v1/generate", asked, key[::-1])


def posted(base: str, path: str, asked: dict[str, Any], key: str) -> str:
    request = urllib.request.Request(
        base.removesuffix("/v1") + path,
        json.dumps(asked).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def open_server(trained: Trained) -> Iterator[Server]:
    with Server(trained.dir, *GREEDY, "--open") as server:
        server.until_ready()
        yield server
        status, errors = server.end()
    assert status == 0 and "every user of this machine can call" in errors


def requests_of_stock_clients() -> Iterator[jet.DecodeRequest]:
    """As PyPI's and the later upstream client send them, with and without ``max_tokens``."""
    for number in range(100, 105):
        for most in (40, 0):
            request = text(str(number), most)
            if number % 2:  # the later code's: metadata, one sample, and an adapter without a name
                request.MergeFromString(b"\x3a\x05\x0d\0\0\x80?\x40\x01\x4a\0")
            yield request


def test_stock_clients_are_answered_ten_at_a_time(server: Server, open_server: Server) -> None:
    with grpc.insecure_channel(open_server.address) as channel:
        stub = jet_rpc.OrchestratorStub(channel)
        assert is_live(stub)
        with ThreadPoolExecutor(10) as clients:
            answers = list(clients.map(lambda one: sample(stub, one), requests_of_stock_clients()))
        ours = rpc.RolloutStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            ours.GiveUp(pb.GiveUpRequest(), timeout=DEADLINE_S)
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    expected = [generated(server.address, encode(str(n))) for n in range(100, 105)]
    assert [list(one.token_ids) for one in answers] == [t for t in expected for _ in range(2)]


@pytest.fixture
def slow(trained: Trained) -> Iterator[Server]:
    """A server with 2 slots, endless completions and the version before the newest."""
    with Server(
        trained.dir,
        "rlax.rollouts.engine={name: bigram_slots, step_s: 0.002}",
        f"rlax.rollouts.max_new_tokens={FOREVER}",
        "rlax.rollouts.ignore_stop=true",
        "rlax.rollouts.slots=2",
        "rlax.deadlines.drain_s=0.5",
        *("--version", str(len(trained.steps) - 1), "--prometheus-port", "0"),
        *("--prometheus-token-file", str(trained.dir.parents[1] / "prometheus.token")),
    ) as server:
        yield server


def test_cancelled_calls_free_their_slots_and_all_is_exported(
    trained: Trained, slow: Server
) -> None:
    told = (re.search(r"http://127\.0\.0\.1:\d+/metrics", line) for line in slow.process.stderr)
    url = next(filter(None, told))[0]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url, timeout=DEADLINE_S)
    older = len(trained.steps) - 1
    address = slow.until_ready()
    stub = orchestrator(address)

    def figures() -> dict[str, float]:
        found = page(url)
        return {k[0]: v for k, v in found.items() if k[-1] == "standalone"} | {
            "cancelled": found.get(("rlax_calls_total", "CANCELLED", "Decode"), 0),
            "calls": found.get(("rlax_call_seconds_count", "Decode"), 0),
        }

    def until(**wanted: float) -> None:
        wait_until(lambda: wanted.items() <= figures().items(), f"figures are never {wanted}")

    calls = [stub.Decode(text("1", FOREVER)) for _ in range(3)]
    until(rlax_worker_active=2, rlax_worker_waiting=1)
    for call in calls:
        call.cancel()
    until(rlax_worker_active=0, rlax_worker_waiting=0, cancelled=3, calls=3)
    assert len(sample(stub, text("1", 20)).token_ids) == 20
    until(calls=4, rlax_worker_active=0)  # its end is counted behind its last message
    found = page(url)
    assert found["rlax_calls_total", "OK", "Decode"] == 1
    assert found["rlax_worker_weight_version", "standalone"] == older
    channel = doors.channel_to(address)
    health = rpc.RolloutStub(channel).Health(pb.HealthRequest(), timeout=DEADLINE_S)
    exported = {name: found[f"rlax_worker_{name}", "standalone"] for name in health.figures}
    assert exported == dict(health.figures) and exported["tokens_total"] > 20


def test_not_live_without_weights_and_sigterm_lets_running_calls_end(
    trained: Trained, tmp_path: Path
) -> None:
    address, go = f"127.0.0.1:{(port := free_port())}", tmp_path / "go"
    with Server(
        trained.dir,
        f"rlax.rollouts.engine={{name: bigram_slots, step_s: 0.01, wait_for: {go}}}",
        "rlax.rollouts.max_new_tokens=80",
        "rlax.rollouts.ignore_stop=true",
        "rlax.deadlines.drain_s=60",
        *("--port", str(port)),
    ) as server:
        wait_until(token_path(address).exists, "the token file", limit_s=DEADLINE_S)
        channel = doors.channel_to(address)
        stub, request = jet_rpc.OrchestratorStub(channel), jet.HealthCheckRequest()

        def checked() -> jet.HealthCheckResponse | None:
            try:
                return stub.HealthCheck(request, wait_for_ready=True, timeout=DEADLINE_S)
            except grpc.RpcError as error:
                assert "still being imported" in error.details()
                return None

        # A message whose only field is false is true, too.
        reply = wait_until(lambda: (reply := checked()) is not None and [reply], "JetStream")[0]
        assert not reply.is_live
        for ask in (lambda: sample(stub, text("1", 3)), lambda: generated(address, encode("1"), 3)):
            with pytest.raises(grpc.RpcError) as caught:
                ask()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert "no weights yet" in caught.value.details()
        go.touch()
        assert server.until_ready() == address
        assert is_live(stub)

        running = stub.Decode(text("1", 80))
        health = rpc.RolloutStub(channel).Health

        def begun() -> bool:
            active = health(pb.HealthRequest(), timeout=DEADLINE_S).figures["active"]
            return active > 0 or running.done()  # if this process was away as long as it takes

        wait_until(begun, "the call", limit_s=DEADLINE_S)
        server.process.send_signal(signal.SIGTERM)
        assert [len(one.token_ids) for one in wholes(running)] == [80]
        assert server.wait()[0] == 0


def test_a_server_whose_engine_has_died_ends(trained: Trained) -> None:
    broken = int(encode("7")[-1])
    with Server(
        trained.dir,
        f"rlax.rollouts.engine={{name: bigram_slots, break_on: {broken}}}",
        "rlax.deadlines.heartbeat_s=0.2",
    ) as server:
        stub = orchestrator(server.until_ready())
        assert sample(stub, text("8", 4)).token_ids
        with pytest.raises(grpc.RpcError) as caught:
            sample(stub, text("7", 4))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        status, errors = server.wait()
    assert status == 1 and "the device is gone" in errors


def test_weights_that_are_not_what_was_published_are_not_served(trained: Trained, tmp_path) -> None:
    run = shutil.copytree(trained.dir, tmp_path / "runs/copy")
    files = RunFiles(run)
    *_, before, last = versions_from_json((run / "versions.json").read_text(), "").versions
    older, newest = (run / "weights" / Path(one.paths[0]).name for one in (before, last))
    part = replace(last.parts[0], path=str(newest))
    record_versions(files, versions_to_json([replace(last, parts=(part,))]))
    shutil.copytree(older, newest, dirs_exist_ok=True)
    with Server(run, "rlax.rollouts.engine={name: scripted}") as server:
        status, errors = server.wait()
    assert status == 1 and "has fingerprint" in errors and "Traceback" not in errors


def test_the_documented_client_runs(server: Server, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    client = tmp_path / "client.py"
    client.write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    assert len(client.read_text().splitlines()) <= 30
    command = [sys.executable, str(client), server.address, token_path(server.address), "17"]
    out = subprocess.check_output(command, text=True, timeout=DEADLINE_S)
    assert out == decode(np.array(generated(server.address, encode("17")))) + "\n"
