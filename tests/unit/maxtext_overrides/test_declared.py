"""The table of what is relied on upstream is complete, and true of what is installed."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from maxtext_check import Sources, sha256

from maxtext_overrides.upstream.declared import BY_MODULE, CONFIG_KEYS

ROOT = Path(__file__).parents[3]
ALL = [override for overrides in BY_MODULE.values() for override in overrides]
TRAIN = "maxtext.trainers.pre_train.train"
# What upstream modules are called where they are no imported name.
KNOWN_AS = {
    "checkpointing": f"{TRAIN}.checkpointing",
    "embeddings": "maxtext.layers.embeddings",
    "max_utils": f"{TRAIN}.max_utils",
    "self.train": TRAIN,
    "train": TRAIN,
}
# Receivers of attributes that are keys of MaxText's config.
CONFIGS = ("config", "plain", "recording", "rl_config", "worker")


def installed() -> Sources:
    spec = importlib.util.find_spec("maxtext")  # found, not imported: that takes 20 s
    assert spec is not None and spec.submodule_search_locations
    return Sources(Path(spec.submodule_search_locations[0]).parent)


SOURCES = installed()
# What covers everything inside: functions, classes, and modules of which no names are given.
WHOLE = {
    override.symbol
    for override in ALL
    if not override.names or not isinstance(SOURCES.find(override.symbol).node, ast.Module)
}


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if re.search("maxtext|jetstream", text.lower()):
                yield path, ast.parse(text)


def uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module of ours imports, names or reaches upstream."""
    known = dict(KNOWN_AS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            receiver = ast.unparse(node)
            for name, module in known.items():
                if receiver.startswith(f"{name}."):
                    yield node.lineno, module + receiver.removeprefix(name)


def upstream_uses(*folders: str) -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)}:{line}", name)
        for path, tree in modules(*folders)
        for line, name in uses(tree)
        if re.fullmatch(r"(maxtext|jetstream)(\.\w+)+", name)
    ]


def declared() -> set[str]:
    names = set()
    for override in ALL:
        found = SOURCES.find(override.symbol)
        assert found is not None, f"{override.symbol} is not installed"
        names |= {override.symbol, found.symbol}
        names |= {f"{found.symbol}.{name}" for name in override.names}
    return names


def is_declared(name: str, known: set[str]) -> bool:
    found = SOURCES.find(name)
    place = found.symbol if found is not None else name
    is_module = found is not None and isinstance(found.node, ast.Module)
    if is_module and any(other == place or other.startswith(f"{place}.") for other in known):
        return True  # a module by itself: what is taken from it is looked at as well
    parts = place.split(".")
    owners = {".".join(parts[:count]) for count in range(1, len(parts))}
    return place in known or bool(owners & WHOLE)


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Dotted names of all symbols, and of the names that are relied on inside of them."""
    return declared()


def test_each_symbol_is_declared_once() -> None:
    symbols = [override.symbol for override in ALL]
    assert sorted(set(symbols)) == sorted(symbols)


@pytest.mark.parametrize("override", ALL, ids=lambda o: o.symbol)
def test_the_table_is_true_of_what_is_installed(override) -> None:
    found = SOURCES.find(override.symbol)
    assert found is not None
    if override.sha256:
        assert sha256(found.text) == override.sha256
    assert set(override.names) - found.names == set()
    assert override.why and override.delete_when
    # A digest, names, or at least its place, which of a constant is all that counts.
    placed = isinstance(found.node, (ast.Module, ast.Assign))
    assert override.sha256 or override.names or placed or override.symbol.startswith("jetstream")


def test_everything_of_upstream_that_is_used_is_declared(known) -> None:
    found = upstream_uses("maxtext_overrides", "plugins", "rlax_plugin")
    assert len(found) > 60  # the walk sees something
    assert [use for use in found if not is_declared(use[1], known)] == []


def test_commands_in_the_docs_are_declared() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    commands = {c for page in pages for c in re.findall(r"-m (maxtext[\w.]+)", page.read_text())}
    assert len(commands) == 2
    assert commands <= {override.symbol for override in ALL}


def test_every_key_of_the_config_that_is_used_is_declared(known) -> None:
    found = SOURCES.find(CONFIG_KEYS.symbol)
    assert found is not None
    fields = {
        node.target.id
        for owner in ast.walk(found.node)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert len(fields) > 500
    used = {}
    for path, tree in modules(
        "maxtext_overrides", "plugins/rlax_maxtext", "plugins/rlax_jetstream"
    ):
        for node in ast.walk(tree):
            keys = []
            if isinstance(node, ast.Attribute):
                is_key = ast.unparse(node.value).rpartition(".")[2] in CONFIGS
                keys = [node.attr] if is_key else []
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                keys = [node.value]
            elif isinstance(node, ast.Call):
                keys = [keyword.arg for keyword in node.keywords]
                is_load = ast.unparse(node.func).rpartition(".")[2] in ("initialize", "load")
                keys = keys if is_load else []
            used |= {key: f"{path.relative_to(ROOT)}:{node.lineno}" for key in keys}
    undeclared = fields & used.keys() - set(CONFIG_KEYS.names)
    assert {key: used[key] for key in undeclared} == {}
    # "base_config" is read where files are loaded.
    assert set(CONFIG_KEYS.names) - fields == {"MaxTextConfig"}
    assert set(CONFIG_KEYS.names) - used.keys() - {"MaxTextConfig"} <= {"base_config"}
