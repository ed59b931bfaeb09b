"""Another local user who has the run's worker token, and plays a hostile worker with it.

It stands alone, as ``other_user_calls`` does. Its order names the controller, the victim, another
worker of the run, and what a registration needs; a line per attempt comes out.
"""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from other_user_calls import bearer, outcome, pinned

from rlax_plugin.rpc import rlax_pb2 as pb

_BEGIN, _END = "-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n"
ADDRESSES = (
    *("", ":", ":80", "localhost", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1"),
    *("unix:/tmp/socket", "unix:///tmp/socket:1", "unix-abstract:name", "unix-abstract:name:1"),
    *("vsock:2:1024", "dns:///localhost:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1", "xds:///name:1"),
    *("http://localhost:1", "localhost:1/path", "a b:1", "localhost:1\n", "user@localhost:1"),
    *("127.0.0.1:1,127.0.0.1:2", "%2e:1", "localhost:１"),  # noqa: RUF001
)
USELESS = _BEGIN + "A" * 400 + "\n" + _END  # in form a certificate, and nobody's
CERTIFICATES = {
    "none": "",
    "words": "no certificate",
    "binary": "\x00\x01\x7f",
    "no end": _BEGIN + "AAAA\n",
    "enormous": _BEGIN + ("A" * 64 + "\n") * 100_000 + _END,
    "just too long": _BEGIN + "A" * (1 << 14) + "\n" + _END,
    "a key": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
}
NAMES = ("", "x" * 200, "two\nlines", "\x1b[2J")


class Hostile:
    """Its registration, and what it tries."""

    def __init__(self, order: dict[str, Any]):
        self.order, self.victim = order, order["victim"]
        self.name, self.process = "intruder", secrets.token_hex(16)
        self.own = secrets.token_hex(32)  # of its registration
        self.controller = pinned(order["controller"], order["certificate"])
        self.parameter_server = pinned(order["parameter_server"], order["certificate"])

    def registration(self, **changes: Any) -> bytes:
        """Its own, or with changes that of one more worker, unlike any before."""
        said: dict[str, Any] = {
            "worker": self.name,
            "address": f"127.0.0.1:{self.order['nobody_listens']}",
            "config_hash": self.order["config_hash"],
            "versions": self.order["versions"],
            "version": -1,
            "process": self.process,
            "token": self.own,
            "certificate": self.order["own_certificate"],
            "capabilities": ParseDict(self.order["capabilities"], pb.Capabilities()),
        }
        if changes:
            name, process, token = (secrets.token_hex(n) for n in (8, 16, 32))
            said |= {"worker": name, "process": process, "token": token}
        return pb.RegisterRequest(**(said | changes)).SerializeToString()

    def fleet(self, method: str, message: bytes, token: str) -> tuple[str, bytes]:
        path = f"/rlax.v1.Fleet/{method}"
        return outcome(self.controller, path, message, bearer(token))

    def registers(self, tries: str, what: str, **changes: Any) -> dict[str, Any]:
        message = self.registration(**changes)
        status, said = self.fleet("Register", message, self.order["token"])
        told: dict[str, Any] = {"tries": tries, "what": what, "status": status}
        if status != "OK":
            return {**told, "accepted": False, "reason": said.decode(errors="replace")}
        reply = pb.RegisterReply.FromString(said)
        return {**told, "accepted": reply.accepted, "reason": reply.reason}

    def joins(self, **who: str) -> Iterator[dict[str, Any]]:
        """Becomes a member that says it is ready: groups are sent to it, in vain."""
        shows = who.get("token", self.own)
        yield self.registers("to join", str([*who]), **who)
        for version in (-1, self.order["newest"]):
            message = pb.HeartbeatRequest(
                worker=who.get("worker", self.name),
                process=who.get("process", self.process),
                version=version,
            )
            status, said = self.fleet("Heartbeat", message.SerializeToString(), shows)
            reply = pb.HeartbeatReply.FromString(said if status == "OK" else b"")
            yield {"tries": "its own heartbeat", "status": status, "known": reply.known}

    def in_the_name_of_another(self) -> Iterator[dict[str, Any]]:
        name, right = self.victim["name"], self.victim["process"]
        for shows, token in (("run's", self.order["token"]), ("own", self.own)):
            for process in (right, self.process, "0" * 32, ""):
                who = {"worker": name, "process": process}
                wrongs = {
                    "heartbeat": ("Heartbeat", pb.HeartbeatRequest(**who, version=10**6)),
                    "draining": ("Heartbeat", pb.HeartbeatRequest(**who, draining=True)),
                    "deregister": ("Deregister", pb.DeregisterRequest(**who)),
                    "quarantine": ("Deregister", pb.DeregisterRequest(**who, quarantine="x")),
                }
                for what, (method, message) in wrongs.items():
                    status, said = self.fleet(method, message.SerializeToString(), token)
                    yield {
                        "tries": "impersonation",
                        "what": f"{what} as {name}, process {process!r}, with its {shows} token",
                        "status": status,
                        "said": said.decode(errors="replace"),
                    }

    def calls_the_victim(self) -> Iterator[dict[str, Any]]:
        port, certificate = self.victim["port"], self.victim["certificate"]
        with pinned(port, certificate) as channel:
            for what, token in (("run's", self.order["token"]), ("own", self.own)):
                for method in ("Generate", "GiveUp", "Health"):
                    status, _ = outcome(channel, f"/rlax.v1.Rollout/{method}", b"", bearer(token))
                    yield {"tries": "victim", "what": f"{method}, {what} token", "status": status}

    def publishes(self) -> Iterator[dict[str, Any]]:
        part = pb.Part(name="base", path=self.order["weights"] + "/evil", format="native")
        version = pb.Version(version=10**6, step=10**6, parts=[part])
        message = pb.PublishRequest(version=version, restart=True).SerializeToString()
        for what, token in (("run's", self.order["token"]), ("own", self.own)):
            for channel in (self.controller, self.parameter_server):
                path = "/rlax.v1.ParameterServer/Publish"
                status, _ = outcome(channel, path, message, bearer(token))
                yield {"tries": "publish", "what": f"{what} token", "status": status}

    def odd_registrations(self) -> Iterator[dict[str, Any]]:
        """Registrations of which none may be accepted."""
        wrongs: list[tuple[str, dict[str, str]]] = [
            *((f"address {one[:50]!r}", {"address": one}) for one in ADDRESSES),
            *((f"certificate: {name}", {"certificate": c}) for name, c in CERTIFICATES.items()),
            *((f"token {one[:70]!r}", {"token": one}) for one in self.tokens()),
            *((f"name {one[:20]!r}", {"worker": one}) for one in NAMES),
            *((f"process {one[:20]!r}", {"process": one}) for one in ("", "a b", "é", "x" * 200)),
            ("another config", {"config_hash": "0" * 12}),
            ("a name that is taken", {"worker": self.victim["name"]}),
        ]
        for what, changes in wrongs:
            yield self.registers("register", what, **changes)

    def tokens(self) -> Iterator[str]:
        """Tokens that are none, or not its own to choose."""
        yield from ("", "x", self.own[:-1], self.own + "\n", "g" * 64, "0" * 10**6)
        yield from (self.order["token"], self.own)

    def main(self) -> Iterator[dict[str, Any]]:
        yield from self.joins()
        yield from self.odd_registrations()
        yield from self.in_the_name_of_another()
        yield from self.calls_the_victim()
        yield from self.publishes()
        # Others that are members and can do nothing: no server has that certificate, and the two
        # servers of the run to which the controller is led do not know the token.
        right, victim = self.order["certificate"], self.victim["certificate"]
        for address, certificate in (
            (self.order["nobody_listens"], USELESS),
            (self.victim["port"], USELESS),
            (self.victim["port"], victim),
            (self.order["controller"], right),
        ):
            name, process, token = (secrets.token_hex(n) for n in (8, 16, 32))
            who = {"worker": name, "process": process, "token": token}
            led = {"address": f"127.0.0.1:{address}", "certificate": certificate}
            yield from self.joins(**who, **led)


def main() -> None:
    hostile = Hostile(json.load(sys.stdin))
    print(json.dumps({"user": os.getuid(), "grpc": grpc.__version__}))
    for one in hostile.main():
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
