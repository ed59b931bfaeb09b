"""Times curating a data set: contamination, choosing, and starting with the kept prompts.

    .venv/bin/python benchmarks/offline_curation.py --count 1000000 --problems 10000

The prompts are texts of about 60 words over 20,000 words; one in a thousand is a problem of the
evaluation set, whole or in part. Times are CPU times, so that other programs on the machine
do not count; memory is the largest growth of the resident set in each part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rlax_plugin.commands.contamination import found
from rlax_plugin.commands.curate import curate
from rlax_plugin.curation.choosing import Rule
from rlax_plugin.curation.contamination import Sets
from rlax_plugin.pass_rates.files import About, measured, write_table
from rlax_plugin.prompts.kept import only_kept
from rlax_plugin.prompts.row_columns import Row
from rlax_plugin.prompts.rows_to_table import TableWriter
from rlax_plugin.prompts.table import PromptTable
from rlax_plugin.types import SamplingParams

VOCABULARY, WORDS, EVERY = 20_000, 60, 1000


def texts(count: int, seed: int) -> Iterator[str]:
    """Yields sentences of words sampled as in a language: a few of them often."""
    draw = np.random.default_rng(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = np.array([a + b + c + d for a, b, c, d in product(letters[:2], *3 * (letters,))])
    words = words[:VOCABULARY]
    frequency = 1 / np.arange(10, VOCABULARY + 10)
    for start in range(0, count, 1000):
        rows = min(1000, count - start)
        shares = frequency / frequency.sum()
        for row in draw.choice(words, (rows, WORDS), p=shares):
            yield " ".join(row).capitalize() + "?"


def table(path: Path, count: int, problems: list[str]) -> PromptTable:
    """Returns training prompts, prepared as for a data set."""
    writer = TableWriter(path)
    for number, text in enumerate(texts(count, 1)):
        if number % EVERY == 0:
            problem = problems[number // EVERY % len(problems)]
            text = problem.upper() if number % (2 * EVERY) else f"{text} {problem[50:250]}"
        writer.add(
            hashlib.blake2b(text.encode(), digest_size=16).digest(),
            [1] * 80,
            Row("", text, text, "", {}, "{}", "abc"[number % 3], len(text)),
        )
    return PromptTable.open(path, writer.close(), {}, {})


@contextmanager
def timed(told: dict[str, Any], name: str) -> Iterator[None]:
    before, started_s = _mib(), time.process_time()
    yield
    told[name] = {"cpu_s": round(time.process_time() - started_s, 2), "MiB": _mib() - before}


def _mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--problems", type=int, default=10_000)
    given = parser.parse_args()
    told: dict[str, Any] = {"prompts": given.count, "problems": given.problems}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        problems = list(texts(given.problems, 2))
        train = table(directory / "train.arrow", given.count, problems)
        with timed(told, "contamination"):
            sets = Sets()
            sets.add("test", ((str(i), text) for i, text in enumerate(problems)))
            matches = found(train, sets, lambda what, done: None)
        told["found"] = len(matches)

        draw = np.random.default_rng(3)
        passed = draw.binomial(8, draw.beta(0.4, 0.4, given.count))
        from rlax_plugin.prompts.ids import domains_of, ids_of

        everyone = np.arange(given.count)
        rows = {
            "id": ids_of(train),
            "domain": pa.chunked_array([domains_of(train, everyone)]),
            "passed": passed,
            "failed": 8 - passed,
        }
        about = About("bench", None, 0, SamplingParams(), 0.5)
        path, kept = str(directory / "rates.parquet"), str(directory / "kept.parquet")
        with timed(told, "write_rates"):
            write_table(path, measured(rows, about))
        with timed(told, "curate"):
            curate(path, Rule(0.2, 0.8), kept)
        with timed(told, "only_kept"):
            told["kept"] = len(only_kept(train, kept, lambda text: None))
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
