"""Samplers over tables of prompts: the order of before, small states, and domains by weight."""

import json
from typing import Any

import numpy as np
import pytest
import rlax_curation as curation
from data_sets import listed, tables

from rlax_plugin.api import Prompt, PromptTable
from rlax_plugin.data.curation.pass_rate_table import PassRateTable

PROMPTS = [Prompt(f"p{i}", np.array([i], np.int32), str(i), str(i)) for i in range(40)]
RATES = PassRateTable(40, 8)
SIZES = {"sums": 30, "words": 7, "rare": 3}
WEIGHTS = {"sums": 0.5, "words": 0.375, "rare": 0.125}


@pytest.fixture(scope="module")
def table() -> PromptTable:
    kinds = [kind for kind, size in SIZES.items() for _ in range(size)]
    rows = ({"question": f"{n}?", "kind": kind} for n, kind in enumerate(kinds))
    return tables(listed(*rows, domain="kind", weights=WEIGHTS))["train"]


def test_the_order_is_the_one_that_it_was() -> None:
    rng = np.random.default_rng(7)
    expected = [*reversed(rng.permutation(40).tolist()), *reversed(rng.permutation(40).tolist())]
    sampler, rng = curation.Shuffled(), np.random.default_rng(7)
    chosen = [i for n in (1, 30, 20, 29) for i in sampler.choose(PROMPTS, RATES, rng, n)]
    assert chosen == expected


def test_a_state_does_not_grow_with_the_prompts() -> None:
    class Many(list):
        def __len__(self) -> int:
            return 1_000_000

    sampler, rng = curation.Shuffled(), np.random.default_rng(0)
    first = sampler.choose(Many(), RATES, rng, 500)
    state = json.dumps(sampler.state())
    assert len(state) < 500
    resumed = curation.Shuffled()
    resumed.restore(json.loads(state))
    rest = sampler.choose(Many(), RATES, rng, 500)
    assert resumed.choose(Many(), RATES, rng, 500) == rest and not set(first) & set(rest)


def kinds_of(table: PromptTable, chosen: list[int]) -> list[str]:
    assert table.domains is not None
    return [table.domains.names[number] for number in table.domains.of_n[chosen]]


def test_domains_keep_their_proportions_exactly(table: PromptTable) -> None:
    sampler, rng = curation.Shuffled(), np.random.default_rng(3)
    chosen = sampler.choose(table, RATES, rng, 240)
    kinds = kinds_of(table, chosen)
    for end in range(8, 241, 8):  # after every 8 it is 4 : 3 : 1
        assert {kind: kinds[:end].count(kind) * 8 / end for kind in SIZES} == {
            "sums": 4,
            "words": 3,
            "rare": 1,
        }
    for kind, size in SIZES.items():  # epochs of each domain
        of_kind = [i for i, its in zip(chosen, kinds, strict=True) if its == kind]
        epochs = [of_kind[i : i + size] for i in range(0, len(of_kind) - size + 1, size)]
        assert len(epochs) >= 4
        assert all(len(set(epoch)) == size for epoch in epochs) and epochs[0] != epochs[1]


@pytest.mark.parametrize("done", [0, 1, 5, 37, 100])
def test_domains_resume_wherever_they_were(table: PromptTable, done: int) -> None:
    sampler, rng = curation.Shuffled(), np.random.default_rng(3)
    whole = curation.Shuffled().choose(table, RATES, np.random.default_rng(3), done + 50)
    assert sampler.choose(table, RATES, rng, done) == whole[:done]
    state: dict[str, Any] = json.loads(json.dumps(sampler.state()))
    resumed, again = curation.Shuffled(), np.random.default_rng()
    resumed.restore(state)
    again.bit_generator.state = rng.bit_generator.state
    assert resumed.choose(table, RATES, again, 50) == whole[done:]


def test_a_domain_of_weight_0_is_not_chosen(table: PromptTable) -> None:
    assert table.domains is not None
    other = table.weighted(dict(zip(table.domains.names, (0.75, 0, 0.25), strict=True)))
    for sampler in (curation.Shuffled(), curation.Learnability(curation.LearnabilityConfig())):
        kinds = kinds_of(other, sampler.choose(other, RATES, np.random.default_rng(0), 100))
        assert kinds.count("words") == 0 and 10 <= kinds.count("rare") <= 40


def test_candidates_are_of_the_domains_of_the_prompts_that_are_given(table: PromptTable) -> None:
    kinds = ["sums"] * 10 + ["words"] * 30  # every domain of the table has some of these words
    rows = ({"question": f"{n}!", "kind": kind} for n, kind in enumerate(kinds))
    other = tables(listed(*rows, domain="kind", weights={"words": 0, "sums": 1}))["train"]
    sampler = curation.Learnability(curation.LearnabilityConfig())
    rng = np.random.default_rng(0)
    assert set(kinds_of(table, sampler.choose(table, RATES, rng, 100))) == {*SIZES}
    assert set(kinds_of(other, sampler.choose(other, RATES, rng, 100))) == {"sums"}


def test_learnability_chooses_domains_by_weight_and_reads_ids_alone(
    table: PromptTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = PassRateTable(40, 8)
    hopeless = [i for i in range(30) if i % 2]
    for index in hopeless:
        for _ in range(20):
            rates.observe(index, 0, 8, 0)
    for method in ("__getitem__", "__iter__", "texts"):
        monkeypatch.setattr(PromptTable, method, lambda *_: pytest.fail("a prompt was read"))
    sampler = curation.Learnability(curation.LearnabilityConfig(floor=0.001))
    chosen = sampler.choose(table, rates, np.random.default_rng(0), 4000)
    kinds = kinds_of(table, chosen)
    for kind, weight in WEIGHTS.items():
        assert abs(kinds.count(kind) / 4000 - weight) < 0.03
    assert sum(index in hopeless for index in chosen) < 400  # 1000 if it did not look
