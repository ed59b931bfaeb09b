"""Prompts as columns: a table is opened in milliseconds, whatever its size, and read by index."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from rlax_plugin.base.types import Prompt

if TYPE_CHECKING:
    import pyarrow as pa

_EXAMPLES = 3
ELSEWHERE = "in another split"
"""Reason for leaving out a training prompt whose question an evaluation has, too."""


@dataclass(frozen=True, slots=True)
class Domains:
    """The domains of prompts.

    Attributes:
      names: names of the domains.
      of_n: int16 [n], the domain of each prompt, an index into ``names``.
      weights: float64 [domains], target share of each in the training prompts; sum 1.
      counted: True if the weights are the shares that the prompts have, not those of a config.
    """

    names: tuple[str, ...]
    of_n: np.ndarray
    weights: np.ndarray
    counted: bool = False

    def places(self) -> list[np.ndarray]:
        """For each domain, the indices of its prompts in their order."""
        return [np.flatnonzero(self.of_n == number) for number in range(len(self.names))]

    def lacking(self, used: np.ndarray) -> np.ndarray:
        """Prompts that each domain lacks for its share of one more prompt, float64 [domains].

        Args:
          used: number of prompts of each domain used so far.
        """
        return self.weights * (used.sum() + 1) - used

    def weighted(self, weights: Mapping[str, float]) -> Domains:
        """The same domains with other weights; domains that are left out get 0.

        Args:
          weights: domain -> weight, relative to each other.
        """
        given = [weights.get(name, 0.0) for name in self.names]
        return Domains(self.names, self.of_n, _shares(given))

    def kept(self, which: np.ndarray) -> Domains:
        """The domains of some of the prompts; a domain with no prompt left gets no share.

        Args:
          which: bool [n], or indices.
        """
        of_n = self.of_n[which]
        counts = np.bincount(of_n, minlength=len(self.names))
        weights = counts if self.counted else np.where(counts > 0, self.weights, 0.0)
        shares = _shares(weights) if weights.any() else weights
        return Domains(self.names, of_n, shares, self.counted)


@dataclass(slots=True)
class Skipped:
    """Rows that were left out for one reason.

    Attributes:
      examples: location and defect of a few of them.
    """

    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    def add(self, place: str, what: str) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append((place, what))


class PromptTable(Sequence[Prompt]):
    """Prompts in an Arrow table that is mapped into memory; a ``Prompt`` is made when it is read.

    Args:
      table: columns of ``rows_to_table.SCHEMA``.
      rows: ascending indices into the table, of the prompts that belong to it; None: all.

    Attributes:
      ids: uint8 [n, 16], the ids of all prompts; ``Prompt.id`` has them in hexadecimal.
      lengths: int32 [n], tokens of each prompt.
      domains: None if all prompts belong to one domain.
      digest: hash of all ids and tokens, in their order.
      skipped: reason -> the rows that were left out.
    """

    def __init__(
        self,
        table: pa.Table,
        *,
        digest: str,
        domains: Domains | None = None,
        skipped: Mapping[str, Skipped] | None = None,
        rows: np.ndarray | None = None,
    ):
        import pyarrow.compute as pc

        self._table, self._rows, self.digest, self.domains = table, rows, digest, domains
        self.skipped = dict(skipped or {})
        ids = [np.zeros((0, 16), np.uint8), *map(_ids, table.column("id").chunks)]
        self.ids: np.ndarray = np.concatenate(ids)
        self.lengths: np.ndarray = pc.call_function(
            "list_value_length", [table.column("tokens")]
        ).to_numpy()
        if rows is not None:
            self.ids, self.lengths = self.ids[rows], self.lengths[rows]

    @classmethod
    def open(
        cls,
        path: Path,
        known: Mapping[str, Any],
        weights: Mapping[str, float],
        skipped: Mapping[str, Skipped],
    ) -> PromptTable:
        """Opens a file of ``TableWriter``.

        Args:
          known: result of its ``close``.
          weights: domain -> weight; empty: each has the weight of its prompts.

        Raises:
          ValueError, OSError: it is damaged.
        """
        import pyarrow as pa

        if path.stat().st_size != known["bytes"]:
            raise ValueError(f"{path} has not the size that it had")
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if table.num_rows != known["rows"]:
            raise ValueError(f"{path} has not the rows that it had")
        names = tuple(known["domains"])
        domains = None
        if len(names) > 1:
            of_n = table.column("domain").to_numpy()
            counts = np.bincount(of_n, minlength=len(names))
            given = [weights.get(name, 0.0) for name in names] if weights else counts
            domains = Domains(names, of_n, _shares(given), counted=not weights)
        return cls(table, digest=known["digest"], domains=domains, skipped=skipped)

    def weighted(self, weights: Mapping[str, float]) -> PromptTable:
        """The same prompts, with other weights of the domains; shares all memory.

        Args:
          weights: see ``Domains.weighted``.
        """
        assert self.domains is not None
        other = copy.copy(self)
        other.domains = self.domains.weighted(weights)
        return other

    @classmethod
    def joined(cls, tables: Mapping[str, PromptTable], weights: Mapping[str, float]) -> PromptTable:
        """Joins tables, each of which becomes a domain (or, if it has domains, several).

        Args:
          tables: name -> table.
          weights: name -> weight; relative to each other.
        """
        import pyarrow as pa

        names: list[str] = []
        of_n: list[np.ndarray] = []
        shares: list[float] = []
        rows: list[np.ndarray] = []
        digest, start = hashlib.blake2b(digest_size=16), 0
        for (name, table), share in zip(
            tables.items(), _shares([weights[name] for name in tables]), strict=True
        ):
            digest.update(f"{name}/{table.digest}/".encode())
            own = table.domains or Domains(("",), np.zeros(len(table), np.int16), np.ones(1))
            of_n.append(own.of_n + np.int16(len(names)))
            names += [f"{name}/{one}" if one else name for one in own.names]
            shares += (share * own.weights).tolist()
            rows.append(start + (np.arange(len(table)) if table._rows is None else table._rows))
            start += table._table.num_rows
        skipped = {
            f"{name}: {reason}": found
            for name, table in tables.items()
            for reason, found in table.skipped.items()
        }
        are_whole = all(table._rows is None for table in tables.values())
        return cls(
            pa.concat_tables([table._table for table in tables.values()]),
            digest=digest.hexdigest(),
            domains=Domains(tuple(names), np.concatenate(of_n), np.array(shares)),
            skipped=skipped,
            rows=None if are_whole else np.concatenate(rows),
        )

    def subset(self, indices: np.ndarray) -> PromptTable:
        """Some of the prompts, with their properties; copies neither texts nor tokens.

        Args:
          indices: int [m], ascending.
        """
        found = PromptTable(
            self._table,
            digest="",
            domains=None if self.domains is None else self.domains.kept(indices),
            skipped=self.skipped,
            rows=indices if self._rows is None else self._rows[indices],
        )
        digest = hashlib.blake2b(found.ids.data, digest_size=16)
        digest.update(found.lengths.data)
        for tokens in found._column("tokens"):
            digest.update(tokens.flatten().to_numpy().data)
        found.digest = digest.hexdigest()
        return found

    def texts(self) -> Iterator[list[str]]:
        """The texts of all prompts in their order, in lists of some thousands."""
        for texts in self._column("text"):
            yield texts.to_pylist()

    def _column(self, name: str) -> Iterator[pa.Array]:
        """A column of the prompts, in parts: ``take`` of a whole column might copy all texts."""
        start = 0
        for part in self._table.column(name).chunks:
            end = start + len(part)
            if self._rows is not None:
                low, high = np.searchsorted(self._rows, np.array([start, end]))
                part = part.take(self._rows[low:high] - start)
            yield part
            start = end

    def without_questions_of(self, other: PromptTable, where: str) -> PromptTable:
        """This table without the prompts whose question the other one has, too; counts them.

        Args:
          where: location of the other table, for messages.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        theirs = pc.SetLookupOptions(pa.concat_arrays(list(other._column("text"))))
        found = [pc.call_function("is_in", [part], theirs) for part in self._column("text")]
        is_left_out_n = np.concatenate([one.to_numpy(zero_copy_only=False) for one in found])
        if not is_left_out_n.any():
            return self
        left = self.subset(np.flatnonzero(~is_left_out_n))
        known = self.skipped.get(ELSEWHERE, Skipped())
        counted = left.skipped[ELSEWHERE] = Skipped(known.count, list(known.examples))
        for index in np.flatnonzero(is_left_out_n).tolist():
            counted.add(self.place_of(index), f"its question is in {where}, too")
        return left

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return self.read(range(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._prompt(index % len(self))

    def __iter__(self) -> Iterator[Prompt]:
        return map(self._prompt, range(len(self)))

    def read(self, indices: Sequence[int]) -> list[Prompt]:
        """The prompts at these indices."""
        return [self[int(index)] for index in indices]

    def first(self, count: int) -> list[int]:
        """Indices of the first ``count`` prompts at most; domains share them by their weights."""
        if self.domains is None:
            return list(range(min(count, len(self))))
        places = self.domains.places()
        left, used = np.array([len(one) for one in places]), np.zeros(len(places), np.int64)
        found: list[int] = []
        for _ in range(min(count, len(self))):
            domain = int(np.argmax(np.where(used < left, self.domains.lacking(used), -np.inf)))
            found.append(int(places[domain][used[domain]]))
            used[domain] += 1
        return found

    def id_at(self, index: int) -> str:
        """The id of one prompt, without reading the rest of it."""
        return self.ids[index].tobytes().hex()

    def place_of(self, index: int) -> str:
        """The location of a prompt in the dataset."""
        return self._table.column("place")[self._row(index)].as_py()

    def spans_at(self, index: int) -> list[tuple[int, int]]:
        """The tokens of a demonstration that train: (first, one behind the last) of each answer."""
        flat = self._table.column("trained")[self._row(index)].as_py()
        return list(zip(flat[::2], flat[1::2], strict=True))

    def find(self, prompt_id: str) -> int | None:
        """The index of the first prompt with this id; None if there is none."""
        try:
            wanted = np.frombuffer(bytes.fromhex(prompt_id), np.uint8)
        except ValueError:
            return None
        if wanted.shape != (16,):
            return None
        low_n, low = self.ids.view("<u8")[:, 0], wanted.view("<u8")[0]
        for index in np.flatnonzero(low_n == low).tolist():
            if np.array_equal(self.ids[index], wanted):
                return index
        return None

    def _row(self, index: int) -> int:
        return index if self._rows is None else int(self._rows[index])

    def _prompt(self, index: int) -> Prompt:
        row = self._row(index)
        tokens, text, reference, metadata = (
            self._table.column(name)[row] for name in ("tokens", "text", "reference", "metadata")
        )
        return Prompt(
            id=self.id_at(index),
            tokens=tokens.values.to_numpy().copy(),
            text=text.as_py(),
            reference=reference.as_py(),
            metadata=json.loads(metadata.as_py()),
        )


class JoinedPrompts(Sequence[Prompt]):
    """The training prompts of several environments, one after the other.

    An id is ``<environment>/<id>`` here, so that it tells the environment and is unique.

    Attributes:
      parts: environment -> its prompts, with their own ids.
      starts: environment -> index of its first prompt.
    """

    def __init__(self, parts: Mapping[str, Sequence[Prompt]]):
        self.parts = dict(parts)
        ends = np.cumsum([0, *map(len, self.parts.values())]).tolist()
        self.starts = dict(zip(self.parts, ends, strict=False))
        self._length = ends[-1]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        name, place = self._place(index)
        prompt = self.parts[name][place]
        return replace(prompt, id=f"{name}/{prompt.id}")

    def id_at(self, index: int) -> str:
        """The id of one prompt; see ``PromptTable.id_at``."""
        name, place = self._place(index)
        return f"{name}/{id_at(self.parts[name], place)}"

    def domain_at(self, index: int) -> str:
        """The environment of a prompt, and behind a slash its domain there, if it has one."""
        name, place = self._place(index)
        part = self.parts[name]
        domains = part.domains if isinstance(part, PromptTable) else None
        return name if domains is None else f"{name}/{domains.names[domains.of_n[place]]}"

    def indices_of(self, wanted: Set[str]) -> dict[str, int]:
        """See the function of this name."""
        found: dict[str, int] = {}
        for name, part in self.parts.items():
            own = {one.removeprefix(f"{name}/") for one in wanted if one.startswith(f"{name}/")}
            start = self.starts[name]
            found |= {f"{name}/{one}": start + i for one, i in indices_of(part, own).items()}
        return found

    def _place(self, index: int) -> tuple[str, int]:
        index = index + self._length if index < 0 else index
        if not 0 <= index < self._length:
            raise IndexError(index)
        name = next(name for name in reversed(self.starts) if self.starts[name] <= index)
        return name, index - self.starts[name]


def _ids(column: pa.FixedSizeBinaryArray) -> np.ndarray:
    flat = np.frombuffer(column.buffers()[1], np.uint8)
    return flat[16 * column.offset : 16 * (column.offset + len(column))].reshape(-1, 16)


def _shares(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    found = np.asarray(weights, np.float64)
    return found / found.sum()


def id_at(prompts: Sequence[Prompt], index: int) -> str:
    """The id of one prompt; for a table, without reading the rest of it."""
    is_table = isinstance(prompts, PromptTable | JoinedPrompts)
    return prompts.id_at(index) if is_table else prompts[index].id


def indices_of(prompts: Sequence[Prompt], wanted: Set[str]) -> dict[str, int]:
    """The indices of the first prompts with these ids; ids without a prompt are left out."""
    if isinstance(prompts, JoinedPrompts):
        return prompts.indices_of(wanted)
    if isinstance(prompts, PromptTable):
        places = {prompt_id: prompts.find(prompt_id) for prompt_id in wanted}
        return {prompt_id: i for prompt_id, i in places.items() if i is not None}
    found: dict[str, int] = {}
    for index, prompt in enumerate(prompts) if wanted else ():
        if prompt.id in wanted:
            found.setdefault(prompt.id, index)
    return found


def with_ids(prompts: Sequence[Prompt], wanted: Set[str]) -> dict[str, Prompt]:
    """The prompts with these ids; ids without a prompt are left out."""
    return {prompt_id: prompts[i] for prompt_id, i in indices_of(prompts, wanted).items()}
