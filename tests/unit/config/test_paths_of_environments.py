"""Files that an environment lists are relative to the config that lists them."""

from pathlib import Path

from rlax_plugin.config.loading import load_section


def test_the_python_of_a_prompt_source_is_found_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "own/bin").mkdir(parents=True)
    (tmp_path / "own/bin/python").symlink_to("/usr/bin/env")  # as in a virtual environment
    for given, found in (("own/bin/python", f"{tmp_path}/own/bin/python"), ("python", "python")):
        (tmp_path / "run.yml").write_text(
            f"rlax:\n  prompt_source: {{name: x, python: {given}}}\n  rewards: [{{name: x}}]\n"
        )
        section, _ = load_section(tmp_path / "run.yml")
        assert section.prompt_source.options["python"] == found


def test_files_of_an_environment_are_found_beside_the_config(tmp_path: Path) -> None:
    for name in ("agent.py", "grade.py"):
        (tmp_path / name).touch()
    (tmp_path / "run.yml").write_text(
        "rlax:\n"
        "  prompt_source: {name: x}\n"
        "  rewards: [{name: x}]\n"
        "  environment:\n"
        "    name: program\n"
        "    files: [agent.py, missing.py]\n"
        "    see: [.]\n"
        "    command: [agent.py]\n"
        "    verify: {files: [grade.py], carry: [agent.py]}\n"
    )
    section, _ = load_section(tmp_path / "run.yml")
    options = section.environment.options
    assert options["files"] == [f"{tmp_path}/agent.py", "missing.py"]
    assert Path(options["see"][0]) == tmp_path
    assert options["command"] == ["agent.py"]  # no path, whatever is there
    assert options["verify"] == {"files": [f"{tmp_path}/grade.py"], "carry": ["agent.py"]}


def test_functions_of_one_of_several_environments_lie_beside_the_config_that_names_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "base.yml").write_text(
        "rlax:\n"
        "  environments:\n"
        "    a:\n"
        "      prompt_source: {name: x}\n"
        "      rewards: [{function: reward.py:f}]\n"
        "      environment: {name: tools, functions: [{function: tools.py:f}]}\n"
        "    b: {prompt_source: {name: x}, rewards: [{name: x}]}\n"
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "run.yml").write_text("base_config: ../base.yml\n")
    section, _ = load_section(tmp_path / "own" / "run.yml")
    named = {key: [one.function for one in own] for key, own in section.function_lists.items()}
    assert named["rlax.environments.a.rewards"] == ["../reward.py:f"]
    assert named["rlax.environments.a.environment.functions"] == ["../tools.py:f"]
    assert sorted(section.functions_named) == ["../reward.py:f", "../tools.py:f"]
