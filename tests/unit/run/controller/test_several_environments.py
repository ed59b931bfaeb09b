"""Several environments in one run: shares by weight, order, staleness, look-ahead, concurrency."""

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from flow_harness import Harness, InOrder, MixedOnly, settle
from part_stubs import SourceStub

from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Prompt
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import resolved
from rlax_plugin.data.curation.pass_rate_table import PartOfRates, PassRateTable
from rlax_plugin.data.prompts.ids import domains_of
from rlax_plugin.data.prompts.of_run import RunPrompts
from rlax_plugin.data.prompts.table import JoinedPrompts, id_at, indices_of
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.run.controller.mixing import Mix, StepsAhead
from rlax_plugin.testing import make_group
from rlax_plugin.tools.commands.audit import audit
from rlax_plugin.tools.commands.audit.record_limits import read_limits
from rlax_plugin.training.objective.advantages import of_groups
from rlax_plugin.training.objective.loss import ObjectiveSlots


def prompts(count: int) -> list[Prompt]:
    return [Prompt(str(i), np.array([i], np.int32), str(i), "") for i in range(count)]


def test_the_plan_has_each_share_at_every_moment() -> None:
    mix = Mix({"math": 3, "tools": 1}, groups=4)
    assert mix.places({}, 8) == {"math": [0, 1, 3, 4, 5, 7], "tools": [2, 6]}
    assert mix.of_batch({"math": 3, "tools": 1}) == {"math": 3, "tools": 1}
    # A batch that had less of one is made up for.
    assert mix.of_batch({"math": 4, "tools": 0}) == {"math": 2, "tools": 2}
    # A shorter plan begins a longer one.
    assert mix.places({}, 8) and mix.places({}, 3) == {"math": [0, 1], "tools": [2]}
    assert mix.places({}, 4) == {"math": [0, 1, 3], "tools": [2]}


def test_joined_prompts_are_found_by_ids_that_name_their_environment() -> None:
    joined = JoinedPrompts({"a": prompts(2), "b": prompts(3)})
    assert [one.id for one in joined] == ["a/0", "a/1", "b/0", "b/1", "b/2"]
    assert id_at(joined, 3) == "b/1" and joined[-1].id == "b/2"
    assert domains_of(joined, np.array([0, 4])).to_pylist() == ["a", "b"]
    assert indices_of(joined, {"b/0", "a/1", "b/7", "c/0"}) == {"a/1": 1, "b/0": 2}
    table = PassRateTable(5, 32.0)
    table.observe(3, 4, 0, 1)
    own = PartOfRates(table, 2, 3)
    assert own.counts()[0].tolist() == [0, 4, 0] and own.measured([1]).tolist() == [True]


def test_steps_ahead_shrink_where_groups_wait_and_grow_where_they_are_waited_for() -> None:
    ahead = StepsAhead(("fast", "slow"), 4)
    for _ in range(12):
        ahead.batch_asked({"slow"}, {"fast"}, slots_short=False)
    assert ahead.of == {"fast": 1, "slow": 4}
    ahead.batch_asked({"fast"}, (), slots_short=False)
    assert ahead.of == {"fast": 2, "slow": 4}
    for _ in range(7):  # twice as patient as before
        ahead.batch_asked((), {"fast"}, slots_short=False)
    assert ahead.of["fast"] == 2
    ahead.batch_asked((), {"fast"}, slots_short=False)
    assert ahead.of["fast"] == 1
    ahead = StepsAhead(("fast", "slow"), 4)
    ahead.batch_asked({"slow"}, (), slots_short=True)
    assert ahead.of == {"fast": 3, "slow": 4}


MIX = {"slow": {"weight": 1}, "fast": {"weight": 1}}


def names(harness: Harness) -> Counter[str]:
    """Environments of the requests that wait for an answer."""
    return Counter(harness.run_state.environment_of(group) for group in harness.answers.open)


async def answer(harness: Harness, environment: str, most: int = 99, **how: object) -> None:
    """Answers the oldest open groups of an environment."""
    own = [g for g in harness.answers.open if harness.run_state.environment_of(g) == environment]
    for group in sorted(own)[:most]:
        await harness.answers.answer(group, harness.latest, **how)


def trained_names(harness: Harness, batch) -> list[str]:
    return [harness.run_state.name_of(group) for group in batch.groups]


def test_a_slow_environment_keeps_its_share_and_nothing_becomes_too_stale(tmp_path: Path) -> None:
    async def run() -> None:
        harness = Harness(tmp_path, k=3, groups=4, environments=MIX)
        await harness.begin()
        assert names(harness) == {"fast": 6, "slow": 6}
        for step in range(1, 9):
            batch = asyncio.ensure_future(harness.flow.batch(step))
            await answer(harness, "fast")
            assert not batch.done()
            await answer(harness, "slow", 2)  # of those of three steps only the next one's
            found, _ = await asyncio.wait_for(batch, 60)
            assert Counter(trained_names(harness, found)) == {"fast": 2, "slow": 2}
            assert all(step - group.oldest_version <= 3 for group in found.groups)
            await harness.published(step)
        assert harness.run_state.totals.dropped == {}
        ahead = harness.flow._buffer.steps_ahead.of
        assert ahead["slow"] == 3 and ahead["fast"] < 3

    asyncio.run(run())


def test_rejected_groups_are_made_up_for_by_the_same_environment(tmp_path: Path) -> None:
    async def run() -> None:
        harness = Harness(tmp_path, groups=4, environments=MIX, filters=[MixedOnly()])
        await harness.begin()
        batch = asyncio.ensure_future(harness.flow.batch(1))
        await answer(harness, "slow", rewards=(1.0, 1.0))
        await answer(harness, "fast")
        assert names(harness) == {"slow": 2} and not batch.done()
        await answer(harness, "slow")
        found, _ = await asyncio.wait_for(batch, 60)
        assert Counter(trained_names(harness, found)) == {"fast": 2, "slow": 2}

    asyncio.run(run())


async def test_rewards_see_the_ids_of_the_source_and_records_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(tmp_path, groups=2, environments=MIX)
    scored, score = list[str](), harness.answers.score

    async def noting(prompt, episodes, **how):
        scored.append(prompt.id)
        return await score(prompt, episodes, **how)

    monkeypatch.setattr(harness.answers, "score", noting)
    await harness.begin()
    await answer(harness, "fast")
    await answer(harness, "slow")
    found, _ = await asyncio.wait_for(harness.flow.batch(1), 60)
    recorded = [group.prompt.id for group in found.groups]
    assert [one.partition("/")[0] for one in recorded] == ["fast", "slow"]
    assert [one.partition("/")[2] for one in recorded] == scored
    assert len(scored) == 2 and not any("/" in one for one in scored)


@pytest.mark.parametrize("index", [-1, 10])
async def test_a_sampler_chooses_no_prompts_of_another_environment(
    tmp_path: Path, index: int
) -> None:
    class Neighbours(InOrder):
        def choose(self, prompts, rates, rng, count):
            assert len(prompts) == 10
            return [index] * count

    harness = Harness(tmp_path, groups=2, environments=MIX, sampler=Neighbours())
    with pytest.raises(TrainingError, match=rf"rlax.curation.sampler chose prompt {index}: .* 9"):
        harness.run_state.choose(1, 0, "fast")


async def test_the_environment_whose_groups_are_all_rejected_is_named(tmp_path: Path) -> None:
    harness = Harness(tmp_path, groups=2, refill=3, environments=MIX, filters=[MixedOnly()])
    await harness.begin()
    await answer(harness, "fast")
    while names(harness):
        await answer(harness, "slow", rewards=(1.0, 1.0))
    expected = r"6 groups were issued and only fast 1 of 1, slow 0 of 1 groups were accepted"
    with pytest.raises(TrainingError, match=expected):
        await asyncio.wait_for(harness.flow.batch(1), 60)


def test_advantages_are_those_of_the_environment(tmp_path: Path) -> None:
    async def run() -> None:
        harness = Harness(tmp_path, groups=2, environments=MIX)
        asked = []

        def slot(name):
            return lambda outcomes: (
                asked.append((name, len(outcomes.rewards_n))) or (outcomes.rewards_n * 2)
            )

        harness.flow._advantage_slots = {"fast": slot("fast"), "slow": slot("slow")}
        await harness.begin()
        await answer(harness, "fast")
        await answer(harness, "slow")
        found, _ = await asyncio.wait_for(harness.flow.batch(1), 60)
        assert asked == [("fast", 2), ("slow", 2)]
        assert [one.tolist() for one in found.advantages] == [[0.0, 2.0], [0.0, 2.0]]

    asyncio.run(run())


async def test_a_restart_goes_on_with_the_shares_and_the_audit_agrees(tmp_path: Path) -> None:
    """With groups of three steps in flight, of which the fast environment has all and more."""

    def harness() -> Harness:
        return Harness(tmp_path, k=3, groups=3, environments=MIX, last_step=4)

    killed = harness()
    await killed.begin()
    trained = Counter[str]()
    for step in (1, 2):
        await answer(killed, "fast")
        await answer(killed, "slow", 2)
        found, _ = await asyncio.wait_for(killed.flow.batch(step), 60)
        trained.update(trained_names(killed, found))
        await killed.published(step)
    assert trained == {"fast": 3, "slow": 3}
    await killed.flow.commit()
    state = killed.run_state
    kept = sorted(state.ready), sorted(state.open), dict(state.outstanding)
    assert kept[0] and kept[1]
    await killed.supervision.close()
    killed.recorder.close()

    resumed = harness()
    recovery = await resumed.start()
    for step in (1, 2):  # recorded
        await asyncio.wait_for(resumed.flow.batch(step), 60)
        await resumed.published(step)
    state = resumed.run_state
    assert (sorted(state.ready), sorted(state.open), dict(state.outstanding)) == kept
    for step in (3, 4):
        batch = asyncio.ensure_future(resumed.flow.batch(step))
        await answer(resumed, "fast")
        await answer(resumed, "slow", 3)
        found, stats = await asyncio.wait_for(batch, 60)
        stats.committed.result(60)
        trained.update(trained_names(resumed, found))
        await resumed.published(step)
    assert trained == {"fast": 6, "slow": 6} and recovery is not None
    await resumed.flow.commit()
    await resumed.supervision.close()
    resumed.recorder.close()
    report = audit(resumed.files)
    assert report.violation is None and report.figures.trained == 12, report.violation


@pytest.mark.parametrize(("window", "taken"), [(1, None), (2, [2, 3])])
def test_a_look_ahead_passes_over_unfinished_groups(window, taken, tmp_path: Path) -> None:
    async def run() -> None:
        harness = Harness(tmp_path, k=2, groups=2, batches={"look_ahead": window})
        await harness.begin()
        batch = asyncio.ensure_future(harness.flow.batch(1))
        for group in (2, 3):
            await harness.answers.answer(group, 0)
        await settle()
        assert batch.done() == (taken is not None)
        if taken is None:
            for group in (0, 1):
                await harness.answers.answer(group, 0)
        found, _ = await asyncio.wait_for(batch, 60)
        assert [group.id for group in found.groups] == (taken or [0, 1])

    asyncio.run(run())


BASE = {
    "rewards": [{"name": "even"}],
    "environments": {name: {"prompt_source": {"name": "numbers"}} for name in ("math", "tools")},
}


def test_the_order_of_environments_in_a_config_means_nothing(tmp_path: Path) -> None:
    parts = {"slow": {"prompt_source": {"name": "a"}}, "fast": {"prompt_source": {"name": "b"}}}
    for own in (parts, dict(reversed(parts.items()))):
        config = resolved({"rlax": BASE | {"environments": own}})
        assert [*config.section.environments] == ["fast", "slow"]
        assert config.section.prompt_source.name == "b"
        files = RunFiles(tmp_path)
        files.put("config.yml", yaml.safe_dump(config.content, sort_keys=False).encode())
        shares = read_limits(files).shares
        assert Mix(shares, 3).of_batch({}) == {"fast": 2, "slow": 1}


@pytest.mark.parametrize(
    ("more", "key", "reason"),
    [
        ({"prompt_source": {"name": "x"}}, "rlax.prompt_source", "must be left out"),
        ({"batches": {"tokens": 9}}, "rlax.batches.tokens", "not possible with rlax.environments"),
        ({"batches": {"look_ahead": 2}}, "rlax.batches.look_ahead", "has no effect"),
        ({"deterministic": True, "batches": {"look_ahead": 2}}, "rlax.batches.look_ahead", "be 1"),
        ({"rewards": []}, "rlax.rewards", "at least one reward"),
    ],
)
def test_what_cannot_be_together_is_named(more, key, reason) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        resolved({"rlax": BASE | more})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("own", "key", "reason"),
    [
        ({"rollouts": {"max_new_tokens": 17}}, "rollouts.max_new_tokens", "at most rlax.rollouts"),
        ({"rewards": []}, "rewards", "at least one reward"),
        (
            {"objective": {"grad_1": {"name": "x"}}},
            "objective.grad_1",
            "advantage, overlong, preset",
        ),
        ({"prompt_source": None}, "prompt_source", "must be a mapping"),
    ],
)
def test_the_key_of_an_environment_is_named(own, key, reason) -> None:
    several = BASE["environments"] | {"tools": BASE["environments"]["tools"] | own}
    with pytest.raises(ConfigError, match=reason) as caught:
        resolved({"rlax": BASE | {"environments": several}})
    assert caught.value.key == f"rlax.environments.tools.{key}"


class Ends(SourceStub):
    """A prompt source with these stop tokens and the tokenizer of a directory."""

    def __init__(self, stop_ids: tuple[int, ...], directory: str):
        self._stop_ids, self.tokenizer = stop_ids, SimpleNamespace(directory=directory)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    def prompts(self, split):
        return prompts(3)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Ends((2,), "a"), r"stop ids \[2\], but must have those of the first environment, \[1\]"),
        (Ends((1,), "b"), "the tokenizer b, but must have that of the first environment, a"),
        (Ends((1,), "a"), ""),
    ],
)
def test_prompt_sources_must_agree_before_a_device_is_touched(other, reason) -> None:
    section = resolved({"rlax": {**BASE, "evaluation": {"problems": 2}}}).section
    sources = {"rlax.environments.math.prompt_source": Ends((1,), "a")}
    sources["rlax.environments.tools.prompt_source"] = other

    def read() -> RunPrompts:
        return RunPrompts.read(section, lambda kind, choice, key: sources[key])

    if reason:
        with pytest.raises(ConfigError, match=reason) as caught:
            read()
        assert caught.value.key == "rlax.environments.tools.prompt_source"
    else:
        found = read()
        ids = [f"{name}/{i}" for name in ("math", "tools") for i in range(3)]
        assert [one.id for one in found.train] == ids
        assert [(one.name, one.environment, len(one.prompts)) for one in found.asked] == [
            ("math", "math", 2),
            ("tools", "tools", 2),
        ]


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"preset": "gspo"}, "has grad_1 .* may differ in advantage and overlong only"),
        ({"advantage": {"name": "x"}}, "no plug-in offers this advantage"),
    ],
)
def test_an_objective_that_differs_in_more_than_advantages_is_refused(own, reason) -> None:
    several = {**BASE["environments"], "tools": {**BASE["environments"]["tools"], "objective": own}}
    with pytest.raises(ConfigError, match=reason) as caught:
        slots_of(environments=several)
    assert caught.value.key.startswith("rlax.environments.tools.objective")


def slots_of(**more: Any) -> dict[str, ObjectiveSlots]:
    """Builds the objectives of the environments."""
    content = {**BASE, "plugins": ["rlax_plugin.testing"], "objective": {"preset": "grpo"}, **more}
    section = resolved({"rlax": content}).section
    registry, context = registry_for(section), BuildContext.outside_run(section)
    return registry.slots_of_environments(context, registry.slots(context))


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (
            {"objective": {"preset": "grpo", "kl": {"coefficient": 0.1, "placement": "reward"}}},
            "rlax.objective.kl.placement",
        ),
        ({"signals": [{"name": "critic"}]}, "rlax.signals"),
    ],
)
def test_advantages_that_the_trainer_computes_again_are_refused(more, key) -> None:
    with pytest.raises(ConfigError, match=r"with rlax\.environments") as caught:
        slots_of(**more)
    assert caught.value.key == key


def test_a_warm_start_of_several_environments_needs_demonstrations() -> None:
    trainer = {"name": "maxtext", "warm_start": {"enabled": True}}
    section = resolved({"rlax": {**BASE, "trainer": trainer}}).section
    with pytest.raises(ConfigError, match=r"must be given with rlax\.environments") as caught:
        context = BuildContext.outside_run(section)
        registry_for(section).check_part("trainer", section.trainer, "rlax.trainer", context)
    assert caught.value.key == "rlax.trainer.warm_start.data"


def test_an_inherited_length_penalty_is_relative_to_the_answers_of_the_environment() -> None:
    short = {"prompt_source": {"name": "numbers"}, "rollouts": {"max_new_tokens": 8}}
    slots = slots_of(
        environments=BASE["environments"] | {"math": short},
        objective={
            "preset": "grpo",
            "overlong": {"penalty": 1.0, "buffer_tokens": 4},
            "advantage": {"name": "leave_one_out"},
        },
    )
    group = make_group((1.0, 1.0), lengths=(2, 8))
    found = {name: of_groups(one.recorded_advantages, [group])[0] for name, one in slots.items()}
    assert found["math"].tolist() == [1.0, -1.0] and found["tools"].tolist() == [0.0, 0.0]


def test_an_environment_has_its_own_keys_and_those_of_the_run() -> None:
    tools = {
        "prompt_source": {"name": "numbers"},
        "environment": {"name": "calculator"},
        "episodes": {"max_tokens": 40},
        "deadlines": {"episode_s": 5},
        "objective": {"advantage": {"name": "leave_one_out"}},
    }
    content = BASE | {"environments": BASE["environments"] | {"tools": tools}}
    section = resolved({"rlax": content | {"episodes": {"max_turns": 3}}}).section
    own, math = section.of_environment("tools"), section.of_environment("math")
    assert (own.episodes.max_turns, own.episodes.max_tokens) == (3, 40)
    assert (own.deadlines.episode_s, math.deadlines.episode_s) == (5, 120)
    assert own.objective.advantage.name == "leave_one_out" and math.objective.advantage is None
    assert section.several_turns and not math.several_turns
    assert (section.episode_tokens, math.episode_tokens) == (40, 16)
