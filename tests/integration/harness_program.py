"""A harness: plays episodes over HTTP as badly as agents do. ``python harness_program.py PORT``.

Of its requests 20 % are dropped and sent again; of its episodes 5 % hang, and 5 % end with the
connection. Others compact their history, or have two sub-agents at once.
"""

import http.client
import json
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class LimitReachedError(Exception):
    pass


class Player:
    def __init__(self, task, rng):
        self.task, self.rng, self.requests = task, rng, 0

    def chat(self, messages):
        """The policy's next message."""
        url = urlsplit(self.task["base_url"])
        body = json.dumps({"model": self.task["model"], "messages": messages, "max_tokens": 3})
        headers = {
            "Authorization": f"Bearer {self.task['api_key']}",
            "Content-Type": "application/json",
        }
        if self.rng.random() < 0.2:
            lost = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
            lost.request("POST", f"{url.path}/chat/completions", body, headers)
            time.sleep(self.rng.choice([0.0, 0.02]))
            lost.sock.shutdown(socket.SHUT_RDWR)
            lost.close()
            headers["x-stainless-retry-count"] = "1"
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
        connection.request("POST", f"{url.path}/chat/completions", body, headers)
        response = connection.getresponse()
        found = json.loads(response.read())
        connection.close()
        self.requests += 1
        if response.status == 400 and found["error"]["code"] == "context_length_exceeded":
            raise LimitReachedError
        assert response.status == 200, found
        return {"role": "assistant", "content": found["choices"][0]["message"]["content"]}

    def play(self):
        history, rng = [{"role": "user", "content": self.task["text"]}], self.rng
        try:
            for turn in range(rng.choice([1, 2, 3])):
                history += [self.chat(history), {"role": "user", "content": str(turn)}]
            if rng.random() < 0.3:
                agents = [[{"role": "user", "content": f"{i}"}] for i in "78"]
                with ThreadPoolExecutor() as pool:
                    list(pool.map(self.chat, agents))
            if rng.random() < 0.3:
                said = "".join(one["content"] for one in history)[:6]
                history = [{"role": "user", "content": f"s{said}"}]
                history.append(self.chat(history))
        except LimitReachedError:
            return {"reward": 0.0, "ended": "cut"}
        last = next(one["content"] for one in reversed(history) if one["role"] == "assistant")
        even = bool(last[:1].isdigit()) and int(last[0]) % 2 == 0
        return {"reward": float(even), "metrics": {"requests": self.requests}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    number, lock = 0, threading.Lock()

    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert set(task) == {"task", "text", "metadata", "base_url", "api_key", "model"}
        with Handler.lock:
            Handler.number += 1
            rng = random.Random(Handler.number)
        player, fate = Player(task, rng), rng.random()
        if fate < 0.1:
            player.chat([{"role": "user", "content": task["text"]}])
            if fate < 0.05:
                time.sleep(10_000)
            self.close_connection = True
            return
        data = json.dumps(player.play()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 256
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
