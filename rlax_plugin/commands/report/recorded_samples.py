"""Reads the samples of a run for the page; read again, it opens only files that it does not know.

A file of samples is not written again once a segment of the journal names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from rlax_plugin.commands.report.recorded_groups import GroupAt, groups_in, read_rows
from rlax_plugin.commands.report.recorded_turns import Recorded, recorded_in
from rlax_plugin.commands.report.run import Progress, RunData
from rlax_plugin.errors import RlaxError
from rlax_plugin.records import journal, samples
from rlax_plugin.records.files import RunFiles


class SamplesReader:
    """Reads the samples of a run, which may grow meanwhile."""

    def __init__(self) -> None:
        self._groups: dict[str, list[GroupAt]] = {}  # by file, of files that remain as they are
        self._rollouts: dict[tuple[str, int], list[Recorded]] = {}  # those chosen last

    def groups(self, files: RunFiles, run: RunData, progress: Progress) -> list[GroupAt]:
        """Returns every recorded group once; a trained group as in its batch.

        Raises:
          RlaxError: the file system fails.
        """
        committed = journal.last_number(files)
        names = journal.sample_files(files)
        last = journal.samples_name(committed)
        self._groups = {name: self._groups[name] for name in names if name in self._groups}
        found: dict[int, GroupAt] = {}
        for done, name in enumerate(names, start=1):
            groups = self._groups.get(name)
            if groups is None:
                groups = self._read(files, run, name)
                if groups is None:
                    continue
                if name <= last:
                    self._groups[name] = groups
            for group in groups:
                if group.trained or group.group not in found:
                    found[group.group] = group
            progress("rollouts", done, len(names))
        return list(found.values())

    @staticmethod
    def _read(files: RunFiles, run: RunData, name: str) -> list[GroupAt] | None:
        try:
            return list(groups_in(files, name))
        except RlaxError as error:
            run.missing.append(str(error))
            return None

    def rollouts(
        self, files: RunFiles, run: RunData, chosen: Iterable[GroupAt], progress: Progress
    ) -> Iterator[Recorded]:
        """Yields the episodes of some groups, in the order of files, steps and groups.

        Raises:
          RlaxError: the file system fails.
        """
        ordered = sorted(chosen, key=lambda group: (group.file, group.step, group.group))
        by_file = {
            name: [group.group for group in found]
            for name, found in itertools.groupby(ordered, key=lambda group: group.file)
        }
        known, self._rollouts = self._rollouts, {}
        for done, (name, wanted) in enumerate(by_file.items(), start=1):
            new = {group for group in wanted if (name, group) not in known}
            of_group: dict[int, list[Recorded]] = {
                g: known[name, g] for g in wanted if g not in new
            }
            with run.noting():
                if new:
                    rows = samples.only(read_rows(files, name), new)
                    for one in recorded_in(rows):
                        of_group.setdefault(one.row["group"], []).append(one)
            for group in wanted:
                if name in self._groups and group in of_group:
                    self._rollouts[name, group] = of_group[group]
                yield from of_group.get(group, ())
            progress("tokens", done, len(by_file))
