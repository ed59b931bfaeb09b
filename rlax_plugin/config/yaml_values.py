"""Reads and writes the YAML that a config may contain: text, numbers, lists and mappings.

Other YAML is rejected when it is read, and the error names the key: values that contain themselves,
numbers with a thousand digits, keys that are not text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from rlax_plugin.base.errors import ConfigError

_DEEPEST, _MOST_VALUES = 50, 100_000


class _Loader(yaml.SafeLoader):
    """Safe YAML as OmegaConf reads it: 1e-3 is a number, dates are text, a key appears once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = "a key must be text"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                problem = f"the key {key.value!r} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_SCIENTIFIC = re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+.0123456789"))


_MARKED = (("found undefined alias", "alias", "*"), ("could not determine a con", "tag", "!"))


class _Dumper(yaml.SafeDumper):
    """Quotes text that ``_Loader`` or PyYAML would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.yaml_implicit_resolvers = {
    first: resolvers[:] for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+.0123456789"))


def dumped(content: Mapping[str, Any]) -> str:
    """Returns YAML that ``parse`` and OmegaConf read as the same content."""
    return yaml.dump(dict(content), Dumper=_Dumper, allow_unicode=True)


def parse(text: str | bytes, where: str, given: str | None = None) -> Any:
    """Reads YAML.

    Args:
      text: the YAML.
      where: the name for messages: a file, or the dotted key of the value.
      given: the value as it was typed; None: ``where`` is a file.

    Raises:
      ConfigError: the text is not YAML, or contains values that a config cannot have.
    """
    try:
        content = yaml.load(text, Loader=_Loader)  # _Loader is a safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark and given is None else where
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        for start, kind, sign in _MARKED:
            if problem.startswith(start):  # what follows may be a password
                problem = f"found undefined {kind} (quote a text that begins with {sign})"
        raise ConfigError(place, given, f"is not valid YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(where, given, f"is nested deeper than {_DEEPEST} levels") from None
    except (ValueError, LookupError, AttributeError) as error:
        # PyYAML converts without looking: !!int and !!bool of anything, numbers of 5000 digits.
        raise ConfigError(where, given, f"is not valid YAML: {error}") from None
    check_values(content, where, is_file=given is None)
    return content


def check_values(content: Any, where: str, *, is_file: bool = True) -> None:
    """Rejects values that JSON cannot represent, or that are unreasonably large.

    Raises:
      ConfigError: a value is rejected; the message names its key.
    """
    left: list[tuple[str, Any, int]] = [("" if is_file else where, content, 0)]
    seen = 0
    while left:
        key, value, depth = left.pop()
        seen += 1
        if depth > _DEEPEST or seen > _MOST_VALUES:
            reason = f"is nested deeper than {_DEEPEST} levels, or holds more than "
            raise ConfigError(where, None, f"{reason}{_MOST_VALUES:,} values, aliases included")
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str) or not name.isprintable():
                    reason = "must be text without control characters, like every key"
                    raise ConfigError(f"{key or where}: the key {name!r}"[:200], None, reason)
                left.append((f"{key}.{name}" if key else name, item, depth + 1))
        elif isinstance(value, list):
            left += [(f"{key}.{index}", item, depth + 1) for index, item in enumerate(value)]
        elif reason := _problem(value):
            raise ConfigError(key or where, None, reason)


def _problem(value: Any) -> str | None:
    """Describes the problem of a single value; None if it has none."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "must be text of whole characters, and holds half of a surrogate pair"
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"must fit into 64 bits, and has {value.bit_length()}"
    if value is None or isinstance(value, int | float):
        return None
    return f"must be text, a number, true, false, null, a list or a mapping, not {type(value)}"
