"""What a run says that rejects group after group: how many, why, and one of their samples."""

import dataclasses

from scored_groups import scored_group
from sections import section_with

from rlax_plugin.base.types import Rejected
from rlax_plugin.run.controller.batch_rule import BatchRule
from rlax_plugin.run.controller.limits import ALL_FAILED, too_few_accepted


def rejected(number: int, why: str, *answers: tuple[str, float | None]) -> Rejected:
    group = scored_group(number, *((1, reward) for _, reward in answers))
    pairs = zip(group.episodes, answers, strict=True)
    told = tuple(dataclasses.replace(episode, text=text) for episode, (text, _) in pairs)
    return Rejected(dataclasses.replace(group, episodes=told), why)


def message(*scored: Rejected) -> str:
    return str(too_few_accepted(3, 8, BatchRule.of(section_with()), "0 of 8 groups", scored))


def test_the_best_sample_of_the_newest_rejected_group_is_quoted() -> None:
    long = "x" * 300
    said = message(
        rejected(0, "all passed", ("first", 1.0)),
        rejected(1, "all passed", ("bad", 0.0), ("better\n", 0.25), (long, None)),
        rejected(2, ALL_FAILED, ("no", None)),
    )
    assert said.startswith("step 3: 8 groups were issued and only 0 ")
    assert "(rejected: 2 because all passed, 1 because all rewards failed)" in said
    assert "rlax.curation.max_refill sets the limit" in said and "rlax eval --split train" in said
    assert "prompt 'p' was answered with 'better\\n', which has the reward 0.25" in said
    cut = message(rejected(0, "all failed", (long, 0.0)))
    assert f"'{'x' * 200}... (100 more characters)'" in cut
    one = rejected(0, "all failed", ("9", 0.0))
    for result, shown in (("result", "result"), (long, f"{'x' * 190}... (109 more characters)")):
        episode = dataclasses.replace(one.group.episodes[0], texts=("[f(a=1)]", result, "9"))
        of_turns = Rejected(dataclasses.replace(one.group, episodes=(episode,)), one.reason)
        assert rf"answered with '[f(a=1)]\n{shown}\n9', which" in message(of_turns)
