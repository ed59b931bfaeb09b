"""Reading the ``rlax:`` section without MaxText."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.build import registry_of
from rlax_plugin.config.identity import changes_results, config_hash, differences
from rlax_plugin.config.loading import load_section, merged, resolve

MINIMAL = """
steps: 10
run_name: r
learning_rate: 3.e-4
rlax:
  plugins: [one, two]
  prompt_source: {name: numbers, digits: 2}
  rewards: [{name: even}]
"""


def write(folder: Path, text: str, name: str = "run.yml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def problem(path: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_section(path, overrides)
    return caught.value


def test_section_and_maxtext_keys(tmp_path: Path) -> None:
    section, maxtext = load_section(write(tmp_path, MINIMAL))
    assert section.plugins == ("one", "two")
    assert section.prompt_source.options == {"digits": 2}
    assert section.rollouts.group_size == 8
    assert maxtext == {"steps": 10, "run_name": "r", "learning_rate": 3e-4}


def test_overrides_are_typed_and_reach_both_parts(tmp_path: Path) -> None:
    section, maxtext = load_section(
        write(tmp_path, MINIMAL),
        [
            "steps=20",
            "learning_rate=1e-3",
            "dtype=float32",
            "rlax.rollouts.top_p=1",
            "rlax.rollouts.group_size=4",
            "rlax.prompt_source.digits=3",
            "rlax.rewards=[{name: a}, {name: b, weight: 0.5, slow: 2}]",
            "rlax.weights.path=a=b",
        ],
    )
    assert maxtext == {"steps": 20, "run_name": "r", "learning_rate": 1e-3, "dtype": "float32"}
    assert section.rollouts.top_p == 1.0 and section.rollouts.group_size == 4
    assert section.prompt_source.options == {"digits": 3}
    found = [(r.name, r.weight, r.options) for r in section.rewards]
    assert found == [("a", 1.0, {}), ("b", 0.5, {"slow": 2})]
    assert section.weights.path == "a=b"


def test_merging_is_what_maxtext_does(tmp_path: Path) -> None:
    """OmegaConf reads and merges the same files and arguments for MaxText."""
    text = """
        a: 1e-3
        b: 3.e-4
        c: 2026-01-02
        d: {x: yes, y: .5, z: -1E5}
        e: [1, 2]
        f: 1_000
        g: 0o17
        h: ~
        rlax: &anchor
          engine: {name: j, o: 1}
        other:
          <<: *anchor
          more: 1
    """
    arguments = ["d.x=1e3", "d.new=[a, 2.5]", "e=[3]", "rlax.engine={name: k}", "i=a=b", "h=null"]
    path = write(tmp_path, "\n".join(line[8:] for line in text.splitlines()))
    expected: Any = OmegaConf.to_container(
        OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_cli(arguments))
    )
    # The one difference: another name is another part, so the old one's options go with it.
    assert expected["rlax"]["engine"] == {"name": "k", "o": 1}
    expected["rlax"]["engine"] = {"name": "k"}
    # What is merged, before the section is validated: its keys here are made up.
    assert merged(path, arguments) == expected


def test_the_section_may_come_from_arguments_alone(tmp_path: Path) -> None:
    arguments = ["rlax.prompt_source={name: p}", "rlax.rewards=[{name: r}]"]
    section, maxtext = load_section(write(tmp_path, "steps: 1"), arguments)
    assert section.rewards[0].name == "r" and maxtext == {"steps": 1}


def test_base_config_beside_the_file_is_followed(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "first.yml")
    changed = "base_config: first.yml\nsteps: 5\nrlax: {prompt_source: {digits: 4}}\n"
    path = write(tmp_path, changed, "second.yml")
    section, maxtext = load_section(path)
    assert section.prompt_source.options == {"digits": 4} and section.plugins == ("one", "two")
    assert maxtext["steps"] == 5 and maxtext["run_name"] == "r"
    own = write(tmp_path, "base_config: base.yml\n" + MINIMAL, "third.yml")  # MaxText's
    assert load_section(own)[0].plugins == ("one", "two")
    lost = write(tmp_path, "base_config: lost.yml\n" + MINIMAL, "fourth.yml")
    assert str(problem(lost)).startswith("base_config = 'lost.yml': no such file in")
    model = write(tmp_path, "base_config: models/one/model.yml\n" + MINIMAL, "fifth.yml")
    assert str(problem(model)).endswith("nor among MaxText's configs; rlax convert writes it")
    circle = write(tmp_path, "base_config: fifth.yml\n" + MINIMAL, "fifth.yml")
    assert "is based on itself" in str(problem(circle))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in str(problem(str(tmp_path / "none.yml")))
    assert "must be a file that ends in .yml" in str(problem(write(tmp_path, MINIMAL, "r.yaml")))
    path = write(tmp_path, "a: 1\nb: [1, 2\nc: 3\n")
    assert str(problem(path)).startswith(f"{path}:3: is not valid YAML: ")
    path = write(tmp_path, "a: 1\nb: 2\na: 3\n")
    assert str(problem(path)) == f"{path}:3: is not valid YAML: the key 'a' appears twice"
    for mark in ("*", "!"):
        message = str(problem(write(tmp_path, f"password: {mark}planted-7q9z")))
        assert "planted" not in message and message.endswith(f"a text that begins with {mark})")
    path = write(tmp_path, "steps: 3\n")
    assert str(problem(path)).startswith(f"rlax: {path} has no rlax: section")
    assert "must be a mapping of keys" in str(problem(write(tmp_path, "rlax: 3")))
    assert "must be a mapping of keys" in str(problem(write(tmp_path, "[1, 2]")))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "rlax.rolouts.group_size=4",
            "rlax.rolouts = {'group_size': 4}: unknown key; did you mean 'rollouts'? known: ",
        ),
        (
            "rlax.rollouts.groupsize=4",
            "rlax.rollouts.groupsize = 4: unknown key; did you mean 'group_size'? known: ",
        ),
        (
            "rlax.rollouts.group_size=0",
            "rlax.rollouts.group_size = 0: must be greater than or equal to 1 "
            "(number of samples per prompt; default 8)",
        ),
        ("rlax.rollouts.group_size='4'", "= '4': must be a whole number (number of samples"),
        ("rlax.rollouts.group_size=true", "= True: must be a whole number"),
        ("rlax.rollouts.top_p=high", "rlax.rollouts.top_p = 'high': must be a number"),
        ("rlax.rollouts.ignore_stop=1", "rlax.rollouts.ignore_stop = 1: must be true or false"),
        ("rlax.rollouts.on_new_weights=stop", "= 'stop': must be 'finish'"),
        ("rlax.plugins=one", "rlax.plugins = 'one': must be a list"),
        ("rlax.plugins=[3]", "rlax.plugins.0 = 3: must be text"),
        ("rlax.rewards=[]", "rlax.rewards = []: must name at least one reward"),
        ("rlax.rewards=[{weight: 1}]", "rlax.rewards.0.name: must be given"),
        (
            "rlax.rollouts.engine=jetstream",
            "must be a mapping with a name, such as {name: jetstream}",
        ),
        ("rlax.rollouts=3", "rlax.rollouts = 3: must be a mapping of keys to values"),
        ("rlax.prompt_source=null", "rlax.prompt_source: must be a mapping with a name"),
        (
            "rlax.staleness.reload_every=3",
            "rlax.staleness.max_staleness = 1: must be at least reload_every = 3",
        ),
        (
            "rlax.network.host='a b'",
            "rlax.network.host = 'a b': must be an address of this machine",
        ),
        (
            "rlax.network.host=0.0.0.0",
            "rlax.network.advertised_host: must be set, because rlax.net",
        ),
        ("rlax.weights.path=${run_name}", "rlax.weights.path = '${run_name}': interpolation"),
        ("rlax.rewards.0.name=x", "rlax.rewards = {'0': {'name': 'x'}}: is a list"),
        ("rlax.seed", "command line = 'rlax.seed': must be key=value, such as rlax.seed=1"),
        ("rlax.rewards[0].name=x", "must be key=value"),
        ("rlax.plugins=[a", "rlax.plugins = '[a': is not valid YAML"),
    ],
)
def test_one_message_says_what_would_be_right(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in str(problem(write(tmp_path, MINIMAL), override))


def test_further_problems_have_a_line_each(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    error = problem(path, "rlax.seed=x", "rlax.sed=1", "rlax.rollouts.top_k=-1")
    assert problem(path, "rlax.seed=-1").key == "rlax.seed"
    assert error.key == "rlax.seed" and "\n" not in error.reason
    first, second, third = str(error).splitlines()
    assert first.startswith("rlax.seed = 'x': must be a whole number")
    assert second.startswith("also rlax.rollouts.top_k = -1: must be greater")
    assert third.startswith("also rlax.sed = 1: unknown key; did you mean 'seed'?")
    many = problem(path, "rlax.seed=x", *(f"rlax.{letter}=1" for letter in "abcdef"))
    lines = str(many).splitlines()
    assert len(lines) == 6 and lines[4].startswith("also rlax.d = 1: ")
    assert lines[5] == "and 2 more problems under rlax"


def test_an_environment_variable_would_only_reach_maxtext(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("M_STEPS", "7")
    assert "M_STEPS, for MaxText only" in str(problem(write(tmp_path, MINIMAL)))


def test_hash_is_of_what_is_said_not_of_where(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    digest = config_hash(merged(path))
    assert len(digest) == 12 and int(digest, 16) >= 0
    moved = write(tmp_path, "base_config: run.yml", "moved.yml")
    assert config_hash(merged(moved)) == digest
    same = ["rlax.seed=1", "learning_rate=0.1"]
    assert config_hash(merged(path, same)) == config_hash(merged(path, same[::-1])) != digest


@pytest.mark.parametrize("steps", ["many", "-1", "1.5", "[3]"])
def test_steps_are_a_whole_number_from_0(tmp_path, steps):
    with pytest.raises(
        ConfigError,
        match=r"^steps = .*: must be a whole number, at least 0 and at most 2147483647$",
    ):
        load_section(write(tmp_path, MINIMAL), [f"steps={steps}"])


def test_an_argument_sets_one_option_inside_an_option_of_a_part(tmp_path):
    """Whether the file names the part, gives it options without a name, or says nothing of it."""
    options = {"steps": 5, "enabled": True}
    for trainer, kept in (
        ("", {}),
        ("  trainer: {name: maxtext}\n", {}),
        ("  trainer: {warm_start: {steps: 9, problems: 7}}\n", {"problems": 7}),
    ):
        path = write(tmp_path, f"{MINIMAL.rstrip()}\n{trainer}")
        arguments = [f"rlax.trainer.warm_start.{k}={v}".lower() for k, v in options.items()]
        section, _ = load_section(path, arguments)
        assert section.trainer.name == "maxtext"
        found = registry_of(()).options("trainer", section.trainer, "rlax.trainer")
        given = options | kept
        assert found.warm_start.model_dump(include=set(given)) == given
    with pytest.raises(ConfigError, match=r"^rlax\.trainer\.warm_start\.step = 5: unknown key"):
        section, _ = load_section(path, ["rlax.trainer.warm_start.step=5"])
        registry_of(()).options("trainer", section.trainer, "rlax.trainer")


@pytest.mark.parametrize(
    ("override", "does"),
    [
        ("rlax.launcher.workers=4", False),
        ("rlax.deadlines.group_s=9", False),
        ("run_name=x", False),
        ("steps=20", False),
        ("base_output_directory=/elsewhere", False),
        ("rlax.network.port=7000", False),
        ("rlax.trackers=[{name: t}]", False),
        ("rlax.weights.transfer=stream", False),
        ("rlax.curation.max_refill=3", False),
        ("rlax.curation.guard.stop=0", False),
        ("rlax.objective.max_gap=0.5", False),
        ("rlax.objective.mini_batches=2", True),
        ("rlax.rollouts.temperature=0.6", True),
        ("vocab_size=9", True),
        ("new_key=1", True),
        ("rlax.weights.keep=3", True),
        ("rlax.weights.dtype=bfloat16", True),
    ],
)
def test_an_argument_decides_what_is_computed_or_does_not(override, does):
    assert changes_results(override) is does


def test_differences_name_what_is_hashed_alone():
    one = {"steps": 1, "a": 1, "rlax": {"seed": 0, "network": {"port": 1}, "x": {"y": [1]}}}
    other = {"steps": 2, "rlax": {"seed": 1, "network": {"port": 2}, "x": {"y": [1], "z": 0}}}
    assert differences(one, other) == [("a", 1, None), ("rlax.seed", 0, 1), ("rlax.x.z", None, 0)]
    assert differences(one, one) == []


DEFAULTS = {
    "launcher": "local",
    "trainer": "maxtext",
    "rollouts.engine": "jetstream",
    "curation.sampler": "shuffled",
    "weights.store": "orbax",
}


@pytest.mark.parametrize(("key", "name"), DEFAULTS.items())
def test_saying_the_default_name_keeps_the_options_of_the_default_part(tmp_path, key, name):
    """The file says nothing of a name, so its options are those of the part it would be."""
    path = write(tmp_path, MINIMAL)
    given = [f"rlax.{key}.some=2"]

    def part(*overrides):
        value = load_section(path, [*given, *overrides])[0]
        for step in key.split("."):
            value = getattr(value, step)
        return value.name, value.options

    assert part() == part(f"rlax.{key}.name={name}") == (name, {"some": 2})
    assert part(f"rlax.{key}={{name: {name}, more: 3}}") == (name, {"some": 2, "more": 3})
    assert part(f"rlax.{key}.name=other") == ("other", {})
    assert part(f"rlax.{key}={{name: other, more: 3}}") == ("other", {"more": 3})


def test_options_of_another_named_part_go_with_it(tmp_path):
    named = write(tmp_path, MINIMAL + "  launcher: {name: static, wait: 3}\n")
    section, _ = load_section(named, ["rlax.launcher.name=local"])
    assert (section.launcher.name, section.launcher.options) == ("local", {})
    below = write(tmp_path, "base_config: run.yml\nrlax: {launcher: {workers: 2}}\n", "b.yml")
    section, _ = load_section(below)  # without a name it is still the part of the base
    assert section.launcher.options == {"wait": 3, "workers": 2}


def test_paths_of_data_and_functions_are_relative_to_the_config(tmp_path, monkeypatch) -> None:
    """From another directory, too; what is only in that one is read from there, with a warning."""
    folder, work = tmp_path / "configs", tmp_path / "work"
    for directory in (folder, work):
        directory.mkdir()
    monkeypatch.chdir(work)
    source = "{name: jsonl, splits: {train: 'rows*.jsonl', test: other.jsonl}}"
    sets = "{hard: {prompt_source: {name: hf, dataset: ./saved, splits: {test: saved}}}}"
    path = folder / "run.yml"
    path.write_text(
        f"rlax: {{prompt_source: {source}, rewards: [{{function: 'own.py:f'}}], "
        f"evaluation: {{sets: {sets}}}}}\n"
    )
    for directory, names in ((folder, ("rows1.jsonl",)), (work, ("other.jsonl", "own.py"))):
        for name in names:
            (directory / name).touch()
    (folder / "saved").mkdir()
    found = resolve(path)
    assert found.section.prompt_source.options["splits"] == {
        "train": f"{folder}/rows*.jsonl",
        "test": f"{work}/other.jsonl",
    }
    hard = found.section.evaluation.sets["hard"].prompt_source
    assert hard is not None
    assert hard.options == {"dataset": f"{folder}/saved", "splits": {"test": "saved"}}
    assert found.functions == {"own.py": f"{work}/own.py"}
    assert [key for key, _ in found.warnings] == [
        "rlax.prompt_source.splits.test",
        "function own.py:f",
    ]
    (folder / "own.py").touch()
    (folder / "other.jsonl").touch()
    found = resolve(path, ["rlax.prompt_source.splits.test=other.jsonl"])
    assert found.functions == {"own.py": f"{folder}/own.py"} and found.warnings == ()
    options = found.section.prompt_source.options
    assert options["splits"]["test"] == f"{work}/other.jsonl"
    monkeypatch.chdir(folder)
    from_there = resolve("run.yml").section.prompt_source.options["splits"]
    assert from_there["train"] == f"{folder}/rows*.jsonl"


def test_paths_of_data_follow_links_and_the_merged_config(tmp_path, monkeypatch) -> None:
    """A directory does not shadow a name on the hub, nor the splits of a base file's data set."""
    folder, work = tmp_path / "deep/configs", tmp_path / "work"
    for directory in (folder, work, tmp_path / "deep/[data]"):
        directory.mkdir(parents=True)
    (tmp_path / "deep/[data]/rows.jsonl").touch()
    (work / "configs").symlink_to(folder)
    monkeypatch.chdir(work)
    (folder / "hub.yml").write_text(
        "rlax: {prompt_source: {name: hf, dataset: words, splits: {train: gone.jsonl}}, "
        "rewards: [{name: exact_match}]}\n"
    )
    (folder / "run.yml").write_text(
        "base_config: hub.yml\nrlax: {prompt_source: {splits: {train: part, test: part}}}\n"
    )
    for name in ("words", "part"):
        (folder / name).mkdir()
    found = resolve("configs/run.yml")
    assert found.section.prompt_source.options == {
        "dataset": "words",
        "splits": {"train": "part", "test": "part"},
    }
    assert type(found.section.prompt_source.options["dataset"]) is str and found.warnings == ()
    source = "rlax.prompt_source={name: jsonl, path: 'configs/../[[]data]/*.jsonl'}"
    options = resolve("configs/run.yml", [source]).section.prompt_source.options
    assert options["path"] == f"{tmp_path}/deep/[[]data]/*.jsonl"
    replaced = resolve("configs/run.yml", ["rlax.prompt_source={name: jsonl, path: gone.jsonl}"])
    assert replaced.section.prompt_source.options["path"] == "gone.jsonl"


def test_the_hash_of_a_config_has_no_directories_of_data(tmp_path, monkeypatch) -> None:
    """A run continues from another working directory, and after the project has moved."""
    hashes = []
    for project, directory in (("a", "a"), ("a", "."), ("b", "b")):
        (tmp_path / project).mkdir(exist_ok=True)
        (tmp_path / project / "rows.jsonl").touch()
        path = tmp_path / project / "run.yml"
        path.write_text(
            "rlax: {prompt_source: {name: jsonl, path: rows.jsonl}, "
            "rewards: [{name: exact_match}]}\n"
        )
        monkeypatch.chdir(tmp_path / directory)
        hashes.append(config_hash(resolve(path).content))
        assert resolve(path).section.prompt_source.options["path"] == f"{path.parent}/rows.jsonl"
    assert len(set(hashes)) == 1
    other = resolve(path, ["rlax.prompt_source.path=other.jsonl"])
    assert config_hash(other.content) != hashes[0]


@pytest.mark.parametrize("option", ["warm_start", "demonstrations"])
def test_demonstrations_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "shown.jsonl").touch()
    path = tmp_path / "configs" / "run.yml"
    path.write_text(
        "rlax: {prompt_source: {name: none}, rewards: [{name: none}], "
        f"trainer: {{{option}: {{data: {{name: jsonl, path: shown.jsonl}}}}}}}}"
    )
    chosen = resolve(path).section.trainer.options[option]
    assert chosen["data"]["path"] == f"{tmp_path}/configs/shown.jsonl"
