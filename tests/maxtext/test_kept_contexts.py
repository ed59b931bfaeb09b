"""Free slots keep contexts: a next turn prefills what is new; decoding reads what is in use."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compiling import compilations
from memory_store import Memory, loaded, prompt_of
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine
from tiny_engine import MOE, NEW, TINY, VOCAB, Case, log_softmax, prompts_of

from maxtext_overrides.sampler import buckets, joined_prefill
from maxtext_overrides.sampler.decode import DecodeEngine, Prefill
from maxtext_overrides.worker_slots import make_slots
from rlax_plugin.base.types import Key, Request, SamplingParams
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.weights.verification import take_version

LONGEST = 96
SIZES = {"max_prefill_predict_length": LONGEST, "max_target_length": LONGEST + NEW}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "scanned": {"scan_layers": True},
    "latent attention": MOE,
    "windows": {"decoder_block": "gemma2", "sliding_window_size": 6, "base_num_decoder_layers": 2},
}


@pytest.fixture(
    scope="module",
    params=[
        name if name == "dense" else pytest.param(name, marks=pytest.mark.long) for name in MODELS
    ],
)
def case(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_SHORTEST_REACH", 4)
        made = Case(**SIZES, **MODELS[request.param])
        made.engine = DecodeEngine(made.config, prompt_tokens=32, group_size=1, keeps=True)
        yield made


def sampling(new: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=new)


def turn(engine, weights, contexts, new):
    """Generates a sample behind each context; returns their tokens and log-probs in order."""
    requests, free = [], list(engine.free_slots)
    for i, context in enumerate(contexts):
        slot = engine.kept_for(context)
        slot = free[0] if slot is None else slot
        free.remove(slot)
        requests.append(Prefill(context, (slot,), (i,), sampling(new)))
    engine.insert(weights, requests)
    found = {}
    while len(found) < len(requests):
        found |= {one.slot: one for one in engine.decode(weights, 1000, True)}
    return [found[r.slots[0]] for r in requests]


def expected(case, context, tokens):
    logits = case.completion_logits(context, tokens)
    return log_softmax(logits)[np.arange(len(tokens)), tokens]


def test_later_turns_prefill_what_is_new_and_logprobs_are_the_trainers(case):
    engine, rng = case.engine, np.random.default_rng(0)
    engine.reset()
    engine.forget_totals()
    contexts, prefilled = prompts_of(3, 11, 20), []
    for new in (NEW, 7, 1, 9):
        before = engine.prefill_tokens_total
        generated = turn(engine, case.weights, contexts, new)
        prefilled.append(engine.prefill_tokens_total - before)
        for context, one in zip(contexts, generated, strict=True):
            assert len(one.tokens) == new
            np.testing.assert_allclose(one.logprobs, expected(case, context, one.tokens), atol=1e-4)
        contexts = [
            np.concatenate([context, one.tokens, rng.integers(0, VOCAB, 4).astype(np.int32)])
            for context, one in zip(contexts, generated, strict=True)
        ]
    # The last token of the turn before, and four of the environment, in each of three episodes.
    assert prefilled == [34, 15, 15, 15]


def test_contexts_are_read_from_a_ring_in_which_others_go_on(case):
    """Samples begin and end at different steps, and continue in other slots, one of them twice."""
    engine, found = case.engine, {}
    engine.reset()
    first = prompts_of(5, 9, 14)
    for slot, (prompt, new) in enumerate(zip(first, (4, NEW, 7), strict=True)):
        engine.insert(case.weights, [Prefill(prompt, (slot,), (slot,), sampling(new))])
        found |= {one.slot: one for one in engine.decode(case.weights, 3, False)}
    assert list(found) == [0]  # the ring has gone on beyond its entries
    engine.insert(case.weights, [Prefill(prompts_of(6)[0], (0,), (9,), sampling(NEW))])
    while len(found) < 3:
        found |= {o.slot: o for o in engine.decode(case.weights, 1, True) if o.slot}
    given = np.array([7, 8], np.int32)
    contexts = [np.concatenate([first[slot], found[slot].tokens, given]) for slot in (1, 2)]
    assert [engine.kept_for(context) for context in contexts] == [1, 2]
    before = engine.prefill_tokens_total
    requests = [
        Prefill(contexts[0], (3, 4), (20, 21), sampling(3)),
        Prefill(contexts[1], (5,), (22,), sampling(NEW), 2),  # two are its own
    ]
    engine.insert(case.weights, requests)
    assert engine.prefill_tokens_total - before == 2 * 3
    found = {}
    while len(found) < 4:
        found |= {one.slot: one for one in engine.decode(case.weights, 1000, True)}
    for slot, context in ((3, contexts[0]), (4, contexts[0]), (5, contexts[1])):
        one = found[slot]
        np.testing.assert_allclose(
            one.logprobs, expected(case, context, one.tokens), atol=1e-4, err_msg=f"slot {slot}"
        )
    assert len(found[5].tokens) == NEW - 2


def test_decoding_attends_to_as_much_of_the_prompts_as_those_in_use_need(case, monkeypatch):
    """Prompts of 3, 10 and 40 tokens join one after the other; the longest one ends first."""
    engine, reaches, found = case.engine, [], {}
    run = engine._decode

    def decode(*arguments):
        reaches.append(arguments[-1])
        return run(*arguments)

    monkeypatch.setattr(engine, "_decode", decode)
    engine.reset()
    prompts = prompts_of(3, 10, 40)
    for slot, (prompt, new) in enumerate(zip(prompts, (NEW, NEW, 4), strict=True)):
        engine.insert(case.weights, [Prefill(prompt, (slot,), (slot,), sampling(new))])
        found |= {one.slot: one for one in engine.decode(case.weights, 2, False)}
    for _ in range(3):
        found |= {one.slot: one for one in engine.decode(case.weights, 1000, True)}
    assert reaches == [6, 24, 96, 96, 24, 24]  # each a quarter of the next one
    for slot, prompt in enumerate(prompts):
        tokens = found[slot].tokens
        np.testing.assert_allclose(found[slot].logprobs, expected(case, prompt, tokens), atol=1e-4)


NAMES = {
    "cached_prefill_key": ("cache_batch", "cache_heads", "cache_sequence", "cache_kv"),
    "cached_ar_key": ("cache_batch", "cache_heads", "cache_sequence", "cache_kv"),
    "cache_prefill_segment_id": ("cache_batch", "cache_sequence"),
}
PLAIN = {
    **dict.fromkeys(("moba", "use_indexer", "quantize_kvcache"), False),
    **{"engram_layers": [], "chunk_attn_window_size": 0, "attention_type": "global"},
}


@pytest.mark.parametrize(
    ("keys", "names", "can"),
    [
        ({}, {}, True),
        ({"attention_type": "mla"}, {}, True),
        ({"attention_type": "chunk"}, {}, False),
        ({"moba": True}, {}, False),
        ({"use_indexer": True}, {}, False),
        ({"quantize_kvcache": True}, {}, False),
        ({"engram_layers": [1]}, {}, False),
        ({"chunk_attn_window_size": 8192}, {}, False),
        # Recurrent layers, caches of something else, and a ring whose axes are ordered differently.
        ({}, {"cached_prefill_key": ("cache_batch", "cache_heads", "", "")}, False),
        ({}, {"accumulator_index": ("cache_batch", "")}, False),
        ({}, {"cached_ar_key": ("cache_sequence", "cache_heads", "cache_batch", "")}, False),
    ],
)
def test_contexts_are_kept_for_attention_that_sees_nothing_but_positions(keys, names, can):
    axes = {("layer", name): of for name, of in (NAMES | names).items()}
    assert joined_prefill.possible(SimpleNamespace(**PLAIN | keys), axes) == can


def section(new_weights: str = "continue", **others: Any) -> RlaxSection:
    rollouts = {"slots": 4, "max_prompt_tokens": 20, "max_new_tokens": NEW, "group_size": 2}
    return RlaxSection.model_validate(
        {
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "x"}],
            "environment": {"name": "turns"},
            "episodes": {"max_turns": 4, "max_tokens": 60},
            "rollouts": rollouts | {"on_new_weights": new_weights},
            **others,
        }
    )


def test_an_engine_keeps_contexts_until_weights_change_and_compiles_nothing_for_it():
    settings, store, made = section(), Memory(), []
    # Each program of the worker is compiled, and a layer more makes each of them take longer.
    config = resolve(TINY, ("base_num_decoder_layers=1",))
    context = BuildContext(run_dir=None, seed=0, section=settings, config=config)
    engine = JetstreamEngine(
        make_slots=lambda: made.append(make_slots(JetstreamConfig(), context)) or made[0],
        store=store,
        rollouts=settings.rollouts,
        config=JetstreamConfig(),
        make_prompt_source=lambda: pytest.fail("there is no text"),
        max_context=settings.max_context_tokens,
    )
    params = SamplingParams(max_new_tokens=NEW)

    async def sampled(*requests: Request) -> list[np.ndarray]:
        """Returns the tokens of the first sample of each request, behind its context."""
        found = {}
        await engine.generate(requests, lambda key, samples: found.update({key: samples[0]}))
        return [np.concatenate([r.context, found[r.key].tokens]) for r in requests]

    def later(sample: int, number: int, context: np.ndarray) -> Request:
        given = np.concatenate([context, np.full(3, 7, np.int32)])
        return Request(Key("train", 0, sample, 0, number), 1, given, (sample,), params)

    async def scenario() -> None:
        await engine.prepare()
        (slots,) = made
        versions = [store.add(loaded(slots, seed), slots) for seed in range(2)]
        await take_version(engine, versions[0])
        with compilations() as compiled:
            firsts = [Request(Key("train", i), 1, prompt_of(20, i), (i,), params) for i in (0, 1)]
            contexts = await sampled(*firsts)
            for number in (1, 2):
                before = engine.health()
                contexts = await sampled(*(later(i, number, c) for i, c in enumerate(contexts)))
                kept = engine.health()["prefill_kept_total"] - before["prefill_kept_total"]
                # All but the last token of the answer before, and what is given behind it.
                assert kept == sum(len(context) - NEW - 4 for context in contexts)
            await take_version(engine, versions[1])
            before = engine.health()
            await sampled(*(later(i, 3, c) for i, c in enumerate(contexts)))
            assert engine.health()["prefill_kept_total"] == before["prefill_kept_total"]
        assert compiled == []

    try:
        asyncio.run(asyncio.wait_for(scenario(), 120))
    finally:
        engine.close()


def test_contexts_are_not_kept_where_they_would_change_a_sample():
    settings = section("finish", deterministic=True)
    context = BuildContext(run_dir=None, seed=0, section=settings, config=resolve(TINY))
    slots = make_slots(JetstreamConfig(), context)
    weights = loaded(slots, 0)
    for _ in range(2):
        slots.insert(weights, [Prefill(prompt_of(20), (0,), (0,), sampling(NEW))])
        while not slots.decode(weights, NEW, True):
            pass
    assert slots.prefill_kept_total == 0 and slots.prefill_tokens_total == 40
