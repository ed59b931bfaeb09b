"""The symbols of JetStream used by its compatibility layer and by the plug-in that serves it."""

from __future__ import annotations

from maxtext_overrides.upstream.declared.sampler import _JETSTREAM
from maxtext_overrides.upstream.override import Override

JETSTREAM_COMPAT = (
    Override(
        symbol="maxtext.common.gcloud_stub.jetstream",
        use="read",
        signature="()",
        why="it falls back to stubs where an import from JetStream fails",
        delete_when="the commit of JetStream that MaxText pins is on PyPI",
        names=("TokenizerType",),
    ),
    Override(
        symbol="jetstream.engine.engine_api.ResultTokens",
        use="replaced",
        why="a log_prob is added where there is none",
        delete_when="the commit of JetStream that MaxText pins is on PyPI",
        **_JETSTREAM,
    ),
    Override(
        symbol="jetstream.engine.tokenizer_pb2",
        use="replaced",
        why="a TokenizerType is added where there is none",
        delete_when="the commit of JetStream that MaxText pins is on PyPI",
        **_JETSTREAM,
    ),
    Override(
        symbol="jetstream.engine.token_utils",
        use="replaced",
        why="loaded at the first look at an attribute: its import takes seconds",
        delete_when="it imports no seqio",
        **_JETSTREAM,
    ),
    Override(
        symbol="jetstream.core.config_lib",
        use="replaced",
        why="loaded at the first look at an attribute: its import takes seconds",
        delete_when="it imports no seqio",
        **_JETSTREAM,
    ),
)
JETSTREAM_SERVICE = (
    Override(
        symbol="jetstream.core.orchestrator.LLMOrchestrator",
        use="called",
        why="subclassed: the stock servicer with status codes",
        delete_when="it answers with status codes",
        relies_on="it keeps its argument as _driver and asks it as driver.py answers",
        names=(
            *("_driver", "Decode", "should_buffer_response"),
            "process_server_side_tokenization_response",
        ),
        **_JETSTREAM,
    ),
    Override(
        symbol="jetstream.core.orchestrator.ActiveRequest",
        use="read",
        why="what a driver is given",
        delete_when="JetStream's service is no longer offered",
        names=("max_tokens", "prefill_content", "return_channel"),
        **_JETSTREAM,
    ),
    Override(
        symbol="jetstream.core.utils.return_sample.ReturnSample",
        use="called",
        why="what a driver answers with",
        delete_when="JetStream's service is no longer offered",
        relies_on="text and token_ids, by position",
        names=("text", "token_ids"),
        **_JETSTREAM,
    ),
    Override(
        symbol="jetstream.core.proto.jetstream_pb2",
        use="read",
        why="messages of the service",
        delete_when="JetStream's service is no longer offered",
        relies_on="DecodeRequest and DecodeResponse with stream_content",
        **_JETSTREAM,
    ),
    Override(
        symbol="jetstream.core.proto.jetstream_pb2_grpc",
        use="called",
        why="the service's registration and its client",
        delete_when="JetStream's service is no longer offered",
        names=("add_OrchestratorServicer_to_server", "OrchestratorStub"),
        **_JETSTREAM,
    ),
)
