"""Each recipe of configs/recipes/ as it is printed, and ``rlax init --recipe``, which copies it."""

import json
import re
import runpy
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import rlax
from documents import read
from hostile_server import Asked, serving
from pydantic import BaseModel
from recipes import DATA, FOLDER, MODELS, RECIPES, ROOT, data_sets

from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice
from rlax_plugin.config.loading import maxtext_configs, merged, resolve
from rlax_plugin.rpc.security.operator_certificate import OperatorIdentity, check_shown_by_clients
from rlax_plugin.tools.commands import recipe_files

recipes = pytest.mark.parametrize("name", RECIPES)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the keys of the converted models, and no weights."""
    for name in MODELS:
        (tmp_path / "models" / name).mkdir(parents=True)
        keys = "base_config: base.yml\nvocab_size: 151936\n"
        (tmp_path / "models" / name / "model.yml").write_text(keys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUDGE_KEY", "secret")
    return tmp_path


@recipes
def test_a_recipe_says_what_it_is_and_how_to_begin(name: str) -> None:
    text = (FOLDER / f"{name}.yml").read_text()
    lines, own = text.splitlines(), yaml.safe_load(text)
    assert max(map(len, lines)) <= 100
    assert re.fullmatch(r"# [A-Z].* Not run on (one|either|TPUs)\.", lines[0])
    assert own["run_name"] == name
    head = "\n".join(recipe_files._comments(FOLDER / f"{name}.yml"))
    download, convert, *others = re.findall(r"^#     (.*)$", head, re.M)
    source = shlex.split(download)[-1]
    assert download.startswith("hf download ")
    assert convert.startswith(f"rlax convert {source} --out {model_of(name)}")
    assert any(line.startswith(f"rlax train {name}.yml") for line in others)
    assert "# Data" in head and ("# Reward: " in head or "reward" in head)
    for data in data_sets(own["rlax"]).values():
        assert data in head and data in DATA


def model_of(name: str) -> Path:
    """The directory of the model that a recipe, or the one that it is based on, begins with."""
    base = Path(yaml.safe_load((FOLDER / f"{name}.yml").read_text())["base_config"])
    return base.parent if base.name == "model.yml" else model_of(base.stem)


@recipes
def test_a_recipe_passes_the_fast_check_as_it_is_copied(name: str) -> None:
    done = rlax("init", "run.yml", "--recipe", name)
    assert done.exit_code == 0, done.stderr
    assert Path("run.yml").read_bytes() == (FOLDER / f"{name}.yml").read_bytes()
    assert "rlax train run.yml" in done.stdout and f"{name}.yml" not in done.stdout
    for command in re.findall(r"^#     rlax (certs make \S+ --name \S+)", done.stdout, re.M):
        assert rlax(*command.split()).exit_code == 0
    checked = rlax("check", "--fast", "run.yml", "--json")
    assert checked.exit_code == 0, checked.stderr
    expected = {"rlax.environment.url"} if name.endswith("agent") else set()
    assert {one["key"] for one in json.loads(checked.stdout)["warnings"]} == expected
    config = resolve("run.yml")
    shape, section = config.maxtext, config.section
    rows = shape["per_device_batch_size"] * shape["gradient_accumulation_steps"]
    assert section.batch_rows in (8 * rows, 32 * rows)  # v5e-8, v5e-32
    assert shape["max_target_length"] == section.row_tokens
    if "--host N" in done.stdout:  # hosts accept each other by a certificate for host 0's name
        OperatorIdentity(section.network.tls, [section.network.advertised_host])
        check_shown_by_clients(section.network.tls)
        assert section.state_dir.startswith("/var/")  # not on the storage that they share


@recipes
def test_a_recipe_sets_only_keys_that_exist_and_differ_from_their_defaults(name: str) -> None:
    copied, _ = recipe_files.copy(name, None, force=False)
    own = yaml.safe_load(copied[0].read_text())
    section, config, folder = own.pop("rlax"), resolve(copied[0]), maxtext_configs()
    assert folder is not None
    defaults = merged(folder / "base.yml")
    others = own.keys() - {"base_config", "lora"}
    assert {key for key in others if defaults[key] == own[key]} == set()
    registry = registry_for(config.section)
    kinds = {use.key: use.kind for use in registry.uses(config.section)}

    def unchanged(given: Mapping[str, Any], values: BaseModel, key: str) -> Iterator[str]:
        for option, value in given.items():
            here, found = f"{key}.{option}", getattr(values, option)
            if isinstance(found, Choice):
                if here not in kinds:  # a source of demonstrations
                    continue
                offer = registry.offer(kinds[here], found.name, here)
                options = offer.extension.config_class.model_validate(found.options)
                inner = {k: v for k, v in value.items() if k != "name"}
                yield from unchanged(inner, options, here)
            elif isinstance(found, BaseModel):
                yield from unchanged(value, found, here)
            elif found == type(values).model_fields[option].get_default(call_default_factory=True):
                yield here

    assert list(unchanged(section, config.section, "rlax")) == []


def test_the_names_are_listed_and_wrong_ones_are_refused() -> None:
    listed = rlax("init", "--recipe", "list").stdout.splitlines()
    assert listed[::2] == RECIPES and all("Not run on" in line for line in listed[1::2])
    wrong = rlax("init", "--recipe", "qwen3-1.7b-gsm")
    assert wrong.exit_code and "did you mean 'qwen3-1.7b-gsm8k'?" in wrong.stderr
    both = rlax("init", "--recipe", "qwen3-1.7b-gsm8k", "--steps", "3")
    assert both.exit_code and "--steps: cannot be combined with --recipe" in both.stderr


def test_files_of_a_recipe_are_copied_and_replaced_only_by_force() -> None:
    names = {"qwen3-1.7b-agent.py", "qwen3-1.7b-gsm8k.yml", "run.yml"}
    init = ("init", "new/run.yml", "--recipe", "qwen3-1.7b-agent")
    assert rlax(*init).exit_code == 0
    again = rlax(*init)  # they are the same
    assert again.exit_code == 0 and "\ncd new\n" in again.stdout
    assert {path.name for path in Path("new").iterdir()} == names
    (program,) = Path("new").glob("*.py")
    program.write_text("mine")
    refused = rlax(*init)
    assert refused.exit_code and f"FILE = '{program}': exists and differs" in refused.stderr
    assert program.read_text() == "mine"
    assert rlax(*init, "--force").exit_code == 0 and "calculate" in program.read_text()
    base = rlax("init", "qwen3-1.7b-gsm8k.yml", "--recipe", "qwen3-1.7b-agent")
    assert base.exit_code and "is a file that the recipe is based on" in base.stderr


def test_the_page_lists_the_recipes() -> None:
    names = re.findall(r"^\| `([\w.-]+)` \|", read("recipes.md"), re.M)
    assert sorted(names) == sorted(RECIPES * 2)  # two tables


@pytest.mark.long
def test_the_wheel_has_the_recipes(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=280)
    (wheel,) = tmp_path.glob("*.whl")
    inside = "rlax_plugin/tools/commands/recipes/"
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {path: archive.read(path) for path in archive.namelist() if inside in path}
    assert packed == {f"{inside}{name}": content for name, content in files.items()}


# The program beside the recipe for agents.

AGENT = runpy.run_path(str(FOLDER / "qwen3-1.7b-agent.py"))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("(1 + 2) * -3", "-9"),
        ("7 / 2", "3.5"),
        ("1 / 0", "error: division by zero"),
        ("9 ** 9", "error: only numbers, + - * / and brackets are allowed"),
        ("open('x')", "error: only numbers, + - * / and brackets are allowed"),
        ("1" * 201, "error: the expression has more than 200 characters"),
    ],
)
def test_the_calculator_of_the_agent(expression: str, result: str) -> None:
    assert AGENT["calculate"](json.dumps({"expression": expression})) == result


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    "arguments", [NESTED, "{", "[]", "{}", '{"expression": 3}', '{"expression": "("}']
)
def test_the_calculator_answers_what_it_cannot_read(arguments: str) -> None:
    assert AGENT["calculate"](arguments).startswith("error: ")


def test_the_agent_calculates_until_the_policy_answers() -> None:
    call = {"id": "1", "type": "function"}
    call["function"] = {"name": "calculate", "arguments": json.dumps({"expression": "6 * 7"})}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": "It is 42."},
    ]

    def said(message: dict[str, Any]) -> Any:
        return lambda asked: asked.json({"choices": [{"message": message}]})

    def too_long(asked: Asked) -> None:
        asked.json({"error": {"code": "context_length_exceeded"}}, 400)

    task = {"text": "6 times 7?", "api_key": "k", "model": "policy"}
    with serving(*map(said, turns)) as server:
        outcome = AGENT["play"](task | {"base_url": f"http://127.0.0.1:{server.server_port}/v1"})
        messages = server.asked[-1].body["messages"]
    assert outcome == {"text": "It is 42.", "metrics": {"calls": 1}}
    assert messages[1] == turns[0]
    assert messages[2] == {"role": "tool", "tool_call_id": "1", "content": "42"}
    with serving(said(turns[0]), too_long) as server:
        outcome = AGENT["play"](task | {"base_url": f"http://127.0.0.1:{server.server_port}/v1"})
    assert outcome == {"text": "", "ended": "cut", "metrics": {"calls": 1}}
