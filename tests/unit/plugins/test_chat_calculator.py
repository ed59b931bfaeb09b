"""The calculator with a chat template: what is given continues the sampled tokens, exactly."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from part_stubs import SourceStub
from rlax_environments import Calculator, CalculatorConfig, rlax_register_environment
from sections import section_with
from small_tokenizers import CHATML, byte_level

from rlax_plugin.api import ConfigError, Outcome, TextRow, TextSource, Tokenizer
from rlax_plugin.base.types import Episode, Key, Sampled, Turn
from rlax_plugin.data.prompts.checking import completion_text
from rlax_plugin.rollout.episodes.playing import NoLog, Playing
from rlax_plugin.testing import make_sampled

SYSTEM = "Write <calc>expression</calc>."


class Sums(TextSource):
    def rows(self, split: str) -> list[TextRow]:
        return [TextRow("What is 12+34?", "46")]


def source(directory: Path, *stop_strings: str, template: str = CHATML) -> Sums:
    tokenizer = Tokenizer.load(byte_level(directory, template=template), "tokenizer_path")
    return Sums(tokenizer, chat=True, system=SYSTEM, stop_strings=stop_strings)


def play(source: Sums, answers: Sequence[Sequence[int]], **options: Any) -> tuple[Outcome, Episode]:
    """Has the calculator play an episode in which the policy gives these answers."""
    sampled = [
        make_sampled(tokens=np.array(a, np.int32), finish="stop" if a[-1] > 261 else "length")
        for a in answers
    ]
    (prompt,) = source.prompts("train")

    async def ask(key: Key, context: np.ndarray, most: int, oldest: int) -> Sampled:
        return sampled[key.turn]

    section = section_with(
        environment={"name": "x"},
        rollouts={"max_prompt_tokens": 200, "max_new_tokens": 40},
        episodes={"max_turns": 4, "max_tokens": 300},
    )
    first = Turn(prompt.tokens, sampled[0])
    played = Playing(section, source, Key("train", 0, 0), first, ask=ask, log=NoLog())
    calculator = Calculator(CalculatorConfig(result="", after="", max_calls=3, **options))
    outcome = asyncio.run(calculator.play(prompt, played))  # pyright: ignore[reportArgumentType]
    return outcome, played.episode(None, cut=False)


def sequence(episode: Episode) -> list[int]:
    (one,) = episode.trajectories
    return [int(i) for t in one.turns for part in (t.given, t.sampled.tokens) for i in part]


@pytest.mark.parametrize("stopped", [True, False])
def test_the_sequence_is_the_templates_of_the_whole_conversation(tmp_path, stopped: bool) -> None:
    sums = source(tmp_path)
    tokenizer, end = sums.tokenizer, sums.tokenizer.answer_end
    texts = ("I ask <calc>12+34</calc>", "<calc>46*2</calc>", "46")
    answers = [[*tokenizer.encode(t), *([end] if stopped else [])] for t in texts]
    outcome, episode = play(sums, answers, begin="<calc>", end="</calc>", role="tool")
    assert outcome.metrics == {"calculations": 2.0, "calculations_failed": 0.0}
    turns = episode.trajectories[0].turns
    assert [t.sampled.tokens.tolist() for t in turns] == answers  # as they were sampled
    said = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What is 12+34?"},
        {"role": "assistant", "content": texts[0]},
        {"role": "tool", "content": "46"},
        {"role": "assistant", "content": texts[1]},
        {"role": "tool", "content": "92"},
    ]
    assert sequence(episode) == [*tokenizer.render(said), *answers[2]]
    assert episode.text == "46"


def test_a_stop_string_ends_the_call_and_the_template_closes_the_answer(tmp_path: Path) -> None:
    sums = source(tmp_path, "</calc>")
    tokenizer = sums.tokenizer
    call = tokenizer.encode("<calc>12+34</calc>")
    outcome, episode = play(
        sums, [call, tokenizer.encode("46")], begin="<calc>", end="", role="user"
    )
    assert outcome.metrics["calculations"] == 1.0 and episode.texts[0] == "<calc>12+34"
    assert completion_text(sums, np.array(call)) == "<calc>12+34"
    given = episode.trajectories[0].turns[1].given
    assert given[0] == tokenizer.answer_end
    assert tokenizer.decode(given) == "\nuser\n46\nassistant\n"


def test_a_text_goes_behind_the_answer_without_a_template(tmp_path: Path) -> None:
    sums = source(tmp_path)
    answers = [sums.tokenizer.encode("<calc>1+1</calc>"), sums.tokenizer.encode("2")]
    _, episode = play(sums, answers, begin="<calc>", end="</calc>")
    given = episode.trajectories[0].turns[1].given.tolist()
    assert given == sums.tokenizer.encode("2")


@pytest.mark.parametrize(
    ("role", "template", "message"),
    [
        ("tool", CHATML, None),
        ("", "{{ raise_exception('never') }}", None),
        ("no|role", CHATML, "'no|role' is no role"),
        ("tool", "{{ raise_exception('no tools') }}", "failed: no tools"),
    ],
)
def test_check_has_a_value_encoded(tmp_path: Path, role: str, template: str, message) -> None:
    context: Any = SimpleNamespace(
        section=section_with(), part=lambda *_: source(tmp_path, template=template)
    )
    check = rlax_register_environment()["calculator"].check
    assert check is not None
    if message is None:
        assert check(CalculatorConfig(role=role), context) is None
        return
    with pytest.raises(ConfigError) as raised:
        check(CalculatorConfig(role=role), context)
    assert str(raised.value).startswith(f"rlax.environment.role = {role!r}: ")
    assert message in str(raised.value)


def test_check_says_that_a_prompt_source_knows_no_messages() -> None:
    context: Any = SimpleNamespace(section=section_with(), part=lambda *_: SourceStub())
    check = rlax_register_environment()["calculator"].check
    assert check is not None
    with pytest.raises(ConfigError, match="the prompt source has no encode_me"):
        check(CalculatorConfig(role="tool"), context)
