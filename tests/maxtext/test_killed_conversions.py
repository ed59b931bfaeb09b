"""``rlax convert`` and ``rlax export``, killed: a model is there as a whole or not at all.

Each command runs in a process that kills itself just before one of its own file operations. The
commands that would use the model run in this process, which has MaxText anyway.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import killed_commands
import numpy as np
import pytest
import tiny_gguf
from command_line import rlax
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(280)]

# (event, text in its paths, for the how many-th time), in the order in which they come
CONVERTING = {
    "nothing is written": ("os.mkdir", "/.out.", 1),
    "its directory is empty": ("open", "rlax.lock", 1),
    "config.json": ("open", "huggingface/config.json", 1),
    "the tokenizer is half written": ("open", "huggingface/tokenizer_config.json", 2),
    "generation_config.json": ("open", "huggingface/generation_config.json", 1),
    "model.yml": ("open", "filled/model.yml", 1),
    "converted.json": ("open", "filled/converted.json", 1),
    "the first weights": ("open", "tiny.gguf", 2),
    "half of the weights": ("open", "tiny.gguf", 12),
    "Orbax's metadata": ("open", "items.orbax-checkpoint-tmp/_METADATA", 1),
    "Orbax moves its items": ("os.rename", "/items.orbax-checkpoint-tmp|", 1),
    "Orbax moves its checkpoint": ("os.rename", "/filled/0.orbax-checkpoint-tmp|", 1),
    "all is written": ("os.rename", "/filled|", 1),
}
EXPORTING = {
    "nothing is written": ("os.mkdir", "/.exported.", 1),
    "the weights": ("os.chmod", "filled/model.safetensors", 1),
    "config.json": ("open", "filled/config.json", 1),
    "the tokenizer is half written": ("open", "filled/tokenizer_config.json", 1),
    "all is written": ("os.rename", "/filled|", 1),
}
# The directory has its name.
CONVERTED = ("os.rmdir", "/.out.", 1)
EXPORTED = ("os.rmdir", "/.exported.", 1)


class Place:
    """A source, the directory ``out`` that is made of it, and a config that trains that model."""

    def __init__(self, directory: Path):
        self.home, self.source = directory, tiny_gguf.write(directory / "tiny.gguf")
        self.out, self.exported = directory / "out", directory / "exported"
        self.config = directory / "run.yml"
        self.convert()
        assert rlax("init", str(self.config), "--model", str(self.out)).exit_code == 0
        shutil.copytree(self.out, directory / "whole")

    def convert(self) -> None:
        result = rlax("convert", str(self.source), "--out", str(self.out))
        assert result.exit_code == 0, result.output

    def leftovers(self) -> list[Path]:
        """Hidden directories that a killed process has left."""
        return sorted(self.home.glob(".*"))

    def kill(self, moment: tuple[str, str, int], *arguments: str) -> None:
        done = killed_commands.run(*moment, *arguments, cwd=self.home)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr

    def check_absent(self, model: Path) -> None:
        """No command takes this for a model."""
        init = rlax("init", str(self.home / "other.yml"), "--model", str(model))
        export = rlax("export", str(model), "--out", str(self.home / "other"))
        for result in (init, export):
            assert result.exit_code == 2 and result.stderr.count("error: ") == 1, result.stderr
        assert not (self.home / "other").exists() and not (self.home / "other.yml").exists()

    def check_whole(self) -> None:
        """The model is the source's, bit for bit."""
        out = self.home / "taken_out"
        result = rlax("export", str(self.out), "--out", str(out))
        assert result.exit_code == 0, result.output
        found = load_file(out / "model.safetensors")
        shutil.rmtree(out)
        expected = tiny_gguf.tensors()
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            np.testing.assert_array_equal(found[name], tensor, name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("killed"))


@pytest.fixture
def without_model(place: Place) -> Iterator[Place]:
    """There is no model yet, and perhaps what an earlier process has left."""
    shutil.rmtree(place.out)
    yield place
    place.convert()
    assert place.leftovers() == []  # converting has removed them
    place.check_whole()


@pytest.mark.parametrize("moment", CONVERTING)
def test_what_a_killed_conversion_leaves_is_no_model(moment: str, without_model: Place) -> None:
    place = without_model
    place.kill(CONVERTING[moment], "convert", str(place.source), "--out", str(place.out))
    assert not place.out.exists()
    assert len(place.leftovers()) == (moment != "nothing is written")
    place.check_absent(place.out)
    for beside in place.leftovers():
        place.check_absent(beside)
        place.check_absent(beside / "filled")
    checked = rlax("check", "--fast", str(place.config))
    assert checked.exit_code != 0 and str(place.out) in checked.output


def test_a_model_with_its_name_is_whole(without_model: Place) -> None:
    place = without_model
    place.kill(CONVERTED, "convert", str(place.source), "--out", str(place.out))
    place.check_whole()
    assert rlax("init", str(place.home / "new.yml"), "--model", str(place.out)).exit_code == 0
    again = rlax("convert", str(place.source), "--out", str(place.out))
    assert again.exit_code == 2 and "exists already" in again.stderr
    shutil.rmtree(place.out)


@pytest.mark.parametrize("moment", EXPORTING)
def test_what_a_killed_export_leaves_is_no_model(moment: str, place: Place) -> None:
    place.kill(EXPORTING[moment], "export", str(place.out), "--out", str(place.exported))
    assert not place.exported.exists()
    assert len(place.leftovers()) == (moment != "nothing is written")
    result = rlax("convert", str(place.exported), "--out", str(place.home / "other"))
    assert result.exit_code == 2 and not (place.home / "other").exists()
    result = rlax("export", str(place.out), "--out", str(place.exported))
    assert result.exit_code == 0 and place.leftovers() == []
    assert load_file(place.exported / "model.safetensors").keys() == tiny_gguf.tensors().keys()
    shutil.rmtree(place.exported)


def test_an_export_with_its_name_is_whole(place: Place) -> None:
    place.kill(EXPORTED, "export", str(place.out), "--out", str(place.exported))
    result = rlax("convert", str(place.exported), "--out", str(place.home / "again"))
    assert result.exit_code == 0, result.output
    shutil.rmtree(place.exported)
