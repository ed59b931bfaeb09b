"""``rlax curate``: chooses prompts by a table of pass rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.places import check_new_file
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.config import Deadlines
from rlax_plugin.data.curation.choosing import REASONS, Rule, choose
from rlax_plugin.data.curation.contaminated import contaminated_ids
from rlax_plugin.data.curation.pass_rate_files import read_table
from rlax_plugin.data.prompts.ids import put_table


def curate(path: str, rule: Rule, out: str, *, without: str | None = None) -> pa.Table:
    """Chooses prompts, and writes the file; returns its table, see ``kept.schema``.

    Args:
      path: the file with the pass rates.
      without: a file of ``rlax prompts --contamination``.

    Raises:
      RlaxError: a file cannot be read or written, ``out`` exists, or no prompt is kept.
    """
    check_new_file("--out", out, Deadlines().rpc_s, ".parquet")
    try:
        rates = read_table(path)
    except FileNotFoundError:
        raise ConfigError("TABLE", path, "does not exist") from None
    except RlaxError as error:
        raise ConfigError("TABLE", path, f"cannot be used: {error}") from error
    contaminated = None if without is None else contaminated_ids(without)
    table = choose(rates.by_id(), rule, contaminated)
    if not np.any(table.column("kept").to_numpy()):
        said = ", ".join(f"{n:,} {why}" for why, n in counts(table)[0]["dropped"].items())
        reason = f"keeps none of the {table.num_rows:,} prompts ({said})"
        raise ConfigError("--keep", f"{rule.low:g}..{rule.high:g}", reason)
    put_table(out, table)
    return table


def counts(table: pa.Table) -> list[dict[str, Any]]:
    """Returns prompts before and after, in total and by domain if there are several.

    The largest domain comes first. ``dropped`` has the number of dropped prompts by reason.
    """
    kept = table.column("kept").to_numpy()
    domains = table.column("domain").combine_chunks().dictionary_encode()
    why = table.column("reason").to_numpy()
    found_all = [_counted("all", kept, why)]
    names: list[Any] = domains.dictionary.to_pylist()
    if len(names) > 1:
        of_n = domains.indices.fill_null(-1).to_numpy(False)
        each = [_counted(name, kept[of_n == i], why[of_n == i]) for i, name in enumerate(names)]
        found_all += sorted(each, key=lambda one: -one["before"])
    return found_all


def _counted(name: str, kept: np.ndarray, why: np.ndarray) -> dict[str, Any]:
    dropped = why[~kept]
    rows = {one: int(np.count_nonzero(dropped == one)) for one in REASONS}
    return {
        "domain": name,
        "before": len(kept),
        "kept": int(np.count_nonzero(kept)),
        "dropped": {one: count for one, count in rows.items() if count},
    }


def counts_table(found: Sequence[dict[str, Any]]) -> Table:
    """Returns a table with the number of kept prompts, and of dropped prompts by reason."""
    reasons = list(found[0]["dropped"])
    table = Table()
    table.add_column("domain")
    for column in ("prompts", "kept", *reasons):
        table.add_column(column, justify="right")
    for index, one in enumerate(found):
        dropped = one["dropped"]
        cells = (one["before"], one["kept"], *(dropped.get(reason, 0) for reason in reasons))
        name = one_line(one["domain"], 40) or "(none)"
        table.add_row(name, *(f"{cell:,}" for cell in cells), end_section=index == 0)
    return table
