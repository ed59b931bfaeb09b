"""Bounds on staleness: what may be kept of a request that is sent again."""

import numpy as np
import pytest
from sections import section_with

from rlax_plugin.base.types import Key, Request, SamplingParams
from rlax_plugin.run.controller.staleness import Staleness
from rlax_plugin.testing import make_sampled

MAX = 3
BOUNDS = Staleness(section_with(staleness={"max_staleness": MAX, "reload_every": 1}), groups=4)


def request(*versions: tuple[int, ...], min_version: int = 1) -> Request:
    """It was sent before, and has unfinished samples with tokens of these versions."""
    resume = tuple(
        make_sampled(len(one), versions=np.array(one, np.int32), finish=None) for one in versions
    )
    context, seeds = np.array([1], np.int32), tuple(range(len(resume)))
    return Request(Key("train", 0), 2, context, seeds, SamplingParams(), min_version, resume)


def test_what_is_kept_is_judged_by_its_oldest_token_and_goes_on_with_its_newest() -> None:
    """So that nobody calls it too old, or new enough, by another token than the others do."""
    again = BOUNDS.refreshed(request((3, 3, 5), (4, 4)), next_step=3 + MAX)
    assert (again.min_version, again.needs_version) == (3, 5)
    assert [s.versions.tolist() for s in again.resume] == [[3, 3, 5], [4, 4]]


@pytest.mark.parametrize("versions", [((3, 3, 5), (4, 4)), ((4, 4), (3, 5))])
def test_nothing_is_kept_once_the_oldest_token_cannot_train(versions: tuple) -> None:
    again = BOUNDS.refreshed(request(*versions), next_step=4 + MAX)
    assert (again.min_version, again.needs_version, again.resume) == (4, 4, ())


def test_samples_without_tokens_bind_nothing() -> None:
    again = BOUNDS.refreshed(request((), (4,)), next_step=4 + MAX)
    assert (again.min_version, again.needs_version, len(again.resume)) == (4, 4, 2)
    none = BOUNDS.refreshed(request((), ()), next_step=4 + MAX)
    assert (none.min_version, none.needs_version) == (4, 4)
