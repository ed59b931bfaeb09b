"""What a part of the config raises or returns names the plug-in, the key and the line."""

from typing import Any

import numpy as np
import pytest
from scored_groups import scored_group

from rlax_plugin.base.errors import PluginError
from rlax_plugin.run.controller.chosen import Chosen, ChosenFilter, ChosenSampler


class Filter:
    def __init__(self, answer: Any):
        self.answer = answer

    def reject(self, group: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Sampler:
    def choose(self, prompts: Any, rates: Any, rng: Any, count: int) -> list[int]:
        return [prompts[7]]

    def state(self) -> dict[str, Any]:
        return {"place": 3}

    def restore(self, state: dict[str, Any]) -> None:
        self.place = state["site"]


def filter_that(answer: Any) -> ChosenFilter:
    return ChosenFilter(Chosen("rlax.curation.filters.1", "strict", "tb_mine", Filter(answer)))


def test_a_filter_accepts_with_none_and_rejects_with_a_phrase() -> None:
    group = scored_group(0, (2, 0.0), (2, 1.0))
    assert filter_that(None).reject(group) is None
    assert filter_that("too easy").reject(group) == "too easy"


@pytest.mark.parametrize("answer", [np.True_, False, 0.0, ["easy"]])
def test_another_answer_of_a_filter_is_an_error(answer: Any) -> None:
    with pytest.raises(PluginError) as caught:
        filter_that(answer).reject(scored_group(0, (2, 0.0), (2, 1.0)))
    start = "plug-in 'tb_mine': rlax.curation.filters.1 = 'strict' returned "
    assert str(caught.value).startswith(f"{start}{answer!r} from reject: must be None, or ")


def test_what_a_part_raises_is_told_with_its_line() -> None:
    with pytest.raises(PluginError, match=r"= 'strict' failed in reject: KeyError: 'x' .*py:\d+"):
        filter_that(KeyError("x")).reject(scored_group(0, (2, 0.0), (2, 1.0)))
    sampler = ChosenSampler(Chosen("rlax.curation.sampler", "mine", "tb_mine", Sampler()))
    start = "plug-in 'tb_mine': rlax.curation.sampler = 'mine' failed in "
    with pytest.raises(PluginError, match=f"{start}choose: IndexError"):
        sampler.choose((), None, np.random.default_rng(0), 1)  # type: ignore[arg-type]
    assert sampler.state() == {"place": 3}
    with pytest.raises(PluginError, match=f"{start}restore: KeyError: 'site'"):
        sampler.restore(sampler.state())
