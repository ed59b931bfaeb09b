"""Links, commands, configs and names in README.md, CONTRIBUTING.md and docs/ are right."""

import contextlib
import functools
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from documents import DOCUMENTS, ROOT, fences, prose, read, sections
from typer.core import TyperGroup

from rlax_plugin.base import types
from rlax_plugin.build import Registry, registry_of
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.kinds import NAME
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands.reference import PARTS
from rlax_plugin.tools.commands.reference import sections as config_sections

GROUP: Any = typer.main.get_command(app)
pages = pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)


# Commands.


def command_lines(text: str) -> Iterator[list[str]]:
    """The rlax commands in blocks of shell commands, without the settings before them."""
    for block in fences(text, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words[:1] == ["rlax"]:
                yield words[1:]


def parse(words: list[str]) -> None:
    """Reads a command line without running anything.

    Raises:
      click's UsageError: it would be rejected.
    """
    with contextlib.suppress(typer.Exit):  # of --help
        context = GROUP.make_context("rlax", list(words))
        while isinstance(context.command, TyperGroup):
            name, command, words = context.command.resolve_command(context, words)
            context = command.make_context(name, list(words), parent=context)


@pages
def test_every_command_line_parses(page: Path) -> None:
    for words in command_lines(page.read_text()):
        parse(words)


@pages
def test_every_command_that_is_mentioned_exists(page: Path) -> None:
    named = re.findall(r"`rlax ([a-z][a-z-]*)", prose(page.read_text()))
    assert set(named) <= set(GROUP.commands)


def commands(group: Any, prefix: str = "") -> dict[str, Any]:
    """Name, with that of its group -> command."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inner = commands(command, f"{name} ") if isinstance(command, TyperGroup) else {}
        found |= {f"{prefix}{name}": command} | inner
    return found


@pytest.mark.parametrize(("name", "command"), commands(GROUP).items(), ids=str)
def test_every_command_has_an_example_and_is_documented(name: str, command: Any) -> None:
    assert command.help and command.epilog.startswith(f"Example:  rlax {name}")
    parse(shlex.split(command.epilog.removeprefix("Example:  rlax")))
    texts = "\n".join(page.read_text() for page in DOCUMENTS)
    assert re.search(rf"\brlax {name}\b(?!-)", texts), "mention it in README.md or docs/"


# Configs.


@pytest.fixture(scope="module")
def registry() -> Registry:
    return registry_of(("rlax_plugin.testing",))


def chosen(value: Any, place: list[str]) -> Iterator[Choice]:
    """What a section has at a dotted key of ``reference.PARTS``."""
    if isinstance(value, Choice):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from chosen(item, place)
    elif place and isinstance(value, dict):
        for item in value.values() if place[0] == NAME else ():
            yield from chosen(item, place[1:])
    elif place and value is not None:
        yield from chosen(getattr(value, place[0]), place[1:])


@pages
def test_every_key_of_every_config_is_valid(page: Path, registry: Registry) -> None:
    for block in fences(page.read_text(), "yaml"):
        content = yaml.safe_load(block)
        if not isinstance(content, dict) or "rlax" not in content:
            continue
        needed = {"prompt_source": {"name": "numbers"}, "rewards": [{"name": "even"}]}
        section = validate(RlaxSection, needed | content["rlax"], "rlax")
        for key, kind in PARTS.items():
            for choice in chosen(section, key.split(".")[1:]):
                if choice.name in registry.offers[kind]:
                    registry.options(kind, choice, key)


def test_inline_keys_exist() -> None:
    known = {k.key for s in config_sections() for k in s.keys} | {
        s.title for s in config_sections()
    }
    for page in DOCUMENTS:
        keys = re.findall(r"`(rlax(?:\.[a-z_0-9]+)+)[=`:]", prose(page.read_text()))
        for key in set(keys) - {"rlax.proto"}:
            parts = any(key.startswith(f"{place}.") for place in PARTS)  # an option of a part
            modules = (ROOT / key.replace(".", "/")).with_suffix(".py").exists()
            assert key in known or parts or modules, f"{page.name}: {key}"


# Links.


@functools.cache
def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    slugs, counts = set[str](), Counter[str]()
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        slugs.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return slugs


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists() and linked.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(linked), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([\w./]+\.md)[)#]", prose(page.read_text()))
            ahead += [(page.parent / link).resolve() for link in links]
    assert sorted(set(DOCUMENTS) - reached) == []


@pages
def test_files_that_are_named_exist(page: Path) -> None:
    folders = "rlax_plugin|plugins|maxtext_overrides|configs|tests|benchmarks"
    rooms = "|".join(path.parent.name for path in (ROOT / "rlax_plugin").glob("*/__init__.py"))
    # The first part of a metric's name may be a room as well.
    paths = rf"`((?:{folders})/[\w/.]*|(?:{rooms})/(?:[\w/]*\.py)?)`"
    for name in re.findall(paths, prose(page.read_text())):
        assert (ROOT / name).exists() or (ROOT / "rlax_plugin" / name).exists(), name


# The glossary and the map of modules.


def test_the_glossary_has_every_record_and_section() -> None:
    glossary = read("glossary.md")
    records = [
        name
        for name, value in vars(types).items()
        if isinstance(value, type) and value.__module__.startswith(f"{types.__name__}.")
    ]
    assert len(records) >= 9
    assert [name for name in records if f"`{name}`" not in glossary] == []
    titles = [s.title for s in config_sections() if s.title.count(".") == 1]
    assert [title for title in titles if f"`{title}" not in glossary] == []


@pytest.mark.parametrize(
    "folder",
    [
        "rlax_plugin",
        "rlax_plugin/base",
        "rlax_plugin/rpc",
        "rlax_plugin/data",
        "rlax_plugin/training",
        "rlax_plugin/reward",
        "rlax_plugin/rollout",
        "rlax_plugin/run",
        "rlax_plugin/tools",
        "rlax_plugin/run/start",
        "rlax_plugin/run/controller",
        "rlax_plugin/run/state",
        "plugins",
        "maxtext_overrides",
    ],
)
def test_the_architecture_lists_every_module(folder: str) -> None:
    text = sections(read("architecture.md"), 3)[folder]
    cells = re.findall(r"^\| (`[\w./]+`(?:, `[\w./]+`)*) \|", text, re.MULTILINE)
    listed = [name.rstrip("/") for cell in cells for name in re.findall(r"`(.+?)`", cell)]
    found = [
        path.name
        for path in (ROOT / folder).iterdir()
        if (path.suffix == ".py" and not path.name.startswith(("__", "rlax_pb2")))
        or (path / "__init__.py").exists()
    ]
    if folder == "plugins":
        found = [name.removesuffix(".py") for name in found]
    assert sorted(listed) == sorted(found)


def test_what_the_architecture_names_inside_a_room_is_there() -> None:
    names = {}
    for folder, text in sections(read("architecture.md"), 3).items():
        if not folder.startswith(("rlax_plugin", "maxtext_overrides")):
            continue
        for room, owned in re.findall(r"^\| `(\w+)/` \| (.*) \|$", text, re.MULTILINE):
            names[f"{folder}/{room}"] = re.findall(r"`(\w+)(?:/|\.py)?`", owned)
    wrong = [
        f"{room}/{name}"
        for room, named in names.items()
        for name in named
        if not any((ROOT / room / file).exists() for file in (name, f"{name}.py"))
    ]
    assert wrong == []
    # Of this room the page names all modules.
    commands = (ROOT / "rlax_plugin/tools/commands").iterdir()
    found = {p.stem for p in commands if (p.suffix == ".py" or p.is_dir()) and p.stem[0] != "_"}
    assert set(names["rlax_plugin/tools/commands"]) == found
    assert len(names["maxtext_overrides/upstream"]) >= 3
