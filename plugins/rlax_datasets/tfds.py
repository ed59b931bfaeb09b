"""The prompt source ``tfds``: a data set of TensorFlow Datasets.

Only the process that reads imports TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rlax_datasets.values import plain
from rlax_plugin.api import ConfigError, DatasetConfig, DatasetSource, PathText, one_line

_KEY = "rlax.prompt_source"
_INFO = "dataset_info.json"
_ID = "tfds_id"
_MOST_FILES = 10_000


class TfdsConfig(DatasetConfig):
    """Prompts of TensorFlow Datasets, one per example; bytes are text in UTF-8.

    Without splits, the split train is for training.
    """

    dataset: str = Field(
        min_length=1,
        description="name, such as gsm8k, my_data/config:1.0.0; or the directory of a version that "
        "is prepared, such as data/my_data/1.0.0, which store_as_tfds_dataset writes as well",
    )
    data_dir: PathText = Field(
        default="",
        description="directory of prepared data sets, a path or a URL such as gs://...; empty: the "
        "environment's TFDS_DATA_DIR or ~/tensorflow_datasets",
    )
    download: bool = Field(
        default=False,
        description="true: data that are not there are downloaded and prepared; this may take "
        "longer than rlax.deadlines.prompts_s",
    )

    @property
    def directory(self) -> Path | None:
        """The directory of a prepared version, if ``dataset`` names one; else None."""
        found = Path(self.dataset).expanduser()
        return found if (found / _INFO).is_file() else None

    @property
    def local(self) -> Path | None:
        """The directory with all versions of the data set; None if it is not on this machine."""
        where = self.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        name = self.dataset.partition("/")[0].partition(":")[0]
        return None if "://" in where else Path(where).expanduser() / name

    def check_local(self) -> None:
        """Checks that a local path is the directory of a version.

        Raises:
          ConfigError: it is not.
        """
        if self.directory is not None:
            if self.data_dir:
                reason = "must be empty where dataset is a directory"
                raise ConfigError(f"{_KEY}.data_dir", self.data_dir, reason)
        elif self.dataset[0] in "./~" or Path(self.dataset).is_dir():
            reason = (
                f"has no {_INFO}: it must be the directory of a version, such as "
                "data/my_data/1.0.0, or a name together with data_dir"
            )
            raise ConfigError(f"{_KEY}.dataset", self.dataset, reason)


class TfdsSource(DatasetSource):
    """One prompt per example, in the order of the files."""

    config: TfdsConfig
    _before_download: Sequence[str] | None = None

    def files(self, split: str) -> Sequence[str]:
        self.config.check_local()
        if self._before_download is not None:
            return self._before_download  # what it writes itself is no change while reading
        where = self.config.directory or self.config.local
        if where is None:
            return ()
        found = sorted(str(path) for path in where.rglob("*") if path.is_file())
        return [path for path in found if "incomplete." not in path][:_MOST_FILES]

    def rows(self, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # accelerators are the trainer's
        import tensorflow as tf
        import tensorflow_datasets as tfds

        key = f"{_KEY}.splits.{split}" if self.config.splits else f"{_KEY}.dataset"
        wanted = self.config.splits.get(split, split)
        builder = self._builder(tfds)
        # One file after the other: the same order every time.
        reading = tfds.ReadConfig(add_tfds_id=True, interleave_cycle_length=1)
        for name in (wanted,) if isinstance(wanted, str) else wanted:
            try:
                examples = builder.as_dataset(split=name, shuffle_files=False, read_config=reading)
            # What its parser of splits raises is told with the splits that there are.
            except Exception as error:
                known = ", ".join(sorted(builder.info.splits))
                reason = f"is no split that can be read ({_first(error)}); there are: {known}"
                raise ConfigError(key, name, reason) from error
            number = 0
            try:
                for number, example in enumerate(tfds.as_numpy(examples), 1):
                    found = {**example}
                    where = plain(found.pop(_ID, b""))
                    yield f"{builder.name}, {name}, example {number} ({where}),", plain(found)
            # TensorFlow has errors of its own for a damaged file.
            except tf.errors.OpError as error:
                reason = f"cannot be read after example {number:,}: {_first(error)}"
                raise ConfigError(key, self.config.dataset, reason) from error

    def _builder(self, tfds: Any) -> Any:
        config, key = self.config, f"{_KEY}.dataset"
        try:
            if config.directory is not None:
                return tfds.builder_from_directory(str(config.directory))
            options = {"data_dir": config.data_dir} if config.data_dir else {}
            builder = tfds.builder(config.dataset, **options)
        except tfds.core.registered.DatasetNotFoundError as error:
            at = config.data_dir or config.local
            reason = f"is no data set that is registered, nor one that was prepared in {at}"
            raise ConfigError(key, config.dataset, reason) from error
        # Building runs the code of the data set; what it raises is told with its name.
        except Exception as error:
            raise ConfigError(key, config.dataset, f"cannot be loaded: {_first(error)}") from error
        if not builder.is_prepared():
            if not config.download:
                reason = (
                    f"is not prepared in {builder.data_dir}: set download: true, or prepare it "
                    "with tfds build"
                )
                raise ConfigError(key, config.dataset, reason)
            self._before_download = self.files("")
            try:
                builder.download_and_prepare()
            # So does preparing.
            except Exception as error:
                reason = f"cannot be downloaded and prepared: {_first(error)}"
                raise ConfigError(key, config.dataset, reason) from error
        return builder


def _first(error: Exception) -> str:
    """Returns the first line of an error's message, which may list all data sets that exist."""
    said = str(error).strip().partition("\n")[0]
    return one_line(said or type(error).__name__, 200)
