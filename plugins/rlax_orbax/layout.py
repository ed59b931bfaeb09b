"""The files of a version: Orbax's file names and metadata, zarr3 arrays with checksums.

A version is a directory that Orbax's own PyTree handler can open: ``_METADATA`` in Orbax's format,
and one uncompressed zarr3 array per variable, in a subdirectory with the variable's name. The
manifest (names, shapes, dtypes, chunk shapes) travels as Orbax's custom metadata. Every chunk
ends with the crc32c that TensorStore's codec of that name appends and verifies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlax_plugin.api import WeightsError

METADATA_FILE = "_METADATA"
ARRAY_FILE = "zarr.json"
_KEY = "rlax_weights"


@dataclass(frozen=True, slots=True)
class Layout:
    """One variable: global shape, dtype name and the shape of its chunks."""

    shape: tuple[int, ...]
    dtype: str
    chunk: tuple[int, ...]

    @property
    def chunks(self) -> int:
        """Number of chunks; an array without elements has none."""
        return chunks_in(self.shape, self.chunk)


def chunks_in(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    """Number of chunks in a shard, which consists of whole chunks."""
    return math.prod(n // c for n, c in zip(shape, chunk, strict=True))


def chunk_shape(shard: tuple[int, ...], itemsize: int, limit_bytes: int) -> tuple[int, ...]:
    """Halves the longest even axis of a shard until a chunk is small enough.

    Chunks divide shards evenly, so that every write covers whole chunks. A shard whose axes are
    all odd stays larger than ``limit_bytes``.
    """
    chunk = [max(1, n) for n in shard]
    while math.prod(chunk) * itemsize > limit_bytes:
        even = [axis for axis, n in enumerate(chunk) if n % 2 == 0]
        if not even:
            break
        chunk[max(even, key=lambda axis: chunk[axis])] //= 2
    return tuple(chunk)


def array_spec(directory: str, name: str, layout: Layout) -> dict[str, Any]:
    """TensorStore's complete spec of one variable, so opening it reads no metadata."""
    location = f"{directory}/{name}/"
    return {
        "driver": "zarr3",
        # TensorStore takes a URL for object stores; a local path is no URL ("%" stays "%").
        "kvstore": location if "://" in location else {"driver": "file", "path": location},
        "dtype": layout.dtype,
        "metadata": {
            "shape": layout.shape,
            "data_type": layout.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": layout.chunk}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
        },
        # A version is written once and read once: nothing to look up twice.
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
        # Zeros are written and a missing chunk is an error, not zeros.
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }


def encode(layouts: Mapping[str, Layout]) -> bytes:
    """The text of ``_METADATA``: the fields for Orbax's PyTree handler, and our manifest."""
    tree = {
        str((name,)): {
            "key_metadata": [{"key": name, "key_type": 2}],  # 2: a dict's key
            "value_metadata": {
                "value_type": "jax.Array",
                "skip_deserialize": False,
                "write_shape": layout.chunk,
            },
        }
        for name, layout in layouts.items()
    }
    return json.dumps(
        {
            "tree_metadata": tree,
            "use_ocdbt": False,
            "use_zarr3": True,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": {_KEY: {name: asdict(lay) for name, lay in layouts.items()}},
        }
    ).encode()


def decode(path: str, text: bytes) -> dict[str, Layout]:
    """The manifest inside ``_METADATA``.

    Raises:
      WeightsError: it is damaged, or was not written by this store.
    """
    try:
        entries = json.loads(text)["custom_metadata"][_KEY]
        return {
            name: Layout(tuple(e["shape"]), str(e["dtype"]), tuple(e["chunk"]))
            for name, e in entries.items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}/{METADATA_FILE} is damaged: {error!r}") from error
