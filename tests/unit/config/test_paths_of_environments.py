"""Files that an environment lists are relative to the config that lists them."""

from pathlib import Path

from rlax_plugin.config.loading import load_section


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
