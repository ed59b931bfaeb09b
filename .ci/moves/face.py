"""Plug-ins, templates and examples import from ``rlax_plugin.api`` what they imported deeper."""

from __future__ import annotations

import re
from pathlib import Path

DEEP = re.compile(
    r"^([ \t]*)from (rlax_plugin(?!\.api|\.testing)[\w.]*) import (\([^)]*\)|[^\n(]*)\n", re.M
)


NAMES = "BuildContext|Choice|Extension|NoOptions|Section|hookimpl"
ONCE_AT_THE_TOP = re.compile(rf"from rlax_plugin import (?=(?:(?:{NAMES})\W)+)")


def faced(text: str) -> str:
    """All such imports become one, where the first of them stood."""
    found: dict[str, list[str]] = {}  # by indentation
    first: dict[str, bool] = {}
    for indent, _, names in DEEP.findall(text):
        listed = [n.strip() for n in names.strip("()\n").replace("\n", " ").split(",")]
        found.setdefault(indent, []).extend(n for n in listed if n)

    def one(match: re.Match[str]) -> str:
        indent = match[1]
        if first.setdefault(indent, True):
            first[indent] = False
            names = ", ".join(sorted(set(found[indent]), key=lambda n: (not n.isupper(), n)))
            line = f"{indent}from rlax_plugin.api import {names}\n"
            return line if len(line) <= 101 else line.replace("import ", "import (")[:-1] + ")\n"
        return ""

    return DEEP.sub(one, text)


def main() -> None:
    files = [*Path("plugins").rglob("*.py"), *Path("tests/third_party").rglob("*.py")]
    files += Path("rlax_plugin/commands/scaffold").rglob("*.jinja")
    for path in files:
        path.write_text(faced(path.read_text()))
    for path in [*Path("tests").rglob("*.py"), *Path("rlax_plugin").rglob("*.py")]:
        path.write_text(ONCE_AT_THE_TOP.sub("from rlax_plugin.api import ", path.read_text()))
    for page in [*Path("docs").glob("*.md"), Path("README.md")]:
        text = page.read_text()
        page.write_text(re.sub(r"```python\n.*?```", lambda m: faced(m[0]), text, flags=re.S))


if __name__ == "__main__":
    main()
