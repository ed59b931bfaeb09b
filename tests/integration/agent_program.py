"""A program that plays an episode in the sandbox, over HTTP: of some it does what it must not."""

import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

task = json.load(sys.stdin)
rng = random.Random(task["api_key"])
fate = rng.random()


def chat(messages):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "max_tokens": 3}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"][0]["message"]


history = [{"role": "user", "content": task["text"]}]
for turn in range(rng.choice([1, 2, 3])):
    message = chat(history)
    said = message["content"]
    history += [{"role": "assistant", "content": said}, {"role": "user", "content": str(turn)}]
shares = {"killed": 0.1, "hanging": 0.05, "disk": 0.02, "memory": 0.02, "output": 0.02}
if os.path.exists("shares.json"):
    with open("shares.json") as file:
        shares = json.load(file)
for name, share in shares.items():
    fate -= share
    if fate >= 0:
        continue
    if os.fork() == 0:  # a daemon, which nothing may outlive
        os.setsid()
        time.sleep(10_000)
    if name == "killed":
        os.kill(os.getpid(), 9)
    while name == "hanging":
        time.sleep(1)
    held = []
    while name == "memory":
        held.append(bytearray(8 << 20))
    while name == "output":
        print("flood" * 1000)
    with open("large", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
right = bool(said[:1].isdigit()) and int(said[0]) % 2 == 0
print("thinking ...")
print(json.dumps({"reward": float(right), "metrics": {"turns": len(history) // 2}}))
