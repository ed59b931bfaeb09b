"""The parameters of everything public stand in ``public_face.txt``: a change is a visible diff.

``python tests/unit/house/test_public_face.py > tests/unit/house/public_face.txt`` writes it anew.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel

import rlax_plugin
from rlax_plugin import api, testing


def parameters(function: object) -> str:
    """Names, kinds and defaults, without types, which pyright checks."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    empty = inspect.Parameter.empty
    shown = [
        one.replace(annotation=empty, default=empty if one.default is empty else ...)
        for one in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=shown, return_annotation=inspect.Signature.empty))
    return text.replace("=Ellipsis", "=...")


def _imported(module: ModuleType) -> list[str]:
    """What a module without ``__all__`` offers: what it imports, but for what typing needs."""
    typing = {"annotations", "Any", "TYPE_CHECKING"}
    return [
        name for name in (*vars(module), *_LATE) if not name.startswith("_") and name not in typing
    ]


_LATE = ("fingerprint",)  # imported once it is asked for


def face(module: ModuleType) -> Iterator[str]:
    """A line for each public name, and for each method that its class defines itself."""
    for name in sorted(getattr(module, "__all__", _imported(module))):
        value = getattr(module, name)
        if inspect.isclass(value) and issubclass(value, BaseModel):  # docs/config.md has its keys
            yield f"{module.__name__}.{name}"
            continue
        yield f"{module.__name__}.{name}{parameters(value) if callable(value) else ''}"
        if inspect.isclass(value):
            for method, function in sorted(vars(value).items()):
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{module.__name__}.{name}.{method}{parameters(function)}"


def lines() -> list[str]:
    return [line for module in (rlax_plugin, api, testing) for line in face(module)]


def test_the_public_face_is_as_it_is_written_down() -> None:
    written = Path(__file__).with_name("public_face.txt").read_text().splitlines()
    assert lines() == written


if __name__ == "__main__":
    print("\n".join(lines()))
