"""Every complete config on a page passes ``rlax check``, as it is printed.

The files that it names are those of its page: functions and plug-ins are the page's Python blocks.
A converted model is its keys alone, and files of data are empty: ``--fast`` reads neither. A full
check of those from verl and MaxText, and two steps, are in ``tests/maxtext/test_pretrained_runs``;
those for toy models are trained by the tests of their pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from command_line import rlax
from documents import DOCUMENTS, ROOT, fences, sections
from installs import on_path


class Printed(NamedTuple):
    """A config on a page, and the code of its section; of the page if that has none."""

    page: str
    text: str
    code: str

    @property
    def content(self) -> dict[str, Any]:
        return yaml.safe_load(self.text)


def complete() -> Iterator[Printed]:
    """Configs with a number of steps and a prompt source."""
    for page in DOCUMENTS:
        text = page.read_text()
        for block in fences(text, "yaml"):
            content = yaml.safe_load(block)
            if "steps" in content and "prompt_source" in content.get("rlax", {}):
                (section,) = (part for part in sections(text, 2).values() if block in part)
                code = fences(section, "python") or fences(text, "python")
                yield Printed(page.name, block, "\n\n".join(code))


COMPLETE = list(complete())


def lay_out(printed: Printed, folder: Path) -> None:
    """Writes the config as ``page.yml``, and what it names."""
    content = printed.content
    (folder / "page.yml").write_text(printed.text)
    (folder / "plugins").symlink_to(ROOT / "plugins")  # a page names a tokenizer in it
    if "/" in content.get("base_config", ""):  # which rlax convert writes
        base = folder / content["base_config"]
        base.parent.mkdir(parents=True)
        base.write_text("base_config: base.yml\nvocab_size: 49152\n")
    source = content["rlax"]["prompt_source"]
    for name in (source["splits"] if isinstance(source.get("splits"), dict) else {}).values():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    rewards = content["rlax"].get("rewards", [])
    environment = content["rlax"].get("environment", {})
    named = (*rewards, *environment.get("functions", []))
    functions = [one["function"] for one in named if "function" in one]
    modules = [name for name in content["rlax"].get("plugins", []) if not installed(name)]
    files = (*environment.get("files", []), *(one.partition(":")[0] for one in functions))
    for file in set(files):
        (folder / file).write_text(printed.code)
    for module in modules:
        (folder / f"{module}.py").write_text(printed.code)


def installed(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None


def test_the_pages_have_complete_configs() -> None:
    """The ways to train that pages show in full: more may come, and are found by themselves."""
    pages = ("environments", "from_maxtext", "from_tunix", "from_verl", "judges", "plugin_hooks")
    pages = {f"{name}.md" for name in (*pages, "writing_plugins", "your_reward")}
    assert pages <= {printed.page for printed in COMPLETE}


@pytest.mark.parametrize("printed", COMPLETE, ids=lambda printed: printed.page)
def test_a_config_passes_as_it_is_printed(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(printed, tmp_path)
    monkeypatch.chdir(tmp_path)
    asks = "base_config" in printed.content or "url:" in printed.text  # MaxText, or a server
    with on_path(tmp_path):
        checked = rlax("check", *(["--fast"] if asks else []), "page.yml")
    assert checked.exit_code == 0, checked.output
    assert f"runs/{printed.content['run_name']}" in checked.output
