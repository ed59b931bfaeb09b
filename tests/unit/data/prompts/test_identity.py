"""Two different prompts with one id are rejected before anything is trained on them."""

import dataclasses

import numpy as np
import pytest
from part_stubs import SourceStub

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import Choice, RewardChoice, RlaxSection
from rlax_plugin.data.prompts.checking import contradiction, training_prompts
from rlax_plugin.data.prompts.of_run import asked_sets
from rlax_plugin.testing.builders import make_prompt


class Source(SourceStub):
    """The same prompts in every split, apart from those that are given for one."""

    def __init__(self, **splits):
        self.splits = splits

    def prompts(self, split):
        return self.splits.get(split, [make_prompt("7")])


def section(**evaluation):
    return RlaxSection(
        prompt_source=Choice(name="mine"),
        rewards=(RewardChoice(name="none"),),
        rollouts={"max_prompt_tokens": 400},
        evaluation={"problems": 8, "k": [1], "samples": 1} | evaluation,
    )


def test_every_id_is_one_prompt_or_the_same_prompt_again():
    seven, eight = make_prompt("7"), make_prompt("8")
    assert contradiction([seven, eight]) is None
    # Asked twice as often, and both are one: also as an equal copy.
    assert contradiction([seven, eight, seven, dataclasses.replace(seven)]) is None
    assert contradiction(iter(())) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"reference": "8"}, "share the id {id!r} (other references); a resumed run"),
        ({"text": "seven"}, "share the id {id!r} (other texts); "),
        ({"tokens": np.array([9], np.int32)}, "share the id {id!r} (other tokens); "),
    ],
)
def test_what_differs_is_named(changes, told):
    seven = make_prompt("7")
    assert seven.tokens.tolist() == [57]
    found = contradiction([make_prompt("8"), seven, dataclasses.replace(seven, **changes)])
    assert told.format(id=seven.id) in found


def test_training_prompts_are_rejected_with_their_source():
    source = Source(train=[make_prompt("7", "a"), make_prompt("8"), make_prompt("7", "b")])
    with pytest.raises(ConfigError, match=r"other references") as error:
        training_prompts(section(), source)
    assert "in split 'train' two different prompts share the id" in error.value.reason
    assert (error.value.key, error.value.value) == ("rlax.prompt_source", "mine")
    again = [make_prompt("7"), make_prompt("8"), make_prompt("7")]
    assert len(training_prompts(section(), Source(train=again))) == 3


@pytest.mark.parametrize(
    ("settings", "key", "name"),
    [
        ({"split": "validation"}, "rlax.prompt_source", "mine"),
        (
            {
                "split": "test",
                "sets": {"more": {"split": "validation", "prompt_source": {"name": "other"}}},
            },
            "rlax.evaluation.sets.more.prompt_source",
            "other",
        ),
    ],
)
def test_problems_of_an_evaluation_are_rejected_with_their_source(settings, key, name):
    source = Source(validation=[make_prompt("7", "a"), make_prompt("7", "b")])

    def sets(**more):
        part = {"other": source}
        asked = section(**settings | more)
        return asked_sets(asked, source, lambda kind, choice, key: part[choice.name])

    with pytest.raises(ConfigError, match=r"in split 'validation' .*other references") as e:
        sets()
    assert (e.value.key, e.value.value) == (key, name)
    (first, *_) = sets(problems=1)  # the second prompt is not asked
    assert len(first.prompts) == 1
