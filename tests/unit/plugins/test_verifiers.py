"""An environment of verifiers plays by its own code, in a Python of its own.

RLAX_VERIFIERS_PYTHON names a Python with verifiers (tried: 0.4.0). A stand-in for its process
shows, without it, what happens when that process fails.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from fake_verifiers import write_fake_verifiers
from rlax_verifiers import source as source_module
from rlax_verifiers.environment import Verifiers, VerifiersConfig, VerifiersError, check
from rlax_verifiers.source import VerifiersSource, VerifiersSourceConfig
from sections import section_with
from small_tokenizers import byte_level
from tool_episodes import TEMPLATE

from rlax_plugin.api import ConfigError, Ending, Outcome, Prompt
from rlax_plugin.base.types import Episode, Key, Sampled
from rlax_plugin.rollout.episodes.playing import NoLog, Playing
from rlax_plugin.testing import make_sampled

PYTHON = os.environ.get("RLAX_VERIFIERS_PYTHON", "")
TASKSET = """
import verifiers.v1 as vf


class AddData(vf.TaskData):
    answer: int = 0


class AddTask(vf.Task[AddData, vf.State]):
    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        return float(trace.assistant_messages[-1].content == str(self.data.answer))

    @vf.metric
    async def turns(self, trace) -> float:
        return float(len(trace.assistant_messages))


class Adds(vf.Taskset[AddTask, vf.TasksetConfig]):
    def load(self):
        for a in range(3):
            data = AddData(prompt=f"{a}+1", system_prompt="Add.", answer=a + 1)
            yield AddTask(data, self.config.task)


__all__ = ["Adds"]
"""
STAND_IN = """
import json, os, sys, urllib.request

TASKS = [{"key": f"k{a}", "prompt": f"{a}+1", "system": None} for a in range(3)]
if sys.argv[1] == "list":
    for task in TASKS:
        print(json.dumps(task))
    print(json.dumps({"listed": True}))
    sys.exit()
print(json.dumps({"ready": [task["key"] for task in TASKS]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["index"] == 1:
        os._exit(3)
    messages = [{"role": "user", "content": TASKS[asked["index"]]["prompt"]}]
    body = json.dumps({"model": asked["model"], "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {asked['api_key']}", "Content-Type": "application/json"}
    url = asked["base_url"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
        said = json.load(reply)["choices"][0]["message"]["content"]
    reward = float(said == "1") if asked["index"] == 0 else "nothing"
    print(json.dumps({"job": asked["job"], "reward": reward, "metrics": {"turns": 1}}), flush=True)
"""


def player(
    directory: Path, python: str, options: Any = None, **changes: Any
) -> tuple[Verifiers, Any, Sequence[Prompt]]:
    files = byte_level(directory / "model", template=TEMPLATE)
    sizes = {"max_prompt_tokens": 400, "max_new_tokens": 40}
    section = section_with(
        environment={"name": "verifiers"},
        rollouts=sizes,
        episodes={"max_turns": 4, "max_tokens": 400},
        rewards=[],
        deadlines={"startup_s": 220.0, "prompts_s": 220.0},
        **changes,
    )
    maxtext = {"tokenizer_path": str(files), "tokenizer_type": "huggingface"}
    run: Any = SimpleNamespace(section=section, maxtext=maxtext, run_dir=Path("/runs/mine"))
    given = {"python": python, "taskset": "toy-adds"} | (options or {})
    found = VerifiersSource(VerifiersSourceConfig.model_validate(given), run)
    run.part = lambda *_: found
    return Verifiers(VerifiersConfig(), run), run, found.prompts("train")


async def played(
    verifiers: Verifiers, run: Any, prompt: Prompt, answer: str
) -> tuple[Outcome, Episode]:
    source = run.part()
    tokens = [*source.tokenizer.encode(answer), source.tokenizer.answer_end]

    async def ask(key: Key, context: np.ndarray, most: int, oldest: int) -> Sampled:
        return make_sampled(tokens=np.array(tokens, np.int32))

    playing = Playing(run.section, source, Key("train", 0, 0), None, ask=ask, log=NoLog())
    outcome = await verifiers.play(prompt, playing)  # pyright: ignore[reportArgumentType]
    return outcome, playing.episode(None, cut=False)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "inside.py").write_text(STAND_IN)
    monkeypatch.setattr(source_module, "_INSIDE", tmp_path / "inside.py")
    return sys.executable


async def test_a_process_that_ends_costs_its_episodes_and_is_started_again(
    tmp_path: Path, stand_in: str
) -> None:
    verifiers, run, prompts = player(tmp_path, stand_in)
    assert [one.metadata["index"] for one in prompts] == [0, 1, 2]
    try:
        outcome, episode = await played(verifiers, run, prompts[0], "1")
        assert outcome.reward == 1.0 and outcome.metrics["turns"] == 1
        assert outcome.metrics["requests_begun"] == 1 and episode.text == "1"
        with pytest.raises(VerifiersError, match="has ended") as raised:
            await played(verifiers, run, prompts[1], "2")
        assert raised.value.ending == Ending.SERVER_FAILED
        outcome, _ = await played(verifiers, run, prompts[0], "2")
        assert outcome.reward == 0.0
        with pytest.raises(VerifiersError, match="a reward that is no finite number"):
            await played(verifiers, run, prompts[2], "3")
    finally:
        await verifiers.close()


def test_an_environment_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"rlax.prompt_source.python = '/no/python'"):
        player(tmp_path, "/no/python")
    with pytest.raises(ConfigError, match=r"toy-adds.*No module named 'verifiers'"):
        player(tmp_path, sys.executable)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    write_fake_verifiers(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return lambda **options: player(tmp_path, sys.executable, options)


async def test_what_an_environment_does_is_told_and_its_programs_see_no_key(
    tmp_path: Path, fake: Callable[..., Any]
) -> None:
    verifiers, run, prompts = fake()
    try:
        child, _ = await played(verifiers, run, prompts[0], "")
        assert (child.metrics["read"], child.metrics["shown"]) == (0, 0)
        assert (child.reward, child.ended) == (0.5, "done")
        for prompt, message in (
            (prompts[1], "TaskError: a hook broke"),
            (prompts[2], "2 agents"),
            (prompts[4], "object is not JSON serializable"),
        ):
            with pytest.raises(VerifiersError, match=message):
                await played(verifiers, run, prompt, "")
        cut, _ = await played(verifiers, run, prompts[3], "")
        assert (cut.reward, cut.ended) == (0.5, "cut")
        playing = asyncio.create_task(played(verifiers, run, prompts[5], ""))
        while not (tmp_path / "began").exists():
            await asyncio.sleep(0.01)
        playing.cancel()
        while not (tmp_path / "cancelled").exists():
            await asyncio.sleep(0.01)
        process, program = verifiers._process, psutil.Process(int((tmp_path / "pid").read_text()))
        assert process is not None and program.is_running()
        await process.close()
        program.wait(60)  # although it left the group
        with pytest.raises(VerifiersError, match="has ended"):  # it does not wait
            await process.played(9, {})
    finally:
        await verifiers.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"env": {"agent": {"harness": {"id": "bash"}}}}, r"allow_weak: true"),
        ({"env": {"agent": {"retries": {"max_retries": 1}}}}, r"env.agent.retries must be 0"),
    ],
)
def test_a_harness_without_a_sandbox_and_retries_are_refused(
    fake: Callable[..., Any], options: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        fake(**options)


def test_a_harness_without_a_sandbox_plays_if_it_is_allowed(fake: Callable[..., Any]) -> None:
    *_, prompts = fake(env={"agent": {"harness": {"id": "bash"}}}, allow_weak=True)
    assert len(prompts) == 6


def test_a_check_names_an_environment_that_does_not_start(
    tmp_path: Path, stand_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run, _ = player(tmp_path, stand_in)
    check(VerifiersConfig(), run)
    (tmp_path / "inside.py").write_text("raise SystemExit('a server is missing')")
    with pytest.raises(ConfigError, match=r"rlax.environment.name = 'verifiers'.*has ended"):
        check(VerifiersConfig(), run)


def test_prompts_of_another_source_are_refused(tmp_path: Path, stand_in: str) -> None:
    sets = {"others": {"prompt_source": {"name": "jsonl", "path": "a.jsonl"}}}
    with pytest.raises(ConfigError, match=r"evaluation.sets.others.prompt_source = 'jsonl'"):
        player(tmp_path, stand_in, evaluation={"sets": sets})


@pytest.mark.long
@pytest.mark.skipif(not PYTHON, reason="RLAX_VERIFIERS_PYTHON names no Python with verifiers")
async def test_a_taskset_of_verifiers_plays_by_its_own_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_adds.py").write_text(TASKSET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # uv leaves a lock there
    verifiers, run, prompts = await asyncio.to_thread(player, tmp_path, PYTHON)
    assert [one.text for one in prompts] == [f"system: Add.\nuser: {a}+1" for a in range(3)]
    try:
        both = [played(verifiers, run, prompts[1], answer) for answer in ("2", "3")]
        (right, episode), (wrong, _) = await asyncio.gather(*both)
    finally:
        await verifiers.close()
    assert (right.reward, wrong.reward) == (1.0, 0.0) and right.metrics["turns"] == 1
    (one,) = episode.trajectories
    tokenizer = run.part().tokenizer
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    assert one.turns[0].given.tolist() == tokenizer.render(messages)
    assert one.turns[0].sampled.tokens.tolist() == [*tokenizer.encode("2"), tokenizer.answer_end]
