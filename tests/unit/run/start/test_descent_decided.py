"""Which weights a run starts from: what is asked for, held against what is there."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
from rlax_maxtext.options import TrainerOptions, WarmStart
from rlax_maxtext.trainer import MaxTextTrainer

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.packing import pack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Descent
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import load_section, resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.run.start import descent
from rlax_plugin.run.start.run_directory import check_same_run
from rlax_plugin.testing import policy
from rlax_plugin.testing.trainer import BigramTrainer

CONFIG = Path(__file__).parents[3] / "configs/testing.yml"
SECTION = load_section(CONFIG)[0]
REGISTRY = registry_for(SECTION)


def weights(seed: int) -> dict[str, np.ndarray]:
    return policy.initial_weights(seed)


def put_run(files: RunFiles, *steps: int) -> RunFiles:
    files.put("config.yml", CONFIG.read_bytes())
    for step in steps:
        files.put(f"checkpoints/{step}.npz", pack(weights(step)))
    return files


def decide(files: RunFiles, wanted: str | None, section: Any = SECTION) -> Descent | None:
    found = descent.decide(files, wanted, REGISTRY, section, {})
    descent.record(files, found)
    return found


def context(directory: Path, *overrides: str) -> BuildContext:
    config = resolve(CONFIG, overrides)
    return BuildContext(directory, 0, SECTION, config, run_url=str(directory))


def trainer(directory: Path) -> BigramTrainer:
    found = REGISTRY.part("trainer", SECTION.trainer, "rlax.trainer", context(directory))
    assert isinstance(found, BigramTrainer)
    return found


def test_the_newest_checkpoint_or_the_one_of_a_step_is_taken(tmp_path: Path) -> None:
    old = put_run(RunFiles(tmp_path / "old"), 5, 10)
    named = put_run(RunFiles(tmp_path / "old@5"), 7)
    there = str(tmp_path / "old")

    def found(wanted: str) -> Descent | None:
        return descent.decide(RunFiles(tmp_path / "new"), wanted, REGISTRY, SECTION, {})

    assert found(old.url) == found(f"{old.url}/") == Descent(there, 10, "10.npz")
    assert found(named.url) == Descent(f"{there}@5", 7, "7.npz")  # a name that looks like a step
    named.delete("")
    assert found(f"{old.url}@5") == Descent(there, 5, "5.npz")
    assert descent.recorded(RunFiles(tmp_path / "new")) is None


def test_a_run_on_an_object_store_is_named_by_its_url(tmp_path: Path) -> None:
    try:
        put_run(RunFiles("memory://runs/old"), 3)
        found = decide(RunFiles("memory://runs/new"), "memory://runs/old@3")
        assert found is not None and (found.step, found.checkpoint) == (3, "3.npz")
        assert descent.recorded(RunFiles("memory://runs/new")) == found
        assert decide(RunFiles("memory://runs/new"), None) == found
        started = trainer(tmp_path)
        started.start_from(found)
        first = started.first_weights()
        assert all((first[name] == array).all() for name, array in weights(3).items())
    finally:
        fsspec.filesystem("memory").store.clear()


def test_what_is_recorded_holds_for_as_long_as_the_run_does(tmp_path: Path) -> None:
    old, new = put_run(RunFiles(tmp_path / "old"), 5), RunFiles(tmp_path / "new")
    first = decide(new, old.url)
    put_run(old, 10)
    assert decide(new, old.url) == decide(new, f"{old.url}@5") == decide(new, None) == first
    # As long as it has no results, it may be started from something else.
    second = decide(new, f"{old.url}@10")
    assert second is not None and second.step == 10
    other = put_run(RunFiles(tmp_path / "other"), 10)
    assert decide(new, other.url) == Descent(str(tmp_path / "other"), 10, "10.npz")
    decide(new, f"{old.url}@10")
    new.put("journal/1.json", b"")
    with pytest.raises(ConfigError, match=f"new started from {old.url}@10: continue it without"):
        decide(new, f"{old.url}@5")
    with pytest.raises(ConfigError, match="continue it without --from"):
        decide(new, other.url)
    old.delete("")
    assert decide(new, None) == decide(new, f"{old.url}@10") == second


def test_a_run_that_began_from_weights_of_its_own_keeps_them(tmp_path: Path) -> None:
    old, new = put_run(RunFiles(tmp_path / "old"), 5), RunFiles(tmp_path / "new")
    new.put("versions.json", b"{}")  # its first weights are published: groups may be generated
    assert decide(new, None) is None
    with pytest.raises(ConfigError, match="new started from its own initial weights: continue it"):
        decide(new, old.url)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("nowhere", "must be a run directory"),
        ("nowhere@3", "must be a run directory"),
        ("old@-3", "must be a run directory"),
        ("old@7", "a checkpoint of step 7; .*old has only of these steps: 5, 10$"),
        ("empty", "must be a run that has a checkpoint; .*empty has none so far$"),
        ("new", "is the new run itself"),
        ("./old/../new@5", "is the new run itself"),
        ("other", "has trainer maxtext, whose checkpoints bigram cannot read"),
        ("broken", "has a config that is no longer valid: .*no rlax: section"),
        ("no-such-store://x", "Protocol not known: no-such-store"),
    ],
)
def test_what_cannot_be_started_from_is_one_error(tmp_path: Path, wanted: str, reason: str) -> None:
    put_run(RunFiles(tmp_path / "old"), 5, 10)
    put_run(RunFiles(tmp_path / "empty"))
    put_run(RunFiles(tmp_path / "new"))
    text = CONFIG.read_text().replace("{name: bigram}", "{name: maxtext}")
    put_run(RunFiles(tmp_path / "other"), 5).put("config.yml", text.encode())
    put_run(RunFiles(tmp_path / "broken"), 5).put("config.yml", b"steps: 1")
    typed = wanted if "://" in wanted else f"{tmp_path}/{wanted}"
    with pytest.raises(ConfigError) as rejected:
        decide(RunFiles(tmp_path / "new"), typed)
    assert rejected.match(reason)
    assert (rejected.value.key, rejected.value.value) == ("--from", typed)
    assert not (tmp_path / "new/descent.json").exists()


def test_a_record_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    for text in ("[]", '{"run": "x", "step": "y"}', "{"):
        (tmp_path / "descent.json").write_text(text)
        with pytest.raises(RlaxError, match=r"descent\.json is damaged"):
            descent.recorded(RunFiles(tmp_path))


def test_a_trainer_that_cannot_is_named() -> None:
    trainer: Any = SimpleNamespace(keeps_checkpoints=False)
    with pytest.raises(
        ConfigError, match=r"^rlax\.trainer\.name = 'mine': does not declare keeps_checkpoints"
    ):
        descent.start(trainer, "mine", Descent("old", 5, "5"))


@pytest.mark.parametrize("key", ["load_parameters_path", "load_full_state_path"])
def test_other_weights_in_maxtexts_config_contradict_it(tmp_path: Path, key: str) -> None:
    old, new = put_run(RunFiles(tmp_path / "old"), 5), RunFiles(tmp_path / "new")
    with pytest.raises(ConfigError, match=f"^{key} = '/base': contradicts --from .* with {key}=$"):
        descent.decide(new, old.url, REGISTRY, SECTION, {key: "/base"})
    assert descent.decide(new, old.url, REGISTRY, SECTION, {key: None}) is not None


def test_of_adapters_the_base_does_not_contradict_it(tmp_path: Path) -> None:
    old, new = put_run(RunFiles(tmp_path / "old"), 5), RunFiles(tmp_path / "new")
    keys = {"load_parameters_path": "/base", "lora": {"enable_lora": True}}
    assert descent.decide(new, old.url, REGISTRY, SECTION, keys) is not None
    keys["lora"] = {"enable_lora": True, "lora_restore_path": "/adapters"}
    with pytest.raises(ConfigError, match=r"^lora\.lora_restore_path = '/adapters': contradicts"):
        descent.decide(new, old.url, REGISTRY, SECTION, keys)


def test_maxtexts_trainer_loads_the_other_runs_parameters(tmp_path: Path) -> None:
    (tmp_path / "old/checkpoints/4/items").mkdir(parents=True)
    origin = Descent(str(tmp_path / "old"), 5, "4")
    started = MaxTextTrainer(TrainerOptions(), context(tmp_path / "new"))
    assert started.first_weights() == {}
    assert started.start_from(origin) is None
    path = f"{tmp_path}/old/checkpoints/4/items"
    assert started.first_weights()["load_parameters_path"] == path
    with pytest.raises(ConfigError, match="old@6': no longer exists"):
        started.start_from(Descent(origin.run, 6, "5"))
    warm = TrainerOptions(warm_start=WarmStart(enabled=True))
    replaced = descent.start(MaxTextTrainer(warm, context(tmp_path / "new")), "maxtext", origin)
    assert replaced == "the warm start"


def test_the_command_that_goes_on_leaves_other_weights_out(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "runs/mine")
    files.put("config.yml", b"{learning_rate: 1}")
    files.put("config.json", json.dumps({"config_hash": "abc"}).encode())
    files.put("checkpoints/4/items/x", b"")
    config = {"learning_rate": 2, "load_parameters_path": "/base"}
    argv = ("my config.yml", "run_name=mine", "learning_rate=2")
    with pytest.raises(ConfigError) as rejected:
        check_same_run(files, "xyz", config, argv)
    assert rejected.value.reason.endswith(
        "rlax train 'my config.yml' learning_rate=2 run_name=mine-2 load_parameters_path= "
        f"--from {tmp_path}/runs/mine"
    )
    config["lora"] = {"enable_lora": True, "lora_restore_path": "/adapters"}
    with pytest.raises(
        ConfigError, match=r"mine-2 lora\.lora_restore_path= --from"
    ):  # with its base
        check_same_run(files, "xyz", config, argv)
    files.delete("checkpoints")
    files.put("journal/1.json", b"")
    with pytest.raises(ConfigError) as rejected:
        check_same_run(files, "xyz", config, argv)
    assert "--from" not in rejected.value.reason
