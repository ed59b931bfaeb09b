"""Stages: shares of the domains by step and by pass rate, in a run state that is resumed."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import rlax_curation
from data_sets import listed, tables
from scored_groups import scored_group

from rlax_plugin.api import PromptTable
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.data.curation.stages import Stages, check_stages
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.run_state import RunState
from rlax_plugin.testing import make_prompt, make_rates

STAGES = [
    {"weights": {"sums": 1}, "until_step": 2},
    {"weights": {"sums": 1, "words": 3}, "until_pass_rate": {"words": 0.7}, "min_prompts": 4},
]


@pytest.fixture(scope="module")
def table() -> PromptTable:
    kinds = ["sums"] * 20 + ["words"] * 10 + ["rare"] * 10
    rows = ({"question": f"{n}?", "kind": kind} for n, kind in enumerate(kinds))
    weights = {"sums": 1, "words": 1, "rare": 2}
    return tables(listed(*rows, domain="kind", weights=weights))["train"]


def section(*stages: dict[str, Any]) -> RlaxSection:
    return RlaxSection.model_validate(
        {
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "x"}],
            "curation": {"stages": list(stages)},
        }
    )


class Steps:
    """A run state whose groups of each step all train; words pass in 3 of 4 samples from step 4."""

    def __init__(self, table: PromptTable, sampler: Any = None):
        self.table = table
        sampler = sampler or rlax_curation.Shuffled()
        rates = PassRateTable(len(table), 32)
        self.state = RunState(section(*STAGES), table, {"": sampler}, rates)
        self._next = 0

    def go(self, step: int) -> Counter[str]:
        """The prompts of a step by domain."""
        event = self.state.choose(8, 0)
        assert self.table.domains is not None
        found: Counter[str] = Counter()
        groups = range(event.first, event.first + 8)
        for group in groups:
            index = self.state.open[group].index
            found[name := self.table.domains.names[self.table.domains.of_n[index]]] += 1
            passed = 3 if name == "words" and step >= 4 else 0
            self.state.apply(ev.Scored(group, passed, 4, None), scored_group(group, (1, 1.0)))
        self.state.apply(ev.Trained(step, tuple(groups), 1))
        return found


def test_shares_follow_the_stages_and_none_comes_back(table: PromptTable) -> None:
    run = Steps(table)
    found = [dict(run.go(step)) for step in range(1, 4)]
    # Sums alone for two steps; then 1 : 3 at once: words need not catch up.
    assert found == [{"sums": 8}, {"sums": 8}, {"sums": 2, "words": 6}]
    later, step = [], 4
    while (one := dict(run.go(step))) == {"sums": 2, "words": 6}:
        later.append(one)
        step += 1
        assert step < 100
    # Ten words that failed 0 of 4 at first: at 6 a step the mean comes to .7 after some steps.
    means = run.state.rates.mean(np.arange(20, 30))
    assert len(later) > 2 and one == {"sums": 2, "words": 2, "rare": 4}
    assert np.nanmean(means) >= 0.7 - 1e-6
    # However bad words become, their stage is over.
    for index in range(20, 30):
        run.state.rates.observe(index, 0, 1000, 0)
    assert dict(run.go(step + 1)) == {"sums": 2, "words": 2, "rare": 4}


@pytest.mark.parametrize(("name", "done"), [("Shuffled", 2), ("Greso", 3)])
def test_a_resumed_run_goes_on_in_its_stage(table: PromptTable, name: str, done: int) -> None:
    def run() -> Steps:
        options = {"Shuffled": (), "Greso": (rlax_curation.GresoConfig(window=8),)}[name]
        return Steps(table, getattr(rlax_curation, name)(*options))

    one, two = run(), run()
    for step in range(1, done + 1):
        one.go(step)
    document, rates = one.state.state()
    two.state.restore(json.loads(json.dumps(document)), rates, lambda _: {})
    for step in range(done + 1, done + 25):
        assert two.go(step) == one.go(step)
    again, ends = two.state.state().document, one.state.state().document
    assert again == ends and ends["stage"] == 2


def test_a_mean_counts_each_prompt_once_and_needs_enough_of_them(table: PromptTable) -> None:
    rates = make_rates(40, {20: (8, 0), 21: (1, 3), 30: (0, 4)})  # words: 1 and .25

    def is_over(until: dict[str, float], min_prompts: int) -> bool:
        options = {"weights": {"sums": 1}, "until_pass_rate": until, "min_prompts": min_prompts}
        stages = Stages(section(options).curation.stages, table, rates)
        stages.prompts(1)
        return stages.number == 1

    assert is_over({"words": 0.625}, 2) and not is_over({"words": 0.63}, 2)
    assert not is_over({"words": 0.6}, 3) and not is_over({"words": 0.6, "rare": 0.1}, 1)
    assert not is_over({"sums": 0.0}, 1)  # none is measured
    for index in range(22, 30):
        rates.observe(index, 4, 0, 0)
    assert is_over({"words": 0.92}, 64)  # the words are only ten


def test_domains_that_there_are_not_are_refused(table: PromptTable) -> None:
    def refused(*stages: dict[str, Any], prompts: Any = table) -> str:
        with pytest.raises(ConfigError) as error:
            check_stages(section(*stages).curation.stages, prompts)
        return str(error.value)

    text = refused(STAGES[0], {"weights": {"word": 1}})
    assert text.startswith("rlax.curation.stages.1.weights = 'word': ")
    assert "did you mean 'words'? known: rare, sums, words" in text
    text = refused({"weights": {"sums": 1}, "until_pass_rate": {"code": 0.5}})
    assert text.startswith("rlax.curation.stages.0.until_pass_rate = 'code': ")
    assert "needs training prompts of several domains" in refused(
        STAGES[0], prompts=[make_prompt("1")]
    )


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"weights": {"a": 0}}], r"stages\.0\.weights = {'a': 0\.0}: must not all be 0"),
        ([{"weights": {"a": 1}}, STAGES[0]], r"stages\.0: needs until_step or until_pass_rate"),
        ([STAGES[0], STAGES[0]], r"stages\.1\.until_step = 2: must be more than 2"),
    ],
)
def test_stages_that_cannot_be_are_refused(stages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        section(*stages)
