"""Sources ``hf`` and ``tfds``: data that their libraries have written, read by another process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_sets import tables, tokenizer
from rlax_datasets import HuggingFaceConfig, HuggingFaceSource, TfdsConfig, TfdsSource
from rlax_datasets.values import plain

from rlax_plugin.api import ConfigError, PromptTable

ROWS = [
    {
        "question": f"{n} é?",
        "answer": str(n),
        "level": n,
        "share": n / 2,
        "tags": ["a", "b"],
        "talk": [{"role": "user", "content": f"say {n}"}],
    }
    for n in range(20)
]
WRITE_TFDS = """
import sys, json
import numpy as np
import tensorflow_datasets as tfds
rows, directory = json.load(open(sys.argv[1])), sys.argv[2]
f = tfds.features
features = f.FeaturesDict({
    "question": f.Text(), "answer": f.Text(), "level": np.int64, "share": np.float32,
    "tags": f.Sequence(f.Text()), "talk": f.Sequence({"role": f.Text(), "content": f.Text()}),
})
splits = {"train": list(enumerate(rows[:15])), "test": list(enumerate(rows[15:]))}
tfds.dataset_builders.store_as_tfds_dataset(
    "sums", "1.0.0", features, splits,
    data_dir=directory, disable_shuffling=True,
)
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))


def hf(dataset: Path | str, chat: bool = False, **options: Any) -> HuggingFaceSource:
    config = HuggingFaceConfig.model_validate({"dataset": str(dataset), **options})
    return HuggingFaceSource(config, tokenizer(chat=chat), max_tokens=1000)


def tfds(dataset: Path | str, chat: bool = False, **options: Any) -> TfdsSource:
    config = TfdsConfig.model_validate({"dataset": str(dataset), **options})
    return TfdsSource(config, tokenizer(chat=chat), max_tokens=1000)


def refusal(source: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        tables(source)
    return str(raised.value)


def check(train: PromptTable, test: PromptTable) -> None:
    """The first 15 rows and the last five."""
    assert [one.reference for one in train] == [str(n) for n in range(15)]
    assert [one.text for one in test] == [f"{n} é?" for n in range(15, 20)]
    talk = [{"role": "user", "content": "say 3"}]
    expected = {"level": 3, "share": 1.5, "tags": ["a", "b"], "talk": talk}
    assert dict(train[3].metadata) == expected


# hf.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import datasets

    directory = tmp_path_factory.mktemp("saved")
    train, test = datasets.Dataset.from_list(ROWS[:15]), datasets.Dataset.from_list(ROWS[15:])
    datasets.DatasetDict({"train": train, "dev": test}).save_to_disk(str(directory / "splits"))
    train.save_to_disk(str(directory / "one"))
    (directory / "files").mkdir()
    train.to_parquet(str(directory / "files/train.parquet"))
    return directory


def test_a_directory_that_save_to_disk_wrote(saved: Path) -> None:
    source = hf(saved / "splits", splits={"train": "train", "test": "dev"}, question="question")
    check(source.prompts("train"), source.prompts("test"))  # in a process of its own
    assert source.prompts("test").place_of(1) == f"{saved}/splits, dev, row 2,"
    files = source.identity()["files"]["train"]
    assert {Path(one["path"]).name for one in files} >= {"dataset_dict.json", "state.json"}


def test_a_data_set_without_splits_and_messages_as_questions(saved: Path) -> None:
    found = tables(hf(saved / "one", chat=True, question="talk", held_out={"test": 0.3}))
    assert len(found["train"]) + len(found["test"]) == 15
    said = {one.text for some in found.values() for one in some}
    assert said == {f"user: say {n}" for n in range(15)}


def test_files_in_a_directory(saved: Path) -> None:
    found = tables(hf(saved / "files", splits={"train": "train[5:8]"}, question="question"))
    assert [one.reference for one in found["train"]] == ["5", "6", "7"]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("splits", {"splits": {"train": "train", "test": "test"}}, "splits.test = 'test': is no"),
        ("one", {"splits": {"train": "train"}}, "splits = ['train']: must be empty: the directory"),
        ("one", {"subset": "main"}, "subset = 'main': must be empty: a directory that"),
        ("one", {"question": "prompt"}, "question = 'prompt': the data has no column 'prompt'; "),
        ("files", {"splits": {"train": "dev"}}, "splits.train = 'dev': is no split of "),
    ],
)
def test_what_is_wrong_with_a_directory(
    saved: Path, dataset: str, options: dict[str, Any], message: str
) -> None:
    said = refusal(hf(saved / dataset, **{"question": "question"} | options))
    assert said.startswith(f"rlax.prompt_source.{message}") and "\n" not in said


def test_without_a_network_one_sentence_says_so(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        hf("somebody/some-questions").prompts("train")
    assert str(raised.value).startswith(
        "rlax.prompt_source.dataset = 'somebody/some-questions': is no directory, and the Hugging "
        "Face hub cannot be reached ("
    )
    assert "\n" not in str(raised.value) and "save_to_disk" in str(raised.value)
    said = refusal(hf(tmp_path / "nowhere"))
    assert said.endswith("nowhere': does not exist, or is no directory")
    (tmp_path / "damaged").mkdir()
    for path in (saved / "one").iterdir():
        (tmp_path / "damaged" / path.name).write_bytes(path.read_bytes()[:50])
    said = refusal(hf(tmp_path / "damaged"))
    assert "damaged': cannot be loaded: " in said and "\n" not in said


# tfds.


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import json

    directory = tmp_path_factory.mktemp("prepared")
    (directory / "rows.json").write_text(json.dumps(ROWS))
    command = [sys.executable, "-c", WRITE_TFDS, str(directory / "rows.json"), str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return directory


@pytest.mark.long
def test_what_store_as_tfds_dataset_wrote_by_name_and_as_a_directory(prepared: Path) -> None:
    splits = {"train": "train", "test": "test"}
    source = tfds("sums", data_dir=str(prepared), splits=splits, question="question")
    check(source.prompts("train"), source.prompts("test"))
    assert source.prompts("train").place_of(0).startswith("sums, train, example 1 (sums-train.")
    assert any(one["path"].endswith("features.json") for one in source.identity()["files"]["train"])
    directory = tfds(
        prepared / "sums/1.0.0",
        chat=True,
        question="talk",
        splits={"train": ["train[:2]", "test[:1]"], "test": "dev"},
    )
    with pytest.raises(ConfigError) as raised:
        directory.prompts("train")
    said = str(raised.value)
    assert said.startswith("rlax.prompt_source.splits.test = 'dev': is no split that can be read (")
    assert said.endswith("; there are: test, train")


@pytest.mark.long
def test_tensorflow_stays_in_the_process_that_reads(prepared: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path += sys.argv[3:]\n"
        "from test_datasets_libraries import tfds\n"
        "found = tfds('sums', data_dir=sys.argv[1], chat=True, question='talk').prompts('train')\n"
        "print(len(found), found[0].text, 'tensorflow' in sys.modules, 'datasets' in sys.modules)"
    )
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1] / "helpers")]
    done = subprocess.run(
        [sys.executable, "-c", program, str(prepared), "-", *paths],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.stdout.split("\n")[0] == "15 user: say 0 False False", done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("summs", "is no data set that is registered, nor one that was prepared in "),
        ("gsm8k", "gsm8k/1.0.0: set download: true, or prepare it with tfds build"),
    ],
)
def test_a_data_set_that_is_not_there(prepared: Path, dataset: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tfds(dataset, data_dir=str(prepared)).prompts("train")
    said = str(raised.value)
    assert message in said and said.startswith(f"rlax.prompt_source.dataset = '{dataset}': is no")
    assert "\n" not in said


def test_a_path_must_be_that_of_a_version(tmp_path: Path) -> None:
    assert "has no dataset_info.json: it must be the directory of a version" in refusal(
        tfds(tmp_path)
    )


def test_values_become_plain() -> None:
    many = {"role": np.array([b"user", b"tool"], object), "content": ["a", "b"]}
    assert plain(many) == [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]
    assert plain({"role": ["user"], "content": []}) == {"role": ["user"], "content": []}
    values = [
        np.int64(3),
        np.bool_(True),
        np.str_("x"),
        b"\xc3\xa9",
        b"\xff",
        np.ones((1, 2)),
        (1,),
    ]
    found = plain(values)
    assert found == [3, True, "x", "é", b"\xff", [[1.0, 1.0]], [1]]
    assert [type(one) for one in found[:3]] == [int, bool, str]
