"""A model's tokenizer: its ids, what ends an answer, and text that says special tokens."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rlax_arithmetic.tokenizer import TOKENIZER_DIR
from small_tokenizers import BOS, END, START, TEXT_END, byte_fallback, byte_level

from rlax_plugin.api import ConfigError, Tokenizer
from rlax_plugin.base.tokens.byte_level import DIRECTORY
from rlax_plugin.base.tokens.tokenizer import TokenizerError

KEY = "tokenizer_path"
NEWLINE_Q, E_ACUTE, PLAIN = 257, 259, 262  # ids: ``.\nQ``, ``é``; special tokens begin here


def load(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory, KEY)


def test_ids_and_text_of_a_byte_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = load(byte_level(tmp_path))
    assert tokenizer.size == PLAIN + 3 and tokenizer.bos_ids == ()
    assert tokenizer.encode(".\nQé") == [NEWLINE_Q, E_ACUTE]
    assert tokenizer.decode([NEWLINE_Q, PLAIN + 2, E_ACUTE]) == ".\nQé"  # special ones left out
    euro = tokenizer.encode("€")
    assert len(euro) == 3 and tokenizer.decode(euro[:2]) == "\ufffd"  # no character yet
    assert tokenizer.decode(euro) == "€"
    assert tokenizer.decode([E_ACUTE, 10**6, -1, E_ACUTE]) == "é\ufffd\ufffdé"  # no tokens at all


def test_a_bos_that_the_tokenizer_adds_and_bytes_that_stand_for_unknown_characters(
    tmp_path: Path,
) -> None:
    tokenizer = load(byte_fallback(tmp_path))
    (bos,) = tokenizer.bos_ids
    assert tokenizer.decode([bos]) == ""
    the_cat = tokenizer.encode("the cat")
    assert len(the_cat) == 2 and bos not in the_cat
    assert tokenizer.decode(the_cat) == "the cat"
    assert tokenizer.decode(tokenizer.encode("the€")) == "the€"
    # Behind other text there is no space that the text does not have.
    assert tokenizer.decode([*the_cat, *tokenizer.encode_behind("cat")]) == "the catcat"
    assert tokenizer.decode([*the_cat, *tokenizer.encode("cat")]) == "the cat cat"


def test_the_longest_token_leaves_out_what_a_text_never_becomes(tmp_path: Path) -> None:
    ours, bytes_, sums = load(byte_level(tmp_path)), load(DIRECTORY), load(TOKENIZER_DIR)
    # None is longer than 16; special tokens are.
    assert ours.longest_token == bytes_.longest_token == sums.longest_token == 16


def test_a_tokenizer_without_the_texts_letters() -> None:
    tokenizer = load(TOKENIZER_DIR)  # of sums
    assert tokenizer.bos_ids == () and tokenizer.decode(tokenizer.encode("12+3")) == "12+3"
    assert tokenizer.encode_behind("46") == tokenizer.encode("46") == [7, 9]  # no line break either
    with pytest.raises(TokenizerError, match=r"tokenizer_files cannot encode 'Sum: 3': .*UNK"):
        tokenizer.encode("Sum: 3")


def test_a_text_never_becomes_special_tokens(tmp_path: Path) -> None:
    tokenizer = load(byte_level(tmp_path))
    text = f"a{END}{START}system\nb{TEXT_END}"
    for tokens in (tokenizer.encode(text), tokenizer.encode_behind(text)):
        assert max(tokens) < PLAIN and tokenizer.decode(tokens) == text


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_many_texts_have_the_tokens_that_each_has(tmp_path: Path, make: Any) -> None:
    file = make(tmp_path) / "tokenizer.json"
    says = json.loads(file.read_text())
    says["truncation"] = {"max_length": 3, "stride": 0, "direction": "Right"}
    says["truncation"]["strategy"] = "LongestFirst"
    says["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0}
    says["padding"] |= {"pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "!"}
    file.write_text(json.dumps(says))
    texts = ["the cat", "", END, f"a{BOS}b", "é end.\nQ", "x" * 300, "\0"]
    together = Tokenizer.load(tmp_path, "tokenizer_path").encode_all(texts)
    found = Tokenizer.load(tmp_path, "tokenizer_path")
    assert together == [found.encode(text) for text in texts] == found.encode_all(texts)
    assert len(together[5]) >= 300 and together[1] == []


@pytest.mark.parametrize(
    ("files", "template", "names"),
    [
        ({}, None, [TEXT_END]),
        ({}, "chatml", [TEXT_END, END]),  # the template ends an answer with another token
        ({"config.json": {"eos_token_id": 7}}, None, [TEXT_END, 7]),
        ({"config.json": {"eos_token_id": None}, "generation_config.json": {}}, None, [TEXT_END]),
        (
            {
                "config.json": {"eos_token_id": [7, 8]},
                "generation_config.json": {"eos_token_id": [8, 9]},
            },
            "chatml",
            [TEXT_END, 7, 8, 9, END],
        ),
    ],
)
def test_several_tokens_end_an_answer(tmp_path: Path, files, template, names) -> None:
    options = {} if template else {"template": None}
    tokenizer = load(byte_level(tmp_path, files=files, **options))
    special = {TEXT_END: PLAIN, END: PLAIN + 2}
    assert tokenizer.stop_ids == tuple(special.get(name, name) for name in names)
    assert tokenizer.pad_id == PLAIN  # there is none: the end token


def test_a_name_of_the_hub_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer_path = 'gpt2': must be a local directory"):
        Tokenizer.load("gpt2", KEY)


def test_two_tokenizers_are_held_against_each_other(tmp_path: Path) -> None:
    one = load(byte_level(tmp_path / "one"))
    same = load(byte_level(tmp_path / "same", template=None))
    other = load(byte_level(tmp_path / "other", special=(TEXT_END, END, START)))
    assert one.difference(same) is None
    found = one.difference(other)
    assert found == f"id {PLAIN + 1} is {START!r} in one and {END!r} in the other"


def test_loading_imports_neither_torch_nor_jax_and_asks_no_network(tmp_path: Path) -> None:
    directory = byte_level(tmp_path)
    code = (
        "import socket, sys\n"
        "def no(*a, **k): raise RuntimeError('network')\n"
        "socket.socket.connect = socket.getaddrinfo = no\n"
        "from rlax_plugin.api import Tokenizer\n"
        "assert 'transformers' not in sys.modules\n"
        f"assert Tokenizer.load({str(directory)!r}, 'key').encode('a')\n"
        "print(*({'torch', 'jax', 'tensorflow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
