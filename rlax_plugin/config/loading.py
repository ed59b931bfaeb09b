"""The one reader of configs: files and arguments in, a ``ResolvedConfig`` out, without MaxText.

Files, ``base_config``, and ``key=value`` arguments are merged as MaxText (OmegaConf) merges them:
mappings key by key, lists as a whole. MaxText's own base files contain no ``rlax:`` and are not
read here: MaxText merges them when it receives its own keys, without ``rlax``.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import hidden_character
from rlax_plugin.base.text.secrets import learn_secrets
from rlax_plugin.config import NonNegativeInt, RlaxSection, default_parts, plain_name
from rlax_plugin.config.data_paths import located, marked
from rlax_plugin.config.environments import completed
from rlax_plugin.config.functions import function_files, rebased
from rlax_plugin.config.validation import validate
from rlax_plugin.config.yaml_values import dumped, parse

BASE = "base_config"
CONVERTED = "model.yml"
"""The name of the keys of a converted model."""
# Read here as well as by MaxText, so that both must see one value.
_SHARED = ("steps", "run_name", "base_output_directory")
# Parts whose name may be left out: what is said of such a part is said of the default one.
_DEFAULT_NAMES = dict(default_parts(RlaxSection, "rlax"))
_LONGEST_NAME = 128  # bytes; names of files are made of it, and file systems take 255


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A config merged from files and arguments and validated once, the source of all other forms.

    Attributes:
      section: the validated ``rlax:`` section.
      maxtext: MaxText's own keys as far as files and arguments set them (unchecked); no ``rlax``.
      content: both, as files and arguments set them.
      arguments: MaxText's keys that arguments set. MaxText rejects them if a named model has
        another value, while the model's value takes precedence over a file's.
      source: name of the file, for messages.
      functions: file of a key ``function``, as the config names it -> the file to execute.
      warnings: of paths that are not relative to the config: (config key, one sentence).
    """

    section: RlaxSection
    maxtext: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)
    arguments: frozenset[str] = frozenset()
    source: str = "config"
    functions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[tuple[str, str], ...] = ()

    def with_content(self, content: Mapping[str, Any]) -> ResolvedConfig:
        """Returns this config with further content merged into it, like arguments."""
        names = self.arguments | content.keys()
        merged = resolved(_merge(self.content, content, ""), arguments=names, source=self.source)
        return replace(merged, functions=self.functions, warnings=self.warnings)

    def to_process(self) -> dict[str, Any]:
        """Returns JSON from which ``of_process`` makes this config again, on this machine."""
        return {
            "content": self.content,
            "arguments": sorted(self.arguments),
            "source": self.source,
            "functions": dict(self.functions),
        }

    def to_yaml(self) -> bytes:
        """Returns the YAML that a run keeps in its directory; ``of_yaml`` reads it."""
        return dumped(self.content).encode()


def resolve(config_path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> ResolvedConfig:
    """Reads and validates a config.

    Args:
      config_path: a MaxText config (``.yml``) with an ``rlax:`` section.
      overrides: ``key=value`` arguments, e.g. ``steps=10`` and ``rlax.rollouts.group_size=4``.

    Raises:
      ConfigError: the file is missing or not YAML, the section is missing, or a key or value in it
        is wrong; or, of MaxText's keys, ``steps`` is not a positive integer, ``run_name`` is not
        the name of a directory, or ``base_output_directory`` is not a path.
    """
    path, warnings = os.fspath(config_path), dict[str, str]()
    content = located(overridden(_read(Path(path), ()), overrides), warnings.setdefault)
    config = _of_file(content, path, overrides)
    functions = function_files(
        config.section.functions_named, Path(path).parent, warnings.setdefault
    )
    return replace(config, functions=functions, warnings=tuple(warnings.items()))


def of_process(asked: Mapping[str, Any]) -> ResolvedConfig:
    """Reads ``ResolvedConfig.to_process``; raises as ``resolve``."""
    arguments = frozenset(asked["arguments"])
    config = resolved(asked["content"], arguments=arguments, source=asked["source"])
    return replace(config, functions=asked["functions"])


def of_yaml(text: bytes, source: str, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """Reads a config that a run has kept, with ``key=value`` arguments; raises as ``resolve``.

    Args:
      source: path of the kept config, for messages.
    """
    content = parse(text, source)
    if not isinstance(content, dict):
        raise ConfigError(source, None, "must be a mapping of keys to values")
    return _of_file(located(overridden(content, overrides)), source, overrides)


def _of_file(content: dict[str, Any], source: str, overrides: Sequence[str]) -> ResolvedConfig:
    names = {override.partition("=")[0].partition(".")[0] for override in overrides}
    return resolved(content, arguments=frozenset(names), source=source)


def resolved(
    content: Mapping[str, Any], *, arguments: frozenset[str] = frozenset(), source: str = "config"
) -> ResolvedConfig:
    """Validates merged content; raises what ``resolve`` does."""
    learn_secrets(content)  # before an error can repeat them
    maxtext = dict(content)
    raw = maxtext.pop("rlax", None)
    if raw is None:
        raise ConfigError(
            "rlax",
            None,
            f"{source} has no rlax: section; it needs at least prompt_source and rewards",
        )
    if not isinstance(raw, Mapping):
        raise ConfigError("rlax", raw, "must be a mapping of keys to values")
    for key in _SHARED:
        variable = f"M_{key.upper()}"
        if variable in os.environ:
            reason = (
                f"is also set by the environment variable {variable}, for MaxText only: unset it"
            )
            raise ConfigError(key, maxtext.get(key), reason)
    for key, value in content.items():
        _reject_interpolation(key, value)
    if (steps := maxtext.get("steps")) is not None:
        maxtext["steps"] = _whole_steps(steps)
    check_run_name(maxtext.get("run_name"))
    _check_output_directory(maxtext.get("base_output_directory"))
    section = validate(RlaxSection, completed(raw), "rlax")
    return ResolvedConfig(section, maxtext, content, arguments - {"rlax"}, source)


def load_section(
    config_path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> tuple[RlaxSection, Mapping[str, Any]]:
    """Returns only the section and MaxText's own keys; see ``resolve``."""
    config = resolve(config_path, overrides)
    return config.section, config.maxtext


def _whole_steps(value: Any) -> int:
    """Returns MaxText's ``steps``, read as MaxText reads it."""
    try:
        return TypeAdapter(NonNegativeInt).validate_python(value)
    except ValidationError:
        reason = "must be a whole number, at least 0 and at most 2147483647"
        raise ConfigError("steps", value, reason) from None


def check_run_name(value: Any) -> None:
    """Checks that ``run_name`` is the name of a directory inside ``base_output_directory``.

    Raises:
      ConfigError: the name is not a plain directory name.
    """
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError("run_name", value, f"must be text: write run_name: '{value}'")
    if hidden := hidden_character(value):
        reason = "must not contain control characters, nor others that cannot be seen: it has "
        raise ConfigError("run_name", value, f"{reason}{hidden}")
    if len(value.encode()) > _LONGEST_NAME:
        reason = f"must have at most {_LONGEST_NAME} bytes, but has {len(value.encode())}"
        raise ConfigError("run_name", value, reason)
    # Wildcards, ``::`` and ``#`` mean something to file systems behind fsspec.
    special = [mark for mark in ("/", "\\", "*", "?", "[", "]", "#", "::") if mark in value]
    if special:
        reason = f"must be the name of one directory, without {special[0]}"
        raise ConfigError("run_name", value, reason)
    if value != value.strip() or value.startswith("."):
        reason = "must begin with a letter, a digit or a sign, not with a dot or a space"
        raise ConfigError("run_name", value, f"{reason}, nor end with a space")


def _check_output_directory(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value.isprintable():
        reason = "must be a path or URL without control characters"
        raise ConfigError("base_output_directory", value, reason)
    if value.startswith("~"):  # some that read it would take it for a directory of that name
        reason = "must be a full path: ~ is not expanded here"
        raise ConfigError("base_output_directory", value, reason)


def merged(config_path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the merged files and arguments, MaxText's keys and ``rlax:``, unchecked.

    Raises:
      ConfigError: the files cannot be read.
    """
    return located(overridden(_read(Path(config_path), ()), overrides))


def overridden(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Returns a config's content with ``key=value`` arguments merged into it.

    Raises:
      ConfigError: an argument is not of the form ``key=value``, or does not fit the content.
    """
    for override in overrides:
        content = _merge(content, _parse_override(override), "")
    return dict(content)


def _read(path: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
    """Reads a file and the files it is based on, with ``marked`` paths."""
    if path.suffix != ".yml":
        raise ConfigError(
            "config", str(path), "must be a file that ends in .yml, as MaxText requires"
        )
    if path.resolve() in chain:
        raise ConfigError(BASE, str(path), "is based on itself")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError("config", str(path), f"cannot be read: {error.strerror}") from None
    content = parse(text, str(path))
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(str(path), None, "must be a mapping of keys to values")
    content = marked(content, path.parent)
    base = content.get(BASE)
    if not base:
        return content
    base_path = path.parent / str(base)
    if os.path.isfile(base_path):  # False also of what cannot be a path
        del content[BASE]
        below = _read(base_path, (*chain, path.resolve()))
        below = rebased(below, base_path.parent, path.parent)
        return _merge(below, content, "")
    known = maxtext_configs()
    if known is not None and not os.path.isfile(known / str(base)):
        hint = "; rlax convert writes it" if Path(str(base)).name == CONVERTED else ""
        raise ConfigError(
            BASE, base, f"no such file in {path.parent}, nor among MaxText's configs{hint}"
        )
    return content


def maxtext_configs() -> Path | None:
    """Returns the directory of MaxText's base files without importing it; None if not installed."""
    spec = importlib.util.find_spec("maxtext")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "configs"


def model_keys(name: str) -> dict[str, Any]:
    """Returns the keys of a model that MaxText has by name; empty if it has no such model."""
    configs = maxtext_configs()
    path = configs / "models" / f"{name}.yml" if configs else None
    if path is None or Path(name).name != name or not path.is_file():
        return {}
    return merged(path)


def repeated_keys(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Returns a warning for each key that several ``key=value`` arguments set: (key, sentence).

    Mappings are left out: they are merged, so that all of them may count.
    """
    times = Counter(
        key
        for key, _, value in (override.partition("=") for override in overrides)
        if not isinstance(parse(value, key, given=value), Mapping)
    )
    return [
        (key, f"is given {count} times on the command line: the last one counts")
        for key, count in times.items()
        if count > 1
    ]


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    parts = key.split(".")
    if not equals or not all(re.fullmatch(r"[\w-]+", part) for part in parts):
        raise ConfigError("command line", text, "must be key=value, such as rlax.seed=1")
    content: Any = parse(value, key, given=value)
    for part in reversed(parts):
        content = {part: content}
    return content


def _merge(base: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    merged = dict(base)
    for key, value in new.items():
        old = merged.get(key)
        if isinstance(old, list) and isinstance(value, Mapping):
            reason = f"is a list, which can only be set as a whole: {prefix}{key}=[...]"
            raise ConfigError(f"{prefix}{key}", value, reason)
        # Another name is another part: the options of the old one go with it.
        known = _name(old, f"{prefix}{key}")
        renamed = isinstance(value, Mapping) and not _one_name(value.get("name", known), known)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not renamed:
            value = _merge(old, value, f"{prefix}{key}.")
        merged[key] = value
    return merged


def _one_name(one: Any, other: Any) -> bool:
    """True if two names may mean the same part, such as ``plugin:x`` and ``x``."""
    names = [str(one), str(other)]
    if sum(":" in name for name in names) == 1:
        names = [plain_name(name) for name in names]
    return names[0] == names[1]


def _name(part: Any, key: str) -> Any:
    """Returns the name of the part that is configured under ``key``, given or by default."""
    return part.get("name", _DEFAULT_NAMES.get(key)) if isinstance(part, Mapping) else None


def _reject_interpolation(key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            _reject_interpolation(f"{key}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _reject_interpolation(f"{key}.{index}", item)
    elif isinstance(value, str) and "${" in value:
        raise ConfigError(key, value, "interpolation is not possible here: write the value itself")
