"""A worker whose weights are not base and adapter of the version rejects the version."""

import asyncio
import contextlib

import jax
import numpy as np
import pytest
from memory_store import prompt_of
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine
from test_adapters import LORA
from tiny_engine import NEW, PROMPT, SLOTS, configure, random_weights

from maxtext_overrides import adapters
from maxtext_overrides.sampler.decode import DecodeEngine
from rlax_plugin.base.errors import WeightsMismatchError
from rlax_plugin.base.types import Canary, TensorSpec, VersionPart, WeightVersion
from rlax_plugin.config import Rollouts
from rlax_plugin.weights.device_fingerprint import fingerprint
from rlax_plugin.weights.verification import Reading, take_version


class Parts:
    """A store of parts by path, which notes what is read."""

    def __init__(self):
        self.parts, self.read = {}, []

    def add(self, name, path, arrays):
        self.parts[path] = arrays
        prints = {n: int(x) for n, x in fingerprint(arrays).items()}
        tensors = {n: TensorSpec(a.shape, a.dtype.name, prints[n]) for n, a in arrays.items()}
        return VersionPart(name, path, tensors)

    def load(self, path, like):
        self.read.append(path)
        return {name: self.parts[path][name].copy() for name in like}


@pytest.fixture(scope="module")
def slots():
    return DecodeEngine(configure(lora=LORA))


@pytest.fixture
def fleet(slots):
    """The engine with version 0 in use; its store; and versions 0 and 1, which share their base."""
    store, versions = Parts(), []
    first, second = random_weights(slots, 0), random_weights(slots, 1)
    base = {n: a for n, a in first.items() if not adapters.is_adapter(n)}
    part = store.add("base", "base", base)
    for number, source in enumerate((first, second)):
        adapter = {n: a for n, a in source.items() if adapters.is_adapter(n)}
        own = store.add("adapter", f"adapter{number}", adapter)
        tokens = prompt_of(PROMPT)
        canary = Canary(tokens, slots.logprobs(base | adapter, tokens), 1e-4)
        versions.append(WeightVersion(number, number, (part, own), canary))
    slots.reset()
    engine = JetstreamEngine(
        make_slots=lambda: slots,
        store=store,
        rollouts=Rollouts(slots=SLOTS, max_prompt_tokens=PROMPT, max_new_tokens=NEW, group_size=2),
        config=JetstreamConfig(warm_up=False),
        make_prompt_source=lambda: None,
        deterministic=True,
    )
    take(engine, versions[0])
    with contextlib.closing(engine):
        yield engine, store, versions


def take(engine, version, reading=None):
    asyncio.run(asyncio.wait_for(take_version(engine, version, reading=reading), 120))


def test_the_base_is_read_once_and_an_adapter_for_each_version(fleet):
    engine, store, versions = fleet
    reading = Reading()
    take(engine, versions[1], reading)
    assert engine.version == 1
    assert store.read == ["base", "adapter0", "adapter1"]
    sizes = [sum(t.nbytes for t in part.tensors.values()) for part in versions[1].parts]
    assert reading.size == sizes[1] < sizes[0] / 2


@pytest.mark.parametrize("fault", ["base served", "old adapter", "wrong base"])
def test_arrays_of_another_version_are_a_mismatch(fleet, fault):
    engine, store, versions = fleet
    newest = versions[1]
    if fault == "base served":
        store.parts["adapter1"] = {n: a * 0 for n, a in store.parts["adapter1"].items()}
    elif fault == "old adapter":
        store.parts["adapter1"] = store.parts["adapter0"]
    else:  # a worker that starts, and so reads all parts
        engine._swaps.used = type(engine._swaps.used)(-1, {}, None)
        name, array = next(iter(store.parts["base"].items()))
        store.parts["base"] = store.parts["base"] | {name: array + 0.125}
    with pytest.raises(WeightsMismatchError, match=r"fingerprint 0x.* but 0x.* was published"):
        take(engine, newest)


def test_an_adapter_that_is_not_applied_is_a_mismatch(fleet, slots, monkeypatch):
    engine, _, versions = fleet
    scoring = slots.logprobs

    def skipped(weights, tokens):
        zeros = {n: jax.numpy.zeros(a.shape, a.dtype) for n, a in weights.items() if "lora" in n}
        return scoring({**weights, **zeros}, tokens)

    monkeypatch.setattr(slots, "logprobs", skipped)
    with pytest.raises(WeightsMismatchError, match="the canary's log-prob at position"):
        take(engine, versions[1])
    monkeypatch.undo()
    # And if only the programs that decode do not apply it.
    insert, decode = slots.insert, slots.decode

    def without(weights):
        return {
            n: jax.numpy.zeros(a.shape, a.dtype) if "lora" in n else a for n, a in weights.items()
        }

    monkeypatch.setattr(slots, "insert", lambda weights, *rest: insert(without(weights), *rest))
    monkeypatch.setattr(slots, "decode", lambda weights, *rest: decode(without(weights), *rest))
    with pytest.raises(WeightsMismatchError, match="decoding behind the canary gives its token"):
        take(engine, versions[1])
    assert engine.version == 0
    assert np.isfinite(scoring(engine._swaps.weights, prompt_of(4))).all()
