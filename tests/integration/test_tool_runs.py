"""A run of the environment ``tools``: calls, results and answers train, also if it is killed."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml
from processes import finished
from runs import CONFIG, DEADLINE_S
from small_tokenizers import write
from test_episode_runs import computed
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

ITEMS = "abcdefghijklmnopqrstuvwxyz"
END = "~"
# A call is one token, so that the bigram policy finds it. The last token before an answer is the
# question, or the result of a call.
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}~{% endif %}{% endfor %}"
    "{% if tools %}{% endif %}"  # it says that it reads them
)
FUNCTIONS = '''
def price(of: str) -> int:
    """Returns the price of an item.

    Args:
        of: name of the item
    """
    return ord(of) % 10


def counted(completion, reference):
    return 1.0 if completion == reference else 0.5 * completion.isdigit()
'''


def prepare(directory: Path) -> None:
    directory.mkdir()
    calls = [f"[price(of='{item}')]" for item in ITEMS]
    known = {text: i for i, text in enumerate(["?", *"0123456789", *ITEMS, *calls])}
    tokenizer = Tokenizer(models.WordLevel(known, "?"))
    split = Regex(r"\[price\(of='.'\)\]|[\s\S]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(split, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    write(directory / "model", tokenizer, special=[END], template=TEMPLATE)
    rows = [{"question": item, "answer": str(ord(item) % 10)} for item in ITEMS]
    (directory / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (directory / "shop.py").write_text(FUNCTIONS)
    config = yaml.safe_load(Path(CONFIG).read_text()) | {"steps": 3}
    source = {"name": "jsonl", "path": "questions.jsonl", "tokenizer": "model"}
    environment = {"name": "tools", "functions": [{"function": "shop.py:price"}]}
    config["rlax"] |= {
        "deterministic": True,
        "prompt_source": source,
        "environment": environment | {"tool_calls": "pythonic"},
        "episodes": {"max_turns": 3, "max_tokens": 9},
        "rewards": [{"function": "shop.py:counted"}],
        "objective": {"preset": "reinforce_plus_plus"},
        "trainer": {"name": "bigram", "learning_rate": 10, "checkpoint_every": 2},
        "evaluation": {"problems": 0},
    }
    config["rlax"]["rollouts"] |= {"max_new_tokens": 1, "group_size": 8}
    config["rlax"]["curation"] = {"sampler": {"name": "shuffled"}}
    (directory / "tools.yml").write_text(yaml.safe_dump(config, sort_keys=False))


def train(directory: Path, kill_at: str = "") -> RunFiles:
    done = finished("train", "tools.yml", cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)
    assert done.returncode == (-signal.SIGKILL if kill_at else 0), done.stdout + done.stderr
    return RunFiles(directory / "runs/testing")


@pytest.mark.ci
def test_a_killed_run_with_a_tool_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    for name in ("undisturbed", "killed"):
        prepare(tmp_path / name)
    undisturbed = train(tmp_path / "undisturbed")
    train(tmp_path / "killed", kill_at="turn-sampled:70")
    resumed = train(tmp_path / "killed")
    rows, _ = computed(resumed)
    assert computed(resumed) == computed(undisturbed) and len(rows) == 3 * 32
    read = Tokenizer.from_file(str(tmp_path / "killed/model/tokenizer.json")).decode
    after_a_result = 0
    for row in rows:
        lengths = row["given_lengths"] or [len(row["given"])]
        given, sampled = list(row["given"]), row["tokens"]
        assert len(sampled) == len(lengths)  # an answer is a token
        answers = [read([token], skip_special_tokens=False) for token in sampled]
        assert read(given[: lengths[0]]) == row["prompt"]
        given = given[lengths[0] :]
        for answer, length in zip(answers, lengths[1:], strict=False):
            price = ord(answer.split("'")[1]) % 10
            assert read(given[:length], skip_special_tokens=False) == f"{END}{price}"
            given = given[length:]
        metrics = json.loads(row["reward_metrics"])
        assert metrics["tool_calls"] == sum(one.startswith("[price") for one in answers)
        assert metrics["tool_calls_wrong"] == 0
        after_a_result += len(answers) == 2
    assert after_a_result > 20
    assert {len(row["seeds"]) for row in rows} == {1, 2, 3}
    first, last = (np.mean([row["reward"] for row in rows if row["step"] == n]) for n in (1, 3))
    assert last > first + 0.2
    report = audit(resumed)
    assert report.violation is None, report.violation
