"""Secrets of a config and of the environment: nothing that a run writes, sends or prints has any.

The run's ``config.yml`` is the exception, see docs/security.md. Each command is a process of its
own, which must learn by itself what is a secret.
"""

import gzip
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import planted_secrets as planted
import pyarrow.parquet as pq
import pytest
import yaml
from processes import finished
from runs import CONFIG, HELPERS

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.secrets import MARK
from rlax_plugin.config.handing import to_bytes
from rlax_plugin.config.loading import resolve
from rlax_plugin.run.state import journal

TRACKERS = [
    {"name": "mlflow", "tracking_uri": "", "tags": {"team": "a"}, "flush_s": 45},
    {"name": "wandb", "mode": "offline"},
    {"name": "tensorboard"},
]


def written(place: Path) -> Iterator[tuple[str, str]]:
    """Yields name and content of everything below a directory."""
    for path in sorted(place.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode(errors="replace")
        if path.suffix == ".parquet":
            text = repr(pq.read_table(path).to_pylist())
        yield str(path.relative_to(place)), text
    for run in (place / "runs").iterdir():
        for segment, _ in journal.read(RunFiles(run)):
            yield f"{run.name}: journal", repr(segment)


def repeated(text: str) -> set[str]:
    return {secret for secret in planted.SECRETS if secret in text}


def config(share: float) -> dict:
    content = yaml.safe_load(Path(CONFIG).read_text())
    content["hf_access_token"] = planted.HF_TOKEN
    content["rlax"] |= {
        "plugins": ["rlax_plugin.testing", "planted_secrets"],
        "rewards": [{"name": "repeating", "options": planted.OPTIONS, "share": share}],
        "observers": [{"name": "repeating", "options": planted.OPTIONS}],
        "trackers": TRACKERS if share < 1 else [],
        "evaluation": {"problems": 0},
        "trainer": {"name": "planted"},
    }
    content["rlax"]["curation"] |= {"max_refill": 2}
    return content


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.timeout(900)
def test_nothing_but_the_kept_config_has_a_secret(tmp_path, monkeypatch) -> None:
    assert len(set(planted.SECRETS)) >= 30
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    for name, value in planted.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    printed: dict[str, str] = {}

    def rlax(*arguments: str, status: int | None = 0) -> None:
        done = finished(*arguments, cwd=tmp_path)
        printed[" ".join(arguments)] = said = done.stdout + done.stderr
        assert status is None or done.returncode == status, said

    for name, share, status in (("some", 0.2, 0), ("all", 1.0, 1)):
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(config(share)))
        again = f"hf_access_token={planted.HF_TOKEN}"
        rlax("train", f"{name}.yml", again, f"run_name={name}", "steps=2", status=status)
    rlax("doctor", "runs/some", "--bundle", "some.tar.gz", status=None)
    rlax("status", "runs/all", status=None)
    rlax("report", "runs/some", "runs/all", "--out", "compare.html")
    # The run goes on with another token, and with no other rewards.
    again = ("train", "some.yml", "run_name=some", "steps=3", "hf_access_token=another-7q9z")
    rlax(*again)
    rlax(*again, f"rlax.rewards=[{{name: even, api_key: {planted.HF_TOKEN}}}]", status=2)
    rlax("eval", "runs/some", "rlax.evaluation.problems=2", again[-1])
    printed["sent to workers"] = to_bytes(resolve(tmp_path / "some.yml")).decode()

    kept = {"some.yml", "all.yml", "runs/some/config.yml", "runs/all/config.yml"}
    found = dict(written(tmp_path))
    assert all(len(repeated(found.pop(name))) > 25 for name in kept)
    everything = found | printed
    leaks = {name: sorted(have) for name, text in everything.items() if (have := repeated(text))}
    assert leaks == {}
    # They were written there, but for being hidden.
    hidden = ("runs/some/logs/trainer.log", "runs/some/logs/rewards.log", "some.tar.gz")
    hidden += ("runs/all/ended.json", "reported.txt", "compare.html", "runs/some/mlflow.db")
    assert [name for name in hidden if MARK not in everything[name]] == []
    assert any("printed" in text for name, text in found.items() if "logs/local" in name)
    for run in ("some", "all"):
        assert stat.S_IMODE((tmp_path / f"runs/{run}/config.yml").stat().st_mode) == 0o600
    sent = json.loads(printed["sent to workers"])["content"]["rlax"]["rewards"][0]["options"]
    assert sent["max_tokens"] == 1024 and sent["tokenizer_path"] == "org/planted-tokenizer"
