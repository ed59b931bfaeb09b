"""Stock clients of OpenAI's API against the door, unchanged, in Python environments of their own.

RLAX_OPENAI_PYTHON names a Python with openai, RLAX_LM_EVAL_PYTHON one with lm-eval[api], and
RLAX_VERIFIERS_PYTHON one with verifiers (tried: openai 3.54.0, lm-eval 0.4.13, verifiers 0.4.0).
"""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from http_doors import KEY, Served, serving
from small_tokenizers import END, START, TEXT_END, byte_level

from rlax_plugin.base.tokens.rendering import DEFAULT_LIMITS
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.data.prompts.text_source import TextSource

pytestmark = pytest.mark.long
DEADLINE_S = 200.0

OPENAI = """
import asyncio, openai
client = openai.OpenAI()
(model,) = client.models.list()
asked = dict(model=model.id, messages=[{"role": "user", "content": "a"}], logprobs=True, seed=5)
whole = client.chat.completions.create(n=2, **asked)
assert [c.message.content for c in whole.choices] == ["well", "well"]
text, logprobs = "", []
for chunk in client.chat.completions.create(stream=True, **asked):
    (choice,) = chunk.choices
    text += choice.delta.content or ""
    logprobs += choice.logprobs.content if choice.logprobs else []
assert text == "well"
same = [p.logprob for p in whole.choices[0].logprobs.content]
assert [p.logprob for p in logprobs] == same and len(same) == 5
with client.chat.completions.stream(**asked) as stream:
    assert stream.get_final_completion().choices[0].message.content == "well"
chunks = client.completions.create(model=model.id, prompt="a", stream=True)
assert "".join(chunk.choices[0].text for chunk in chunks) == "well"
for error, change in (
    (openai.BadRequestError, {"presence_penalty": 1}),
    (openai.NotFoundError, {"model": "other"}),
):
    try:
        client.chat.completions.create(**asked | change)
    except error as found:
        assert found.param == next(iter(change))
    else:
        raise AssertionError(change)
async def many():
    client = openai.AsyncOpenAI()
    found = [client.chat.completions.create(**asked) for _ in range(100)]
    return {c.choices[0].message.content for c in await asyncio.gather(*found)}
assert asyncio.run(many()) == {"well"}
print("all is well")
"""

VERIFIERS = """
import asyncio, sys
from openai import AsyncOpenAI
from renderers import DefaultRendererConfig, create_renderer
from renderers.base import load_tokenizer
from renderers.client import generate
async def main():
    found = await generate(
        client=AsyncOpenAI(),
        renderer=create_renderer(load_tokenizer(sys.argv[1]), DefaultRendererConfig()),
        messages=[{"role": "user", "content": "a"}],
        model="m",
        sampling_params={"temperature": 1.0, "max_tokens": 16},
        extra_headers={"X-Session-ID": "one"},
    )
    assert found["content"] == "well" and found["finish_reason"] == "stop"
    assert [-p for p in found["completion_logprobs"]] == found["completion_ids"]
asyncio.run(main())
print("all is well")
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level(tmp_path_factory.mktemp("tokenizer"), special=(END, START, TEXT_END))


@pytest.fixture(scope="module")
def served(tokenizer: Path) -> Iterator[Served]:
    loaded = Tokenizer.load(str(tokenizer), "tokenizer_path", {}, DEFAULT_LIMITS)
    with serving(source=lambda: TextSource(loaded, chat=True)) as served:
        served.engine.says = [*loaded.encode_behind("well"), loaded.eos_id]
        yield served


def said(variable: str, port: int, *arguments: str, **more: str) -> str:
    """What a client prints; skips without the variable."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no Python")
    own = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": KEY}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments],
        env={**inherited, **own, **offline},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=more.get("cwd"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def byte_by_byte(port: int) -> Iterator[int]:
    """A proxy whose answers arrive a byte at a time; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def passed(source: socket.socket, target: socket.socket, piece: int) -> None:
            try:
                while data := source.recv(piece):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # one side has gone

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.create_connection(("127.0.0.1", port))
                for args in ((client, server, 1 << 16), (server, client, 1)):
                    threading.Thread(target=passed, args=args, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]


def test_openais_client_gets_what_it_asks(served: Served) -> None:
    assert said("RLAX_OPENAI_PYTHON", served.server.port, "-c", OPENAI) == "all is well\n"


def test_openais_client_behind_a_proxy_that_splits_at_every_byte(served: Served) -> None:
    with byte_by_byte(served.server.port) as port:
        assert said("RLAX_OPENAI_PYTHON", port, "-c", OPENAI) == "all is well\n"


def test_verifiers_client_gets_tokens_for_tokens(served: Served, tokenizer: Path) -> None:
    port = served.server.port
    assert said("RLAX_VERIFIERS_PYTHON", port, "-c", VERIFIERS, str(tokenizer)).endswith("well\n")


@pytest.mark.parametrize("chat", [False, True])
def test_lm_eval_runs_a_local_task(served: Served, tmp_path: Path, chat: bool) -> None:
    rows = [{"question": f"{i}?", "answer": "well" if i % 4 else "other"} for i in range(8)]
    (tmp_path / "task.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "task.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(task))
    port = served.server.port
    path, kind = ("chat/completions", "-chat") if chat else ("completions", "")
    url = f"http://127.0.0.1:{port}/v1/{path}"
    model = f"model=m,base_url={url},num_concurrent=4,tokenized_requests=False"
    arguments = ["-m", "lm_eval", "run", "--model", f"local{kind}-completions", "--tasks", "mine"]
    arguments += ["--model_args", f"{model},tokenizer_backend=None", "--include_path", "."]
    arguments += ["--apply_chat_template"] if chat else []
    out = said("RLAX_LM_EVAL_PYTHON", port, *arguments, cwd=str(tmp_path))
    assert "0.75" in out, out
