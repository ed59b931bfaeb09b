"""A run's own copies of the files of its functions: when they bind it, and which are refused."""

from pathlib import Path

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.loading import resolve
from rlax_plugin.reward.functions.copies import keep_functions, read_functions

CONFIG = (Path(__file__).parents[3] / "configs/testing.yml").read_text()


def test_results_bind_a_run_to_its_functions_and_a_copy_replaces_a_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.yml").write_text(CONFIG.replace("{name: even}", "{function: r.py:f}"))
    file, copy = tmp_path / "r.py", tmp_path / "run/functions/r.py"

    def begin(value: str = "") -> dict[str, str]:
        """The digests with which a run begins or goes on."""
        if value:
            file.write_text(f"def f(completion):\n    return {value}\n")
        files = RunFiles(tmp_path / "run")
        config, contents = read_functions(resolve(tmp_path / "c.yml"), files, tmp_path)
        assert config.warnings == ()
        kept = keep_functions(config, contents, files, tmp_path)
        assert kept.functions == {"r.py": str(copy)}
        return dict(kept.section.functions)

    first, second = begin("1"), begin("2")  # without results it may begin with another file
    assert first != second and copy.read_text() == file.read_text()
    (tmp_path / "run/journal").mkdir()
    (tmp_path / "run/journal/1").touch()
    with pytest.raises(ConfigError, match=r"r\.py was changed since .*line 2 is the first"):
        begin("3")
    file.unlink()
    assert begin() == second
    (tmp_path / "work").mkdir()
    (tmp_path / "work/r.py").write_text("def f(completion):\n    return 5\n")
    monkeypatch.chdir(tmp_path / "work")
    assert begin() == second  # not with a file that happens to have the name
    copy.write_text("def f(completion):\n    return 4\n")
    with pytest.raises(ConfigError, match=r"copy of r\.py was changed: its SHA-256 must begin"):
        begin()
    fresh = RunFiles(tmp_path / "fresh")
    (tmp_path / "work/r.py").unlink()
    missing = rf"no file {tmp_path}/r\.py.* working directory, {tmp_path}/work$"
    with pytest.raises(ConfigError, match=missing):
        read_functions(resolve(tmp_path / "c.yml"), fresh, tmp_path)
    copy.unlink()
    with pytest.raises(ConfigError, match=r"copy of r\.py is gone"):
        begin()
