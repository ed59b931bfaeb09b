"""Broken files of a tokenizer: the message names the file and what is wrong with it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import END, byte_level

from rlax_plugin.api import ConfigError, Tokenizer
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.tokens.tokenizer import TokenizerError
from rlax_plugin.base.tokens.tokenizer_files import digest

KEY = "tokenizer_path"
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"


def changed(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes what a file says."""

    def write(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        change(content)
        (directory / name).write_text(json.dumps(content))

    return write


def said(name: str, **values: Any) -> Callable[[Path], None]:
    """Changes keys of a file; Ellipsis removes one."""

    def change(content: dict[str, Any]) -> None:
        for key, value in values.items():
            content[key] = value
            if value is ...:
                del content[key]

    return changed(name, change)


def written(name: str, text: str | bytes) -> Callable[[Path], None]:
    """Replaces a file."""
    data = text.encode() if isinstance(text, str) else text
    return lambda directory: (directory / name).write_bytes(data) and None


def words(**ids: object) -> Callable[[Path], None]:
    """Changes ids of tokens."""
    return changed(TOKENIZER, lambda content: content["model"]["vocab"].update(ids))


def truncated(directory: Path) -> None:
    path = directory / TOKENIZER
    path.write_bytes(path.read_bytes()[:500])


def pipe(directory: Path) -> None:
    os.mkfifo(directory / "special_tokens_map.json")


def linked(name: str, target: str) -> Callable[[Path], None]:
    """Puts a link in the place of a file."""

    def link(directory: Path) -> None:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(target)
        if not (directory / name).exists():
            (directory / name).resolve().parent.mkdir()
            (directory / name).touch()

    return link


def added(**values: Any) -> Callable[[Path], None]:
    return changed(TOKENIZER, lambda content: content["added_tokens"][2].update(values))


def precompiled(charsmap: str) -> Callable[[Path], None]:
    return said(TOKENIZER, normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap})


MISSING = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}} | {
    "single": [{"SpecialToken": {"id": "nothing", "type_id": 0}}]
}
DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
LONG = {"type": "TemplateProcessing", "pair": []} | {
    "single": [
        {"SpecialToken": {"id": "x", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "special_tokens": {"x": {"id": "x", "ids": [0] * 2000, "tokens": ["!"] * 2000}},
}
DECODER = {"9999": {"content": "<strange>", "special": True}}
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "gone": (lambda directory: (directory / TOKENIZER).unlink(), "has no tokenizer.json, and no"),
    "truncated": (truncated, "tokenizer.json cannot be read: Unterminated string"),
    "deep": (written(CONFIG, "[" * 100_000), "tokenizer_config.json cannot be read: maximum rec"),
    "no text": (written(TOKENIZER, b"\xff\xfe{"), "tokenizer.json cannot be read: 'utf-16"),
    "a list": (written(TOKENIZER, "[]"), "tokenizer.json must hold a JSON object, not a list"),
    "a pipe": (pipe, "special_tokens_map.json is no file"),
    "a link of a template": (
        linked("chat_template.jinja", "/proc/self/environ"),
        "chat_template.jinja is a link to '/proc/.*/environ', outside this directory: put a copy",
    ),
    "a link to a neighbour": (
        linked("additional_chat_templates/a.jinja", "../../model-2/secret"),
        "additional_chat_templates/a.jinja is a link to '.*/model-2/secret', outside",
    ),
    "two of one id": (words(a=66), "tokenizer.json gives the id 66 to two tokens, '.' and '.'"),
    "merges": (
        changed(TOKENIZER, lambda content: content["model"]["merges"].append(["zq", "a"])),
        "tokenizer.json is no tokenizer: Token `zq` out of vocabulary",
    ),
    "no added_tokens": (
        said(TOKENIZER, added_tokens=...),
        "tokenizer.json has no added_tokens, which must be a list",
    ),
    "another id": (added(id=999), rf"tokenizer.json says .* '{END}' has the id 999, .* the id 264"),
    "another id in the config": (
        said(CONFIG, added_tokens_decoder=DECODER),
        "tokenizer_config.json says that the token '<strange>' has the id 9999, and it gets the id",
    ),
    "decoder a list": (said(CONFIG, added_tokens_decoder=[1]), "tokenizer_config.json"),
    "longest": (
        said(CONFIG, model_max_length="4096"),
        "tokenizer_config.json has the model_max_length '4096', which must be a number",
    ),
    "eos a number": (said(CONFIG, eos_token=5), "no tokenizer .* from tokenizer_config.json"),
    "class": (said(CONFIG, tokenizer_class=5), "no tokenizer .* from tokenizer_config.json"),
    "panic of Rust": (
        precompiled("AAAA"),
        "tokenizer.json is no tokenizer: the library panics: Pre",
    ),
    "panic while encoding": (
        said(TOKENIZER, post_processor=MISSING),
        "tokenizer.json has a broken post_processor: the library panics: no entry found",
    ),
    "dropout": (
        said(TOKENIZER, model={"type": "BPE", "dropout": 0.1, "vocab": {"a": 0}, "merges": []}),
        "tokenizer.json has the model.dropout 0.1, which must be null: a text would have other",
    ),
    "replacements": (
        said(TOKENIZER, normalizer={"type": "Sequence", "normalizers": 12 * [DOUBLED]}),
        r"tokenizer.json has a normalizer that can make a text 4\.1e\+03 times",
    ),
    "a long template": (
        said(TOKENIZER, post_processor=LONG),
        "tokenizer.json has a post_processor that can make a text 2e",
    ),
    "a charsmap": (precompiled("CAAAAP///////w=="), "precompiled_charsmap of 10 bytes that says"),
    "a charsmap of SentencePiece": (
        written("spiece.model", b"\x1a\x09\x12\x07\x08\0\0\0abc"),
        "spiece.model has a precompiled_charsmap of 7 bytes that says it has 12",
    ),
    "other files": (
        said(CONFIG, fast_tokenizer_files=["../tokenizer.1.json"]),
        "tokenizer_config.json has fast_tokenizer_files, which must not",
    ),
    "extra tokens": (
        said(CONFIG, extra_ids=1 << 21),
        "tokenizer_config.json has the extra_ids 2097152, which must be at most 1048576",
    ),
    "end": (
        written("generation_config.json", '{"eos_token_id": "a"}'),
        "generation_config.json has",
    ),
    "end beyond all ids": (
        written("generation_config.json", '{"eos_token_id": 9999999999}'),
        r"generation_config.json has eos_token_id \[9999999999\], and must have token ids there",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BROKEN.values(), ids=BROKEN)
def test_the_file_is_named(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    directory = byte_level(tmp_path / "model")
    spoil(directory)
    with pytest.raises(ConfigError, match=message) as raised:
        Tokenizer.load(directory, KEY)
    assert str(raised.value).startswith(f"{KEY} = {str(directory)!r}: ")
    assert "\n" not in str(raised.value)


def test_links_of_the_cache_of_a_hub_are_followed(tmp_path: Path) -> None:
    """Of the same repository only; a link within the directory, and one to it, is none outside."""
    repository = tmp_path / "models--an--example"
    snapshot = byte_level(repository / "snapshots" / "12ab")
    (repository / "blobs").symlink_to(tmp_path)  # a directory of a larger disk
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(tmp_path / f"{number:040x}")
        path.symlink_to(f"../../blobs/{number:040x}")
    (snapshot / "vocab.json").symlink_to("tokenizer_config.json")
    (snapshot / "model.safetensors.index.json").symlink_to("/etc/passwd")
    (snapshot / "LICENSE.txt").symlink_to("/etc/passwd")
    (snapshot / "trainer_state.json").symlink_to("/etc/passwd")
    (snapshot / "special_tokens_map.json").symlink_to("/etc/gone")
    (snapshot / "eval.json").mkdir()
    (tmp_path / "named").symlink_to(snapshot)
    assert Tokenizer.load(tmp_path / "named", KEY).size == 265
    (tmp_path / "secret").touch()
    (tmp_path / ("a" * 64)).symlink_to("secret")
    for blob in ("secret", "a" * 64):
        (snapshot / "merges.txt").symlink_to(f"../../blobs/{blob}")
        with pytest.raises(ConfigError, match=r"merges.txt is a link to '.*/secret', outside"):
            Tokenizer.load(snapshot, KEY)
        (snapshot / "merges.txt").unlink()


def test_ids_without_a_token_are_no_text(tmp_path: Path) -> None:
    """Tokenizers with holes exist; a model can generate such an id."""
    directory = byte_level(tmp_path / "model")
    words(Z=300)(directory)
    tokenizer = Tokenizer.load(directory, KEY)
    (z, b) = tokenizer.encode("Z") + tokenizer.encode("b")
    assert (z, tokenizer.size) == (300, 301)
    assert tokenizer.decode([z, 57, b, 299, 301, b]) == "Z\ufffdb\ufffd\ufffdb"


def test_what_has_a_huge_id_is_compared_at_once(tmp_path: Path) -> None:
    one, other = byte_level(tmp_path / "one"), byte_level(tmp_path / "other")
    for directory in (one, other):
        words(Z=(1 << 32) - 1)(directory)
    assert Tokenizer.load(one, KEY).difference(Tokenizer.load(other, KEY)) is None


def test_a_panic_while_decoding_is_an_error(tmp_path: Path) -> None:
    directory = byte_level(tmp_path / "model")
    said(TOKENIZER, decoder={"type": "Strip", "content": "Z", "start": 0, "stop": 9})(directory)
    tokenizer = Tokenizer.load(directory, KEY)
    with pytest.raises(TokenizerError, match="cannot decode 1 tokens: the library panics"):
        tokenizer.decode([57])


def test_the_digest_is_of_a_tokenizers_files_alone(tmp_path: Path) -> None:
    """Data beside it may be large; an unreadable file is one error with its name."""
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "added_tokens.json").write_text("{}")
    before = digest(tmp_path)
    with (tmp_path / "train.json").open("wb") as file:
        file.truncate(1 << 40)  # a file with a hole, which would be hashed for an hour
    assert digest(tmp_path) == before
    (tmp_path / "added_tokens.json").write_text("{ }")
    assert digest(tmp_path) != before
    with (tmp_path / "vocab.txt").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(RlaxError, match=r"vocab\.txt has more than 256 MiB"):
        digest(tmp_path)
