"""How much longer a text can become in a tokenizer, as calculated by hand."""

import base64
from typing import Any

import pytest

from rlax_plugin.base.tokens import growth
from rlax_plugin.base.tokens.growth import growth_faults, growth_faults_of_model

Step = dict[str, Any]


def replace(old: str, new: str) -> Step:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def matched(pattern: str, new: str) -> Step:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": new}


def charsmap(*texts: str) -> Step:
    data = (4).to_bytes(4, "little") + b"trie" + "\0".join(texts).encode()
    encoded = base64.b64encode(data).decode()
    return {"type": "Precompiled", "precompiled_charsmap": encoded}


PREPEND = {"type": "Prepend", "prepend": "▁"}
GROWTHS: dict[str, tuple[float, list[Step]]] = {
    "nothing": (1, []),
    "Llama 2": (1, [PREPEND, replace(" ", "▁")]),
    "GPT": (5, [{"type": "Split"}, {"type": "ByteLevel", "add_prefix_space": True}]),
    "BERT": (3, [{"type": "BertNormalizer"}]),
    "XLM-R": (18, [charsmap("a", "b" * 18, ""), matched(" {2,}", " ")]),
    "three of one": (3, [replace("a", "xyz")]),
    "one after the other": (4, [replace("a", "bb"), replace("b", "cc")]),
    "doubled": (512, [replace("a", "aa")] * 9),
    "ten that replace": (1, [matched(r"[^\p{L}\s]+|(?:\r\n)", " ")] * 10),
    "two for each": (8, [matched(r"\s", "  ")] * 3),
    "perhaps at an edge": (8, [matched(r"\b|a", " ")] * 3),
    "between all": (27, [matched("x*", "ab")] * 3),
    "an empty pattern": (8, [replace("", "a")] * 3),
    "put in front": (12, [{"type": "Prepend", "prepend": "abc"}, replace("a", "a" * 10)]),
}


@pytest.mark.parametrize("case", GROWTHS)
def test_growth_is_that_of_the_worst_text(case: str) -> None:
    expected, steps = GROWTHS[case]
    assert growth._growth_of_text(steps) == expected


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
def test_more_than_a_thousand_is_a_fault(part: str) -> None:
    names = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    nested: Step = {"type": "Sequence", names[part]: [replace("a", "aa")] * 9}
    assert list(growth_faults({part: nested})) == []
    nested = {"type": "Sequence", names[part]: [nested, replace("a", "aa")]}
    fault = f"has a {part} that can make a text 1.02e+03 times as long: at most 1000"
    assert list(growth_faults({part: nested})) == [fault]
    many = {"type": "Sequence", names[part]: [{"type": "NFC"}] * 1001}
    assert list(growth_faults({part: many})) == [f"has a {part} of more than 1000 steps"]


def test_a_template_repeats_the_text_and_adds_tokens() -> None:
    text, special = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x"}}
    tokens = {"x": {"id": "x", "ids": [1] * 100, "tokens": []}}
    one = {"type": "TemplateProcessing", "single": [special, text], "special_tokens": tokens}
    assert growth._growth_of_tokens([one]) == 100
    assert growth._growth_of_tokens([one | {"single": [text] * 3}] * 2) == 9
    ten = {"type": "Sequence", "processors": [one] * 10}
    assert list(growth_faults({"post_processor": ten})) == []
    ten["processors"] = [one] * 11
    assert len(list(growth_faults({"post_processor": ten}))) == 1


def test_the_charsmap_of_a_file_of_sentencepiece_is_checked() -> None:
    before = b"\x0a\x03abc" + b"\x20\x96\x01" + b"\x2d1234"  # a text, a number, a float
    charsmap = (8).to_bytes(4, "little") + b"abc"
    spec = b"\x0a\x01x" + b"\x12\x07" + charsmap
    message = before + b"\x1a" + bytes([len(spec)]) + spec
    says = "has a precompiled_charsmap of 7 bytes that says it has 12"
    assert list(growth_faults_of_model(message)) == [says]
    charsmap = (8).to_bytes(4, "little") + bytes(8) + b"a" * 1001
    spec = b"\x12\xf5\x07" + charsmap  # 0xf5, 0x07: 117 + 7 * 128 = 1013
    message = before + b"\x1a\xf8\x07" + spec
    says = "has a normalizer that can make a text 1e+03 times as long: at most 1000"
    assert list(growth_faults_of_model(message)) == [says]
    for text in (b"", b"IQ== 0\nIg== 1\n", b"\x1a\xff", b"\xff" * 100, message[:9], b"\x1b\x1b"):
        assert list(growth_faults_of_model(text)) == []


def test_what_is_no_component_is_left_to_the_library() -> None:
    for odd in (5, "a", [1], {"normalizers": 5}, {"normalizers": [5]}, charsmap("") | {"type": 5}):
        assert list(growth_faults({part: odd for part in ("normalizer", "post_processor")})) == []
