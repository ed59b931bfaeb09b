"""The loop of a chat model with tools: exact tokens, wrong calls, long results, tools that fail."""

import asyncio
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played import Played
from reward_pools import with_pool
from rlax_tools.environment import Tools, ToolsConfig, check, check_start
from rlax_tools.tool import Tool
from sections import section_with
from small_tokenizers import CHATML, byte_level
from tool_episodes import TEMPLATE, call, played

from rlax_plugin.api import ConfigError, Ending, Outcome, TextRow, TextSource, Tokenizer
from rlax_plugin.base.endings import ending_of
from rlax_plugin.base.types import Episode
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.rollout.episodes.playing import Playing

SYSTEM, QUESTION = "Use the tools.", "How many live in Rome?"
FUNCTIONS = '''
import asyncio

def population(city: str, year: int = 2020) -> int:
    """Returns the number of inhabitants of a city.

    Args:
        city: name of the city
        year: of the census
    """
    if city != "Rome":
        raise ValueError(f"there is no city {city}")
    return 2_800_000 + year

def text(length: int) -> str:
    """Returns a long text.

    Args:
        length: of the text
    """
    return "a" * (length - 1) + "z"

async def hangs() -> str:
    """Waits for ever."""
    await asyncio.sleep(1000)

def breaks() -> str:
    """Cannot reach its server."""
    raise ConnectionError("the data base is gone")
'''
NAMES = ("population", "text", "hangs", "breaks")


class Chats(TextSource):
    def rows(self, split: str) -> list[TextRow]:
        return [TextRow(QUESTION, "46")]


def chats(files: Path, **arguments: Any) -> Chats:
    tokenizer = Tokenizer.load(files, "tokenizer_path", arguments)
    return Chats(tokenizer, chat=True, system=SYSTEM)


def context(source: Any, directory: Path, **changes: Any) -> Any:
    (directory / "tools.py").write_text(FUNCTIONS)
    functions = {"tools.py": str(directory / "tools.py")}
    sizes = {"max_prompt_tokens": 8000, "max_new_tokens": 400}
    limits = {"max_turns": 6, "max_tokens": 8000}
    changed = {"rollouts": sizes, "episodes": limits} | changes
    section = section_with(environment={"name": "tools"}, **changed)
    return SimpleNamespace(section=section, part=lambda *_: source, functions=functions)


def config(*names: str, **options: Any) -> ToolsConfig:
    functions = [{"function": f"tools.py:{name}"} for name in names or NAMES]
    return ToolsConfig.model_validate({"functions": functions} | options)


def given(episode: Episode, source: TextSource) -> list[str]:
    (one,) = episode.trajectories
    return [source.tokenizer.decode(turn.given, special=True) for turn in one.turns]


def qwen3() -> Path:
    spec = find_spec("maxtext")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "assets/tokenizers/qwen3-tokenizer"


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("files", [lambda path: byte_level(path, template=TEMPLATE), None])
def test_the_tokens_are_the_templates_of_the_whole_conversation(
    tmp_path: Path, files: Callable[[Path], Path] | None, stop: bool
) -> None:
    if files is None and find_spec("maxtext") is None:
        pytest.skip("MaxText's wheel has the tokenizer")
    source = chats(qwen3() if files is None else files(tmp_path / "model"))
    run = context(source, tmp_path)
    tools = Tools(config("population", "text"), run)
    first = f"I look.\n{call('population', city='Rome')}\n{call('text', length=3)}"
    if files is None:
        first = f"<think>\nHm.\n</think>\n\n{first}"
    answers = [first, "2802020"]
    outcome, episode = played(tools, run, answers, stop)
    assert outcome == Outcome(
        metrics={"tool_calls": 2.0, "tool_calls_wrong": 0.0, "tool_results_cut": 0.0}
    )
    (one,) = episode.trajectories
    encode, end = source.tokenizer.encode, source.tokenizer.answer_end
    said = [[*encode(text), *([end] if stop else [])] for text in answers]
    assert [turn.sampled.tokens.tolist() for turn in one.turns] == said  # as they were sampled
    described = [tool.description for tool in tools._functions or ()]
    assert [one["function"]["name"] for one in described] == ["population", "text"]
    assert described[0]["function"]["parameters"]["required"] == ["city"]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "mark7"},
        {"role": "tool", "content": "2802020"},
        {"role": "tool", "content": "aaz"},
    ]
    whole = source.tokenizer.render(messages, tools=described)
    marks = encode("mark7")
    place = next(i for i in range(len(whole)) if whole[i : i + len(marks)] == marks)
    before, behind = whole[:place], whole[place + len(marks) :]
    if files is None:  # of an earlier turn the template leaves out empty thoughts
        before = source.tokenizer.render(messages[:2], tools=described)
    assert one.turns[0].given.tolist() == before
    assert one.turns[1].given.tolist() == (behind[1:] if stop else behind)


def test_what_is_wrong_with_a_call_is_its_result(tmp_path: Path) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    run = context(source, tmp_path, episodes={"max_turns": 9, "max_tokens": 8000})
    answers = [
        "<tool_call>{'name': 1}</tool_call>",
        call("populatio", city="Rome"),
        call("population", city="Rome", year="2020"),
        call("population", town="Rome"),
        call("population", city="Oz"),
        f"{call('population', city='Rome')} <tool_call>",
        "none",
    ]
    outcome, episode = played(Tools(config(), run), run, answers)
    assert outcome.metrics == {"tool_calls": 6, "tool_calls_wrong": 6, "tool_results_cut": 0}
    results = [
        text.split("tool\n")[1].split("<|im_end|>")[0] for text in given(episode, source)[1:]
    ]
    malformed = "Error: a call in the answer is malformed, so none was executed"
    assert results == [
        malformed,
        "Error: there is no tool 'populatio'; did you mean 'population'? known: breaks, hangs, "
        "population, text",
        "Error: year: Input should be a valid integer",
        "Error: city: Field required; town: Extra inputs are not permitted",
        "Error: there is no city Oz",
        malformed,
    ]
    assert episode.text == "none"


def test_the_middle_of_a_huge_result_is_left_out(tmp_path: Path) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    run = context(source, tmp_path)
    tools = Tools(config(result_chars=11), run)
    outcome, episode = played(tools, run, [call("text", length=50_000_000), "a"])
    assert outcome.metrics["tool_results_cut"] == 1
    assert "tool\naaaaaa\n[49999989 characters are left out]\naaaaz<" in given(episode, source)[1]


def test_limits_cut_the_episode(tmp_path: Path) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    run = context(source, tmp_path)
    one = call("population", city="Rome")
    outcome, episode = played(Tools(config(max_calls=2), run), run, [one, one, one, "never"])
    assert outcome.ended == "cut" and outcome.metrics["tool_calls"] == 3
    assert len(episode.trajectories[0].turns) == 3  # the third call was not executed
    outcome, episode = played(Tools(config(), run), run, [one] * 7)
    assert outcome.ended == "cut" and len(episode.trajectories[0].turns) == 6  # max_turns


def test_results_that_do_not_fit_are_not_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    run = context(source, tmp_path, episodes={"max_turns": 6, "max_tokens": 1000})
    asked, sample = [], Playing.sample

    def counting(self: Playing, given: Sequence[int]) -> Any:
        asked.append(len(given))
        return sample(self, given)

    monkeypatch.setattr(Playing, "sample", counting)
    outcome, _ = played(Tools(config(), run), run, [call("text", length=2000), "never"])
    assert outcome.ended == "cut" and len(asked) == 1


def test_the_time_of_all_calls_together_cuts_the_episode(tmp_path: Path) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    run = context(source, tmp_path, deadlines={"episode_s": 1.0})
    calls = call("population", city="Rome") + call("hangs") * 3
    outcome, episode = played(Tools(config(), run), run, [calls, "never"])  # call_s is 30 s
    assert outcome.ended == "cut" and outcome.metrics["tool_calls"] == 4
    assert len(episode.trajectories[0].turns) == 1


async def test_what_a_tool_needs_is_started_in_a_time_of_its_own(tmp_path: Path) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    tools = Tools(config(call_s=0.01), context(source, tmp_path))

    async def call(arguments: Any, limit_s: float) -> str:
        return f"{limit_s:g}"

    tool = Tool({"function": {"name": "late"}}, call, ready=lambda: asyncio.sleep(0.1))
    assert await tools._executed(tool, {}, 10.0) == "0.01"


def test_a_set_with_prompts_of_another_source_is_refused(tmp_path: Path) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    sets = {"others": {"prompt_source": {"name": "jsonl", "path": "a.jsonl"}}}
    run = context(source, tmp_path, evaluation={"sets": sets})
    with pytest.raises(ConfigError, match="leave it out") as raised:
        Tools(config(), run)
    assert raised.value.key == "rlax.evaluation.sets.others.prompt_source"


@pytest.mark.parametrize(
    ("name", "ending", "message"),
    [
        ("breaks", Ending.SERVER_FAILED, "the data base is gone"),
        (
            "hangs",
            Ending.ENVIRONMENT_LATE,
            "the tool hangs took longer than rlax.environment.call_s = 0.1",
        ),
    ],
)
def test_a_tool_that_fails_is_not_the_policys_failure(
    tmp_path: Path, name: str, ending: Ending, message: str
) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    run = context(source, tmp_path)
    with pytest.raises(Exception) as raised:
        played(Tools(config(call_s=0.1), run), run, [call(name), "never"])
    assert message in str(raised.value)
    assert ending_of(raised.value, Ending.ENVIRONMENT_FAILED) == ending


@pytest.mark.parametrize(
    ("template", "names", "key", "message"),
    [
        (CHATML, (), "rlax.environment.tool_calls", "does not read them"),
        (TEMPLATE, ("population", "missing"), "rlax.environment.functions.1.function", "'missing'"),
        (TEMPLATE, ("asyncio",), "rlax.environment.functions.0.function", "must be a function"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_key(
    tmp_path: Path, template: str, names: Sequence[str], key: str, message: str
) -> None:
    run = context(chats(byte_level(tmp_path / "model", template=template)), tmp_path)
    with pytest.raises(ConfigError, match=message) as raised:
        check_start(config(*names), run)
        Tools(config(*names), run)
    assert raised.value.key == key


@pytest.mark.parametrize(("name", "parameter"), [("read-file", "path"), ("read", "from")])
async def test_names_that_pythonic_cannot_write_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, parameter: str
) -> None:
    """Its calls would be read as answers, for all of the run."""
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}}
    described = {"type": "function", "function": {"name": name, "parameters": schema}}
    tool = Tool(described, lambda *_: asyncio.sleep(0, ""))
    monkeypatch.setattr(Tools, "_loaded", lambda self: [tool])
    unlike = "{% if tools %}{% endif %}" + CHATML  # writes no calls, so that any form is allowed
    run = context(chats(byte_level(tmp_path / "model", template=unlike)), tmp_path)
    async with Tools(config(tool_calls="llama3"), run).opened() as found:
        assert list(found) == [name]
    wrong = next(one for one in (name, parameter) if "-" in one or one == "from")
    refused = rf"tool_calls = 'pythonic': cannot write '{wrong}' of the tool '{name}' in the form p"
    with pytest.raises(ConfigError, match=refused):
        async with Tools(config(tool_calls="pythonic"), run).opened():
            pass
    schema["properties"] = None  # as a server may say
    described["function"]["name"] = "read"
    async with Tools(config(tool_calls="pythonic"), run).opened() as found:
        assert list(found) == ["read"]


def test_an_undocumented_function_is_no_tool(tmp_path: Path) -> None:
    run = context(None, tmp_path)
    (tmp_path / "tools.py").write_text("def f(a: int) -> int:\n    return a\n")
    with pytest.raises(ConfigError, match=r"f \(tools.py, line 1\) cannot be a tool.*docstring"):
        check_start(config("f"), run)


def test_check_names_a_prompt_that_is_too_long_with_the_tools(tmp_path: Path) -> None:
    source = chats(byte_level(tmp_path / "model", template=TEMPLATE))
    check(config(), context(source, tmp_path))
    sizes = {"max_prompt_tokens": 100, "max_new_tokens": 40}
    with pytest.raises(ConfigError, match=r"with the descriptions of the tools has 1[0-9]{3} tok"):
        check(config(), context(source, tmp_path, rollouts=sizes))


def test_a_reward_process_has_the_tokenizer_of_the_runs_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = byte_level(tmp_path / "model", template=TEMPLATE)
    run = context(None, tmp_path)
    row = {"question": QUESTION, "answer": "46"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row) + "\n")
    options = {"path": str(tmp_path / "questions.jsonl"), "chat": True}
    one = {"name": "tools", "functions": [{"function": "tools.py:population"}]}
    section = section_with(environment=one, prompt_source={"name": "jsonl", **options}, rewards=[])
    (prompt,) = chats(files).prompts("train")

    async def work(pool: RewardPool) -> None:
        played = Played(None)
        outcome = await pool.play(prompt, played)  # it answers "78", without a call
        assert outcome.metrics["tool_calls"] == 0 and len(played.asked) == 1

    monkeypatch.chdir(tmp_path)  # where the pool writes its log
    model = {"tokenizer_path": str(files), "tokenizer_type": "huggingface"}
    with_pool(section, work, functions=run.functions, maxtext=model)
