"""A tensorflow-datasets builder that generates the arithmetic problems itself, without a network.

The files are in the array_record format, which tensorflow-datasets writes and reads without
importing TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from rlax_arithmetic.problems import SPLITS, ProblemSet


@dataclasses.dataclass(eq=False)
class ArithmeticBuilderConfig(tfds.core.BuilderConfig):
    """A `ProblemSet` under its own name, so that each set has its own directory."""

    problems: ProblemSet = dataclasses.field(default_factory=ProblemSet)


class Arithmetic(tfds.core.GeneratorBasedBuilder):
    """Questions such as ``12+34=`` with their answers."""

    # Goes up whenever `ProblemSet.split` gives anything else: prepared data is never made again.
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [
        ArithmeticBuilderConfig(name=ProblemSet().name, problems=ProblemSet())
    ]
    # Nothing is downloaded. Said here because tfds 4.9.10 would look for a checksum file beside
    # this one through `importlib_resources`, which it does not declare as a dependency.
    url_infos = None

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Two operands and the result of one operation on them.",
            features=tfds.features.FeaturesDict(
                {"question": tfds.features.Text(), "answer": tfds.features.Text()}
            ),
            disable_shuffling=True,  # the order is `ProblemSet.split`'s, whatever tfds hashes with
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        config = self.builder_config
        assert isinstance(config, ArithmeticBuilderConfig)
        for key, (question, answer) in enumerate(config.problems.split(split)):
            yield key, {"question": question, "answer": answer}

    # The run's own display says what is going on; stdout is its.
    def _log_download_bytes(self) -> None: ...

    def _log_download_done(self) -> None: ...


def prepared(problems: ProblemSet, data_dir: Path) -> Arithmetic:
    """Returns the builder of ``problems`` under ``data_dir``, generating the data if necessary.

    Other processes may do the same: tfds writes to a directory of its own and renames it.

    Raises:
      OSError: ``data_dir`` cannot be written.
    """
    builder = _builder(problems, data_dir)
    if not builder.data_path.exists():
        tfds.disable_progress_bar()
        try:
            builder.download_and_prepare()
        except OSError:
            # Lost the race: the directory, which appears whole or not at all, was not there before.
            if not builder.data_path.exists():
                raise
    return _builder(problems, data_dir)  # reads the disk; another process may have written it


def read(problems: ProblemSet, data_dir: Path, split: str) -> list[tuple[str, str]]:
    """Returns (question, answer) of every problem of a split, in the dataset's order."""
    builder: Any = prepared(problems, data_dir)
    source = builder.as_data_source(split=split)
    return [
        (row["question"].decode(), row["answer"].decode())
        for row in source.__getitems__(range(len(source)))
    ]


def _builder(problems: ProblemSet, data_dir: Path) -> Arithmetic:
    default = Arithmetic.BUILDER_CONFIGS[0]
    config = (
        default
        if problems == default.problems
        else ArithmeticBuilderConfig(name=problems.name, problems=problems)
    )
    return Arithmetic(data_dir=data_dir, config=config, file_format="array_record")
