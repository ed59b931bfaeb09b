"""Samples that go on behind their tokens, groups generated alone, and the canary's log-probs."""

import threading

import numpy as np
import pytest
from rlax_jetstream import JetstreamConfig
from tiny_engine import (
    NEW,
    PROMPT,
    SLOTS,
    TINY,
    VOCAB,
    Case,
    prompts_of,
    random_weights,
    reference_logprobs,
)

from maxtext_overrides import worker_slots
from maxtext_overrides.sampler.decode import Prefill
from rlax_plugin.base.types import Key, Request, SamplingParams
from rlax_plugin.config import RlaxSection, Rollouts
from rlax_plugin.config.loading import resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.rollout.batching.jobs import Job
from rlax_plugin.rollout.batching.scheduler import Scheduler

SAMPLING = SamplingParams(max_new_tokens=NEW)
TRUNCATED = SamplingParams(0.7, 8, 0.95, max_new_tokens=NEW)


def section_of(chosen, **more):
    none = {"name": "none"}
    return RlaxSection(prompt_source=none, rewards=(none,), rollouts=chosen, **more)


def rollouts(on_new_weights):
    return Rollouts(
        slots=SLOTS,
        max_prompt_tokens=PROMPT,
        max_new_tokens=NEW,
        group_size=4,
        on_new_weights=on_new_weights,
    )


def context_of(section):
    config = resolve(TINY, ["scan_layers=false"])
    return BuildContext(run_dir=None, seed=0, section=section, config=config)


@pytest.fixture(scope="module")
def going_on():
    """Its prefill region holds what the slots of a worker with ``continue`` hold."""
    longest = PROMPT + NEW - 1
    return Case(max_prefill_predict_length=longest, max_target_length=longest + NEW)


@pytest.fixture(scope="module")
def other():
    """Slots as a worker makes them."""
    return worker_slots.make_slots(JetstreamConfig(), context_of(section_of(rollouts("continue"))))


@pytest.fixture(autouse=True)
def empty_slots(request):
    yield
    if "going_on" in request.fixturenames:
        request.getfixturevalue("going_on").engine.reset()


def behind(prompt, tokens, slot, seed, sampling):
    return Prefill(np.concatenate([prompt, tokens]), (slot,), (seed,), sampling, len(tokens))


def test_only_continue_makes_room_for_generated_tokens(other):
    assert (other.max_prompt_tokens, other.max_new_tokens) == (PROMPT + NEW - 1, NEW)
    finish = worker_slots.sizes(context_of(section_of(rollouts("finish"))), JetstreamConfig(), 1)
    assert finish["max_prefill_predict_length"] == PROMPT
    assert finish["max_target_length"] == PROMPT + NEW
    several = {"environment": {"name": "calculator"}, "episodes": {"max_tokens": 4 * NEW}}
    context = context_of(section_of(rollouts("finish"), **several))
    turns = worker_slots.sizes(context, JetstreamConfig(), 1)
    assert turns["max_prefill_predict_length"] == PROMPT + 4 * NEW - 1
    assert turns["max_target_length"] == PROMPT + 5 * NEW - 1


@pytest.mark.parametrize(("steps", "sampling"), [(0, TRUNCATED), (4, SAMPLING), (4, TRUNCATED)])
def test_an_interrupted_sample_goes_on_as_if_nothing_had_happened(going_on, other, steps, sampling):
    engine, weights = going_on.engine, going_on.weights
    short, long = prompts_of(3, PROMPT)
    requests = [Prefill(short, (0, 5), (1, 2), sampling), Prefill(long, (2,), (3,), sampling)]
    whole = going_on.generate(requests)
    engine.insert(weights, requests)
    assert engine.decode(weights, steps, False) == []
    parts = {part.slot: part for part in engine.read([5, 0, 2])}
    for slot, part in parts.items():
        np.testing.assert_array_equal(part.tokens, whole[slot].tokens[: steps + 1])
        np.testing.assert_array_equal(part.logprobs, whole[slot].logprobs[: steps + 1])
    engine.release([0, 5, 2])
    # On the same engine in other slots, beside another sample; and on another engine.
    samples = {7: (0, short, 1), 6: (5, short, 2), 0: (2, long, 3)}
    again = [
        behind(prompt, parts[was].tokens, slot, seed, sampling)
        for slot, (was, prompt, seed) in samples.items()
    ]
    neighbour = Prefill(long, (3,), (99,), SamplingParams(1.3, max_new_tokens=5))
    for slots, more in ((engine, [neighbour]), (other, [])):
        slots.insert(weights, [*again, *more])
        ended = {d.slot: d for d in slots.decode(weights, 1000, False)}
        for slot, (was, _, _) in samples.items():
            rest = whole[was].tokens[steps + 1 :]
            np.testing.assert_array_equal(ended[slot].tokens, rest)
            for name in ("logprobs", "truncated_logprobs"):
                np.testing.assert_allclose(
                    getattr(ended[slot], name), getattr(whole[was], name)[steps + 1 :], atol=1e-5
                )


def test_what_leaves_nothing_to_generate_is_rejected(going_on):
    for length, generated, new in ((5 + NEW, NEW, NEW), (8, 3, 3), (5, 5, NEW)):
        sampling = SamplingParams(max_new_tokens=new)
        request = Prefill(np.zeros(length, np.int32), (0,), (1,), sampling, generated)
        with pytest.raises(ValueError, match="nothing is left to generate, or no prompt"):
            going_on.engine.insert(going_on.weights, [request])


def group(number, prompt, seeds, sampling=SAMPLING, purpose="train"):
    request = Request(Key(purpose, number), 1, prompt, tuple(seeds), sampling)
    return Job(request, deliver=print, fail=print)


def generate_all(scheduler, slots, weights, waiting, version=0):
    """Until nothing waits or runs; the order in which groups ended."""
    order = []
    while waiting or scheduler.active:
        slots.insert(weights, scheduler.plan(waiting, version))
        waiting = [job for job in waiting if job.waiting]
        order += [job.request.key for job in scheduler.advance(weights, bool(waiting))]
    return order


def test_interrupted_groups_go_on_under_new_weights(going_on):
    slots, newer = going_on.engine, random_weights(going_on.engine, seed=5)
    scheduler = Scheduler(slots, arrival_steps=4, linger_steps=0, longest_call=6)
    prompts = prompts_of(5, 8)
    jobs = [group(0, prompts[0], (1, 2, 3)), group(1, prompts[1], range(5))]
    slots.insert(going_on.weights, scheduler.plan(jobs, 1))
    assert scheduler.advance(going_on.weights, more_waits=True) == []
    ((_, reported), _) = scheduler.progress([])
    back = scheduler.interrupt(keep_tokens=True)
    assert back == jobs and slots.free_slots == list(range(SLOTS))
    np.testing.assert_array_equal(back[0].samples[2].tokens, reported[2].tokens)
    assert generate_all(scheduler, slots, newer, back, version=2) == [
        Key("train", 0),
        Key("train", 1),
    ]
    for job, prompt in zip(jobs, prompts, strict=True):
        for sampled in job.samples:
            assert sampled.versions.tolist() == [1] * 7 + [2] * (NEW - 7)
            for weights, generated in ((going_on.weights, slice(7)), (newer, slice(7, NEW))):
                logits = going_on.completion_logits(prompt, sampled.tokens, weights)
                expected, _ = reference_logprobs(logits, sampled.tokens, SAMPLING)
                found = sampled.logprobs[generated]
                np.testing.assert_allclose(found, expected[generated], atol=1e-4)


def test_a_training_group_is_the_same_to_the_bit_whatever_was_generated_before(going_on):
    slots, weights, prompts = going_on.engine, going_on.weights, prompts_of(5, 3, 8, 1, 6)
    scheduler = Scheduler(slots, arrival_steps=4, linger_steps=2, deterministic=True)
    first, again = (group(7, prompts[0], (1, 2, 3, 2**63)) for _ in range(2))
    generate_all(scheduler, slots, weights, [first])
    # Lengths differ, so slots and rings are in any state when the group's turn comes.
    uneven = [SamplingParams(max_new_tokens=3 + 2 * i) for i in range(len(prompts))]
    before = [
        group(number, prompt, range(3), sampling, "evaluate")
        for number, (prompt, sampling) in enumerate(zip(prompts, uneven, strict=True))
    ]
    before += [
        group(0, prompts[3], (5,), TRUNCATED, "serve"),
        group(3, prompts[2], range(3), uneven[2]),
    ]
    after = [group(5, prompts[1], (4, 5), purpose="evaluate"), group(8, prompts[4], (6,))]
    generate_all(scheduler, slots, random_weights(slots, seed=9), [group(1, prompts[4], range(7))])
    order = generate_all(scheduler, slots, weights, [*before, again, *after])
    assert order[-4:] == [Key("train", 3), Key("train", 7), Key("evaluate", 5), Key("train", 8)]
    for one, two in zip(first.samples, again.samples, strict=True):
        np.testing.assert_array_equal(one.tokens, two.tokens)
        assert not one.side and not two.side  # nothing is truncated
        np.testing.assert_array_equal(*(s.logprobs.view(np.uint32) for s in (one, two)))


def canary(seed=3, length=PROMPT):
    return np.random.default_rng(seed).integers(0, VOCAB, length + 1).astype(np.int32)


def test_the_canary_takes_what_fits(going_on):
    for length in (0, PROMPT + NEW):
        with pytest.raises(ValueError, match="can be scored"):
            going_on.engine.logprobs(going_on.weights, canary(length=length))


def test_the_canary_sees_a_small_change_of_any_tensor(going_on):
    tokens = canary()
    right = going_on.engine.logprobs(going_on.weights, tokens)
    for name, array in going_on.weights.items():
        wrong = going_on.weights | {name: array * 1.01}
        assert np.abs(going_on.engine.logprobs(wrong, tokens) - right).max() > 1e-4, name


def test_the_canary_does_not_disturb_what_runs(going_on):
    engine, weights = going_on.engine, going_on.weights
    (prompt,) = prompts_of(5)
    request = Prefill(prompt, (0, 1), (4, 5), SAMPLING)
    alone = going_on.generate([request])
    other, found = random_weights(engine, seed=5), []
    expected = engine.logprobs(other, canary())
    engine.insert(weights, [request])
    scoring = threading.Thread(
        target=lambda: found.extend(engine.logprobs(other, canary()) for _ in range(20))
    )
    scoring.start()
    ended = []
    try:
        while not ended:
            ended = engine.decode(weights, 1, False)
    finally:
        scoring.join(60)
    for generated in ended:
        np.testing.assert_array_equal(generated.tokens, alone[generated.slot].tokens)
        np.testing.assert_array_equal(generated.logprobs, alone[generated.slot].logprobs)
    assert len(found) == 20
    for logprobs in found:
        np.testing.assert_array_equal(logprobs, expected)
