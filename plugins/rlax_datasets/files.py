"""The common base of prompt sources that read files."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from rlax_plugin.api import ConfigError, DatasetConfig, DatasetSource, matching_files

_KEY = "rlax.prompt_source"


class FilesConfig(DatasetConfig):
    """Options of sources that read files."""

    path: str | tuple[str, ...] = Field(
        "",
        description="files with the training questions: a path or fsspec URL, a pattern such as "
        "data/*.jsonl, or a list of them. To name the files of each split, set splits instead",
    )

    @model_validator(mode="after")
    def _one_place(self) -> FilesConfig:
        if bool(self.path) == bool(self.splits):
            reason = "must be given, or splits in its place"
            if self.path:
                reason = "must not be given together with splits"
            raise ConfigError("path", self.path or None, reason)
        return self

    def patterns(self, split: str) -> tuple[str, tuple[str, ...]]:
        """Returns the key that names the files of a split, and its patterns."""
        key = f"{_KEY}.splits.{split}" if self.splits else f"{_KEY}.path"
        found = self.splits[split] if self.splits else self.path
        return key, (found,) if isinstance(found, str) else found

    def check_local(self) -> None:
        """Checks that files on this machine exist.

        Raises:
          ConfigError: a file does not exist.
        """
        for split in self.read_splits:
            key, patterns = self.patterns(split)
            matching_files([one for one in patterns if "://" not in one], key)


class FilesSource(DatasetSource):
    """The rows of files, one file after the other."""

    config: FilesConfig

    def files(self, split: str) -> Sequence[str]:
        key, patterns = self.config.patterns(split)
        return matching_files(patterns, key)
