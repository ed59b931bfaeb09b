"""Replaces private words by those of the field, by a table: ``words.py TABLE``; see ``words.txt``.

Words of prose, parts of names and dotted keys alike, in every tracked text file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

KINDS = (".py", ".md", ".yml", ".toml", ".jinja", ".proto")
KEPT = (".ci/", "rlax_plugin/rpc/rlax_pb2")  # this table; generated code


def main() -> None:
    rules: list[tuple[re.Pattern[str], str, tuple[str, ...]]] = []
    without: tuple[str, ...] = ()
    for line in Path(sys.argv[1]).read_text().splitlines():
        if line.startswith("= "):
            without = tuple(line[2:].split())
        elif line.strip() and not line.startswith("#"):
            old, new = line.split()
            rules.append((re.compile(old), new, without))
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if not name.endswith(KINDS) or name.startswith(KEPT):
            continue
        path = Path(name)
        text = found = path.read_text()
        for pattern, new, without in rules:
            if not name.startswith(without):
                found = pattern.sub(new, found)
        if found != text:
            path.write_text(found)


if __name__ == "__main__":
    main()
