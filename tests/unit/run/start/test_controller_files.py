"""Metrics and evaluations on disk, after steps were done again."""

import json
from pathlib import Path

import fsspec
import yaml
from pytest import fixture, mark, raises

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.identity import config_hash
from rlax_plugin.run.evaluation.result import Evaluated, record, recorded
from rlax_plugin.run.evaluation.statistics import Estimate
from rlax_plugin.run.metrics.file import MetricsFile
from rlax_plugin.run.start.run_directory import check_same_run
from rlax_plugin.tools.commands.evaluate.command import write_result
from rlax_plugin.tools.commands.replay import replay
from rlax_plugin.tools.commands.target import checkpoint_name
from rlax_plugin.weights.named import find_target


@fixture(autouse=True)
def empty_store():
    yield
    fsspec.filesystem("memory").store.clear()


def lines(text: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in text.splitlines()]


def test_metrics_are_cut_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written = [json.dumps({"step": s, "loss": float(s)}) for s in (1, 2, 3, 4)]
    path.write_text("\n".join(written) + '\n{"step": 5, "lo')  # killed while it wrote
    metrics = MetricsFile(RunFiles(tmp_path), tmp_path / "elsewhere")
    assert [m["step"] for m in metrics.rewind(2)] == [1, 2]
    metrics.add(3, {"loss": 30.0})
    metrics.close()
    assert [(m["step"], m["loss"]) for m in lines(path.read_text())] == [(1, 1), (2, 2), (3, 30)]


def test_metrics_of_a_run_on_an_object_store_are_uploaded_and_found_again(tmp_path: Path) -> None:
    files = RunFiles("memory://metrics/run")
    metrics = MetricsFile(files, tmp_path / "one")
    assert metrics.rewind(0) == []
    metrics.add(1, {"loss": 1.0})
    metrics.upload()
    metrics.add(2, {"loss": 2.0})
    metrics.close()
    assert lines(files.get("metrics.jsonl").decode()) == [{"step": 1, "loss": 1.0}]
    # On another machine nothing is left but what was uploaded.
    again = MetricsFile(files, tmp_path / "another")
    assert again.rewind(1) == [{"step": 1, "loss": 1.0}]
    again.close()


def test_a_recorded_evaluation_belongs_to_its_version(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    estimate = Estimate(value=0.5, ci95=(0.4, 0.6), problems=8, n=4)
    measures = {"pass_at_1": estimate, "length_mean": estimate}
    found = Evaluated(10, {"test": measures}, {"test": "KeyError: 'x'"}, {"test": (3, 2)})
    record(files, "after", found)
    assert recorded(files, "after") == recorded(files, "after", version=10) == found
    assert recorded(files, "after", version=20) is None
    assert recorded(files, "before") is None
    document = files.get_json("evaluation/after.json")
    assert document["version"] == document["step"] == 10
    assert document["pass_at_1"]["value"] == 0.5 and "length_mean" not in document


def test_another_config_is_rejected_by_the_keys_that_differ(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.put_json("config.json", {"config_hash": "abc"})
    files.put("config.yml", b"{steps: 1, a: 1, b: 1, c: 1, d: 1, rlax: {seed: 0}}")
    files.put("journal/1", b"")
    config = {"steps": 2, "rlax": {"seed": 7}}
    check_same_run(files, "abc", config, ())
    with raises(ConfigError) as rejected:
        check_same_run(files, "xyz", config, ())
    assert "a is 1 there and not set here, b is 1" in rejected.value.reason
    assert "1 more key differs" in rejected.value.reason and "steps" not in rejected.value.reason
    with raises(ConfigError, match=r"\(rlax\.seed is 0 there and 7 here\)"):
        check_same_run(files, "xyz", {"a": 1, "b": 1, "c": 1, "d": 1, "rlax": {"seed": 7}}, ())


@mark.parametrize("damage", [b"", b'{"config_ha', b"[]", b"{}", b"\xff"])
def test_a_damaged_record_of_the_config_is_replaced_by_the_config(tmp_path, damage: bytes) -> None:
    files, config = RunFiles(tmp_path), {"steps": 1, "a": 1e-4, "rlax": {"seed": 0}}
    files.put("config.json", damage)
    check_same_run(files, config_hash(config), config, ())  # there are no results yet
    files.put("journal/1", b"")
    files.put("config.yml", yaml.safe_dump(config).encode())
    check_same_run(files, config_hash(config | {"steps": 9}), config | {"steps": 9}, ())
    other = config | {"a": 2}
    with raises(ConfigError, match=r"a run of another config \(a is 0\.0001 there and 2 here"):
        check_same_run(files, config_hash(other), other, ())
    for broken in (b"", b"{a: [", b"\xff"):
        files.put("config.yml", broken)
        with raises(RlaxError, match=r"config\.json and config\.yml are damaged .*: bring one of"):
            check_same_run(files, config_hash(config), config, ())


@mark.parametrize("made", ["prepared/x", "evaluation/x", "checkpoints/0/x"])
def test_what_a_part_prepared_makes_a_run_reject_another_config(tmp_path: Path, made: str) -> None:
    files = RunFiles(tmp_path)
    files.put_json("config.json", {"config_hash": "abc"})
    files.put("logs/trainer.log", b"")
    check_same_run(files, "xyz", {}, ())  # it failed before it had computed anything
    files.put(made, b"")
    with raises(ConfigError, match="holds a run of another config"):
        check_same_run(files, "xyz", {}, ())


def test_a_result_of_other_settings_is_not_overwritten(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)

    def written(overrides: list[str], sets: list[str]) -> str:
        document = {"version": 3, "overrides": overrides, "sets": {name: {} for name in sets}}
        return Path(write_result(files, document)).name

    assert written([], ["test"]) == "eval-00000003.json"
    assert written(["rlax.seed=1"], ["test"]) == "eval-00000003-2.json"
    assert written([], ["hard"]) == "eval-00000003-3.json"
    assert written(["rlax.seed=1"], ["test"]) == "eval-00000003-2.json"
    assert written(["rlax.launcher.workers=1"], ["test"]) == "eval-00000003.json"


def test_what_was_typed_is_named(tmp_path: Path) -> None:
    RunFiles(tmp_path).put("config.yml", b"")
    typed = f"{tmp_path}/checkpoints/14"
    with raises(ConfigError, match=f"^RUN = '{typed}': .* has no such checkpoint"):
        checkpoint_name(find_target(typed, None, None), {1: "0"})


def test_a_run_without_batches_is_not_replayed_and_left_alone(tmp_path: Path) -> None:
    RunFiles(tmp_path).put("config.yml", b"{}")
    with raises(ConfigError, match=f"^RUN = '{tmp_path}': cannot be replayed yet"):
        replay(str(tmp_path))
    assert RunFiles(tmp_path).names("") == ["config.yml"]


def test_a_run_that_was_taken_over_gets_no_line_of_metrics(tmp_path):
    files = RunFiles(tmp_path)
    metrics = MetricsFile(files, tmp_path)
    metrics.rewind(0)
    metrics.add(1, {"a": 1.5})

    def taken(age_s: float) -> None:
        raise RlaxError("it was taken over")

    files.before_write = taken
    with raises(RlaxError, match="taken over"):
        metrics.add(2, {"a": 2.5})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "a": 1.5}\n'


def test_damaged_lines_of_metrics_cost_no_other_steps(tmp_path, caplog):
    damaged_lines = [b'{"step": 1, "a": 1.5}', b'{"step": 2, "a": \xff}', b'{"step": "3"}', b"[4]"]
    damaged_lines += [b"[" * 100_000, b'{"step": 6, "a": 2.5}', b'{"step": 7, "a"']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(damaged_lines))
    metrics = MetricsFile(RunFiles(tmp_path), tmp_path)
    assert metrics.rewind(6) == [{"step": 1, "a": 1.5}, {"step": 6, "a": 2.5}]
    metrics.add(7, {"a": 3.5})
    metrics.close()
    assert [row["step"] for row in lines((tmp_path / "metrics.jsonl").read_text())] == [1, 6, 7]
    damaged = "metrics.jsonl: 4 damaged lines are left out (line 2, 3, 4, 5)"
    missing = "metrics.jsonl: 4 of 5 steps have no line (step 2, 3, 4, 5)"
    assert caplog.messages == [damaged, missing]
