"""An engine that tries itself out, so that a run knows its speed before it gives it groups."""

import asyncio
from pathlib import Path

import pytest
from sections import section_with
from toy_versions import publish
from waiting import eventually

from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.types import SamplingParams
from rlax_plugin.config import RlaxSection
from rlax_plugin.rollout.worker import speed_trial
from rlax_plugin.testing.builders import make_request
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.store import NpzStore

LONG = make_request(samples=1, sampling=SamplingParams(max_new_tokens=50))


async def loaded(folder: Path, section: RlaxSection, **options: float) -> ScriptedEngine:
    """An engine that holds weights."""
    engine = ScriptedEngine(ScriptedConfig(**options), NpzStore(), section)
    await engine.use(await engine.load(publish(folder, 0)))
    return engine


@pytest.mark.parametrize(("max_new_tokens", "steps"), [(3, 3), (100, 8)])
async def test_a_trial_is_a_few_decode_steps_within_the_longest_completion(
    tmp_path: Path, max_new_tokens: int, steps: int
):
    section = section_with(rollouts={"max_new_tokens": max_new_tokens})
    engine = await loaded(tmp_path, section)
    await speed_trial.try_out(engine, section)
    assert engine.health()["steps_total"] == steps
    assert engine.health()["active"] == engine.health()["waiting"] == 0


async def test_a_trial_that_takes_longer_than_a_group_may_names_the_deadline(tmp_path: Path):
    section = section_with(deadlines={"group_s": 0.05})
    engine = await loaded(tmp_path, section, token_s=600.0)
    with pytest.raises(DeadlineError, match=r"decoding 8 tokens.*rlax\.deadlines\.group_s"):
        await speed_trial.try_out(engine, section)
    assert engine.health()["active"] == 0  # its slot is free again


async def test_only_an_idle_engine_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speed_trial, "IDLE_S", 0.05)
    section = section_with(rollouts={"max_new_tokens": 50})

    engine = await loaded(tmp_path, section, token_s=0.02)
    tries = asyncio.ensure_future(speed_trial.try_when_idle(engine, section))
    await eventually(lambda: engine.health()["steps_total"] >= 24)
    await eventually(lambda: engine.health()["active"] == 0)
    before = engine.health()["steps_total"]
    await engine.generate([LONG], lambda key, samples: None)  # twenty times IDLE_S
    assert engine.health()["steps_total"] - before <= 50 + 8  # one may just have begun
    tries.cancel()
