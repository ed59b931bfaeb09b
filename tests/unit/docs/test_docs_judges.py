"""docs/judges.md: its verifier scores its run, and its configs are right."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from documents import fences, read, sections
from rlax_http import JudgeConfig
from runs import free_port, lines
from test_docs_plugins import shell
from waiting import wait_until

PAGE = sections(read("judges.md"), 2)


def port_of(config: str) -> int:
    url = yaml.safe_load(config)["rlax"]["rewards"][0]["url"]
    return int(url.rpartition(":")[2].strip("/"))


def wait_for(port: int) -> None:
    """Returns once somebody listens there."""

    def listens() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    wait_until(listens, f"nobody listens on port {port}")


@pytest.mark.slow
def test_the_verifier_of_the_page_scores_the_run_of_the_page(tmp_path: Path) -> None:
    page = PAGE["A verifier"]
    (program, _), (config, _) = fences(page, "python"), fences(page, "yaml")
    port = free_port()
    (tmp_path / "verifier.py").write_text(program.replace("8765", str(port)))
    (tmp_path / "verified.yml").write_text(config.replace("8765", str(port)))
    assert port_of(config) == 8765
    with subprocess.Popen([sys.executable, "verifier.py"], cwd=tmp_path) as verifier:
        try:
            wait_for(port)
            (commands,) = fences(page, "sh")
            said = shell(tmp_path, commands)
        finally:
            verifier.kill()
    assert said.count("can take its port") == 2  # by check and by train
    assert "gave a trial sample, a right answer, 1 in" in " ".join(said.split())
    steps = lines(tmp_path / "runs/verified/metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, 16))
    assert all(step["reward_metric/verifier_requests"] >= 1 for step in steps)
    rewards = [step["reward/mean"] for step in steps]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1


def test_every_option_is_explained() -> None:
    text = read("judges.md")
    assert [name for name in JudgeConfig.model_fields if f"`{name}`" not in text] == []
