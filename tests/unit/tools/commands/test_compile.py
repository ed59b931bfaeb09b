"""``rlax check --compile`` around the compiler, which tests replace: slices, process, figures."""

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import rlax
from rich.console import Console
from waiting import wait_until

from rlax_plugin.base.errors import ConfigError, DeadlineError, RlaxError
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.ports.compiling import CompiledProgram
from rlax_plugin.tools.commands import compile as compiling
from rlax_plugin.tools.commands.compile import compile_part, show
from rlax_plugin.tools.commands.compile.show import Slice

ROOT = Path(__file__).parents[4]
DEMO = str(ROOT / "configs/demo.yml")
GIB = 1 << 30
STEP = CompiledProgram(
    name="train step",
    work="16 rows x 2,048 tokens",
    seconds=40.2,
    memory={"arguments": 6 * GIB, "outputs": 5 * GIB, "temporaries": 4 * GIB, "aliased": 5 * GIB},
    beside={"copy that is being published": 2 * GIB},
    flops=1.27e14,
    collectives={"all-gather": 529},
)


@pytest.fixture
def config() -> ResolvedConfig:
    return resolve(DEMO)


@pytest.fixture
def with_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("name", "devices", "host"),
    [
        ("v5e-16", 16, "v5e-4"),
        ("v5e-1", 1, "v5e-1"),  # smaller than a host
        ("v5p-128", 64, "v5p-8"),  # the number counts cores
        ("v4-8", 4, "v4-8"),
        ("v6e-256", 256, "v6e-4"),
    ],
)
def test_slices(name: str, devices: int, host: str) -> None:
    found = Slice.parse("--compile", name)
    assert (found.devices, found.one_host().name) == (devices, host)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("16", "must be a kind of chip and a number, such as v5e-16"),
        ("v5e-0", "must be a kind of chip and a number"),
        ("v5f-16", "names an unknown kind of chip; did you mean"),
        ("v5p-9", "must be even, as the number counts cores"),
    ],
)
def test_other_names_are_errors(name: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Slice.parse("--compile", name)
    assert str(caught.value).startswith(f"--compile = '{name}': {reason}")


def compiled(how: str, config: ResolvedConfig, monkeypatch: Any, **options: Any) -> Any:
    monkeypatch.setenv("FAKE_COMPILER", how)
    given = {"deadline_s": 60.0, "progress": lambda what, seconds: None} | options
    return compile_part(config, "trainer", "v5e-16", module="fake_compiler", **given)


def test_programs_of_the_process(config, monkeypatch) -> None:
    told = []
    (program,) = compiled("compiles", config, monkeypatch, progress=lambda *one: told.append(one))
    assert (program.total_bytes, program.flops) == (13, 1e14)
    assert told[0] == ("importing the trainer for v5e-16, seconds:", 0)


def test_a_process_past_its_deadline_is_ended(config, monkeypatch, tmp_path) -> None:
    file = tmp_path / "pid"
    monkeypatch.setenv("FAKE_PID", str(file))
    for deadline_s in (3.0, 15.0, 75.0):
        with pytest.raises(DeadlineError) as caught:
            compiled("hangs", config, monkeypatch, deadline_s=deadline_s)
        if "train step" in str(caught.value):
            break  # or a machine that stalls has reached it while the process began
    assert str(caught.value).startswith("compiling train step for v5e-16")
    assert "set --compile-s" in str(caught.value)
    pid = int(file.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_ends_is_an_error_with_its_last_line(config, monkeypatch) -> None:
    with pytest.raises(RlaxError) as caught:
        compiled("ends", config, monkeypatch)
    assert "status 3: MemoryError: no memory is left" in str(caught.value)


def test_a_config_that_does_not_suit_the_slice_is_an_error(config, monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"rlax\.rollouts\.slots = 3: must be a multiple of 4"):
        compiled("rejects", config, monkeypatch)


def parts(*programs: CompiledProgram) -> list[show.CompiledPart]:
    return [show.CompiledPart("trainer", Slice.parse("", "v5e-16"), programs)]


def printed(found: list[show.CompiledPart]) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    for one in found:
        show.show_part(console, one)
    show.show_verdict(console, found)
    return console.export_text()


def test_a_table() -> None:
    lines = printed(parts(STEP)).splitlines()
    assert lines[1] == "Programs of the trainer on v5e-16: 16 chips with 15.8 GiB each"
    rows = {line[:30].strip(): line[30:].strip() for line in lines[2:]}
    assert rows["one call"] == "16 rows x 2,048 tokens"
    assert (rows["arguments"], rows["in all"], rows["fits"]) == ("6 GiB", "12 GiB", "yes")
    assert rows["floating-point operations"] == "1.27e+14"
    assert rows["all-gather"] == "529"
    assert lines[-1] == "All programs compile and fit: train step (v5e-16)."


def test_a_program_that_the_compiler_rejects() -> None:
    message = "Ran out of memory on HBM."
    rejected = CompiledProgram(name="decode", work="64 slots", seconds=9.0, rejected=message)
    found = parts(STEP, rejected)
    assert show.verdict(found) == (
        "Not ready: the compiler rejects decode for v5e-16: Ran out of memory on HBM."
    )
    assert "decode is rejected: Ran out of memory on HBM." in printed(found)
    document = show.document(found)["parts"][0]["programs"]
    assert [one["fits"] for one in document] == [True, False]


def test_the_command(with_compiler, monkeypatch) -> None:
    asked = []

    def compile_part(config: Any, kind: str, topology: str, *_: Any) -> list[CompiledProgram]:
        asked.append((kind, topology))
        return [STEP]

    monkeypatch.setattr(compiling, "compile_part", compile_part)
    line = ("check", DEMO, "--fast", "--compile", "v5e-16")
    result = rlax(*line)
    assert result.exit_code == 0, result.stderr
    assert asked == [("trainer", "v5e-16"), ("rollout_engine", "v5e-4")]
    assert "All programs compile and fit" in result.stdout
    compiled = json.loads(rlax(*line, "--json").stdout)["compiled"]
    assert [part["topology"] for part in compiled["parts"]] == ["v5e-16", "v5e-4"]
    large = replace(STEP, memory={"arguments": 20 * GIB})
    of = {"trainer": STEP, "rollout_engine": large}
    monkeypatch.setattr(compiling, "compile_part", lambda config, kind, *_: [of[kind]])
    result = rlax(*line, "--compile-worker", "v6e-4")
    assert result.exit_code == 0, result.stderr  # 22 GiB fit into a chip of v6e
    assert rlax(*line, "--compile-worker", "v5e-8").exit_code == 1


def test_options_that_are_wrong(with_compiler) -> None:
    result = rlax("check", DEMO, "--fast", "--compile-worker", "v5e-4")
    assert result.exit_code == 2
    assert "--compile-worker = 'v5e-4': is an option of --compile only" in result.stderr
    result = rlax("check", DEMO, "--fast", "--compile", "v5e-16", "--compile-s", "0")
    assert (result.exit_code, "--compile-s = 0.0: must be above 0" in result.stderr) == (2, True)


def test_without_the_compiler(monkeypatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    result = rlax("check", DEMO, "--fast", "--compile", "v5e-16")
    assert result.exit_code == 2
    assert "pip install 'rlax-plugin[tpu]'" in result.stderr
