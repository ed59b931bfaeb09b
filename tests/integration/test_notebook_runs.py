"""A notebook that starts a run, executed by a real kernel."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from runs import CONFIG

DEADLINE_S = 240
CELLS = (
    f"""
import rlax_plugin

VOWELS = {{"a", "e", "i", "o", "u"}}

def vowels(completion):
    return sum(one in VOWELS for one in completion) / 6

run = rlax_plugin.train(model={CONFIG!r}, rewards=["even", vowels], steps=30, name="cells")
run
""",
    "run.wait()",
    'metrics = run.metrics()\nmetrics.select(["step", "reward/mean"]).to_pandas()',
    """
import matplotlib.pyplot as plt
plt.plot(metrics["step"], metrics["reward/mean"])
plt.show()
""",
    """
rows = run.samples(["completion", "reward_parts"]).to_pylist()
print(len(rows), all(row["reward_parts"][1] == vowels(row["completion"]) for row in rows))
""",
    "str(run.report())",
    "run",
    'rlax_plugin.open("runs/cells").status',
)


def executed(directory: Path, *cells: str) -> list[list[Any]]:
    """The outputs of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    client = NotebookClient(
        notebook,
        timeout=DEADLINE_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(directory)}},
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.long
def test_a_notebook_trains_and_shows_its_run(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)  # a kernel chooses its own
    start, wait, metrics, plot, samples, report, handle, status = executed(tmp_path, *CELLS)
    assert "cells: starting, step 0 of 30" in start[0].data["text/html"]
    # One display, which was updated until the end, the results, and the value of the cell.
    progress, table, verdict, value = wait
    assert "held-out evaluation" in table.data["text/plain"]
    assert "pass@1 on test went from" in " ".join(verdict.data["text/plain"].split())
    assert progress.output_type == "display_data"
    assert "cells: complete, step 30 of 30, reward 0." in progress.data["text/plain"]
    assert value.data["text/plain"] == "'complete'"
    assert "reward/mean" in metrics[0].data["text/html"]
    assert len(plot[0].data["image/png"]) > 1000
    count, same = samples[0].text.split()
    assert int(count) >= 30 * 16 and same == "True"
    assert Path(report[0].data["text/plain"].strip("'")).stat().st_size > 100_000
    assert "cells: complete" in handle[0].data["text/html"]
    assert status[0].data["text/plain"] == "'complete'"
    lines = (tmp_path / "runs/cells/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 31))
