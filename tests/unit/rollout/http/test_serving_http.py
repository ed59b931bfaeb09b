"""Where the HTTP door of ``rlax serve RUN`` opens, and for whom."""

import http.client
import json
import logging
import ssl
from pathlib import Path

import pytest
from certificates import made
from http_doors import CHAT, KEY, LIMIT_S, serving
from prometheus_client import CollectorRegistry

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.network import Place, Tls
from rlax_plugin.rollout.http.app import LIMITS
from rlax_plugin.rollout.http.serving import ServedHttp, check_http
from rlax_plugin.rollout.worker.worker_metrics import CallMetrics
from rlax_plugin.rpc.security.callers import Caller, Callers
from rlax_plugin.rpc.transport.http import HttpServer

LOCAL, ELSEWHERE = Place(), Place("0.0.0.0", "server.example")


def test_beyond_loopback_http_needs_a_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert check_http(LOCAL, Tls(), 0)
    with pytest.raises(ConfigError, match=r"--http-port = 0: .*set rlax\.network\.tls"):
        check_http(ELSEWHERE, Tls(), 0)
    with caplog.at_level(logging.WARNING, "rlax.http"):
        assert not check_http(ELSEWHERE, Tls(), None)  # nobody has asked for it
    assert "OpenAI's API is not served over HTTP" in caplog.text
    assert check_http(ELSEWHERE, made(tmp_path / "right", "server.example"), 0)
    with pytest.raises(ConfigError, match="certificate is not for server"):
        check_http(ELSEWHERE, made(tmp_path / "other", "other.example"), 0)


def test_a_client_that_trusts_the_authority_is_answered_over_tls(tmp_path: Path) -> None:
    tls = made(tmp_path, "127.0.0.1")
    with serving() as served:
        files = (tls.certificate, tls.key)
        server = HttpServer(served.door, "127.0.0.1", 0, LIMITS, files)
        try:
            context = ssl.create_default_context(cafile=tls.ca)
            client = http.client.HTTPSConnection(
                "127.0.0.1", server.port, timeout=LIMIT_S, context=context
            )
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            client.request("POST", "/v1/chat/completions", json.dumps(CHAT), headers)
            assert client.getresponse().status == 200
            client.close()
        finally:
            server.close()


def test_the_printed_command_trusts_a_private_authority(tmp_path: Path) -> None:
    tls = made(tmp_path, "server.example")
    with serving() as served:
        door = (served.policy, ELSEWHERE, tls, None, Callers())
        with ServedHttp(*door, CallMetrics(CollectorRegistry()), needs_key=True) as opened:
            assert f"\ncurl --cacert {tls.ca} $OPENAI" in opened.example(None, "a")
        door = (served.policy, LOCAL, tls, None, Callers())
        with ServedHttp(*door, CallMetrics(CollectorRegistry()), needs_key=True) as opened:
            assert "\ncurl $OPENAI" in opened.example(None, "a")


@pytest.mark.parametrize(
    ("roles", "key", "status"),
    [(("client",), KEY, 200), (("trainer",), KEY, 401), (("client",), "other", 401)],
)
def test_only_a_key_of_a_client_opens_the_door(roles, key: str, status: int) -> None:
    callers = Callers()
    callers.admit(KEY, *roles)
    assert _status(callers, key, needs_key=True) == status


def test_an_open_door_takes_any_key() -> None:
    assert _status(Callers(Caller(frozenset({"client"}))), "anything", needs_key=False) == 200


def _status(callers: Callers, key: str, *, needs_key: bool) -> int:
    with serving() as served:
        calls = CallMetrics(registry := CollectorRegistry())
        door = (served.policy, LOCAL, Tls(), None, callers, calls)
        with ServedHttp(*door, needs_key=needs_key) as opened:
            port = int(opened.url.removesuffix("/v1").rpartition(":")[2])
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
            client.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            status = client.getresponse().status
            client.close()
        labels = {"method": "/v1/models", "code": str(status)}
        assert registry.get_sample_value("rlax_calls_total", labels) == 1
        return status


def test_a_port_that_is_taken_is_an_error_that_names_the_option() -> None:
    with serving() as served:
        door = (served.policy, LOCAL, Tls(), served.server.port, Callers())
        with pytest.raises(ConfigError, match=r"--http-port = .*0 means any free port"):
            ServedHttp(*door, CallMetrics(CollectorRegistry()), needs_key=True)
