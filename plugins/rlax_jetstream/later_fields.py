"""Fields of a ``DecodeRequest`` that the later upstream code has and google-jetstream 0.2.2 lacks.

A client of the later code may send them, and protobuf keeps unknown fields. Each field is honoured
or rejected by name, so every client gets the answer that it requested (tested with the fields of
upstream's commit 29329e8e).
"""

from __future__ import annotations

from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from rlax_jetstream.driver import RequestError

_METADATA, _NUM_SAMPLES, _LORA, _HAS_BOS = 7, 8, 9, 10
_NAMES = {_NUM_SAMPLES: "num_samples", _LORA: "lora_adapter_id", _HAS_BOS: "has_bos"}
_VARINT, _BYTES = 0, 2  # wire types


def samples_asked(request: Any, most: int) -> int:
    """The number of completions that a request wants; 1 by default.

    Args:
      request: a ``DecodeRequest`` of either version.
      most: maximum number of samples of one request.

    Raises:
      RequestError: it wants more, or has a field that this server cannot honour.
    """
    found = {_NUM_SAMPLES: 0, _LORA: "", _HAS_BOS: False}
    for number, name in _NAMES.items():  # the installed JetStream may know them
        found[number] = getattr(request, name, found[number])
    for field in UnknownFieldSet(request):
        number, data = field.field_number, field.data
        wanted = _BYTES if number == _LORA else _VARINT
        if number == _METADATA:  # when the client began, which upstream only logs
            continue
        if number not in found or field.wire_type != wanted:
            raise RequestError(f"field {number} of DecodeRequest is not known to this server")
        found[number] = data
    if found[_LORA]:
        raise RequestError("lora_adapter_id: this server has no adapters; leave it out")
    if found[_HAS_BOS] and request.WhichOneof("content") == "text_content":
        raise RequestError(
            "has_bos: special tokens in text_content are plain text, and the server puts the first "
            "token before it; leave has_bos out, or send token_content"
        )
    samples = _int32(found[_NUM_SAMPLES]) or 1  # a proto3 field that is not set is 0
    if not 1 <= samples <= most:
        raise RequestError(
            f"num_samples = {samples}: must be from 1 to {most}, the samples that may wait here"
        )
    return samples


def _int32(value: int) -> int:
    """A varint as protobuf reads it into an int32."""
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low
