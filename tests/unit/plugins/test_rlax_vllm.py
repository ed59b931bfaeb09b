"""The engine ``vllm`` beside a server that answers as vLLM did, and with one that lies."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import recorded_vllm
from recorded_vllm import VOCAB, RecordedVllm, logprobs_of, served, table, version
from rlax_vllm.engine import VllmEngine, seed_at
from waiting import eventually

from rlax_plugin.api import Key, Request, SamplingParams, WeightsError, WorkerError
from rlax_plugin.base.errors import WeightsMismatchError, WeightsUnreadableError
from rlax_plugin.base.types import Sampled
from rlax_plugin.testing import check_engine
from rlax_plugin.weights.verification import take_version

CONTEXT = np.array([3, 1, 4], np.int32)


def asked(group: int = 0, **changes) -> Request:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=50)
    request = Request(Key("train", group), 1, CONTEXT, (11, 2**63 + 5), sampling)
    return replace(request, **changes)


@asynccontextmanager
async def engine_with(
    directory: Path, mode: str = "continue", **deadlines: float
) -> AsyncIterator[tuple[VllmEngine, RecordedVllm]]:
    """An engine with version 1, and its server."""
    with served(directory) as server:
        engine = recorded_vllm.make_engine(directory, mode, **deadlines)
        await take_version(engine, version(directory, 1))
        try:
            yield engine, server
        finally:
            engine.close()


async def generated(engine: VllmEngine, *requests: Request) -> dict[int, tuple[Sampled, ...]]:
    found = {}
    await engine.generate(requests, lambda key, samples: found.update({key.group: tuple(samples)}))
    return found


def expected_logprobs(sample: Sampled) -> list[float]:
    """Those of the tables that its versions name."""
    before = [CONTEXT[-1], *sample.tokens[:-1]]
    triples = zip(before, sample.tokens, sample.versions, strict=True)
    return [logprobs_of(table(int(v)), int(a), 1.0)[b] for a, b, v in triples]


@pytest.mark.parametrize("mode", ["finish", "continue", "discard"])
def test_the_vllm_engine_keeps_the_contract(mode: str, tmp_path: Path) -> None:
    numbers, servers = itertools.count(), []

    def make_engine() -> VllmEngine:
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        servers.append(server := served(directory))
        server.__enter__()
        return recorded_vllm.make_engine(directory, mode)

    try:
        rules = check_engine(make_engine, [version(tmp_path, 1), version(tmp_path, 2)])
    finally:
        for server in servers:
            server.__exit__(None, None, None)
    assert rules[-1].startswith(
        "found: score, decode_greedy, progress, unfinished, give_up, prepare, preparing, close;"
    )


async def switched_midway(directory: Path, mode: str) -> tuple[list, RecordedVllm]:
    """The replies of a request whose samples have some tokens when version 2 comes."""
    async with engine_with(directory, mode) as (engine, server):
        server.held_at, replies = 20, []
        running = asyncio.ensure_future(
            engine.generate([asked()], lambda key, samples: replies.append(tuple(samples)))
        )
        await eventually(lambda: sum(engine.progress().values()) >= 34, "tokens of both samples")
        if mode == "continue":
            await eventually(lambda: any(len(s.tokens) for s in sum(replies, ())), "a report")
        taking = asyncio.ensure_future(take_version(engine, version(directory, 2)))
        if mode == "finish":
            await eventually(lambda: "rlax_staged" in server.calls[4:], "version 2 is staged")
        else:
            await taking
        server.held_at = None
        await asyncio.gather(taking, running)
        assert engine.version == 2
        return replies, server


async def test_samples_go_on_with_new_weights_token_by_token(tmp_path: Path) -> None:
    replies, _ = await switched_midway(tmp_path, "continue")
    for sample in replies[-1]:
        assert len(sample.tokens) == 50
        assert sample.versions.tolist() == [1] * 20 + [2] * 30
        assert np.abs(sample.logprobs - expected_logprobs(sample)).max() < 1e-6
    partial = [samples for samples in replies[:-1] if any(len(s.tokens) for s in samples)]
    assert partial and all(any(s.finish is None for s in samples) for samples in partial)


async def test_running_samples_finish_before_new_weights(tmp_path: Path) -> None:
    replies, server = await switched_midway(tmp_path, "finish")
    assert all(set(s.versions.tolist()) == {1} and len(s.tokens) == 50 for s in replies[-1])
    assert server.calls.count("rlax_switch") == 2


async def test_running_samples_begin_again_with_new_weights(tmp_path: Path) -> None:
    replies, _ = await switched_midway(tmp_path, "discard")
    assert all(set(s.versions.tolist()) == {2} and len(s.tokens) == 50 for s in replies[-1])


async def test_a_sample_of_another_worker_goes_on_behind_its_tokens(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, _):
        (whole,) = (await generated(engine, asked(seeds=(11,)))).values()
        cut = replace(
            whole[0],
            tokens=whole[0].tokens[:9],
            logprobs=whole[0].logprobs[:9],
            versions=np.zeros(9, np.int32),
            finish=None,
        )
        (resumed,) = (await generated(engine, asked(1, seeds=(11,), resume=(cut,)))).values()
        assert resumed[0].tokens[:9].tolist() == cut.tokens.tolist()
        assert resumed[0].versions.tolist() == [0] * 9 + [1] * 41
        assert (seed_at(11, 0), seed_at(11, 9) != 11) == (11, True)
        assert resumed[0].tokens.tolist() != whole[0].tokens.tolist()


async def test_a_sample_ends_with_a_stop_id(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, _):
        (free,) = (await generated(engine, asked())).values()
        stop = int(free[0].tokens[7])
        sampling = SamplingParams(1.0, max_new_tokens=50, stop_ids=(stop,))
        (stopped,) = (await generated(engine, asked(1, sampling=sampling))).values()
        place = free[0].tokens.tolist().index(stop)
        assert stopped[0].finish == "stop"
        assert stopped[0].tokens.tolist() == free[0].tokens[: place + 1].tolist()


@pytest.mark.parametrize("place", [0, 3])  # messages are of the tokens 0, 1 to 8, 9 to 16, ...
async def test_a_sample_that_goes_on_behind_its_stop_id_ends_the_engine(
    place: int, tmp_path: Path
) -> None:
    async with engine_with(tmp_path) as (engine, server):
        one = asked(seeds=(11,))
        ((free,),) = (await generated(engine, one)).values()
        stop = int(free.tokens[place])
        assert stop not in free.tokens[:place]
        server.faults.add("stop ids ignored")
        sampling = SamplingParams(1.0, max_new_tokens=50, stop_ids=(stop,))
        with pytest.raises(WorkerError, match="went on behind the end of a sample"):
            await generated(engine, replace(one, sampling=sampling))


FAULTS = {
    "token beyond": "a token beyond the vocabulary",
    "log-prob of another token": "a log-prob of another token",
    "log-prob above 0": "0.5 is no log-prob",
    "log-prob of NaN": "-9999.0 is no log-prob",
    "log-prob missing": "not one log-prob per token",
    "gap in versions": "vLLM generated with weights",
    "another version": "vLLM generated with weights",
    "infinite span": "vLLM's stream cannot be right: OverflowError",
    "core ended": "vLLM ended a sample: .*EngineCore encountered an issue",
    "nested": "vLLM's stream cannot be right: RecursionError",
    "finish without reason": "vLLM says stop",
    "stream ends early": "ended the answer of a sample",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_that_says_what_cannot_be_ends_the_engine(
    fault: str, tmp_path: Path
) -> None:
    async with engine_with(tmp_path) as (engine, server):
        server.faults.add(fault)
        with pytest.raises(WorkerError, match=FAULTS[fault]):
            await generated(engine, asked())
        with pytest.raises(WorkerError, match=FAULTS[fault]):
            engine.health()


async def test_a_fault_of_its_own_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_with(tmp_path) as (engine, _):
        monkeypatch.setattr("rlax_vllm.engine.seed_at", lambda seed, position: 1 // 0)
        with pytest.raises(WorkerError, match="the engine failed: ZeroDivisionError"):
            await generated(engine, asked())
        with pytest.raises(WorkerError, match="ZeroDivisionError"):
            engine.health()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("mode", ["finish", "continue"])
async def test_a_sample_given_up_before_its_first_step_is_gone(mode: str, tmp_path: Path) -> None:
    async with engine_with(tmp_path, mode) as (engine, _):
        running = asyncio.ensure_future(generated(engine, asked()))
        while not engine.unfinished():
            await asyncio.sleep(0)
        assert engine.health()["active"] == 2  # started, in this iteration of the loop
        assert list(engine.give_up(engine.unfinished(), 0)) == [(asked().key, 1)]
        assert await running == {}
        assert engine.health()["active"] == 0
        await take_version(engine, version(tmp_path, 2))
        assert engine.version == 2


@contextmanager
def refused(engine: VllmEngine, kind: type[Exception], words: str) -> Iterator[None]:
    with pytest.raises(kind, match=words):
        yield
    assert engine.version == 1


async def test_weights_that_are_not_the_published_ones_are_refused(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, server):
        (before,) = (await generated(engine, asked())).values()
        two = version(tmp_path, 2)
        (part,) = two.parts
        (spec,) = part.tensors.values()

        def with_part(**changes):
            return replace(two, parts=(replace(part, **changes),))

        other = {"bigram": replace(spec, fingerprint=spec.fingerprint ^ 1)}
        with refused(engine, WeightsMismatchError, "has fingerprint"):
            await take_version(engine, with_part(tensors=other))
        wider = {"bigram": replace(spec, shape=(VOCAB, VOCAB + 1))}
        with refused(engine, WeightsError, r"is \(16, 17\) in it, and \(16, 16\) in the model"):
            await take_version(engine, with_part(tensors=wider))
        for tensors, words in (({}, "missing in it"), ({**part.tensors, "x": spec}, "missing in")):
            with refused(engine, WeightsError, words):
                await take_version(engine, with_part(tensors=tensors))
        with refused(engine, WeightsError, "not {'bigram': .*bfloat16"):
            bf16 = {"bigram": replace(spec, dtype="bfloat16")}
            await take_version(engine, with_part(tensors=bf16))
        with refused(engine, WeightsError, "has format native"):
            await take_version(engine, with_part(format="native"))
        with refused(engine, WeightsUnreadableError, "cannot be read"):
            await take_version(engine, with_part(path=str(tmp_path / "gone")))
        file = Path(part.path) / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-40])
        with refused(engine, WeightsError, "header|incomplete|metadata"):
            await take_version(engine, two)
        assert server.calls.count("rlax_switch") == 1
        (after,) = (await generated(engine, asked(1))).values()
        assert [s.tokens.tolist() for s in after] == [s.tokens.tolist() for s in before]


@pytest.mark.parametrize("fault", ["weights not switched", "weights of NaN"])
async def test_a_version_that_fails_the_canary_is_switched_back(fault: str, tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, server):
        (before,) = (await generated(engine, asked())).values()
        server.faults.add(fault)
        with refused(engine, WeightsMismatchError, "the canary's log-prob"):
            await take_version(engine, version(tmp_path, 2))
        server.faults.clear()
        (after,) = (await generated(engine, asked(1))).values()
        assert server.calls.count("rlax_back") == 1
        for old, new in zip(before, after, strict=True):
            assert old.tokens.tolist() == new.tokens.tolist()
            assert set(new.versions.tolist()) == {1}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cache not emptied", "prefix cache could not be emptied"),
        ("rlax_switch", "500"),
        ("trickling", r"no answer in 2 s \(rlax.deadlines.weights_s\)"),
    ],
)
async def test_a_switch_that_fails_halfway_ends_the_engine(
    fault: str, words: str, tmp_path: Path
) -> None:
    async with engine_with(tmp_path, weights_s=2.0) as (engine, server):
        server.faults.add(fault)
        with pytest.raises(WorkerError, match=words):
            await take_version(engine, version(tmp_path, 2))
        with pytest.raises(WorkerError, match=words):
            await generated(engine, asked())


async def test_a_cache_whose_blocks_are_in_use_is_emptied_later(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, server):
        server.faults.add("cache emptied late")
        await take_version(engine, version(tmp_path, 2))
        assert (engine.version, server.faults) == (2, set())


async def test_each_of_vllms_workers_stages_in_its_own_time(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, server):
        server.workers = 2
        server.faults.add("worker without memory")
        with refused(engine, WeightsUnreadableError, "MemoryError"):
            await take_version(engine, version(tmp_path, 2))
        server.faults.clear()
        await take_version(engine, version(tmp_path, 3))
        assert engine.version == 3
        server.faults.add("other weights in a worker")
        with pytest.raises(WorkerError, match="have staged different weights"):
            await take_version(engine, version(tmp_path, 4))


async def test_a_server_that_another_worker_has_taken_over_is_an_error(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (first, _):
        second = recorded_vllm.make_engine(tmp_path)
        await take_version(second, version(tmp_path, 1))  # as one that replaces the first
        with pytest.raises(WorkerError, match="another worker has switched the weights"):
            await take_version(first, version(tmp_path, 2))
        await take_version(second, version(tmp_path, 2))
        assert second.version == 2
        second.close()


async def test_greedy_decoding_is_checked_as_samples_are(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, server):
        server.faults.add("only the end")
        with pytest.raises(WorkerError, match="ended the answer of a sample early"):
            await take_version(engine, version(tmp_path, 2))


async def test_a_stream_that_brings_no_tokens_ends_the_engine(tmp_path: Path) -> None:
    async with engine_with(tmp_path, batch_s=2.0) as (engine, server):
        server.faults.add("no tokens")
        with pytest.raises(WorkerError, match=r"no token in 2 s \(rlax.deadlines.batch_s\)"):
            await generated(engine, asked())


async def test_the_directory_of_a_version_is_listed_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, listed = [], Path.iterdir
    async with engine_with(tmp_path) as (engine, _):

        def iterdir(path: Path):
            threads.append(threading.current_thread())
            return listed(path)

        monkeypatch.setattr(Path, "iterdir", iterdir)
        await engine.load(version(tmp_path, 2))
        assert threads and threading.current_thread() not in threads


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequences": 3}, "sequences 3, and 4 are needed: see rlax.rollouts.slots"),
        ({"context": 9}, "context 9, and .* are needed: see rlax.rollouts.engine.url"),
        ({"context": "64"}, "context '64', and"),
        ({"dtype": "bfloat16"}, "'bfloat16', not 'float32': see rlax.rollouts.engine.dtype"),
        ({"vocabulary": 17}, "vocabulary 17, not 16: see rlax.rollouts.engine.url"),
        ({"logprobs_mode": "raw_logprobs"}, "logprobs_mode 'raw_logprobs'"),
        ({"quantization": "fp8"}, "quantization 'fp8', not ''"),
        ({"speculative": True}, "speculative True, not False"),
    ],
)
async def test_a_server_that_computes_something_else_is_refused(
    changes: dict, words: str, tmp_path: Path
) -> None:
    with served(tmp_path) as server:
        server.described = changes
        engine = recorded_vllm.make_engine(tmp_path)
        with pytest.raises(WorkerError, match=words):
            await engine.prepare()
        engine.close()


async def test_versions_of_one_number_have_caches_of_their_own(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, server):
        await generated(engine, asked())
        await take_version(engine, version(tmp_path, 1))
        await generated(engine, asked(1))
        assert len(server.salts) == 3  # that of the first request warms up


async def test_what_would_bend_samples_is_refused(tmp_path: Path) -> None:
    async with engine_with(tmp_path) as (engine, _):
        for changes in ({"top_p": 0.9}, {"top_k": 3}, {"temperature": 0.005}):
            with pytest.raises(WorkerError, match="takes no top_p"):
                await generated(engine, asked(sampling=replace(asked().sampling, **changes)))
        for tokens in (np.zeros(200, np.int32), np.array([VOCAB, 1], np.int32)):
            with pytest.raises(ValueError, match=r"tokens, vLLM takes|below the vocabulary"):
                await engine.score(tokens)
        assert engine.health()["tokens_total"] == 0
