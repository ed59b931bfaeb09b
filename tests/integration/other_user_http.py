"""Another local user at the HTTP port of ``rlax serve RUN``: JSON in, a line per attempt out.

It stands alone, and needs Python's own library only.
"""

import http.client
import json
import os
import socket
import sys
from contextlib import suppress

LIMIT_S = 30.0
CHAT = json.dumps({"prompt": "1"})
CONNECTIONS = 700


def status(port: int, path: str, key: str) -> int:
    """Of a request that is refused, also if its body is not read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    headers = {"Authorization": key, "Content-Type": "application/json"}
    connection.request("POST", path, CHAT, headers)
    found = connection.getresponse().status
    connection.close()
    return found


def main() -> None:
    port, key = (order := json.load(sys.stdin))["port"], order["old_key"]
    print(json.dumps({"user": os.getuid()}))
    idle = [socket.create_connection(("127.0.0.1", port), LIMIT_S) for _ in range(CONNECTIONS)]
    for one in idle[::2]:
        with suppress(OSError):  # it was closed for a newer one
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
    for shown in (f"Bearer {key}", "Bearer ", "", f"Basic {key}", "Bearer " + "f" * 9000):
        found = status(port, "/v1/completions", shown)
        print(json.dumps({"shows": shown[:12], "status": found}), flush=True)


if __name__ == "__main__":
    main()
