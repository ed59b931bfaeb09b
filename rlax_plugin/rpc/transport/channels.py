"""Connections between processes: gRPC's options for both ends, and one line for a failed call."""

from __future__ import annotations

import resource

import grpc

from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.rpc.transport.message_sizes import MESSAGE_BYTES

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # A peer that is gone without a word is noticed within 20 s. Of the two limits of a ping the
    # second one counts; its default is 60 s, whatever the first one says.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.ping_timeout_ms", 15_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
    # Of http_proxy and the like: all servers are on this machine, where no proxy finds them.
    ("grpc.enable_http_proxy", 0),
    # Reconnect soon after a rejection: a restarted worker is back within seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *CHANNEL_OPTIONS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Whoever connects and never says anything is let go; a machine that stalls tries again.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Likewise one that has no call open, as that of a client whose machine is gone.
    ("grpc.keepalive_permit_without_calls", 1),
)

_UNKNOWN_SERVER = "CERTIFICATE_VERIFY_FAILED"  # BoringSSL's; the rest of its words help nobody
_IS_UNKNOWN = (
    "the process that listens there has another certificate than the expected one: it does not "
    "belong to the run, or the run has new secrets"
)
_LEAST_CONNECTIONS = 16


def most_connections() -> int:
    """Maximum number of open connections of one port; each is an open file of this process.

    Further connections are closed at once. Without a limit, any user of the machine could open so
    many that this process could no longer open files of its own.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_LEAST_CONNECTIONS, files // 2) if files != resource.RLIM_INFINITY else 1 << 16


_BROKEN = "Internal error from Core"  # grpc.aio, of a call that ended while a message was sent


def gone(error: grpc.RpcError) -> bool:
    """True if a call ended because the other process ended, not by an answer from it."""
    code = getattr(error, "code", lambda: None)()
    if code is grpc.StatusCode.INTERNAL:
        return getattr(error, "details", lambda: None)() == _BROKEN
    return code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def describe(error: grpc.RpcError, deadline: tuple[float, str] | None = None) -> str:
    """One line for a failed call.

    Args:
      deadline: the call's own, as (seconds, dotted config key), for a call that exceeded it:
        gRPC's status contains neither.
    """
    code = getattr(error, "code", lambda: None)()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {deadline[0]:g} s ({deadline[1]})" if deadline else "no answer"
    if notes := getattr(error, "__notes__", None):  # see Connection.diagnose
        return f"{getattr(code, 'name', 'UNKNOWN')}: {one_line(str(notes[-1]))}"
    details = getattr(error, "details", lambda: None)()
    if details and _UNKNOWN_SERVER in details:
        details = _IS_UNKNOWN
    return f"{getattr(code, 'name', 'UNKNOWN')}: {one_line(str(details or error))}"
