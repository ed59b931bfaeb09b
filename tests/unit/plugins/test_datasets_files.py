"""Files of every sort, also broken ones: each row is a prompt, or has one clear error by place."""

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sets import jsonl, tables, tokenizer, write_lines
from rlax_datasets import JsonlConfig, JsonlSource, ParquetConfig, ParquetSource
from small_tokenizers import byte_level

from rlax_plugin.api import BuildContext, ConfigError, PromptTable, Tokenizer
from rlax_plugin.base.tokens.rendering import RenderLimits
from rlax_plugin.build import Registry
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.ports.manager import Manager

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(9)]
TEXT = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def parquet(path: Path | str, **options: Any) -> ParquetSource:
    config = ParquetConfig.model_validate({"path": str(path), **options})
    return ParquetSource(config, tokenizer(), max_tokens=1000)


def references(table: PromptTable) -> list[str]:
    return [prompt.reference for prompt in table]


def refusal(source: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        tables(source)
    return str(raised.value)


ALL = [row["answer"] for row in ROWS]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("plain.jsonl", TEXT),
        ("bom.jsonl", b"\xef\xbb\xbf" + TEXT),
        ("blank.jsonl", b"\n \n" + TEXT.replace(b"\n", b"\n\n") + b"\t\n"),
        ("a.jsonl.gz", gzip.compress(TEXT)),
        ("a.jsonl.bz2", bz2.compress(TEXT)),
        ("a.jsonl.xz", lzma.compress(TEXT)),
        ("a.jsonl.zst", pa.compress(TEXT, codec="zstd", asbytes=True)),
    ],
)
def test_json_lines_as_they_come(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert references(tables(jsonl(tmp_path / name))["train"]) == ALL


def test_patterns_lists_and_splits(tmp_path: Path) -> None:
    for number, name in enumerate(("b", "a", "c")):
        write_lines(tmp_path / f"{name}.jsonl", ROWS[3 * number : 3 * number + 3])
    in_order = ["4", "5", "6", "1", "2", "3", "7", "8", "9"]
    assert references(tables(jsonl(tmp_path / "*.jsonl"))["train"]) == in_order
    paths = [str(tmp_path / f"{name}.jsonl") for name in "ba"]
    found = tables(jsonl("", splits={"train": paths, "test": str(tmp_path / "[c].jsonl")}))
    assert references(found["train"]) == ALL[:6] and references(found["test"]) == ALL[6:]
    assert found["train"].place_of(4) == f"{tmp_path}/a.jsonl, line 2,"


def test_files_of_another_file_system() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/rlax-data/one.jsonl", TEXT)
    source = jsonl("memory://rlax-data/*.jsonl")
    table = tables(source)["train"]
    assert references(table) == ALL
    assert table.place_of(0) == "memory:///rlax-data/one.jsonl, line 1,"
    before = source.identity()
    fs.pipe("/rlax-data/one.jsonl", TEXT[: len(TEXT) // 2] + TEXT[len(TEXT) // 2 :])
    assert source.identity() != before  # written anew


def test_parquet_rows_with_nested_columns(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{n}?", "reward_model": {"ground_truth": str(n)}, "tags": ["a", None], "n": n}
        for n in range(600)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=100)
    source = parquet(tmp_path / "a.parquet", reference="reward_model.ground_truth")
    table = tables(source)["train"]
    assert len(table) == 600 and table[599].reference == "599"
    expected = {name: value for name, value in rows[7].items() if name != "prompt"}
    assert table[7].metadata == expected
    assert table.place_of(300) == f"{tmp_path}/a.parquet, row 301,"


def test_broken_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(TEXT)
    said = refusal(parquet(path))
    assert said.startswith(f"rlax.prompt_source.path = '{path}': cannot be read: Parquet magic")
    table = pa.table({"prompt": [str(n) for n in range(5000)], "x": [float("nan")] * 5000})
    pq.write_table(table, path, row_group_size=1000, compression="none")
    assert f"{path}, row 1, has a value in 'x' that JSON cannot hold" in refusal(parquet(path))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 400] = b"\xff" * 400
    path.write_bytes(data)
    assert f"path = '{path}': cannot be read: " in refusal(parquet(path, metadata=[]))
    columns = [pa.array(["a"]), pa.array(["1"]), pa.array(["2"])]
    pq.write_table(pa.table(columns, names=["prompt", "answer", "answer"]), path)
    assert refusal(parquet(path)).endswith("has two columns with the name 'answer'")


BROKEN_LINES = {
    "no JSON": (b'{"prompt": "x"', "is no JSON: Expecting ',' delimiter"),
    "a list": (b'["x"]', "is no JSON object, but list"),
    "NaN": (b'{"prompt": "x", "answer": NaN}', "is no JSON: NaN is no number in JSON"),
    "latin-1": ('{"prompt": "ü"}'.encode("latin-1"), "is not in UTF-8 (byte 0xfc at position 12)"),
    "huge number": (b'{"prompt": "x", "answer": 1%s}' % (b"0" * 5000), "is no JSON: Exceeds the"),
    "deep": (b'{"prompt": "x", "answer": %s' % (b"[" * 200_000), "is nested too deeply"),
    "10 MB": (b'{"prompt": "%s", "answer": "1"}' % (b"x" * 10_000_000), "has more than max_row"),
    "10 MB, no end": (b"x" * 10_000_000, "has more than max_row_bytes = 8,000,000 bytes"),
}


@pytest.mark.parametrize("case", BROKEN_LINES)
def test_a_broken_line_is_named_or_counted(tmp_path: Path, case: str) -> None:
    line, message = BROKEN_LINES[case]
    path = write_lines(tmp_path / "a.jsonl", [*ROWS[:2], line, *ROWS[2:]])
    said = refusal(jsonl(path))
    assert f"rlax.prompt_source.broken = 'error': {path}, line 3, " in said and message in said
    assert said.endswith("Mend the row, or set broken: skip to leave such rows out")
    assert len(said) < 600 and said.isprintable()
    table = tables(jsonl(path, broken="skip"))["train"]
    assert references(table) == ALL and table.skipped["broken"].count == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TEXT.decode().encode("utf-16"), "must be in UTF-8, and seems to be UTF-16"),
        (TEXT.decode().encode("utf-16-be"), "must be text in UTF-8, and has zero bytes (UTF-16?)"),
        (gzip.compress(TEXT), "must be in UTF-8, and seems to be gzip (without .gz)"),
    ],
)
def test_files_in_another_encoding(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    for broken in ("error", "skip"):
        said = refusal(jsonl(tmp_path / "a.jsonl", broken=broken))
        assert said == f"rlax.prompt_source.path = '{tmp_path}/a.jsonl': {message}"


def test_compressed_files_that_are_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(TEXT * 1000)[:-20])
    assert "a.jsonl.gz': cannot be read: " in refusal(jsonl(tmp_path / "a.jsonl.gz"))
    (tmp_path / "b.jsonl.gz").write_bytes(TEXT)
    assert "b.jsonl.gz': cannot be read: Not a gzipped file" in refusal(jsonl(tmp_path / "b*"))


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    source = jsonl(tmp_path / "a.jsonl")
    source.prepare = tables
    with pytest.raises(ConfigError, match="split 'train' has no prompts: the data set is empty"):
        source.prompts("train")


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch) -> None:
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    source = jsonl(path)
    rows = source.rows

    def written_meanwhile(split: str) -> Any:
        for number, row in enumerate(rows(split)):
            if number == 4:
                write_lines(path, [*ROWS, *ROWS])
            yield row

    monkeypatch.setattr(source, "rows", written_meanwhile)
    assert refusal(source) == (
        f"rlax.prompt_source.splits: the data changed while it was read: {path} was written to"
    )


def test_paths_that_are_wrong_are_found_before_anything_is_read(tmp_path: Path) -> None:
    registry = Registry(Manager(["rlax_datasets"]))
    key, kind = "rlax.prompt_source", "prompt_source"
    section = RlaxSection.model_validate({kind: {"name": "jsonl"}, "rewards": [{"name": "x"}]})
    check_start = registry.offer(kind, "jsonl", key).extension.check_start
    assert check_start is not None

    def said(**options: Any) -> str:
        with pytest.raises(ConfigError) as raised:
            config = registry.options(kind, Choice(name="jsonl", **options), key)
            check_start(config, BuildContext.outside_run(section))
        return str(raised.value)

    path = f"{key}.path"
    assert said() == (f"{path}: must be given, or splits in its place")
    both = f"does not exist, neither in the directory of the config nor in {os.getcwd()}"
    assert said(path="nowhere.jsonl") == f"{path} = 'nowhere.jsonl': {both}"
    assert said(path="/nowhere/x.jsonl") == f"{path} = '/nowhere/x.jsonl': does not exist"
    assert said(path=f"{tmp_path}/*.jsonl") == f"{path} = '{tmp_path}/*.jsonl': does not exist"
    assert "is a directory, and must be a file" in said(path=str(tmp_path))
    assert said(splits={"train": "/nowhere/y"}).startswith("rlax.prompt_source.splits.train = ")
    assert said(path="x", splits={"train": "x"}) == (
        f"{path} = 'x': must not be given together with splits"
    )


def test_a_chat_template_that_runs_on_names_the_row(tmp_path: Path) -> None:
    slow = (
        "{% for m in messages %}{% if m.content == '5+1=' %}"
        + "".join(f"{{% for i{n} in range(9999) %}}" for n in range(5))
        + "{% endfor %}" * 5
        + "{% endif %}{{ m.content }}{% endfor %}"
    )
    model = byte_level(tmp_path / "model", template=slow)
    limited = Tokenizer.load(model, "tokenizer_path", limits=RenderLimits(render_s=0.3))
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    said = refusal(JsonlSource(JsonlConfig(path=str(path)), limited, max_tokens=1000))
    assert f"{path}, line 6, cannot be encoded: the chat template in {model}" in said
    assert "it took longer than 0.3 s (rlax.deadlines.template_s)" in said
