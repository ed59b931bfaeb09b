"""Another version is compared symbol by symbol, from sources alone; all packages are made up."""

import inspect
import io
import subprocess
import textwrap
import zipfile
from pathlib import Path

import maxtext_check as comparing
import pytest
from maxtext_check import Sources, compare, fetch, sha256, show

from maxtext_overrides.upstream import signatures
from maxtext_overrides.upstream.override import Override, OverrideError, resolve
from maxtext_overrides.upstream.signatures import WHEELS, check, kept_wheel
from rlax_plugin.errors import RlaxError
from rlax_plugin.text.terminal import console

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
OTHER = TESTED | {
    "up/loop.py": """
        from up.parts import Model as Model
        from .parts import pair
        from up import parts

        def same(a):
            return a

        @decorated(
            with_an_argument,
        )
        def changed(a, b=2):
            return a  # the first

        def renamed_now(a):
            return a

        def keyed(state):
            return state["step"], state["models"]
        """,
    "up/elsewhere.py": """
        def moved(a):
            return a
        """,
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


def test_names_are_fields_keys_arguments_and_imports(tested) -> None:
    assert tested.find("up.parts").names >= {"Model", "depth", "tokens", "pair", "one", "two"}
    assert tested.find("up.loop").names >= {"Model", "pair", "parts", "step", "other"}
    assert "1" not in tested.find("up.parts").names


def test_same(tested, other) -> None:
    one = compared(tested, other, "up.loop.same")
    assert (one.status, one.notes, one.diff) == ("same", (), ())


def test_changed_comes_with_a_unified_diff(tested, other) -> None:
    one = compared(tested, other, "up.loop.changed")
    assert one.status == "changed"
    assert one.diff == (
        "--- tested/up.loop.changed",
        "+++ other/up.loop.changed",
        "@@ -1,5 +1,5 @@",
        " @decorated(",
        "     with_an_argument,",
        " )",
        "-def changed(a, b=1):",
        "+def changed(a, b=2):",
        "     return a  # the first",
    )


def test_missing_names_what_is_like_it(tested, other) -> None:
    one = compared(tested, other, "up.loop.renamed")
    assert (one.status, one.diff) == ("missing", ())
    assert one.notes[0] == "nearest: up.loop.renamed_now, with another source"


def test_moved_is_found_with_the_same_source(tested, other) -> None:
    one = compared(tested, other, "up.loop.moved")
    assert one.status == "missing"
    assert "nearest: up.elsewhere.moved, with the same source" in one.notes


def test_a_module_that_is_gone_is_looked_for_by_its_content(tested, tmp_path) -> None:
    files = {name: text for name, text in TESTED.items() if name != "up/parts.py"}
    moved = written(tmp_path / "moved", files | {"up/a/pieces.py": TESTED["up/parts.py"]})
    one = compared(tested, moved, "up.parts.Model")
    assert one.status == "missing"
    assert one.notes == ("nearest: up.a.pieces.Model, with the same source",)


def test_nothing_like_it(tested, tmp_path) -> None:
    empty = written(tmp_path / "empty", {"up/__init__.py": ""})
    assert compared(tested, empty, "up.loop.changed").notes == ("no similar name found",)


def test_what_is_imported_from_elsewhere_says_where_it_is_now(tested, tmp_path) -> None:
    loop = TESTED["up/loop.py"].replace("from up.parts import Model as", "from up.core import")
    moved = OTHER | {"up/core.py": TESTED["up/parts.py"], "up/loop.py": loop}
    one = compared(tested, written(tmp_path / "moved", moved), "up.loop.Model")
    assert (one.status, one.notes) == ("same", ("now defined as up.core.Model",))


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


def test_a_wheel_is_read_as_a_folder_is(tested, tmp_path) -> None:
    packed = Sources(wheel(tmp_path / "up-1-py3-none-any.whl", OTHER))
    assert compared(tested, packed, "up.loop.same").status == "same"
    assert compared(tested, packed, "up.loop.changed").status == "changed"
    moved = compared(tested, packed, "up.loop.moved")
    assert "nearest: up.elsewhere.moved, with the same source" in moved.notes


def test_what_is_shown(tested, other) -> None:
    table = {"ours.py": [override(tested, f"up.loop.{n}") for n in ("same", "changed", "renamed")]}
    out = io.StringIO()
    show(compare(table, tested, other), console(out))
    lines = out.getvalue().splitlines()
    assert lines[0] == "same    up.loop.same  (called by ours.py)"
    assert lines[1:4] == [
        "changed up.loop.changed  (called by ours.py)",
        "        why: a test",
        "        delete when: never",
    ]
    assert "+def changed(a, b=2):" in lines
    assert "missing up.loop.renamed  (called by ours.py)" in lines


@pytest.fixture
def command(tested, other, tmp_path, monkeypatch):
    """The command with a table of these names; the status, and the last line that it prints."""

    def run(capsys, *names):
        table = {"ours.py": tuple(override(tested, f"up.loop.{n}") for n in names)}
        monkeypatch.setattr(comparing, "BY_MODULE", table)
        monkeypatch.setattr(comparing, "installed", lambda *_: tested)
        status = comparing.main([str(tmp_path / "other")])
        return status, capsys.readouterr().out.splitlines()[-1]

    return run


def test_the_status_says_whether_anything_differs(command, capsys, tmp_path) -> None:
    place = tmp_path / "other"
    assert command(capsys, "same", "Model") == (
        0,
        f"2 symbols of maxtext 0.2.5 in {place}: 2 same, 0 changed, 0 missing",
    )
    assert command(capsys, "same", "changed", "moved") == (
        1,
        f"3 symbols of maxtext 0.2.5 in {place}: 1 same, 1 changed, 1 missing",
    )


def test_a_version_that_cannot_be_had(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    asked = []

    def rejected(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: tried\nERROR: No such version\n")

    monkeypatch.setattr(subprocess, "run", rejected)
    assert comparing.main(["99.9"]) == 2
    assert capsys.readouterr().err == "error: cannot fetch maxtext==99.9: ERROR: No such version\n"
    assert asked[0][-1] == "maxtext==99.9" and "--no-deps" in asked[0]


def test_a_wheel_is_fetched_once(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)

    def download(command, **_):
        folder = Path(command[command.index("--dest") + 1])
        wheel(folder / "google_up-1.0-py3-none-any.whl", TESTED)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    first = fetch("google-up", "1.0")
    monkeypatch.setattr(subprocess, "run", None)
    assert fetch("google-up", "1.0") == first
    assert kept_wheel("google-up", "1") is None


SYMBOL = "maxtext_overrides.upstream.override.resolve"


def test_a_rejected_run_shows_the_diff_where_the_tested_wheel_was_fetched(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = inspect.getsource(resolve)
    other = source.replace("owner_name, _, name", "owner_name, dot, name")
    known = Override(SYMBOL, "called", "a test", "never", sha256=sha256(other))
    with pytest.raises(OverrideError) as error:
        check([known])
    assert "make maxtext-check VERSION=0.2.5" in str(error.value)
    assert "@@" not in str(error.value)  # the tested source is not at hand
    wheel(
        WHEELS / "maxtext-0.2.5-py3-none-any.whl",
        {"maxtext_overrides/upstream/override.py": other},
    )
    with pytest.raises(OverrideError) as error:
        check([known])
    lines = str(error.value).splitlines()
    assert f"--- {SYMBOL} (tested, 0.2.5)" in lines and f"+++ {SYMBOL} (in use)" in lines
    assert '-    owner_name, dot, name = symbol.rpartition(".")' in lines
    assert '+    owner_name, _, name = symbol.rpartition(".")' in lines


def test_a_long_diff_is_cut_in_an_error(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = "def resolve(symbol):\n" + "".join(f"    line({n})\n" for n in range(200))
    files = {"maxtext_overrides/upstream/override.py": old}
    wheel(WHEELS / "maxtext-0.2.5-py3-none-any.whl", files)
    with pytest.raises(OverrideError) as error:
        check([Override(SYMBOL, "called", "a test", "never", sha256="0" * 64)])
    shown, left = str(error.value).split("\n\n")[1].splitlines()[:60], str(error.value).split()[-3:]
    assert len(shown) == 60
    source = inspect.getsource(resolve).splitlines()
    assert int(left[0]) == 3 + 201 + len(source) - 60
    assert left[1:] == ["more", "lines"]


def test_a_damaged_wheel_hides_no_difference(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    WHEELS.mkdir(parents=True)
    (WHEELS / "maxtext-0.2.5-py3-none-any.whl").write_bytes(b"half")
    with pytest.raises(OverrideError, match=r"another source: (.|\n)*whl is damaged .* remove it"):
        check([Override(SYMBOL, "called", "a test", "never", sha256="0" * 64)])
