"""The plug-in manager: loads the plug-ins that it is given, and no others.

pluggy does not report a missing marker, a class in place of an instance or a hook that never
runs; here each of these is a ``PluginError`` that says what would be right.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from rlax_plugin.base.errors import PluginError, alternatives
from rlax_plugin.ports import hookspecs

GROUP = "rlax_plugin"  # of entry points
KEY = "rlax.plugins"

_SPECIFICATIONS = {**hookspecs.REGISTER, **hookspecs.OBSERVE}
_PAGE = ModuleType("hooks")  # pluggy reads specifications off a module
vars(_PAGE).update(_SPECIFICATIONS)
# Hook name -> the arguments an implementation may take.
HOOKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: tuple(inspect.signature(function).parameters)
        for name, function in _SPECIFICATIONS.items()
    }
)
_OPTIONS = ("firstresult", "tryfirst", "trylast", "wrapper", "hookwrapper", "optionalhook")


@dataclass(frozen=True, slots=True)
class Installed:
    """A plug-in that a distribution offers as an entry point.

    Attributes:
      name: name to write in ``rlax.plugins``.
      target: ``module`` or ``module:attribute``.
      distribution: the installed package, e.g. ``rlax-plugin``.
      version: version of the distribution.
    """

    name: str
    target: str
    distribution: str
    version: str

    @property
    def built_in(self) -> bool:
        """True if it belongs to this project and is therefore known without being listed."""
        return self.distribution == "rlax-plugin"


def installed() -> tuple[Installed, ...]:
    """Every installed plug-in, by name; imports none of them."""
    return tuple(_installed(tuple(sys.path)).values())


@functools.cache
def _installed(path: tuple[str, ...]) -> dict[str, Installed]:
    """Reads the metadata of all distributions on ``path``, which is ``sys.path``."""
    points = importlib.metadata.entry_points(group=GROUP)
    found: dict[str, Installed] = {}
    for point in sorted(points, key=lambda p: (p.name, p.value)):
        dist = point.dist
        item = Installed(
            point.name, point.value, dist.name if dist else "", dist.version if dist else ""
        )
        known = found.setdefault(point.name, item)
        if known.target != item.target:
            raise PluginError(
                f"two distributions, {known.distribution} and {item.distribution}, install a "
                f"plug-in called {point.name!r}: uninstall one of them"
            )
    return found


class _Hooks:
    """``hooks.rlax_on_step_end(step=1, metrics={})`` calls every plug-in that implements it."""

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in HOOKS:
            raise AttributeError(f"no hook {name!r}; {alternatives(name, HOOKS)}")
        return functools.partial(self._call, name)


class Manager:
    """The loaded plug-ins of one process.

    Attributes:
      names: as the config lists them.
      hook: calls a hook in every plug-in, e.g. ``manager.hook.rlax_on_run_start(...)``.

    Args:
      names: entry-point names of group ``rlax_plugin``, or dotted module names.

    Raises:
      PluginError: a plug-in is unknown, cannot be imported, or breaks the hook contract.
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self.hook = _Hooks(self.call)
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(_PAGE)
        plugins: dict[str, Any] = {}
        for name in self.names:
            if name in plugins:
                raise _bad(name, "is listed twice")
            plugin = plugins[name] = _load(name)
            _check(name, plugin)
            if self._pluggy.is_registered(plugin):
                first = self._pluggy.get_name(plugin)
                raise _bad(name, f"is the same plug-in as {first!r}, which is listed already")
            try:
                self._pluggy.register(plugin, name)
            except pluggy.PluginValidationError as error:
                raise _bad(name, f"breaks the hook contract: {error}") from error
            if not self._pluggy.get_hookcallers(plugin):
                if inspect.ismodule(plugin) and getattr(plugin, "__file__", None) is None:
                    # A directory beside a script, such as that of a package not installed yet.
                    reason = f"is the directory {plugin.__path__[0]}, which has no __init__.py"
                    raise _bad(name, f"{reason}: install the plug-in, or name another module")
                raise _bad(
                    name,
                    "implements no hook; each one needs @hookimpl, imported from rlax_plugin.api; "
                    f"{alternatives('', HOOKS)}",
                )
        self._callers = {
            hook: [
                (name, self._pluggy.subset_hook_caller(hook, set(plugins.values()) - {plugin}))
                for name, plugin in plugins.items()
                if any(caller.name == hook for caller in self._pluggy.get_hookcallers(plugin) or ())
            ]
            for hook in HOOKS
        }

    def call(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Calls a hook in every plug-in that implements it, in the order of the config.

        Returns:
          (plug-in, return value) pairs.

        Raises:
          PluginError: a plug-in raised; names it, and has its exception as cause.
        """
        results = []
        for name, caller in self._callers[hook]:
            try:
                # Plug-ins are asked one by one, so that a failure has a name.
                (result,) = caller(**arguments) or [None]
            except Exception as error:
                raise PluginError(f"plug-in {name!r} failed in {hook}: {told(error)}") from error
            results.append((name, result))
        return results

    def origin(self, name: str) -> Installed:
        """The installed package that a loaded plug-in comes from; a bare module has none."""
        plugin = self._pluggy.get_plugin(name)
        version = str(getattr(plugin, "__version__", ""))
        return _installed(tuple(sys.path)).get(name, Installed(name, name, "", version))


def _bad(name: str, reason: str) -> PluginError:
    return PluginError(f"{KEY} = {name!r}: {reason}")


def told(error: Exception) -> str:
    """Formats an exception of a plug-in, with the line that raised it."""
    told = f"{type(error).__name__}: {error}"
    trace = traceback.extract_tb(error.__traceback__)
    return f"{told} ({trace[-1].filename}:{trace[-1].lineno})" if trace else told


def _load(name: str) -> Any:
    known = _installed(tuple(sys.path))
    if name not in known and (name.endswith(".py") or "/" in name):
        raise _bad(name, _file_advice(name))
    target = known[name].target if name in known else name
    module_name, _, attribute = target.partition(":")
    try:
        if not all(part.isidentifier() for part in module_name.split(".")):
            raise ModuleNotFoundError(name=module_name)
        plugin: Any = importlib.import_module(module_name)
        for part in attribute.split(".") if attribute else ():
            plugin = getattr(plugin, part)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if name not in known and missing and f"{name}.".startswith(f"{missing}."):
            reason = f"no plug-in or module of this name; {alternatives(name, known)}"
            raise _bad(name, reason) from None
        raise _bad(name, f"cannot be imported: {told(error)}") from error
    return plugin


def _file_advice(name: str) -> str:
    path = PurePath(name)
    module = path.name.removesuffix(".py")
    directory = shlex.quote(str(path.parent))
    return (
        "is a path, but a plug-in is named by its entry point or module: write "
        f"{module!r}, and set PYTHONPATH={directory} or install its package. If the file only has "
        f"a reward function, name the function instead: rlax.rewards: [{{function: {name}:NAME}}]"
    )


def _check(name: str, plugin: Any) -> None:
    """Rejects faults that pluggy accepts silently or reports without saying what is right."""
    if inspect.isclass(plugin):
        raise _bad(name, f"is the class {plugin.__name__}: register an instance of it")
    marker = f"{hookspecs.PROJECT}_impl"
    for attribute, function in _functions(plugin):
        options = getattr(function, marker, None)
        if options is None:
            if attribute.startswith("rlax_"):
                raise _bad(name, f"{attribute} {_marker_advice(attribute, function)}")
            continue
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            raise _bad(name, f"implements the unknown hook {hook!r}; {alternatives(hook, HOOKS)}")
        if used := [option for option in _OPTIONS if options.get(option)]:
            raise _bad(
                name,
                f"{hook} is marked {used[0]}: @hookimpl takes no options here, because the order "
                "of plug-ins must never change a result",
            )
        _check_signature(name, hook, function)


def _functions(plugin: Any) -> Iterator[tuple[str, Any]]:
    """Functions and methods of a plug-in; evaluates no properties."""
    for attribute in dir(plugin):
        static = inspect.getattr_static(plugin, attribute, None)
        if inspect.isroutine(static):
            yield attribute, getattr(plugin, attribute)


def _marker_advice(attribute: str, function: Any) -> str:
    for name, value in getattr(function, "__dict__", {}).items():
        if name.endswith("_impl") and isinstance(value, Mapping) and "specname" in value:
            project = name.removesuffix("_impl")
            marked = f"is marked with the @hookimpl of project {project!r}"
            return f"{marked}: use the one from rlax_plugin.api"
    advice = "has no @hookimpl (from rlax_plugin.api import hookimpl)"
    if attribute in HOOKS:
        return advice
    return f"{advice}, and is no hook; {alternatives(attribute, HOOKS)}"


def _check_signature(name: str, hook: str, function: Any) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise _bad(name, f"{hook} must be a plain function, neither a coroutine nor a generator")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _bad(name, f"{hook} must name its arguments; {parameter} would stay empty")
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise _bad(name, f"{hook} must take {parameter.name!r} as an ordinary argument, not *")
        if parameter.name not in HOOKS[hook]:
            raise _bad(
                name,
                f"{hook} has no argument {parameter.name!r}; "
                f"{alternatives(parameter.name, HOOKS[hook])}",
            )
        if parameter.default is not parameter.empty:
            raise _bad(
                name,
                f"{hook} gives {parameter.name!r} a default: remove it, some versions of pluggy "
                "would pass the default in place of the value",
            )
