"""``rlax init --recipe``: complete configs for models and machines, copied as they are.

A recipe is a file ``NAME.yml``. Files beside it that are called ``NAME.``, such as a program or a
notebook, belong to it, and so do those of the recipe that it is based on.
"""

from __future__ import annotations

from pathlib import Path

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.config.yaml_values import parse

_FOLDER = Path(__file__).with_name("recipes")
_OPTION = "--recipe"


def described() -> dict[str, str]:
    """Returns the name of each recipe -> its first line, which says what it is for."""
    heads = {path.stem: _comments(path)[0] for path in sorted(_FOLDER.glob("*.yml"))}
    return {name: head.removeprefix("# ") for name, head in heads.items()}


def copy(name: str, path: Path | None, force: bool) -> tuple[list[Path], list[str]]:
    """Copies the files of a recipe into one directory.

    Args:
      path: of the config; None: the recipe's own name, in the working directory.
      force: True if files that exist and differ are replaced.

    Returns:
      The paths of the files, the config first, and the comments at the beginning of the config.

    Raises:
      ConfigError: there is no such recipe, or a file exists or cannot be written.
    """
    if name not in described():
        raise ConfigError(_OPTION, name, f"no such recipe; {alternatives(name, described())}")
    config, *others = _files(name)
    target = path or Path(config.name)
    copies = {target: config} | {target.with_name(other.name): other for other in others}
    if len(copies) == len(others):
        raise ConfigError("FILE", str(target), "is a file that the recipe is based on: rename it")
    for there, source in copies.items():
        if not force and there.exists() and there.read_bytes() != source.read_bytes():
            reason = "exists and differs from the recipe's: choose another directory, or --force "
            raise ConfigError("FILE", str(there), f"{reason}replaces it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for there, source in copies.items():
            there.write_bytes(source.read_bytes())
    except OSError as error:
        raise ConfigError("FILE", str(target), f"cannot be written: {error.strerror}") from None
    return list(copies), _comments(config)


def _files(name: str) -> list[Path]:
    """Returns the files of a recipe; its config is the first."""
    config = _FOLDER / f"{name}.yml"
    beside = [path for path in sorted(_FOLDER.glob("*.*")) if path.stem == name and path != config]
    base = _FOLDER / str(parse(config.read_text(encoding="utf-8"), config.name)["base_config"])
    return [config, *beside, *(_files(base.stem) if base.parent == _FOLDER else [])]


def _comments(config: Path) -> list[str]:
    lines = config.read_text(encoding="utf-8").splitlines()
    return lines[: next(n for n, line in enumerate(lines) if not line.startswith("#"))]
