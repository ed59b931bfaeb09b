"""Rows of the table of metrics for the stage ``rollout``; see ``names``."""

from __future__ import annotations

from rlax_plugin.metrics.objective_rows import Row

_STREAMED = "if workers receive weights"

ROLLOUT_ROWS: tuple[Row, ...] = (
    ("samples", "samples", "number of samples of groups scored since the last step"),
    ("tokens", "tokens", "number of generated tokens of groups scored since the last step"),
    ("workers", "workers", "number of workers registered at the end of the step"),
    (
        "slots_used",
        "fraction",
        "fraction of the slots that generated a token, over the decode steps that the workers' "
        "heartbeats have reported since the last step. Time in which a worker decodes nothing does "
        "not count",
        "steps after which heartbeats report decode steps of an engine that counts them, as "
        "`jetstream` does",
    ),
    (
        "decode_step_s",
        "s",
        "mean time of a decode step, over those that slots_used counts",
        "steps after which heartbeats report decode steps and their time, as those of `jetstream` "
        "do",
    ),
    ("stream_bytes", "bytes", "bytes of versions that workers received last", _STREAMED),
    ("stream_s", "s", "longest time in which a worker received its own", _STREAMED),
    (
        "workers_wanted",
        "workers",
        "number of workers that the launcher keeps at the end of the step, including those "
        "that are starting",
        "every step, if the launcher adds and removes workers",
    ),
)
