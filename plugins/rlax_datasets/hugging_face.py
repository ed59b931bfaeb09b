"""The prompt source ``hf``: a data set of the library ``datasets``, by name or from a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rlax_datasets.values import plain
from rlax_plugin.api import ConfigError, DatasetConfig, DatasetSource, alternatives, one_line

_KEY = "rlax.prompt_source"
_OF_A_PATH = "./~"
_OF_SPLITS, _OF_ONE = "dataset_dict.json", "state.json"  # what save_to_disk writes


class HuggingFaceConfig(DatasetConfig):
    """Prompts of a data set that the Hugging Face library datasets loads.

    Without splits, its split train is for training, or all of it where it has no splits.
    """

    dataset: str = Field(
        min_length=1,
        description="name on the Hugging Face hub, such as openai/gsm8k; or a directory, written "
        "with ., / or ~ at its beginning, such as ./words: one that save_to_disk has written, or "
        "one with data files, such as a copy of a hub's repository",
    )
    subset: str = Field(
        default="", description="configuration of the data set, such as main; empty: its only one"
    )
    revision: str = Field(
        default="", description="commit, tag or branch on the hub; empty: the newest"
    )

    @property
    def directory(self) -> Path | None:
        """The directory of the data; None if they are on the hub."""
        # Any other name is one on the hub, also if there is a directory of that name.
        found = Path(self.dataset).expanduser()
        return found if self.dataset[0] in _OF_A_PATH and found.is_dir() else None

    @property
    def is_saved(self) -> bool:
        """True if ``save_to_disk`` has written the directory."""
        found = self.directory
        return found is not None and any((found / one).exists() for one in (_OF_SPLITS, _OF_ONE))

    def check_local(self) -> None:
        """Checks that a local path is a directory, and is not combined with options of the hub.

        Raises:
          ConfigError: it is not a directory, or is combined with such an option.
        """
        if self.directory is None and self.dataset[0] in _OF_A_PATH:
            raise ConfigError(f"{_KEY}.dataset", self.dataset, "does not exist, or is no directory")
        for option in ("subset", "revision"):
            if self.is_saved and (given := getattr(self, option)):
                reason = "must be empty: a directory that save_to_disk has written has none"
                raise ConfigError(f"{_KEY}.{option}", given, reason)


class HuggingFaceSource(DatasetSource):
    """One prompt per row."""

    config: HuggingFaceConfig
    fills_with_null = True

    def files(self, split: str) -> Sequence[str]:
        self.config.check_local()
        directory = self.config.directory
        if directory is None:
            return ()
        return sorted(
            str(path)
            for path in directory.rglob("*")
            if path.is_file()
            and not any(part[0] == "." for part in path.relative_to(directory).parts)
        )

    def rows(self, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        wanted = self.config.splits.get(split, split)
        names = (wanted,) if isinstance(wanted, str) else wanted
        given = f"{_KEY}.splits.{split}" if self.config.splits else f"{_KEY}.dataset"
        for name in names:
            for number, row in enumerate(self._loaded(name, given), 1):
                yield f"{self.config.dataset}, {name}, row {number},", plain(row)

    def _loaded(self, name: str, key: str) -> Any:
        config = self.config
        # Else the library asks the hub five times, although the files are in the directory.
        if config.directory is not None:
            os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
        import datasets

        try:
            if config.is_saved:
                return self._saved(datasets.load_from_disk(str(config.directory)), name, key)
            source = str(config.directory or config.dataset)
            options = {"name": config.subset or None, "revision": config.revision or None}
            return datasets.load_dataset(source, split=name, **options)
        except ConfigError:
            raise
        # Loading runs the code of many libraries; what they raise is told with the data set's name.
        except Exception as error:
            raise self._error(error, name, key) from error

    def _saved(self, found: Any, name: str, key: str) -> Any:
        if isinstance(found, Mapping):
            if name not in found:
                raise ConfigError(key, name, f"is no split of it: {alternatives(name, found)}")
            return found[name]
        if self.config.splits:
            reason = (
                "must be empty: the directory has one data set without splits; held_out makes some"
            )
            raise ConfigError(f"{_KEY}.splits", list(self.config.splits), reason)
        return found

    def _error(self, error: Exception, name: str, key: str) -> ConfigError:
        config, said = self.config, one_line(str(error) or type(error).__name__, 300)
        dataset = f"{_KEY}.dataset"
        if isinstance(error, ConnectionError) or "offline" in said.lower():
            return ConfigError(
                dataset,
                config.dataset,
                f"is no directory, and the Hugging Face hub cannot be reached ({said}). Without a "
                "network, name a directory that save_to_disk has written, such as ./words",
            )
        if said.startswith("Unknown split") or "not in sliced" in said:
            return ConfigError(key, name, f"is no split of {config.dataset}: {said}")
        if said.startswith(("BuilderConfig", "Config name is missing")):
            return ConfigError(f"{_KEY}.subset", config.subset, said)
        return ConfigError(dataset, config.dataset, f"cannot be loaded: {said}")
