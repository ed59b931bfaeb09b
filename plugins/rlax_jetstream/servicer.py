"""JetStream's own service on a worker's server, for any JetStream client.

``LLMOrchestrator``, JetStream's stock servicer, answers; ``servicer_class`` only turns errors into
status codes, reads the fields that the stock servicer does not know, and joins text (tested with
google-jetstream 0.2.2).
"""

from __future__ import annotations

import json
import logging
import shlex
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from rlax_jetstream.driver import DriverOfOne, JetStreamDriver
from rlax_jetstream.options import SERVICE
from rlax_jetstream.replies import RequestError
from rlax_plugin.api import PromptSource, WorkerError, example_prompt, python_command

if TYPE_CHECKING:
    from rlax_jetstream.engine import JetstreamEngine

log = logging.getLogger("rlax.jetstream")


def servicer_class(orchestrator: ModuleType) -> type:
    """``LLMOrchestrator`` with status codes.

    Args:
      orchestrator: the module ``jetstream.core.orchestrator``.
    """
    from jetstream.core.proto import jetstream_pb2 as pb

    class Servicer(orchestrator.LLMOrchestrator):
        """JetStream's servicer; its errors have a status code that names the cause."""

        async def Decode(self, request: Any, context: Any = None) -> AsyncIterator[Any]:
            if not self._driver.live:
                reason = "this worker holds no weights yet, or its engine has failed"
                await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
            if request.WhichOneof("content") is None:
                reason = "neither text_content nor token_content is set"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
            try:
                samples = samples_asked(request, self._driver.most_waiting)
                one = Servicer(DriverOfOne(self._driver, samples))
                async for response in orchestrator.LLMOrchestrator.Decode(one, request, context):
                    yield response
            except RequestError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except WorkerError as error:
                await context.abort(grpc.StatusCode.INTERNAL, str(error))

        # The stock pair joins a text token by token, with a module whose import takes seconds
        # (TensorFlow). Here texts arrive decoded, without what later tokens may change.

        def should_buffer_response(self, response: Any) -> bool:
            return False

        def process_server_side_tokenization_response(
            self, response: Any, buffered_response_list: Any
        ) -> Any:
            content = pb.DecodeResponse.StreamContent
            samples = [
                content.Sample(text="".join(sample.text), token_ids=sample.token_ids)
                for sample in response
            ]
            return pb.DecodeResponse(stream_content=content(samples=samples))

    return Servicer


class Forwarder(grpc.GenericRpcHandler):
    """Stands for a service that is still being imported; answers UNAVAILABLE until then."""

    def __init__(self, service: str):
        self._prefix = f"/{service}/"
        self._handlers: tuple[grpc.GenericRpcHandler, ...] = ()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Called by generated code, to which this object is the server."""
        self._handlers = (*self._handlers, *handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Newer generated code calls this as well; the generic handlers do the same work."""

    def service(self, handler_call_details: Any) -> Any:
        for handler in self._handlers:
            if (found := handler.service(handler_call_details)) is not None:
                return found
        if not self._handlers and handler_call_details.method.startswith(self._prefix):
            return grpc.unary_unary_rpc_method_handler(_unavailable)
        return None


async def _unavailable(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "JetStream is still being imported; try again")
    return b""


def add_jetstream_service(server: Any, engine: JetstreamEngine) -> Future[None]:
    """Registers JetStream's stock servicer on a ``grpc.aio`` server that has not started yet.

    Importing it loads JAX (seconds) and, in the later upstream code, more. The import runs on a
    thread, and calls are answered UNAVAILABLE until it is done.

    Returns:
      A future that is done once the service answers; it raises an ImportError if JetStream is not
      installed, or any other error of the import.
    """
    forwarder = Forwarder(SERVICE)
    server.add_generic_rpc_handlers((forwarder,))
    answers: Future[None] = Future()
    answers.set_running_or_notify_cancel()  # from here on nobody can cancel it

    def load() -> None:
        try:
            from maxtext_overrides.upstream.jetstream_compat import import_orchestrator

            servicer = servicer_class(import_orchestrator())(JetStreamDriver(engine))
            from jetstream.core.proto import jetstream_pb2_grpc

            jetstream_pb2_grpc.add_OrchestratorServicer_to_server(servicer, forwarder)
        except Exception as error:  # whatever it is, whoever waits for the service must hear of it
            log.exception("JetStream's service is not available")
            answers.set_exception(error)
        else:
            answers.set_result(None)

    threading.Thread(target=load, name="rlax-jetstream-import", daemon=True).start()
    return answers


def client_example(
    address: str, token_file: Path | None, source: PromptSource, max_tokens: int
) -> str:
    """A shell command that completes ``example_prompt``, with JetStream's own stub.

    Args:
      token_file: token file of the server; None: it requires no token.
    """
    prompt = example_prompt(source)
    if isinstance(prompt, str):
        content = f"text_content=pb.DecodeRequest.TextContent(text={json.dumps(prompt)})"
    else:
        content = f"token_content=pb.DecodeRequest.TokenContent(token_ids={prompt})"
    where = json.dumps(address)
    if token_file is not None:
        where += f", {json.dumps(str(token_file))}"
    code = (
        "from rlax_plugin.api import client_channel; "
        "from jetstream.core.proto import jetstream_pb2 as pb, jetstream_pb2_grpc as rpc; "
        f"stub = rpc.OrchestratorStub(client_channel({where})); "
        f"request = pb.DecodeRequest({content}, max_tokens={max_tokens}); "
        "print(*stub.Decode(request, timeout=60))"
    )
    return shlex.join(python_command("-c", code))


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
