"""The process that reads a dataset: ``python -m rlax_plugin.data.prompts.reading_process``.

It gets one line of JSON on standard input, which stays open as long as its parent lives, and
writes lines of JSON: progress, and finally success or the reason for the failure. Modules loaded
and text printed by the dataset's libraries stay here, and so does the memory that reading takes.
"""

from __future__ import annotations

import gc
import importlib
import json
import time
from pathlib import Path
from typing import Any

from rlax_plugin.base.processes.inside import Lines, answer_once
from rlax_plugin.base.tokens.rendering import RenderLimits
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.data.prompts.rows_to_table import prepare

_EVERY_S = 0.5  # between two lines of progress


def _class(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _run(asked: dict[str, Any], lines: Lines) -> None:
    told_s = 0.0

    def tell(split: str, rows: int) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= _EVERY_S:
            told_s = now_s
            lines.say({"split": split, "rows": rows})

    tokenizer = asked["tokenizer"]
    source = _class(asked["source"])(
        _class(asked["config_class"]).model_validate_json(json.dumps(asked["config"])),
        Tokenizer.load(
            tokenizer["directory"],
            tokenizer["key"],
            tokenizer["arguments"],
            RenderLimits(**asked["template_limits"]),
        ),
        max_tokens=asked["max_tokens"],
    )
    if asked["turns"]:
        source = source.of_demonstrations(asked["turns"], asked["max_tokens"])
    gc.freeze()  # what was imported lives on: collections need not look at it
    prepare(source, Path(asked["directory"]), asked["identity"], tell)


if __name__ == "__main__":
    answer_once(_run)
