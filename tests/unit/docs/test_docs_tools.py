"""docs/tools.md: its tool works, and its configs are accepted as printed."""

import asyncio
from pathlib import Path

import pytest
import yaml
from documents import fences, read
from rlax_tools.environment import ToolsConfig
from rlax_tools.harbor import HarborConfig
from rlax_verifiers.environment import VerifiersConfig
from rlax_verifiers.source import VerifiersSourceConfig
from sections import section_with

from rlax_plugin.api import BuildContext, CallError, FunctionTool
from rlax_plugin.config.validation import validate

PAGE = read("tools.md")
CONFIGS = [yaml.safe_load(text) for text in fences(PAGE, "yaml")]


def test_the_tool_of_the_page_works(tmp_path: Path) -> None:
    """``test_docs_complete`` has the whole config."""
    (tmp_path / "lookup.py").write_text(fences(PAGE, "python")[0])
    (one,) = CONFIGS[0]["rlax"]["environment"]["functions"]
    context = BuildContext(
        Path(), 0, section_with(), functions={"lookup.py": f"{tmp_path}/lookup.py"}
    )
    tool = FunctionTool(one["function"], "key", context)
    assert asyncio.run(tool.call({"city": "Rome"})) == "2746984"
    with pytest.raises(CallError, match="there is no city Oz"):
        asyncio.run(tool.call({"city": "Oz"}))


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
