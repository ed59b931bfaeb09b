"""Writes the package of a new plug-in: one working part, its entry point and its test.

The part is the example of docs/plugin_hooks.md, which a test runs. Where that needs other parts of
a run, as an engine does, it is a template that runs alone.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import jinja2

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.ports.kinds import BY_NAME

_TEMPLATES = Path(__file__).with_name("templates")
_EXAMPLES = Path(__file__).with_name("plugin_hooks.md")  # a link to the page in docs/


@dataclass(frozen=True, slots=True)
class Package:
    """A package that was written.

    Attributes:
      folder: folder of the package.
      files: written files, relative to the folder.
      module: the file with the part, relative to the folder.
      usage: keys for a config that uses it, on one line.
    """

    folder: Path
    files: tuple[str, ...]
    module: str
    usage: str


def write_package(name: str, kind: str, directory: Path) -> Package:
    """Writes ``directory/name``.

    Args:
      name: name of the plug-in, its module and its part.
      kind: kind of the part.

    Raises:
      ConfigError: the name or the kind cannot be used, or the folder exists.
    """
    if kind not in BY_NAME:
        raise ConfigError("--kind", kind, f"no such kind; {alternatives(kind, BY_NAME)}")
    _check_name(name)
    folder = directory / name
    if folder.exists():
        raise ConfigError("NAME", name, f"{folder} exists: remove it, or choose another name")
    usage = f"rlax: {{plugins: [{name}], {BY_NAME[kind].usage(name)}}}"
    words = {
        "name": name,
        "kind": kind,
        "distribution": name.replace("_", "-"),
        "class_name": "".join(word.capitalize() for word in name.split("_")),
        "usage": usage,
    }
    module = f"src/{name}/__init__.py"
    sources = {
        "pyproject.toml": "pyproject.toml.jinja",
        "README.md": "README.md.jinja",
        f"tests/test_{name}.py": "test.py.jinja",
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # these are programs, not pages
    )
    part = f"parts/{kind}.py.jinja"
    if (_TEMPLATES / part).exists():
        sources[module] = part
    texts = {file: environment.get_template(t).render(words) for file, t in sources.items()}
    texts.setdefault(module, _example(kind, name))
    for file, text in texts.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Package(folder, tuple(texts), module, usage)


def _check_name(name: str) -> None:
    """Rejects a name that cannot be a module, or is one already."""
    if keyword.iskeyword(name):
        raise ConfigError("NAME", name, "is a Python keyword: choose another name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        suggestion = re.sub(r"\W+", "_", name.lower()).strip("_0123456789")
        reason = "must be a module's name, of small letters, digits and _"
        raise ConfigError("NAME", name, reason + (f", such as {suggestion}" if suggestion else ""))
    if name in sys.stdlib_module_names:
        reason = "is also a module of Python's standard library: choose another name"
        raise ConfigError("NAME", name, reason)
    if importlib.util.find_spec(name) is not None:
        raise ConfigError("NAME", name, "is also an installed module: choose another name")


def _example(kind: str, name: str) -> str:
    """Returns the example of a kind, which registers ``name`` instead."""
    blocks = re.findall(r"^```python\n(.*?)^```", _EXAMPLES.read_text("utf-8"), re.M | re.S)
    (source,) = (block for block in blocks if f"def {BY_NAME[kind].hook}(" in block)
    registered = re.sub(r'"\w+"(?=: Extension\()', f'"{name}"', source)
    return f'"""{kind.replace("_", " ").capitalize()} ``{name}``."""\n\n{registered}'
