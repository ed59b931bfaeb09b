"""Reads what wandb writes offline: records in LevelDB's log format, each a protobuf."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _FILE_HEADER, _HEADER = 32768, 7, 7  # bytes; a header is crc (4), length (2), type (1)
_FULL, _LAST = 1, 4


def wandb_records(path: Path) -> Iterator[Any]:
    """Every record of a ``.wandb`` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data.startswith(b":W&B")
    at, payload = _FILE_HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:  # a block's end that holds no header
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        payload += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_FULL, _LAST):
            yield Record.FromString(payload)
            payload = b""


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows, ``_step`` among them."""
    rows = [r.history for r in wandb_records(path) if r.HasField("history")]
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in rows
    ]
