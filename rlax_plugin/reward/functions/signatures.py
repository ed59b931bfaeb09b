"""The file of a function, executed, and the signature of the function in it.

Run as ``python -m rlax_plugin.reward.functions.signatures PATH MODULE NAME KIND``, it is a child
process that says what a function takes: a file may end the process or hang when it is executed,
which must cost no trainer. Its imports are light, so that this takes a tenth of a second.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from rlax_plugin.base.errors import alternatives
from rlax_plugin.base.processes.inside import Lines
from rlax_plugin.base.text.harmless import one_line

Form = Literal["sample", "group"]

SAMPLE = ("completion", "prompt", "reference", "tokens", "metadata")
"""Parameters of a reward for one sample; every other one is a column of the data."""

GROUP = ("completions", "prompts", "reference", "completion_ids", "metadata")
"""Parameters of a reward for a group; each is a list with an entry for each sample."""

FILTER = (
    "completions",
    "rewards",
    "prompt",
    "reference",
    "lengths",
    "truncated",
    "pass_rate",
    "metadata",
)
"""Parameters of a filter, which always sees a group."""

_OF_SAMPLE = frozenset(("completion", "prompt", "tokens"))
_OF_GROUP = frozenset(("completions", "prompts", "completion_ids"))
_ANSWERS = frozenset(("completion", "tokens", "completions", "completion_ids"))
_OF_TRL = frozenset(("trainer_state", "log_extra", "log_metric", "environments"))
_KIND = inspect.Parameter


class FunctionError(Exception):
    """A function cannot be used; the message says why, with file and line, and what is right."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as it is called.

    Attributes:
      form: "sample": once for each sample; "group": once for all samples of a prompt.
      waits: True if it is an ``async`` function.
      required: names of the parameters without a default.
      optional: names of those with one.
      rest: True if it takes ``**columns``.
      file: name of the file that defines it, without directory.
      line: line of its ``def``.
      name: its name in that file.
    """

    form: Form
    waits: bool
    required: tuple[str, ...]
    optional: tuple[str, ...]
    rest: bool
    file: str
    line: int
    name: str

    @property
    def where(self) -> str:
        """The function with file and line, for messages."""
        return f"{self.name} ({self.file}, line {self.line})"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the data must have."""
        parameters = {*SAMPLE, *GROUP, *FILTER}
        return tuple(name for name in self.required if name not in parameters)


def signature_of(function: object, name: str, kind: str, file: str) -> Signature:
    """Returns the signature of a function.

    Args:
      name: its name in the config.
      kind: ``reward``, ``filter`` or ``tool``.
      file: name of the file that the config names; empty for a function of a module.

    Raises:
      FunctionError: it cannot be a reward or filter.
    """
    plain = _plain(function, name, file)
    code = inspect.unwrap(plain).__code__
    place, line = os.path.basename(code.co_filename), code.co_firstlineno
    where = f"{name} ({place}, line {line})"
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise FunctionError(f"{where} is a generator: it must return its value, and not yield it")
    required, optional, rest = _parameters(plain, where)
    named = (*required, *optional)
    form: Form = "sample"
    if kind == "tool":
        from rlax_plugin.reward.functions.described import description_of  # loads transformers

        try:
            description_of(plain)
        except ValueError as error:
            raise FunctionError(f"{where} cannot be a tool: {error}") from None
    else:
        form = _form(named, where) if kind == "reward" else _filter_form(named, where)
    if kind == "filter" and inspect.iscoroutinefunction(plain):
        raise FunctionError(f"{where} is async: a filter must be a plain def")
    if lacking := [name for name in required if name in _OF_TRL]:
        reason = "is an object of TRL's trainer, which does not exist here: give it a default"
        raise FunctionError(f"{where}: its parameter {lacking[0]!r} {reason}")
    waits = inspect.iscoroutinefunction(plain)
    return Signature(form, waits, required, optional, rest, place, line, name)


def _plain(function: object, name: str, file: str) -> Callable[..., Any]:
    label = f"{name} of {file}" if file else name
    define = f"must be a function: def {name}(completion): ..."
    if inspect.isclass(function):
        raise FunctionError(f"{label} is a class: it {define}")
    if not callable(function):
        raise FunctionError(f"{label} is {function!r:.80}, and cannot be called: it {define}")
    if not inspect.isfunction(function):
        kind = type(function).__name__
        raise FunctionError(f"{label} is an object of type {kind}: it {define}")
    if function.__name__ == "<lambda>":
        line = function.__code__.co_firstlineno
        raise FunctionError(f"{label} is a lambda (line {line}): it {define}")
    return function


def _parameters(function: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    required: list[str] = []
    optional: list[str] = []
    rest = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is _KIND.POSITIONAL_ONLY:
            reason = "is positional-only: remove the / behind it, as parameters are given by name"
            raise FunctionError(f"{where}: its parameter {parameter.name!r} {reason}")
        if parameter.kind is _KIND.VAR_POSITIONAL:
            reason = "cannot be filled: parameters are given by name; **columns takes all columns"
            raise FunctionError(f"{where}: *{parameter.name} {reason}")
        if parameter.kind is _KIND.VAR_KEYWORD:
            rest = True
        else:
            (required if parameter.default is _KIND.empty else optional).append(parameter.name)
    return tuple(required), tuple(optional), rest


def _form(named: Sequence[str], where: str) -> Form:
    group = [name for name in named if name in _OF_GROUP]
    sample = [name for name in named if name in _OF_SAMPLE]
    if group and sample:
        raise FunctionError(
            f"{where} takes {group[0]!r}, a list over the samples of a group, and {sample[0]!r}, "
            "of one sample: take those of one form"
        )
    if not any(name in _ANSWERS for name in named):
        raise FunctionError(
            f"{where} takes{_listed(named)}, and neither 'completion', the text of one sample, nor "
            "'completions', those of a group: take one of them"
        )
    return "group" if group else "sample"


def _filter_form(named: Sequence[str], where: str) -> Form:
    wrong = {"completion": "completions", "prompts": "prompt", "completion_ids": "lengths"}
    for name in named:
        if name in wrong:
            reason = f"a filter sees a whole group: take {wrong[name]!r}"
            raise FunctionError(f"{where}: it has no {name!r}, as {reason}")
    return "group"


def _listed(named: Iterable[str]) -> str:
    return f" {', '.join(map(repr, named))}" if named else " no parameter"


_PREFIX = "rlax_function_file_"
_modules: dict[str, ModuleType] = {}


def own_line(error: BaseException) -> tuple[str, int, str] | None:
    """Returns file, line and function of the innermost frame in a file of functions, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename in _modules:
            return os.path.basename(frame.filename), frame.lineno or 0, frame.name
    return None


def function_of(path: str, module: str, name: str) -> Any:
    """Returns a function of a file, or of a module; executes it the first time.

    Args:
      path: the file; empty: a function of ``module``.

    Raises:
      FunctionError: the file cannot be executed, or has no such name.
    """
    loaded = _of_file(path) if path else _of_module(module)
    place = os.path.basename(path) if path else module
    try:
        return getattr(loaded, name)
    except AttributeError:
        names = [n for n, value in vars(loaded).items() if _own(value, loaded) and n[0] != "_"]
        reason = f"has no function {name!r}; {alternatives(name, names)}"
        raise FunctionError(f"{place} {reason}") from None


def _own(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _of_file(path: str) -> ModuleType:
    if path in _modules:
        return _modules[path]
    place = os.path.basename(path)
    code = _compiled(path, place)
    module = ModuleType(f"{_PREFIX}{len(_modules)}_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = _modules[path] = module  # dataclasses look there
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # noqa: BLE001  whatever it raises is told in one line
        place_in_file = own_line(error)
        del sys.modules[module.__name__], _modules[path]
        line = f", line {place_in_file[1]}" if place_in_file else ""
        lacks = isinstance(error, ModuleNotFoundError)
        hint = ": install it, or add its directory to PYTHONPATH" if lacks else ""
        raise FunctionError(f"{place}{line}: {_told(error)}{hint}") from None
    return module


def _of_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001  as above
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.split(".")[0]):
            hint = ": install it, add its directory to PYTHONPATH, or name a file, FILE.py:NAME"
        raise FunctionError(f"module {name}: {_told(error)}{hint}") from None


def _told(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return (
            f"it calls sys.exit({error.code!r}) when it is imported: put code that runs as a "
            'program below if __name__ == "__main__"'
        )
    try:
        return f"it raises {one_line(f'{type(error).__name__}: {error}', 300)} when it is imported"
    except Exception:  # noqa: BLE001  a ``__str__`` of the user's may raise anything
        return f"it raises {type(error).__name__} when it is imported"


def _compiled(path: str, place: str) -> Any:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise FunctionError(f"{path} cannot be read: {error.strerror}") from None
    try:
        tree = ast.parse(source, path)
        check_imports(tree, path, place)
        return compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise FunctionError(f"{place}{line}: it is not Python: {one_line(error.msg)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = one_line(str(error)) or type(error).__name__
        raise FunctionError(f"{place}: it cannot be compiled: {reason}") from None


def check_imports(tree: ast.Module, path: str, place: str) -> None:
    """Rejects imports of files beside it: a run keeps a copy of the one file only.

    Raises:
      FunctionError: it imports such a file.
    """
    folder = Path(path).parent
    for line, name in _imported(tree):
        if not name:
            reason = "imports relative to a package, but a file of functions is none"
        elif name in sys.stdlib_module_names or not _lies_in(folder, name):
            continue
        else:
            reason = f"imports {name!r}, a file beside it, of which a run would keep no copy"
        mend = "put what it needs into the one file, or into an installed package"
        raise FunctionError(f"{place}, line {line}: it {reason}: {mend}")


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields (line, top-level package) of every import; the package is empty if it is relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "" if node.level else (node.module or "").partition(".")[0]


def _lies_in(folder: Path, name: str) -> bool:
    """True if importing ``name`` takes a module of this folder, not one of the same name elsewhere.

    Python may not find it at all (no origin) because the folder is on no path yet: then it is ours.
    """
    beside = (folder / f"{name}.py", folder / name / "__init__.py")
    if not any(path.is_file() for path in beside):
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    origin = None if spec is None else spec.origin
    return origin is None or any(os.path.realpath(origin) == os.path.realpath(b) for b in beside)


def inspected(path: str, module: str, name: str, kind: str) -> Signature:
    """Returns the signature of a function, whose file is executed in this process.

    Raises:
      FunctionError: it cannot be used as a part of this kind.
    """
    file = os.path.basename(path)
    return signature_of(function_of(path, module, name), name, kind, file)


def main() -> None:
    lines = Lines()  # what the file prints is no answer
    try:
        lines.say({"signature": asdict(inspected(*sys.argv[1:]))})
    except FunctionError as error:
        lines.say({"error": str(error)})
    os._exit(0)  # threads that the file has started are not waited for


if __name__ == "__main__":
    main()
