"""``rlax doctor --bundle``: the evidence in one file, without secrets and answers."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from scored_groups import scored_group
from sections import section_with
from test_doctor import evidence, process
from test_status import status

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Rejected, Unscored
from rlax_plugin.run.controller.batch_rule import BatchRule
from rlax_plugin.run.controller.limits import ALL_FAILED, too_few_accepted
from rlax_plugin.tools.commands.doctor.bundle import write_bundle
from rlax_plugin.tools.commands.doctor.evidence import last_lines
from rlax_plugin.tools.commands.status.source import Seen


def quoted(answer: str, error: str) -> str:
    """Two errors of a run as its log has them: of groups without a difference or any reward."""
    rule = BatchRule.of(section_with())
    one = scored_group(0, (1, 0.5))
    equal = replace(one, episodes=(replace(one.episodes[0], text=answer),))
    failed = replace(scored_group(1, (1, None)), scores=(Unscored(error),))
    groups = Rejected(equal, "all equal"), Rejected(failed, ALL_FAILED)
    said = [str(too_few_accepted(3, 8, rule, "0 of 8 groups", [one])) for one in groups]
    assert answer in said[0] and error in said[1]
    # The beginning would leave no room for the answer in a line of the bundle.
    return "".join(f"2026 ERROR rlax.run {one[one.index('(rejected') :]}\n" for one in said)


def test_a_bundle_has_no_secrets_and_no_texts(tmp_path: Path) -> None:
    run, state = RunFiles(tmp_path / "run"), tmp_path / "run"
    config = b"hf_access_token: hf_abc\nurl: https://me:pw@host/x\ntoken: {a: t2}\n"
    config += b"rlax: {rewards: [{api_key: 'k1', n: 3, X-Api-Key: k3, max_tokens: 5}]}\n"
    run.put("config.yml", config)
    run.put("secrets.json", b'{"trainer": "s1"}')
    answer, error = "the 'answer' which has", "no number in 'the reply'"
    run.put("logs/trainer.log", f"one\n\x1b[31mtwo\n{quoted(answer, error)}".encode())
    run.put("logs/rewards.log", b"an answer\n")
    (tmp_path / "run/logs/link.log").symlink_to(tmp_path / "run/secrets.json")
    mark = process().mark
    seen = Seen(status(reward_error=f"rlax.rewards.0 (x): {error}"))
    path = tmp_path / "evidence.tar.gz"
    write_bundle(path, run, state, evidence(seen), {mark: "File x"})
    with tarfile.open(path) as tar:
        found = {m.name: tar.extractfile(m).read().decode() for m in tar.getmembers()}  # type: ignore[union-attr]
    assert path.stat().st_mode & 0o777 == 0o600
    everything = "".join(found.values())
    for secret in ("hf_abc", "k1", "s1", "t2", "k3", "me:pw", answer, error):
        assert secret not in everything
    assert "max_tokens: 5" in found["rlax-doctor/config.yml"]
    assert "n: 3" in found["rlax-doctor/config.yml"]
    assert found["rlax-doctor/stacks/trainer-7.txt"] == "File x"
    assert "\x1b" not in found["rlax-doctor/logs/trainer.log"]
    shown = json.loads(found["rlax-doctor/status.json"])
    assert shown["pid"] == 7 and "reward_error" not in shown["controller"]
    assert found["rlax-doctor/logs/trainer.log"].count("(rejected: 1 because") == 2
    assert "rlax-doctor/logs/rewards.log" not in found
    with pytest.raises(ConfigError, match=r"--bundle.*cannot be written: File exists"):
        write_bundle(path, run, state, evidence(), {})


def test_last_lines_are_harmless(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"first\n\nsecond \xff\x1b]0;x\x07\nthird\n")
    assert last_lines(tmp_path / "log", 2)[-1] == "third"
    assert "\x1b" not in "".join(last_lines(tmp_path / "log", 9))
    assert last_lines(tmp_path / "none", 2) == []
    line = "x" * 59  # of 60 bytes, of which 65,536 bytes hold 1,092 and the end of another
    (tmp_path / "long").write_text(f"{line}\n" * 2000)
    assert last_lines(tmp_path / "long", 9999) == [line] * 1092
