"""A request extends a trajectory or begins one; what was sampled is never tokenised again."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from rlax_plugin.api import PromptSource, TextRow, TextSource, Tokenizer
from rlax_plugin.rollout.http.messages import AnswerForm, for_template, form_of
from rlax_plugin.rollout.http.policy import Asked, AssistantMessage, Edge, Refused
from rlax_plugin.rollout.http.sessions import (
    EDGE_SOURCE,
    EDGE_TYPE,
    REQUEST_ID,
    Conversations,
    Kind,
    Turn,
    declared,
)

END, MERGED = 900, 10_000
ROLES = {"system": 901, "user": 902, "assistant": 903, "tool": 904, "tools": 905}
SYSTEM = {"role": "system", "content": "You act."}
ADD = ({"type": "function", "function": {"name": "add", "parameters": {}}},)
Messages = Sequence[Mapping[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# --- a tokenizer of characters, whose policy samples pairs of them -------------------------------


def pairs(text: str, rng: random.Random) -> list[int]:
    """Tokens of a text as no encoder writes them: some are two characters."""
    found, i = [], 0
    while i < len(text):
        two = i + 1 < len(text) and rng.random() < 0.5
        found.append(MERGED + 128 * ord(text[i]) + ord(text[i + 1]) if two else ord(text[i]))
        i += 2 if two else 1
    return found


def decode(tokens: np.ndarray) -> str:
    texts = (
        chr(t) if t < END else chr((t - MERGED) // 128) + chr((t - MERGED) % 128)
        for t in tokens.tolist()
        if t < END or t >= MERGED
    )
    return "".join(texts)


FORM = AnswerForm(decode, calls="hermes", thinks=True)


def encode_messages(
    messages: Messages, after: np.ndarray | None, tools: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """As ``PromptSource.encode_messages``, by a template that drops reasoning, like Qwen3's."""
    tokens = [] if after is None or (len(after) and after[-1] == END) else [END]
    if after is None and tools:
        tokens += [ROLES["tools"], *map(ord, json.dumps(tools)), END]
    for one in messages:
        calls = [call["function"] for call in one.get("tool_calls", ())]
        text = one["content"] + "".join(json.dumps(call, sort_keys=True) for call in calls)
        tokens += [ROLES[one["role"]], *map(ord, text), END]
    return [*tokens, ROLES["assistant"]]


class Source(PromptSource):
    def prompts(self, split: str) -> tuple[()]:
        return ()

    def decode(self, tokens: np.ndarray) -> str:
        return decode(tokens)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (END,)

    def encode_messages(
        self,
        messages: Messages,
        after: np.ndarray | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        return encode_messages(messages, after, tools)


class Questions(TextSource):
    def rows(self, split: str) -> tuple[TextRow, ...]:
        return ()


SOURCE = Source()


def new_tokens(turn: Turn, source: PromptSource) -> list[int]:
    if isinstance(turn.given, tuple):
        return source.encode_messages(turn.given, turn.after, turn.tools)
    return np.asarray(turn.given, np.int32).tolist()


# --- kinds ----------------------------------------------------------------------------------------


def answer(
    conversations: Conversations, turn: Turn, text: str, ids: Sequence[int] = (), number: int = 0
) -> dict[str, Any]:
    """Answers a turn; returns the message as most clients send it back."""
    if turn.line.number is None:
        turn.line.number = number
    given = new_tokens(turn, SOURCE)
    sampled = np.array([*(ids or map(ord, text)), END], np.int32)
    said = FORM.message(sampled, turn.tools, turn.name)
    is_chat = isinstance(turn.given, tuple)
    conversations.answered(turn, given, sampled, said if is_chat else None)
    return client_message(said)


def client_message(said: AssistantMessage, spaces: bool = True) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.tool_calls:
        message["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {
                    "name": one.name,
                    "arguments": json.dumps(
                        json.loads(one.arguments), sort_keys=True, indent=1 if spaces else None
                    ),
                },
            }
            for one in said.tool_calls
        ]
    return message


def ask(conversations: Conversations, *messages: Mapping[str, Any], **options: Any) -> Turn:
    (turn,) = conversations.ask(Asked(messages, **options))
    return turn


def test_a_request_that_repeats_a_trajectory_extends_it_with_what_is_new() -> None:
    found = Conversations()
    first = ask(found, SYSTEM, user("1"), tools=ADD)
    assert (first.kind, first.extends, first.after) == ("begun", False, None)
    text = 'Hm.<tool_call>{"name": "add", "arguments": {"b": 1.0}}</tool_call>'
    said = answer(found, first, "<think>r</think>\n\n" + text)
    assert said["tool_calls"][0]["id"] == "call_1_0" and said["content"] == "Hm."
    said["tool_calls"][0]["function"]["arguments"] = '{"b":1}'
    result = {"role": "tool", "tool_call_id": "call_1_0", "content": "2"}
    second = ask(found, SYSTEM, user("1"), said, result, tools=ADD)
    assert (second.kind, second.line, second.extends) == ("extended", first.line, True)
    assert second.given == (result,) and len(second.prefix) == 0
    assert second.after is not None and decode(second.after).startswith("<think>r</think>")
    other = ask(found, SYSTEM, user("1"), said, result)  # without tools: another prompt
    assert (other.kind, other.extends, len(other.given)) == ("rewritten", False, 4)


def test_while_a_turn_is_sampled_another_begins_with_the_same_tokens() -> None:
    found = Conversations()
    first = ask(found, user("1"))
    said = answer(found, first, "ab", ids=[MERGED + 1])
    running = ask(found, user("1"), said, user("2"))
    beside = ask(found, user("1"), said, user("3"))
    assert (running.kind, beside.kind, beside.extends) == ("extended", "parallel", False)
    assert beside.prefix.tolist() == [902, ord("1"), END, 903, MERGED + 1, END]
    assert beside.given == (user("3"),)
    later = answer(found, running, "c")
    assert ask(found, user("1"), said, user("4")).kind == "rewritten"  # back to an earlier answer
    assert ask(found, user("1"), said, user("2"), later, user("5")).line is first.line


def test_choices_of_one_request_are_trajectories_of_their_own() -> None:
    found = Conversations()
    turns = found.ask(Asked((user("1"),), n=3))
    assert len({id(turn.line) for turn in turns}) == 3 and found.counts["begun"] == 3
    said = [answer(found, turn, text) for turn, text in zip(turns, "abc", strict=True)]
    second = found.ask(Asked((user("1"), said[1], user("2")), n=2))
    assert [turn.kind for turn in second] == ["extended", "parallel"]
    assert second[0].line is turns[1].line and second[1].prefix[-2:].tolist() == [ord("b"), END]


def test_rewritten_histories_and_mistakes_are_told_apart() -> None:
    found = Conversations()
    one = answer(found, ask(found, SYSTEM, user("1")), "one ")
    two = answer(found, ask(found, SYSTEM, user("1"), one, user("2")), "two")
    history = [SYSTEM, user("1"), one, user("2"), two, user("3")]
    stripped = {**one, "content": "one"}
    changes: dict[str, list[Mapping[str, Any]]] = {
        "begun": [SYSTEM, user("Summary: 1, 2"), user("3")],
        "rewritten": [SYSTEM, user("Summary: 1"), one, user("2")],
        "edited": [*history[:2], stripped, *history[3:]],
    }
    for kind, messages in changes.items():
        turn = ask(found, *messages)
        assert (turn.kind, turn.extends, turn.given) == (kind, False, tuple(messages))
        found.failed(turn)
    late = ask(found, *history[:4], {**two, "content": "2"}, user("3"))
    assert late.kind == "edited" and len(late.given) == 3  # up to the first answer as it was
    assert decode(late.prefix).endswith("one ")
    changed = ask(found, *history[:3], user("2, please"), two, user("3"))
    assert changed.kind == "rewritten" and len(changed.given) == 3
    assert ask(found, *history).kind == "extended"


def test_the_same_request_sent_again_is_sampled_once() -> None:
    found = Conversations()
    first = ask(found, user("1"))
    assert ask(found, user("1"), retry=1) is first  # under way
    said = answer(found, first, "a")
    assert ask(found, user("1"), retry=2) is first and found.counts["retried"] == 2
    assert ask(found, user("1")) is not first  # not said to be sent again
    assert ask(found, user("1"), retry=1, temperature=0.5) is not first
    second = ask(found, user("1"), said, user("2"))
    found.lost([second])
    assert ask(found, user("1"), said, user("2")) is second  # its client had gone
    assert ask(found, user("1"), said, user("2"), retry=1) is second
    found.lost([second])  # one of two
    assert ask(found, user("1"), said, user("2")) is not second
    found.failed(second)
    third = ask(found, user("1"), said, user("2"), retry=1)
    assert third is not second and third.kind == "parallel"  # that of the line before this one
    prompts = [ask(found, user(text), id="r0") for text in "56"]  # of one completion request
    assert [ask(found, user(text), id="r0") for text in "56"] == prompts
    named = ask(found, user("9"), id="r1")
    assert ask(found, user("9"), id="r1") is named and ask(found, user("9"), id="r2") is not named


def test_no_request_goes_on_with_an_answer_that_failed_after_it_was_sampled() -> None:
    found = Conversations()
    first = ask(found, user("1"))
    said = answer(found, first, "a")
    second = ask(found, user("1"), said, user("2"))
    found.failed(second)
    second = ask(found, user("1"), said, user("2"))
    assert second.line is first.line
    found.failed(second, sampled=True)  # the trainer's trajectory has an answer more
    third = ask(found, user("1"), said, user("2"), retry=1)
    assert third.line is not first.line and not third.extends


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def test_what_is_nested_too_deeply_is_refused_with_its_field() -> None:
    deep = {"name": "add", "arguments": json.dumps({"a": nested(900)})}
    called = {"role": "assistant", "tool_calls": [{"function": deep}]}
    cases: dict[str, tuple[Messages, Any]] = {
        "messages[1]": ([user("1"), {**user("2"), "more": nested(900)}], ()),
        "messages[0].tool_calls[0].function.arguments": ([called], ()),
        "tools": ([user("1")], ({**ADD[0], "more": nested(900)},)),
    }
    for name, (messages, tools) in cases.items():
        with pytest.raises(Refused, match="levels") as raised:
            ask(Conversations(), *messages, tools=tools)
        assert raised.value.param == name and raised.value.status == 400
    deep["arguments"] = json.dumps({"a": nested(60)})
    assert ask(Conversations(), called).kind == "begun"


def test_declared_edges_win_over_what_is_found() -> None:
    found = Conversations()
    first = ask(found, user("1"), id="a")
    said = answer(found, first, "x")
    history = (user("1"), said, user("2"))
    apart = ask(found, *history, edge=Edge("compaction_attempt", "a"))
    assert (apart.kind, apart.extends) == ("rewritten", False) and len(apart.prefix)
    assert ask(found, user("1"), edge=Edge("subagent_call")).kind == "begun"
    with pytest.raises(Refused, match="does not repeat"):
        ask(found, user("1"), {**said, "content": "y"}, user("2"), edge=Edge("continuation", "a"))
    with pytest.raises(Refused, match="no answered request has the id 'b'"):
        ask(found, *history, edge=Edge("continuation", "b"))
    kept = ask(found, *history, edge=Edge("continuation", "a"))
    assert kept.extends and kept.line is first.line


def test_the_page_on_agents_has_every_kind_and_header() -> None:
    page = (Path(__file__).parents[4] / "docs/agents.md").read_text()
    kinds = re.findall(
        r"^\| `([a-z]+)` \|", page.partition("counted as")[2].partition("##")[0], re.MULTILINE
    )
    assert sorted(kinds) == sorted(get_args(Kind))
    headers = re.findall(r"^\| `(X-[A-Za-z-]+)` \|", page, re.MULTILINE)
    assert [name.lower() for name in headers] == [REQUEST_ID, EDGE_TYPE, EDGE_SOURCE]


def test_headers_declare_an_id_and_an_edge() -> None:
    headers = {"x-acp-model-request-id": "r2", "x-semantic-edge-type": "compaction"}
    assert declared(headers) == ("r2", Edge("compaction"))
    assert declared({**headers, "x-semantic-edge-source": "r1"})[1] == Edge("compaction", "r1")
    assert declared({"authorization": "Bearer x"}) == ("", None)
    for name in (*headers, "x-semantic-edge-source"):
        with pytest.raises(Refused) as raised:
            declared({**headers, name: "a b"})
        assert raised.value.param == name
    with pytest.raises(Refused, match="needs x-semantic-edge-type"):
        declared({"x-semantic-edge-source": "r1"})


def tokens(*ids: int) -> Asked:
    return Asked(np.array(ids, np.int32))


def test_token_ids_extend_what_was_given_and_sampled() -> None:
    found = Conversations()
    (first,) = found.ask(tokens(1, 2))
    answer(found, first, "", ids=[3, 4])
    (second,) = found.ask(tokens(1, 2, 3, 4, END, 5))
    assert second.extends and np.asarray(second.given).tolist() == [5]
    (beside,) = found.ask(tokens(1, 2, 3, 4, END, 6))
    assert beside.kind == "parallel" and beside.prefix.tolist() == [1, 2, 3, 4, END]
    kinds = [found.ask(tokens(1, 2, *ids))[0].kind for ids in ((3, 9), (9,), (), (3,))]
    assert kinds == ["edited", "edited", "begun", "begun"]
    answer(found, second, "", ids=[7])
    (back,) = found.ask(tokens(1, 2, 3, 4, END, 8))
    assert back.kind == "rewritten" and back.prefix.tolist() == [1, 2, 3, 4, END]
    (text,) = found.ask(Asked("a text"))
    assert text.kind == "begun" and text.given == "a text"


def test_token_ids_go_on_from_a_chat() -> None:
    found = Conversations()
    chat = ask(found, user("1"))
    said = answer(found, chat, "a")
    whole = [902, ord("1"), END, 903, ord("a"), END]
    (turn,) = found.ask(tokens(*whole, 5))
    assert turn.line is chat.line
    answer(found, turn, "", ids=[6])
    # The messages of the trajectory are known up to its first answer only.
    beside = ask(found, user("1"), said, user("2"))
    assert beside.kind == "rewritten" and beside.prefix.tolist() == whole


# --- whole episodes at random ---------------------------------------------------------------------


class Failed(Exception):
    pass


@dataclass
class Model:
    """A tokenizer with its template, and tokens of a text as a policy may sample them."""

    source: PromptSource = SOURCE
    form: AnswerForm = FORM
    spell: Callable[[str, random.Random], list[int]] = pairs
    end: int = END


@dataclass
class Engine:
    """Samples, and logs what it was given and what it sampled."""

    rng: random.Random
    model: Model
    log: list[tuple[list[int], list[int]]] = field(default_factory=list)

    async def sample(self, context: Sequence[int]) -> np.ndarray:
        for _ in range(self.rng.randrange(6)):
            await asyncio.sleep(0)
        if self.rng.random() < 0.03:
            raise Failed
        number = len(self.log)
        text = f"a{number}. "
        if self.rng.random() < 0.6:
            text = f"<think>\nwhy {number}\n</think>\n\n{text}"
        if self.rng.random() < 0.5:
            call = {"name": "add", "arguments": {"b": number, "a": [1.0, "x"]}}
            text += f"\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
        ending = [self.model.end] if self.rng.random() < 0.9 else []  # else it was cut
        sampled = [*self.model.spell(text, self.rng), *ending]
        self.log.append(([*context], sampled))
        return np.array(sampled, np.int32)


@dataclass
class Door:
    """What the environment does: turns in, rows of given and sampled tokens out."""

    engine: Engine
    found: Conversations = field(default_factory=Conversations)
    rows: list[list[tuple[list[int], list[int]]]] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)  # numbers of samples

    async def answer(self, asked: Asked) -> tuple[AssistantMessage, np.ndarray]:
        (turn,) = self.found.ask(asked)
        if turn.reply is None:
            turn.reply = asyncio.ensure_future(self._sampled(turn))
            turn.reply.add_done_callback(lambda done: done.exception())
        try:
            return await asyncio.shield(turn.reply)
        except asyncio.CancelledError:
            self.found.lost([turn])
            raise

    async def _sampled(self, turn: Turn) -> tuple[AssistantMessage, np.ndarray]:
        new = new_tokens(turn, self.engine.model.source)
        try:
            if turn.line.number is None:
                turn.line.number = len(self.rows)
                self.rows.append([])
            row = self.rows[turn.line.number]
            assert turn.extends == bool(row)
            behind = [token for pair in row for part in pair for token in part]
            added = new if row else [*turn.prefix.tolist(), *new]
            sampled = await self.engine.sample([*behind, *added])
        except Failed:
            self.found.failed(turn)
            raise
        row.append((added, sampled.tolist()))
        said = self.engine.model.form.message(sampled, turn.tools, turn.name)
        is_chat = isinstance(turn.given, tuple)
        self.found.answered(turn, new, sampled, said if is_chat else None)
        return said, sampled


@dataclass
class Agent:
    """A client's thread, which knows what the model has to see.

    Attributes:
      messages: the history.
      kept: tokens up to the last answer that is as it was sampled, the number of messages up to
        it, and its own tokens; the last of them is the newest.
    """

    door: Door
    rng: random.Random
    messages: list[Mapping[str, Any]]
    tools: tuple[Mapping[str, Any], ...]
    kept: list[tuple[list[int], int, np.ndarray]] = field(default_factory=list)

    async def send(self) -> None:
        """Sends the history until it is answered, and checks what the model saw."""
        asked, retry, expected = tuple(self.messages), 0, self.expected()
        while True:
            request = asyncio.ensure_future(
                self.door.answer(Asked(asked, tools=self.tools, retry=retry))
            )
            gone = self.rng.random() < 0.15
            try:
                if gone:
                    await asyncio.wait({request}, timeout=0)
                    request.cancel()
                said, sampled = await request
                break
            except asyncio.CancelledError:
                retry = self.rng.randrange(2)  # some programs try again by themselves
            except Failed:
                retry = 1
        number = int((said.content or "").partition(".")[0][1:])
        context, logged = self.door.engine.log[number]
        assert context == expected
        assert logged == sampled.tolist()
        self.door.delivered.append(number)
        back = client_message(said, spaces=self.rng.random() < 0.5)
        if said.reasoning and self.rng.random() < 0.3:
            back["reasoning_content"] = said.reasoning
        self.messages.append(back)
        self.kept.append(([*expected, *logged], len(self.messages), sampled))

    def expected(self) -> list[int]:
        encode_messages = self.door.engine.model.source.encode_messages
        if not self.kept:
            return encode_messages([for_template(m, "") for m in self.messages], None, self.tools)
        before, count, sampled = self.kept[-1]
        new = [for_template(m, "") for m in self.messages[count:]]
        return [*before, *encode_messages(new, sampled, self.tools)]

    async def play(self, depth: int = 0) -> None:
        children = []
        for step in range(self.rng.randrange(1, 5)):
            await self.send()
            what = self.rng.random()
            if what < 0.12:  # compaction, sometimes with the newest answer
                last = self.messages[-1]
                self.messages = [SYSTEM, user(f"Summary {self.rng.random()}")]
                self.messages += [last] if self.rng.random() < 0.5 else []
                self.kept = []
            elif what < 0.2:  # the program has changed an answer
                self.messages[-1] = {"role": "assistant", "content": f"mine {self.rng.random()}"}
                self.kept.pop()
            elif what < 0.4 and depth < 2:  # sub-agents: with a history of their own, or with this
                for _ in range(self.rng.randrange(1, 3)):
                    own = self.rng.random() < 0.5
                    messages: list[Mapping[str, Any]] = [SYSTEM] if own else [*self.messages]
                    child = Agent(self.door, self.rng, messages, self.tools, [])
                    child.kept = [] if own else [*self.kept]
                    child.messages.append(user(f"Task {self.rng.random()}"))
                    children.append(asyncio.ensure_future(child.play(depth + 1)))
            self.messages.append(user(f"{step} {self.rng.random()}"))
        await asyncio.gather(*children)


async def episode(seed: int, model: Model) -> Conversations:
    rng = random.Random(seed)
    door = Door(Engine(rng, model))
    tools = ADD if rng.random() < 0.7 else ()
    roots = [Agent(door, rng, [SYSTEM, user(f"Go {i}")], tools) for i in range(rng.randrange(1, 3))]
    await asyncio.gather(*(root.play() for root in roots))
    while pending := [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]:
        await asyncio.wait(pending)  # what was left of clients that had gone
    # The rows, taken apart by themselves: each sample is there once, behind what the model saw.
    trained = []
    for row in door.rows:
        context: list[int] = []
        for given, sampled in row:
            context += given
            trained.append((context[:], sampled))
            context += sampled
    assert sorted(trained) == sorted(door.engine.log)
    # However often a request was sent, it was sampled once.
    assert sorted(door.delivered) == [*range(len(door.engine.log))]
    return door.found


@pytest.mark.parametrize("episodes", [100, pytest.param(1000, marks=pytest.mark.long)])
async def test_every_trained_token_is_one_that_was_sampled_behind_what_the_model_saw(
    episodes: int,
) -> None:
    counts = dict.fromkeys(Conversations().counts, 0)
    for seed in range(episodes):
        for kind, count in (await episode(seed, Model())).counts.items():
            counts[kind] += count
    assert all(count > episodes / 10 for count in counts.values()), counts


@pytest.mark.ci
@pytest.mark.skipif(find_spec("maxtext") is None, reason="MaxText's wheel has the tokenizer")
async def test_it_is_so_with_qwen3s_own_tokenizer_and_template() -> None:
    spec = find_spec("maxtext")
    assert spec is not None and spec.origin is not None
    files = Path(spec.origin).parent / "assets/tokenizers/qwen3-tokenizer"
    tokenizer = Tokenizer.load(files, "tokenizer_path")

    def spell(text: str, rng: random.Random) -> list[int]:
        """Cut anywhere but inside marks, which are tokens."""
        parts = re.split(r"(</?think>|</?tool_call>)", text)
        cuts = [[part] if i % 2 else pieces(part, rng) for i, part in enumerate(parts)]
        return [t for cut in cuts for part in cut for t in tokenizer.encode_behind(part)]

    def pieces(text: str, rng: random.Random) -> list[str]:
        places = sorted({0, len(text), *rng.choices(range(len(text) + 1), k=3)})
        return [text[a:b] for a, b in itertools.pairwise(places)]

    form = form_of(tokenizer, "auto", "key")
    model = Model(Questions(tokenizer, chat=True), form, spell, tokenizer.stop_ids[0])
    answered = [await episode(seed, model) for seed in range(30)]
    assert sum(found.counts["extended"] for found in answered) > 20
