"""Clients of JetStream's service receive tokens and text while they are generated."""

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from part_stubs import SourceStub
from rlax_jetstream.replies import Replies
from scripted_slots import DEADLINE_S, ScriptedSlots, Source, play, tokens_of, version
from streamed import stub_of, wholes

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.data.prompts.checking import stable
from rlax_plugin.testing import make_sampled
from rlax_plugin.weights.verification import take_version

pb = pytest.importorskip("jetstream.core.proto.jetstream_pb2")


class Bytes(SourceStub):
    """Each token is a byte."""

    def __init__(self, *stop_strings: str):
        self.stop_ids, self.stop_strings = (), stop_strings

    def decode(self, tokens):
        return bytes(tokens.tolist()).decode(errors="replace")


class Channel:
    def __init__(self):
        self.messages: list[list[Any]] = []
        self.closed = False

    def add_result(self, samples):
        self.messages.append(samples)

    def close(self):
        self.closed = True


def sent(source, content, parts, finish="length"):
    """The messages of a request whose completions grow by ``parts``, the last of them whole."""
    channel = Channel()
    request = SimpleNamespace(return_channel=channel, prefill_content=content)
    replies = Replies(request, len(parts[0]), lambda: source, lambda work: work())
    for part in parts[:-1]:
        replies.so_far([sample(tokens, None) for tokens in part])
    assert not channel.closed
    replies.whole([sample(tokens, finish) for tokens in parts[-1]])
    assert channel.closed
    return channel.messages


def sample(tokens, finish):
    length = len(tokens)
    return make_sampled(
        0,
        tokens=np.array(list(tokens), np.int32),
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        finish=finish,
    )


class ByteFallback(Bytes):
    """Tokens from 256 on are words; of bytes that follow each other, all are text or none."""

    def decode(self, tokens):
        text = ""
        for is_byte, run in itertools.groupby(tokens.tolist(), lambda token: token < 256):
            if not is_byte:
                text += "".join(f" w{token}" for token in run)
                continue
            found = bytes(run)
            try:
                text += found.decode()
            except UnicodeDecodeError:
                text += "\ufffd" * len(found)
        return text


BYTES = st.one_of(st.text(), st.binary()).map(
    lambda x: list(x.encode() if isinstance(x, str) else x)
)
# Vocabularies have tokens for the characters of ASCII, so single bytes are of others.
FALLBACK = st.one_of(
    st.sampled_from(["é", "€", "😀"]).map(lambda x: list(x.encode())),
    st.lists(st.integers(128, 255), max_size=3),
    st.lists(st.integers(256, 300), max_size=3),
)


@given(
    st.one_of(
        st.tuples(st.just(Bytes), st.lists(BYTES, max_size=8)),
        st.tuples(st.just(ByteFallback), st.lists(FALLBACK, max_size=8)),
    ),
    st.lists(st.integers(1, 4), max_size=40),
    st.lists(st.text("aé€ w\n", min_size=1, max_size=4), max_size=2),
)
def test_texts_one_behind_the_other_are_the_text_of_the_whole(kind, steps, stop_strings):
    make, pieces = kind
    source, whole = make(*stop_strings), [token for piece in pieces for token in piece]
    places = [int(n) for n in np.cumsum(steps) if n < len(whole)]
    messages = sent(source, "a text", [[whole[:n]] for n in (*places, len(whole))])
    text = source.decode(np.array(whole, np.int32))
    ends = [found for stop in stop_strings if (found := text.find(stop)) >= 0]
    assert "".join(m.text[0] for (m,) in messages) == text[: min(ends, default=None)]
    assert [i for (m,) in messages for i in m.token_ids] == whole
    assert all(m.token_ids for (m,) in messages[:-1])


def test_text_is_decoded_less_often_as_it_grows_and_tokens_are_sent_at_once():
    parts = [[b"a" * n] for n in range(1, 1001)]
    by_text, by_token = sent(Bytes(), "a text", parts), sent(Bytes(), [1], parts)
    assert len(by_token) == 1000
    decoded = np.cumsum([len(m.token_ids) for (m,) in by_text])
    assert len(by_text) < 100 and decoded.sum() < 20 * 1000


@pytest.mark.parametrize(
    ("text", "stop_strings", "kept"),
    [
        ("abE", ("END",), "ab"),
        ("abEN", ("END", "BEND"), "ab"),
        ("abENd", ("END",), "abENd"),
        ("E", ("EE",), ""),
        ("", ("E",), ""),
    ],
)
def test_what_further_tokens_may_change_is_held_back(text, stop_strings, kept):
    assert stable(text, stop_strings) == kept


def test_a_tokenizer_that_takes_text_back_is_an_error():
    class Changing(Bytes):
        def decode(self, tokens):
            return "AB" if len(tokens) > 1 else "a"

    with pytest.raises(WorkerError, match="send token_content instead"):
        sent(Changing(), "a text", [[b"a"], [b"ab"]])
    messages = sent(Changing(), [1, 2], [[b"a"], [b"ab"]])  # asked for tokens, it gets them
    assert [(m.text, m.token_ids) for (m,) in messages] == [([], [97]), ([], [98])]


def test_several_completions_grow_at_their_own_pace_and_nothing_new_sends_nothing():
    messages = sent(Bytes(), [1], [[b"a", b""], [b"a", b""], [b"ab", b"xyz"], [b"ab", b"xyz"]])
    found = [[one.token_ids for one in message] for message in messages]
    assert found == [[[97], []], [[98], [120, 121, 122]], [[], []]]


class Halting(ScriptedSlots):
    """Halts before its third decode call."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def decode(self, weights, max_steps, stop_when_free):
        if sum(entry[0] == "decode" for entry in self.log) == 2:
            assert self.go.wait(DEADLINE_S)
        return super().decode(weights, max_steps, stop_when_free)


def request():
    content = pb.DecodeRequest.TokenContent(token_ids=range(3))
    return pb.DecodeRequest(max_tokens=20, token_content=content)


@pytest.mark.parametrize("mode", ["finish", "continue"])
def test_a_client_has_the_first_tokens_before_the_last_ones_are_generated(mode):
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        async with stub_of(engine) as stub:
            call, messages = stub.Decode(request(), timeout=DEADLINE_S), []
            async for message in call:
                messages.append(message)
                slots.go.set()
        assert len(messages) > 1 and len(wholes(messages[:1])[0].token_ids) <= 9
        (whole,) = wholes(messages)
        np.testing.assert_array_equal(whole.token_ids, tokens_of(whole.token_ids[0], 0, 20))

    play(scenario, Halting(), rollouts={"on_new_weights": mode})


def test_tokens_that_new_weights_may_discard_are_not_streamed():
    async def scenario(engine, slots):
        slots.go.set()
        await take_version(engine, version(0))
        async with stub_of(engine) as stub:
            (message,) = [m async for m in stub.Decode(request(), timeout=DEADLINE_S)]
        assert len(message.stream_content.samples[0].token_ids) == 20
        assert not any(entry[0] == "read" for entry in slots.log)

    play(scenario, Halting(), rollouts={"on_new_weights": "discard"})


def test_a_client_that_sends_a_text_receives_text_and_its_tokens():
    class Texts(Source):
        def encode(self, text):
            return [len(text)]

    async def scenario(engine, slots):
        engine.prompt_source = Texts
        await take_version(engine, version(0))
        content = pb.DecodeRequest.TextContent(text="abc")
        asked = pb.DecodeRequest(max_tokens=20, text_content=content)
        async with stub_of(engine) as stub:
            (whole,) = wholes([m async for m in stub.Decode(asked, timeout=DEADLINE_S)])
        assert len(whole.token_ids) == 20
        assert whole.text == Texts().decode(np.array(whole.token_ids))

    play(scenario)
