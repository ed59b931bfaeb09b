"""The built-in part that a choice with ``function`` means, one for rewards and one for filters.

Its errors are ``FunctionError``, to which the registry adds the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlax_plugin.config import FunctionOptions
from rlax_plugin.config.functions import parse_function
from rlax_plugin.functions.calling import as_reward
from rlax_plugin.functions.checking import checked_signature
from rlax_plugin.functions.filtering import FunctionFilter
from rlax_plugin.functions.loading import function_of
from rlax_plugin.functions.signatures import Signature, signature_of
from rlax_plugin.ports.protocols import BuildContext, Extension


def _loaded(options: FunctionOptions, kind: str, context: BuildContext) -> tuple[Any, Signature]:
    """Executes the file in this process; returns the function and its signature."""
    name = parse_function(options.function)
    path = context.functions.get(name.file, name.file)
    function = function_of(path, name.module, name.name)
    return function, signature_of(function, name.name, kind, name.file)


def _reward(options: FunctionOptions, context: BuildContext) -> Any:
    return as_reward(*_loaded(options, "reward", context))


def _filter(options: FunctionOptions, context: BuildContext) -> Any:
    label = options.label or parse_function(options.function).name
    return FunctionFilter(*_loaded(options, "filter", context), label)


def _check_start(kind: str) -> Callable[[FunctionOptions, BuildContext], None]:
    def check_start(options: FunctionOptions, context: BuildContext) -> None:
        deadline_s = context.section.deadlines.startup_s
        checked_signature(options.function, kind, context.functions, deadline_s)

    return check_start


EXTENSIONS: Mapping[str, Extension] = {
    "reward": Extension(FunctionOptions, _reward, check_start=_check_start("reward")),
    "filter": Extension(FunctionOptions, _filter, check_start=_check_start("filter")),
}
"""Kind -> the part that calls a function."""
