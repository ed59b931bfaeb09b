"""The recipes with small models of their families: checked as they are printed, and trained.

Data, weights and tokenizers are small and on this machine (``tests/helpers/recipes.py``). A run
changes also what a processor cannot bear: the machine, lengths and numbers of samples.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
import yaml
from hostile_server import Asked, serving
from judging import chat, marker, question
from nbclient import NotebookClient
from processes import finished, python_path
from recipes import RECIPES, ROOT, local_data, write_model

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.loading import merged, overridden
from rlax_plugin.run.start.hosts import free_port
from rlax_plugin.tools.commands import recipe_files
from rlax_plugin.tools.commands.audit import audit

STEPS = 5
PROMPT, ANSWER = 640, 24
SMALL = (
    *("hardware=cpu", "attention=dot_product", "dtype=float32", "skip_jax_distributed_system=true"),
    *("per_device_batch_size=4", "gradient_accumulation_steps=2", "learning_rate=1.e-3"),
    *(f"max_target_length={PROMPT + ANSWER}", f"steps={STEPS}"),
    *(f"rlax.rollouts.max_prompt_tokens={PROMPT}", f"rlax.rollouts.max_new_tokens={ANSWER}"),
    *("rlax.rollouts.group_size=4", "rlax.rollouts.groups_per_step=2", "rlax.rollouts.slots=16"),
    "rlax.rollouts.engine.maxtext={ici_fsdp_parallelism: 1, ici_tensor_parallelism: 1}",
    *("rlax.weights.dtype=model", "rlax.reward_processes=1", "rlax.launcher={name: colocated}"),
    *("rlax.evaluation={problems: 4, samples: 1, k: [1], every: 0}", "rlax.plugins=[even_letter]"),
    "rlax.rollouts.engine.warm_up=false",
    "rlax.deadlines={startup_s: 1200, batch_s: 1200, group_s: 600}",
    "rlax.network={host: 127.0.0.1, advertised_host: '', port: 0}",
    *("rlax.network.tls={certificate: '', key: '', ca: ''}", "rlax.state_dir=''"),
)
FEW = tuple(  # steps of SFT
    f"rlax.trainer.warm_start.{setting}"
    for setting in ("epochs=1", "batch_rows=8", "steps=4", "check_every=2", "problems=8")
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
recipes = pytest.mark.parametrize("name", RECIPES)


def done(*arguments: str, cwd: Path, **environment: str) -> str:
    path = python_path(ROOT, ROOT / "plugins", ROOT / "tests/helpers")
    found = finished(*arguments, cwd=cwd, timeout_s=2200, PYTHONPATH=path, **environment)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture
def home(name: str, tmp_path: Path) -> Path:
    """A directory with a recipe and its converted model, as its first lines say."""
    copied, _ = recipe_files.copy(name, tmp_path / f"{name}.yml", force=False)
    last = [path for path in copied if path.suffix == ".yml"][-1]
    base = Path(yaml.safe_load(last.read_text())["base_config"])
    write_model(base.parent.name, tmp_path / "source")
    dtype = ("--dtype", "bfloat16") if name.endswith("lora") else ()
    done("convert", "source", "--out", str(base.parent), *dtype, cwd=tmp_path)
    if "certs/" in copied[0].read_text():
        done("certs", "make", "certs", "--name", "trainer.example.org", cwd=tmp_path)
    return tmp_path


@contextmanager
def judge() -> Iterator[str]:
    """A judge whose points depend on the completion's last character; its URL."""

    def answer(asked: Asked) -> None:
        points = ord(question(asked).split("\n")[-5][-1:] or "a") % 11
        asked.json(chat(f"So.\n{marker(asked)} {points}"))

    with serving(answer) as server:
        yield f"http://127.0.0.1:{server.server_port}/v1"


@contextmanager
def servers(name: str, home: Path) -> Iterator[list[str]]:
    """What a recipe asks beside the model; the arguments that say where it is."""
    if name == "gemma3-1b-judge":
        with judge() as url:
            rewards = yaml.safe_load((home / f"{name}.yml").read_text())["rlax"]["rewards"]
            yield [f"rlax.rewards={json.dumps([rewards[0] | {'base_url': url}])}"]
    elif name == "qwen3-1.7b-agent":
        port = str(free_port())
        with subprocess.Popen([sys.executable, f"{name}.py", port], cwd=home) as program:
            try:
                yield [f"rlax.environment.url=http://127.0.0.1:{port}/play"]
            finally:
                program.kill()
    else:
        yield []


@recipes
def test_a_recipe_passes_the_whole_check_as_it_is_printed(name: str, home: Path) -> None:
    data = local_data(merged(home / f"{name}.yml")["rlax"], home)
    with servers(name, home) as where:
        told = done("check", f"{name}.yml", *data, *where, "--json", cwd=home, JUDGE_KEY="k")
    assert {"rlax.trainer", "rlax.rollouts.engine"} <= json.loads(told)["memory_bytes"].keys()


@recipes
def test_a_recipe_trains_with_a_small_model(name: str, home: Path) -> None:
    section = merged(home / f"{name}.yml")["rlax"]
    more = local_data(section, home)
    with servers(name, home) as where:
        if "llm_judge" not in str(where):  # no answer of a random model is right
            rewards = [*section["rewards"], {"name": "even_letter"}]
            more.append(f"rlax.rewards={json.dumps(rewards)}")
        if "trainer" in section:
            more += FEW
        if "episodes" in section:
            limits = f"max_turns: 3, max_tokens: {ANSWER}, max_trajectories: 1"
            more.append(f"rlax.episodes={{{limits}}}")
        done("train", f"{name}.yml", *SMALL, *more, *where, cwd=home, JUDGE_KEY="k")
    run = RunFiles(home / "runs" / name)
    lines = [json.loads(line) for line in run.get("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    gaps = [line["logprob_gap/p95"] for line in lines if "logprob_gap/p95" in line]
    assert 0 < max(gaps) < 1e-3  # steps with samples of older weights alone measure none
    assert min(line["learning/raw_grad_norm"] for line in lines) > 0
    assert audit(run).clean


def test_the_notebook_runs_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gemma3-1b-judge"
    copied, _ = recipe_files.copy(name, tmp_path / f"{name}.yml", force=False)
    notebook = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
    write_model("gemma-3-1b-it", tmp_path / "gemma-3-1b-it")
    (download,) = [cell for cell in notebook.cells if cell.source.startswith("!hf download ")]
    notebook.cells.remove(download)
    monkeypatch.setenv("JUDGE_KEY", "k")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT, ROOT / "plugins", ROOT / "tests/helpers"))
    printed = tmp_path / "printed.yml"
    copied[0].rename(printed)
    section = yaml.safe_load(printed.read_text())["rlax"]
    with judge() as url:
        small = [*SMALL, *FEW, *local_data(section, tmp_path)]
        small.append(f"rlax.rewards={json.dumps([section['rewards'][0] | {'base_url': url}])}")
        content = {"base_config": printed.name} | overridden({}, small)
        copied[0].write_text(yaml.safe_dump(content))
        resources = {"metadata": {"path": str(tmp_path)}}
        limits = {"startup_timeout": 300, "timeout": 1200}
        NotebookClient(notebook, **limits, kernel_name="python3", resources=resources).execute()
    assert audit(RunFiles(tmp_path / "runs" / name)).clean
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    last = [cell.outputs[-1].get("data", {}) for cell in cells if cell.outputs]
    shown = [data.get("text/plain", "") for data in last]
    assert any(f"'step': {STEPS}" in text for text in shown)
    assert any("'completion': " in text for text in shown)
    assert (tmp_path / "gemma-3-1b-judged/model.safetensors").exists()
