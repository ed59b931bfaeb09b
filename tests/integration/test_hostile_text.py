"""A run whose prompt source, policy, rewards and filter say what breaks formats and terminals."""

import base64
import gzip
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from command_line import rlax
from processes import python_path
from runs import Run

PLUGIN = r"""
import itertools, random, sys
from dataclasses import replace

from rlax_plugin.api import Extension, NoOptions, hookimpl
from rlax_plugin.testing.task import Numbers, NumbersConfig, encode

NASTY = (
    "\ud800 \udfff",
    "\x1b[31m\x1b]0;owned\x07",
    "\x00\x08\x7f\x9b2J\x85",
    "\u202eesrever\u2066",
    "</script><script>document.title = 'owned'</script>",
    "[red]markup[/red] [/nothing]",
    "two\r\nlines\rof\u2028text",
)

turns = itertools.count(random.randrange(10))

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words\ud800")

class Nasty(Numbers):
    def prompts(self, split):
        return [
            replace(p, text=p.text + "\x1b[2J\udc80", reference=p.reference + NASTY[0])
            for p in super().prompts(split)
        ]

    def decode(self, tokens):
        text = super().decode(tokens)
        return text + "".join(NASTY[int(t) % len(NASTY)] for t in tokens if t % 5 == 0)

def judge(prompt, completion):
    text = random.choice(NASTY)
    print(text)
    print(text, file=sys.stderr)
    sys.stdout.buffer.write(b"\xff\x1b[0m\n")
    sys.stdout.flush()
    turn = next(turns)
    text = NASTY[turn // 10 % len(NASTY)]  # so that all of them are said, in whatever order
    if turn % 10 in (2, 6):
        raise ValueError(text)
    if turn % 10 == 3:
        raise ValueError("m" * 1_000_000 + text)
    if turn % 10 == 5:
        raise Unspeakable(text)
    if turn % 10 == 8:
        sys.exit(text)
    return float(bool(completion[:1].isalnum()) and int(encode(completion[0])[0]) % 2 == 0)

class Quoting:
    def reject(self, group):
        rewards = {reward for reward in group.rewards.tolist() if reward == reward}
        return None if len(rewards) > 1 else f"all equal, such as {group.episodes[0].text}\n\ud800"

@hookimpl
def rlax_register_prompt_source():
    return {"nasty": Extension(NumbersConfig, lambda config, context: Nasty(config))}

@hookimpl
def rlax_register_reward():
    return {"nasty": Extension(NoOptions, lambda config, context: judge)}

@hookimpl
def rlax_register_filter():
    return {"quoting": Extension(NoOptions, lambda config, context: Quoting())}
"""
SETTINGS = (
    "rlax.plugins=[nasty_plugin, rlax_plugin.testing]",
    "rlax.prompt_source={name: nasty}",
    "rlax.rewards=[{name: nasty}]",
    "rlax.curation.filters=[{name: quoting}]",
    "rlax.evaluation.majority_k=[4]",
    "rlax.curation.max_refill=50",  # half of the rewards fail, and the filter rejects many groups
)
# Newline, carriage return and tab are ordinary in a text of several lines.
MISCHIEF = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
LONGEST_ERROR = 1200


@pytest.fixture
def nasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nasty_plugin.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    return tmp_path


def strings(document: Any) -> list[str]:
    """All strings of a JSON document, keys included."""
    if isinstance(document, str):
        return [document]
    if isinstance(document, dict):
        return [s for pair in document.items() for part in pair for s in strings(part)]
    if isinstance(document, list | tuple):
        return [s for part in document for s in strings(part)]
    return []


def mischief(texts: list[str]) -> list[str]:
    return [text[:200] for text in texts if MISCHIEF.search(text)]


@pytest.mark.long
def test_a_run_with_hostile_text_trains_and_reports(nasty, capsys):
    run = Run(nasty, *SETTINGS, "steps=8")
    status, out = run.end()
    assert status == 0 and run.summary()["complete"], out
    printed = [out]

    # The records: what was said is legible, in every column, and an error is short.
    rows = run.samples()
    assert mischief([s for row in rows for s in strings(list(row.values()))]) == []
    errors = [row["reward_error"] for row in rows if row["reward_error"]]
    assert len(errors) == sum(row["reward"] is None for row in rows) > 10
    assert max(map(len, errors)) < LONGEST_ERROR
    assert all("\n" not in error and "\r" not in error for error in errors)
    for said in (r"\x1b[31m\x1b]0;owned\x07", "\ufffd \ufffd", "more characters", "Unspeakable"):
        assert any(said in error for error in errors), said
    assert any("(nasty): SystemExit: " in error for error in errors)
    assert {row["prompt"] for row in rows} <= {f"{n}\\x1b[2J\ufffd" for n in range(1000)}
    texts = "".join(row["completion"] for row in rows)
    assert r"\x1b[31m" in texts and "\ufffd \ufffd" in texts and r"\u202e" in texts
    with sqlite3.connect(run.dir / "ledger.sqlite") as ledger:
        bodies = [json.loads(body) for (body,) in ledger.execute("SELECT body FROM events")]
    assert mischief(strings(bodies)) == []
    assert any("all equal, such as" in s for s in strings(bodies))
    written = [json.loads(path.read_text()) for path in run.dir.glob("**/*.json")]
    assert mischief(strings(written)) == []
    logs = {path.name: path.read_text() for path in run.dir.glob("logs/*.log")}
    assert mischief([logs["rewards.log"], logs["trainer.log"]]) == []
    assert r"\x1b[31m\x1b]0;owned\x07" in logs["rewards.log"]
    assert "Traceback" in logs["rewards.log"] and len(logs["rewards.log"]) < 1_000_000

    # What the commands show of them.
    for command in ("audit", "report"):
        done = rlax(command, str(run.dir))
        assert done.exit_code == 0, done.output
        printed += [done.output, "".join(capsys.readouterr())]
    assert mischief(printed) == []
    page = (run.dir / "report.html").read_bytes().decode()
    assert mischief([page]) == []
    blobs = re.findall(r'<script type="text/plain" id="data-([\w-]+)">([^<]*)</script>', page)
    for name, packed in blobs:
        if name != "plotly":
            content = json.loads(gzip.decompress(base64.b64decode(packed)))
            assert mischief(strings(content)) == [], name
    assert "rollouts" in dict(blobs)
