"""A ``rlax serve`` process, and what its clients ask: JetStream's stub and our own service."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import doors
import grpc
import numpy as np
from jetstream.core.proto import jetstream_pb2 as jet
from jetstream.core.proto import jetstream_pb2_grpc as jet_rpc
from prometheus_client.parser import text_string_to_metric_families
from runs import DEADLINE_S
from streamed import wholes
from wired import reply_from_proto

from rlax_plugin.base.types import Key, Request, SamplingParams
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.pieces import request_messages
from rlax_plugin.testing.task import STOP

_TOKEN = "the-token-of-prometheus"


class Server:
    """A ``rlax serve`` process that serves a run; ``until_ready`` reads what it prints then.

    It is killed at the end of its block if it still lives.
    """

    def __init__(self, run: Path, *arguments: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlax_plugin", "serve", str(run), *arguments],
            cwd=run.parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=DEADLINE_S)

    def until_ready(self) -> str:
        self.line = self.process.stdout.readline()
        found = re.search(r"served on ([^\s,;]+)", self.line)
        assert found, self.line + self.end()[1]
        self.address = found[1]
        self.example = self.process.stdout.readline()
        self.http = re.search(r"served on (\S+);", self.process.stdout.readline())[1]
        self.http_example = "".join(self.process.stdout.readline() for _ in range(3))
        return self.address

    def end(self) -> tuple[int, str]:
        """Tells it to end."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Its status, and what it said to people."""
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


def text(content: str, max_tokens: int = 40) -> jet.DecodeRequest:
    return jet.DecodeRequest(
        text_content=jet.DecodeRequest.TextContent(text=content), max_tokens=max_tokens
    )


def ids(tokens: list[int], max_tokens: int = 40) -> jet.DecodeRequest:
    return jet.DecodeRequest(
        token_content=jet.DecodeRequest.TokenContent(token_ids=tokens), max_tokens=max_tokens
    )


def orchestrator(address: str) -> jet_rpc.OrchestratorStub:
    return jet_rpc.OrchestratorStub(doors.channel_to(address))


def is_live(stub: jet_rpc.OrchestratorStub) -> bool:
    try:
        return stub.HealthCheck(jet.HealthCheckRequest(), timeout=DEADLINE_S).is_live
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error  # still being imported
        return False


def sample(stub: jet_rpc.OrchestratorStub, request: jet.DecodeRequest):
    """The only sample."""
    (one,) = wholes(stub.Decode(request, timeout=DEADLINE_S))
    return one


def token_file(directory: Path) -> Path:
    """A new file with the token that ``page`` sends."""
    path = directory / "prometheus.token"
    path.touch(0o600)
    path.write_text(f"{_TOKEN}\n")
    return path


def page(url: str) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of their names) -> value."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_TOKEN}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as opened:
        families = list(text_string_to_metric_families(opened.read().decode()))
    samples = [s for family in families for s in family.samples]
    return {(s.name, *(s.labels[k] for k in sorted(s.labels))): s.value for s in samples}


def generated(address: str, prompt: np.ndarray, new: int = 40) -> list[int]:
    """What our own service generates at temperature 0."""
    sampling = SamplingParams(temperature=0, max_new_tokens=new, stop_ids=(STOP,))
    request = Request(Key("train", 0), 1, prompt, (7,), sampling)
    with doors.channel_to(address) as channel:
        (reply,) = rpc.RolloutStub(channel).Generate(
            request_messages([request]), timeout=DEADLINE_S
        )
    (one,) = reply_from_proto(reply, request, "", told=(), workers=[()])
    return one.tokens.tolist()
