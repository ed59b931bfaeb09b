"""Another local user who calls every method at every port of a run: JSON in, a line per call out.

It stands alone: of this project it takes the names of the services only. It knows the ports, which
everybody can read in /proc/net/tcp, and the tokens that its order names.
"""

import itertools
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parents[2]))

from rlax_plugin.rpc import rlax_pb2

CALL_S = 10.0
"""No call takes longer, unless the server hangs."""

OURS = tuple(
    f"/{service.full_name}/{method.name}"
    for service in rlax_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
JETSTREAM = ("/jetstream_proto.Orchestrator/Decode", "/jetstream_proto.Orchestrator/HealthCheck")
NOBODYS = (
    "/rlax.v1.Fleet/config",
    "/rlax.v1.Fleet/Config/",
    "/rlax.v1.Fleet//Config",
    "/rlax.v1.Trainer/Stop",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.health.v1.Health/Check",
    "/grpc.channelz.v1.Channelz/GetTopChannels",
    "/",
)
EVERYTHING = (*OURS, *JETSTREAM, *NOBODYS)

Metadata = tuple[tuple[str, str | bytes], ...]

_WRONG = "0123456789abcdef" * 4
WITHOUT_A_TOKEN: dict[str, Metadata] = {
    "none": (),
    "wrong": (("authorization", f"Bearer {_WRONG}"),),
    "zeros": (("authorization", "Bearer " + "0" * 64),),
    "empty": (("authorization", ""),),
    "scheme alone": (("authorization", "Bearer"),),
    "empty token": (("authorization", "Bearer "),),
    "other scheme": (("authorization", "Basic cm9vdDpyb290"),),
    "lower case": (("authorization", f"bearer {_WRONG}"),),
    "no scheme": (("authorization", _WRONG),),
    "spaces": (("authorization", f"Bearer   {_WRONG} "),),
    "Python's None": (("authorization", "Bearer None"),),
    "long": (("authorization", "Bearer " + "f" * 4000),),
    "twice": (("authorization", "Bearer "), ("authorization", f"Bearer {_WRONG}")),
    "bytes": (("authorization-bin", b"Bearer " + bytes(64)),),
    "other keys": (("x-authorization", f"Bearer {_WRONG}"), ("token", "trainer")),
    "names a role": (("role", "trainer"), ("authorization", "Bearer trainer")),
}
_MESSAGES = {"empty": b"", "garbage": b"\xff" * 64}  # every message can be empty


def pinned(port: int, certificate: str) -> grpc.Channel:
    """A channel over TLS that takes the server for what it says it is."""
    options = (("grpc.ssl_target_name_override", "rlax"), ("grpc.enable_retries", 0))
    credentials = grpc.ssl_channel_credentials(certificate.encode())
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)


def outcome(
    channel: grpc.Channel, method: str, message: bytes = b"", metadata: Metadata = ()
) -> tuple[str, bytes]:
    """The status of a call, and the first message that it gave."""
    call = channel.unary_stream(method)(message, timeout=CALL_S, metadata=metadata)
    try:
        first = list(itertools.islice(call, 1))
    except grpc.RpcError as error:
        return error.code().name, (error.details() or "").encode()
    finally:
        call.cancel()
    return "OK", b"".join(first)


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def calls(
    channel: grpc.Channel, tokens: dict[str, Metadata], methods: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """Makes each call with each token; yields the outcomes."""
    for method, (token, metadata), (sent, message) in itertools.product(
        methods, tokens.items(), _MESSAGES.items()
    ):
        began_s = time.monotonic()
        status, said = outcome(channel, method, message, metadata)
        yield {
            "method": method,
            "token": token,
            "message": sent,
            "status": status,
            "said": said.decode(errors="replace")[:200],
            "seconds": time.monotonic() - began_s,
        }


def http(port: int, context: ssl.SSLContext | None) -> dict[str, Any]:
    """The answer to an HTTP GET: its bytes, and whether the server never ended it."""
    read, hung = b"", False
    try:
        connection = socket.create_connection(("127.0.0.1", port), CALL_S)
        with connection if context is None else context.wrap_socket(connection) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while data := connection.recv(1 << 16):
                read += data
    except TimeoutError:
        hung = True
    except OSError:
        pass  # the server has ended the connection
    return {"method": "GET", "read": read.decode("latin-1"), "hung": hung}


def at_port(port: int) -> Iterator[dict[str, Any]]:
    """Everything that can be tried without a token."""
    few = {name: WITHOUT_A_TOKEN[name] for name in ("none", "wrong")}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield from ({"over": "plain", **one} for one in calls(channel, few, EVERYTHING))
    yield {"over": "plain", **http(port, None)}
    try:
        certificate = ssl.get_server_certificate(("127.0.0.1", port), timeout=CALL_S)
    except OSError as error:
        yield {"over": "tls", "method": "certificate", "status": type(error).__name__}
        return
    with pinned(port, certificate) as channel:
        found = calls(channel, WITHOUT_A_TOKEN, EVERYTHING)
        yield from ({"over": "tls", **one} for one in found)
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    yield {"over": "tls", **http(port, unverified)}
    unverified.set_alpn_protocols(["h2"])
    yield {"over": "tls, as HTTP/2", **http(port, unverified)}


def listening() -> set[int]:
    """Ports of this machine on which somebody listens, as every user can read them."""
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def main() -> None:
    order = json.load(sys.stdin)
    print(json.dumps({"user": os.getuid(), "listening": sorted(listening())}))
    for port in order["ports"]:
        for one in at_port(port):
            print(json.dumps({"port": port, **one}))
    for one in order["with_tokens"]:
        certificate = ssl.get_server_certificate(("127.0.0.1", one["port"]), timeout=CALL_S)
        with pinned(one["port"], certificate) as channel:
            tokens = {one["name"]: bearer(one["token"])}
            for made in calls(channel, tokens, one["methods"]):
                print(json.dumps({"port": one["port"], "over": "tls", **made}))


if __name__ == "__main__":
    main()
