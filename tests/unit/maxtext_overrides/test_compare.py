"""Another version is compared symbol by symbol, from sources alone; all packages are made up."""

import inspect
import textwrap
import zipfile
from pathlib import Path

import maxtext_check as comparing
import pytest
from maxtext_check import Sources, compare, sha256

from maxtext_overrides.upstream import signatures
from maxtext_overrides.upstream.override import Override, resolve
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.text.terminal import console

TESTED = {
    "up/__init__.py": "raise ImportError('nothing here is imported')\n",
    "up/loop.py": """
        from up.parts import Model as Model
        from .parts import pair
        from up import parts

        def same(a):
            return a

        # A comment before is not part of it.
        @decorated(
            with_an_argument,
        )
        def changed(a, b=1):
            return a  # the first

        def renamed(a):
            return a

        def moved(a):
            return a

        def keyed(state):
            return state["step"], state["model"]

        try:
            CONSTANT, other = 1, 2
        except ImportError:
            CONSTANT = None
        """,
    "up/parts.py": """
        class Model:
            depth: int = 1

            def __call__(self, tokens):
                return tokens

        def pair(): return 1, 2

        TABLE = {"one": 1, "two": 2}
        """,
}
MOVED = "\n        def moved(a):\n            return a\n"
LOOP = TESTED["up/loop.py"].replace(MOVED, "").replace("b=1", "b=2")
OTHER = TESTED | {
    "up/loop.py": LOOP.replace("def renamed(", "def renamed_now(").replace('"model"]', '"models"]'),
    "up/elsewhere.py": MOVED,
}


def written(folder: Path, files: dict[str, str]) -> Sources:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return Sources(folder)


def wheel(path: Path, files: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, textwrap.dedent(text).lstrip("\n"))
    return path


@pytest.fixture
def tested(tmp_path):
    return written(tmp_path / "tested", TESTED)


@pytest.fixture
def other(tmp_path):
    return written(tmp_path / "other", OTHER)


def override(tested, symbol, names=(), **known):
    digest = known.pop("sha256", None) or sha256(tested.find(symbol).text)
    return Override(
        symbol, "called", "a test", "never", sha256="" if names else digest, names=names, **known
    )


def compared(tested, other, symbol, names=()):
    (one,) = compare({"ours.py": [override(tested, symbol, names)]}, tested, other)
    return one


def test_a_digest_is_that_of_the_source_python_itself_finds() -> None:
    sources = Sources(Path(__file__).parents[3])
    for found in (signatures.check, Override, resolve, console):
        place = sources.find(f"{found.__module__}.{found.__qualname__}")
        assert place is not None
        assert place.text == inspect.getsource(found)


def test_a_definition_is_found_behind_imports_decorators_and_conditions(tested) -> None:
    assert tested.find("up.loop.Model").symbol == "up.parts.Model"
    assert tested.find("up.loop.pair").symbol == "up.parts.pair"
    assert tested.find("up.loop.parts").symbol == "up.parts"
    assert tested.find("up.loop.parts.Model.depth").text == "    depth: int = 1\n"
    assert tested.find("up.loop.CONSTANT").text == "    CONSTANT, other = 1, 2\n"
    assert tested.find("up.loop.changed").text == (
        "@decorated(\n    with_an_argument,\n)\ndef changed(a, b=1):\n    return a  # the first\n"
    )
    assert [tested.find(f"up.{name}") for name in ("nowhere", "loop.nothing", "loop.same.a")] == [
        None,
        None,
        None,
    ]


def test_changed_comes_with_a_unified_diff(tested, other) -> None:
    one = compared(tested, other, "up.loop.changed")
    assert one.status == "changed"
    assert one.diff[:2] == ("--- tested/up.loop.changed", "+++ other/up.loop.changed")
    assert {"-def changed(a, b=1):", "+def changed(a, b=2):"} < set(one.diff)


def test_missing_names_what_is_like_it(tested, other) -> None:
    one = compared(tested, other, "up.loop.renamed")
    assert (one.status, one.diff) == ("missing", ())
    assert one.notes[0] == "nearest: up.loop.renamed_now, with another source"


def test_of_names_only_the_missing_ones_count(tested, other) -> None:
    assert compared(tested, other, "up.loop", ("same", "pair")).status == "same"
    one = compared(tested, other, "up.loop.keyed", ("step", "model"))
    assert (one.status, one.notes) == ("missing", ("no model in it; nearest: models",))


def test_a_stale_table_is_an_error(tested, other) -> None:
    with pytest.raises(RlaxError, match=r"up\.gone is not in the tested version"):
        compare({"ours.py": [override(tested, "up.gone", sha256="0")]}, tested, other)
    stale = override(tested, "up.loop.same", sha256="0")
    (one,) = compare({"ours.py": [stale]}, tested, other)
    assert one.notes == ("the tested source has another digest than the table",)


def test_a_wheel_is_compared_and_the_status_says_whether_anything_differs(
    tested, tmp_path, monkeypatch, capsys
) -> None:
    place = wheel(tmp_path / "up-1-py3-none-any.whl", OTHER)
    monkeypatch.setattr(comparing, "installed", lambda *_: tested)
    for names, status, counts in (
        (("same", "Model"), 0, "2 symbols of maxtext 0.2.5 in {}: 2 same, 0 changed, 0 missing"),
        (
            ("same", "changed", "moved"),
            1,
            "3 symbols of maxtext 0.2.5 in {}: 1 same, 1 changed, 1 missing",
        ),
    ):
        table = {"ours.py": tuple(override(tested, f"up.loop.{name}") for name in names)}
        monkeypatch.setattr(comparing, "BY_MODULE", table)
        assert comparing.main([str(place)]) == status
        printed = capsys.readouterr().out
        assert printed.splitlines()[-1] == counts.format(place)
    assert "nearest: up.elsewhere.moved, with the same source" in printed
