"""Weight store ``remote``: Orbax versions that workers read over HTTP, and that fail when told.

While the file named by ``fault_file`` exists, every array is answered as it says: ``denied`` (by
status 403), ``reset`` (the connection is), ``silent`` (nothing comes) or ``flipped`` (one bit, for
the worker ``local-1``). What the workers see is TensorStore's own doing. ``full`` is an exception
in the trainer, which writes to the local disk.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import tensorstore as ts
from rlax_orbax import store as orbax
from rlax_orbax.layout import array_spec

from rlax_plugin.api import BuildContext, Extension, hookimpl
from rlax_plugin.config import Section

_WORKER = os.environ.get("RLAX_WORKER", "")  # empty in the trainer


class RemoteConfig(Section):
    fault_file: str


class RemoteStore(orbax.OrbaxStore):
    def __init__(self, fault: Path):
        super().__init__()
        self._fault = fault
        if not _WORKER:
            return
        os.environ["TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"] = "1"
        os.environ["TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES"] = "1"
        # Without limits TensorStore would sit an outage out by itself, for minutes.
        retries = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "1ms"}
        self._context = ts.Context({"http_request_retries": retries})
        url = _serve(fault)
        orbax.array_spec = lambda path, *what: array_spec(url + path, *what)

    def save(self, path: str, arrays: Any) -> None:
        if _now(self._fault) == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().save(path, arrays)


def _now(fault: Path) -> str:
    try:
        return fault.read_text()
    except FileNotFoundError:
        return ""


def _serve(fault: Path) -> str:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            how, data = _now(fault), bytearray(Path(self.path).read_bytes())
            if how == "flipped" and _WORKER == "local-1":
                data[0] ^= 1
            if how == "reset":
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            elif how == "silent":
                threading.Event().wait(5)
            elif how == "denied":
                self.send_error(403)
            else:
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    def build(config: RemoteConfig, context: BuildContext) -> RemoteStore:
        return RemoteStore(Path(config.fault_file))

    return {"remote": Extension(RemoteConfig, build)}
