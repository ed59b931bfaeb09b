"""A bad config is one message that names the key, status 2, and no file anywhere."""

import math
from pathlib import Path
from typing import Annotated

import bad_configs
import pytest
from bad_configs import Bad
from command_line import rlax
from pydantic import ConfigDict, Field, ValidationError

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import Section
from rlax_plugin.config.validation import validate

TESTING = Path(__file__).parents[2] / "configs/testing.yml"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a good config, a file and a dangling link; it is also home and here."""
    (tmp_path / "file").write_text("taken")
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    (tmp_path / "run.yml").write_text(TESTING.read_text())
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    return tmp_path


def tree(directory: Path) -> dict[str, tuple[int, int]]:
    """Every path in a directory but the output directory, with its size and time."""
    found = [p for p in directory.rglob("*") if "runs" not in p.relative_to(directory).parts]
    return {str(p): (p.lstat().st_size, p.lstat().st_mtime_ns) for p in found}


def arguments(one: Bad, place: Path) -> list[str]:
    if one.file:
        with (place / "run.yml").open("a") as config:
            config.write(f"{one.file}\n")
    overrides = [word.replace("{tmp}", str(place)) for word in one.overrides]
    return [str(place / "run.yml"), *overrides]


def expect(one: Bad, place: Path, status: int, out: str, err: str) -> None:
    key = one.key.replace("{config}", str(place / "run.yml"))
    assert status == 2, (out, err)
    first, *others = err.splitlines()
    assert first.startswith(f"error: {key}"), first
    assert one.text.lower() in first.lower()
    assert len(first) < 2000 and all(line.startswith(("also ", "and ")) for line in others)
    assert "Traceback" not in out + err


@pytest.mark.parametrize("one", bad_configs.ALL, ids=lambda one: one.id)
def test_one_message_names_the_key_and_nothing_is_written(one: Bad, place: Path) -> None:
    words = arguments(one, place)
    before = tree(place)
    # The whole check begins with what the fast one does.
    commands = [["check", "--fast"] if one.fast else ["check"]]
    commands += [["train"]] if one.train else []
    for command in commands:
        result = rlax(*command, *words)
        expect(one, place, result.exit_code, result.stdout, result.stderr)
        assert tree(place) == before
        assert not (one.fast and (place / "runs").exists())


def test_other_commands_reject_a_name_as_well(place: Path) -> None:
    one = bad_configs.NAMES[0]
    result = rlax("plugins", *arguments(one, place))
    expect(one, place, result.exit_code, result.stdout, result.stderr)


def test_a_field_takes_nan_only_if_it_says_so() -> None:
    """Of a third party's class as well, whatever it configures itself."""

    class Theirs(Section):
        model_config = ConfigDict(title="theirs")
        plain: float = 0.0
        several: tuple[float | None, ...] = ()
        table: dict[str, int | float] = Field(default_factory=dict)
        free: Annotated[float, Field(allow_inf_nan=True)] = 0.0

    nan = math.nan
    for given in ({"plain": nan}, {"plain": math.inf}, {"several": [1.0, nan]}):
        with pytest.raises(ConfigError, match=r"^k\.\w+(\.1)? = (nan|inf): must be a finite"):
            validate(Theirs, given, "k")
    with pytest.raises(
        ConfigError, match=r"^k\.table\.a = nan: must be a finite number \(default {}\)$"
    ):
        validate(Theirs, {"table": {"a": nan}}, "k")
    assert math.isnan(validate(Theirs, {"free": nan}, "k").free)
    with pytest.raises(ValidationError):
        Theirs(plain=-math.inf)


def test_a_start_that_is_rejected_leaves_no_directory(place: Path) -> None:
    """Also where that shows only beside what other runs have left."""
    words = ["train", str(place / "run.yml"), "run_name=new", "--from", str(place / "nothing")]
    result = rlax(*words)
    assert result.exit_code == 2 and "--from" in result.stderr
    assert not (place / "runs/new").exists()
