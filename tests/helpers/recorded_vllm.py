"""A server that answers as vLLM 0.32.0 did (``record_vllm``), with a bigram table as its model.

What it says of tokens is computed from the table that was staged, so that an engine's samples, log-
probs, versions and proofs can be compared with numbers; ``faults`` make it lie or fail.
"""

import asyncio
import copy
import itertools
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import uvicorn
from rlax_vllm import VllmConfig
from rlax_vllm.engine import VllmEngine
from rlax_vllm.model import Model
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from sections import section_with
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from waiting import wait_until

from rlax_plugin.api import BuildContext, Canary, WeightVersion, fingerprint_numpy
from rlax_plugin.base.types import TensorSpec, VersionPart

RECORDED = json.loads(
    (Path(__file__).parents[1] / "data" / "vllm_0_32_0.json").read_text(encoding="utf-8")
)
VOCAB = 16


def logprobs_of(table: np.ndarray, token: int, temperature: float) -> np.ndarray:
    """float32 [vocabulary], behind a token."""
    logits = table[token].astype(np.float64) / (temperature or 1.0)
    return (logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()).astype(np.float32)


class RecordedVllm:
    """The server. ``faults``: names of what it does wrong; ``held_at``: tokens before it waits."""

    def __init__(self) -> None:
        self.faults: set[str] = set()
        self.calls: list[str] = []
        self.salts: set[str] = set()
        self.held_at: int | None = None
        self.workers, self.described = 1, {}
        self._tables = {None: np.zeros((VOCAB, VOCAB), np.float32)}
        self._staged = self._used = self._before = None
        self._errors: dict[str, dict] = {}
        self._prints: dict[str, dict] = {}
        self._label, self._table = "default", self._tables[None]
        self._aborts = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/health", lambda request: JSONResponse({})),
                Route("/collective_rpc", self._rpc, methods=["POST"]),
                Route("/update_weight_version", self._set_label, methods=["POST"]),
                Route("/reset_prefix_cache", self._reset, methods=["POST"]),
                Route("/abort_requests", self._abort, methods=["POST"]),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
            ]
        )

    async def _rpc(self, request):
        asked = await request.json()
        method, arguments = asked["method"], asked["args"]
        self.calls.append(method)
        if method in self.faults:
            return JSONResponse({"error": "recorded fault"}, 500)
        results = [getattr(self, method)(*arguments)] * self.workers
        if method == "rlax_staged" and self.workers > 1:
            results[-1] = self._of_last_worker(results[-1])
        return JSONResponse({"results": results})

    def _of_last_worker(self, staged):
        """The second worker is done at the second look."""
        if self.calls[-2:] != ["rlax_staged"] * 2:
            return {"done": False}
        if "other weights in a worker" in self.faults:
            return staged | {"fingerprints": {"bigram": 1}}
        if "worker without memory" in self.faults:
            return staged | {"error": "MemoryError: ", "unreadable": True}
        return staged

    def rlax_describe(self):
        said = copy.deepcopy(RECORDED["describe"]["results"][0])
        return said | {"vocabulary": VOCAB, "context": 64, "sequences": 16} | self.described

    def rlax_stage(self, ticket, files, wanted):
        self._staged, self._before = ticket, None
        try:
            tensors = load_file(files[0])
            found = {n: [list(a.shape), a.dtype.name] for n, a in tensors.items()}
            if found != wanted:
                raise ValueError(f"{found} is not {wanted}")
            self._tables[ticket] = tensors["bigram"]
            prints = {n: int(v) for n, v in fingerprint_numpy(tensors).items()}
            self._prints[ticket] = prints
        except (ValueError, SafetensorError) as error:
            self._errors[ticket] = {"done": True, "error": str(error), "unreadable": False}
        except OSError as error:
            self._errors[ticket] = {"done": True, "error": str(error), "unreadable": True}
        return {"applied": self._used or ""}

    def rlax_staged(self, ticket):
        fine = {"done": True, "error": "", "unreadable": False}
        prints = self._prints.get(ticket)
        return self._errors.get(ticket) or fine | {"fingerprints": prints}

    def rlax_switch(self, ticket):
        self._used, self._before, self._staged = ticket, self._used, None
        return self._apply()

    def rlax_back(self):
        self._used, self._before = self._before, None
        return self._apply()

    def rlax_drop(self):
        self._staged = None

    def _apply(self):
        if "weights not switched" not in self.faults:
            self._table = self._tables[self._used]
        return {"applied": self._used or ""}

    async def _set_label(self, request):
        if "trickling" in self.faults:
            return StreamingResponse(_blanks())
        self._label = (await request.json())["new_version"]
        return JSONResponse(RECORDED["label"] | {"new_version": self._label})

    async def _reset(self, request):
        if "cache emptied late" in self.faults:
            self.faults.remove("cache emptied late")
            return JSONResponse({"success": False})
        return JSONResponse({"success": "cache not emptied" not in self.faults})

    async def _abort(self, request):
        self._aborts.set()
        self._aborts = asyncio.Event()
        return JSONResponse(RECORDED["abort"])

    async def _generate(self, request):
        asked = await request.json()
        sampling = asked["sampling_params"]
        self.salts.add(asked["cache_salt"])
        if not asked.get("stream"):
            reply = copy.deepcopy(RECORDED["score"])
            tokens = asked["token_ids"]
            rows = [None]
            for before, token in itertools.pairwise(tokens):
                logprob = float(logprobs_of(self._table, before, 1.0)[token])
                if "weights of NaN" in self.faults:
                    logprob = -9999.0
                rows.append({str(token): {"logprob": logprob, "rank": 1, "decoded_token": None}})
            return JSONResponse(reply | {"prompt_logprobs": rows})
        return StreamingResponse(self._stream(asked, sampling), media_type="text/event-stream")

    async def _stream(self, asked, sampling):
        aborts, label, spans = self._aborts, self._label, []
        last, most = asked["token_ids"][-1], sampling["max_tokens"]
        rng = np.random.default_rng(sampling.get("seed", 0))
        pending, count, finish = [], 0, None
        while finish is None:
            while self.held_at is not None and count >= self.held_at and not aborts.is_set():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0)
            if aborts.is_set():
                finish = "abort"
            else:
                logprobs = logprobs_of(self._table, last, sampling["temperature"])
                if sampling["temperature"]:
                    last = int((logprobs + rng.gumbel(size=VOCAB)).argmax())
                else:
                    last = int(logprobs.argmax())
                count += 1
                pending.append((last, float(logprobs[last])))
                stop_ids = sampling.get("stop_token_ids", ())
                if last in stop_ids and "stop ids ignored" not in self.faults:
                    finish = "stop"
                elif count == most:
                    finish = "length"
            if finish is None and len(pending) < sampling["stream_interval"] and count > 1:
                continue
            message = copy.deepcopy(RECORDED["length"][0])
            (choice,) = message["choices"]
            choice["token_ids"] = [token for token, _ in pending]
            choice["logprobs"]["content"] = [
                {"token_id": t, "logprob": p, "rank": 1, "top_logprobs": []} for t, p in pending
            ]
            pending = []
            if finish:
                spans = [{"version": label, "start": 0, "end": count}] if count else []
                choice |= {"finish_reason": finish, "weight_versions": spans}
            if "core ended" in self.faults:
                error = {"message": "EngineCore encountered an issue.", "code": 500}
                yield f"data: {json.dumps({'error': error})}\n\n"
                return
            if "nested" in self.faults:
                yield f"data: {'[' * 100_000}\n\n"
            while "no tokens" in self.faults:
                choice |= {"token_ids": [], "logprobs": {"content": []}, "finish_reason": None}
                yield f"\n\ndata: {json.dumps(message)}\n\n"
                await asyncio.sleep(0.05)
            if "only the end" in self.faults:
                break
            yield f"data: {json.dumps(self._spoiled(message, finish))}\n\n"
            if "stream ends early" in self.faults:
                return
        yield "data: [DONE]\n\n"

    def _spoiled(self, message, finish):
        (choice,) = message["choices"]
        content = choice["logprobs"]["content"]
        if "token beyond" in self.faults:
            choice["token_ids"][0] = content[0]["token_id"] = VOCAB
        if "log-prob of another token" in self.faults:
            content[0]["token_id"] = (content[0]["token_id"] + 1) % VOCAB
        if "log-prob above 0" in self.faults:
            content[0]["logprob"] = 0.5
        if "log-prob of NaN" in self.faults:
            content[0]["logprob"] = -9999.0
        if "log-prob missing" in self.faults:
            content.pop()
        if finish and "gap in versions" in self.faults:
            choice["weight_versions"][0]["end"] -= 1
        if finish and "another version" in self.faults:
            choice["weight_versions"][0]["version"] = "default"
        if finish and "infinite span" in self.faults:
            choice["weight_versions"][0]["start"] = math.inf
        if "finish without reason" in self.faults:
            choice["finish_reason"] = "stop"
        return message


async def _blanks():
    while True:
        yield " "
        await asyncio.sleep(0.05)


@contextmanager
def served(directory: Path) -> Iterator[RecordedVllm]:
    """The server on ``directory/api``, on a thread of its own."""
    server = RecordedVllm()
    config = uvicorn.Config(
        server.app, uds=str(directory / "api"), log_level="error", lifespan="off"
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: running.started)
        yield server
    finally:
        running.should_exit = running.force_exit = True
        thread.join(10.0)


def make_engine(
    directory: Path,
    mode: str = "continue",
    config: VllmConfig | None = None,
    **deadlines: float,
) -> VllmEngine:
    """An engine; by default for the server on ``directory/api``."""
    limits = {"slots": 4, "max_prompt_tokens": 12, "max_new_tokens": 50, "progress_s": 0.05}
    section = section_with(rollouts=limits | {"on_new_weights": mode}, deadlines=deadlines)
    context = BuildContext.outside_run(section)
    model = Model({"vocab_size": VOCAB}, {"bigram": (VOCAB, VOCAB)}, "float32", 0)
    config = config or VllmConfig(url=f"unix:{directory / 'api'}")
    return VllmEngine(config, context, lambda: model, lambda model, directory: [])


def table(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (VOCAB, VOCAB)).astype(np.float32)


def version(directory: Path, number: int, **changes: object) -> WeightVersion:
    """Writes the version whose table has its number as seed."""
    path = directory / f"version-{number}"
    path.mkdir(exist_ok=True)
    tensors = {"bigram": table(number)}
    save_file(tensors, path / "model.safetensors")
    prints = fingerprint_numpy(tensors)
    specs = {n: TensorSpec(a.shape, a.dtype.name, int(prints[n])) for n, a in tensors.items()}
    tokens = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5], np.int32)
    pairs = itertools.pairwise(tokens)
    logprobs = [logprobs_of(tensors["bigram"], int(a), 1.0)[b] for a, b in pairs]
    part = VersionPart("huggingface", str(path), specs, "safetensors")
    return WeightVersion(number, number, (part,), Canary(tokens, np.array(logprobs), 1e-5))
