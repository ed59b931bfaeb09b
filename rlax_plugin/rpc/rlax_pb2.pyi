from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAIN: _ClassVar[Purpose]
    EVALUATE: _ClassVar[Purpose]
    SERVE: _ClassVar[Purpose]

class Finish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNFINISHED: _ClassVar[Finish]
    STOP: _ClassVar[Finish]
    LENGTH: _ClassVar[Finish]
TRAIN: Purpose
EVALUATE: Purpose
SERVE: Purpose
UNFINISHED: Finish
STOP: Finish
LENGTH: Finish

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    def __init__(self, status: _Optional[bytes] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "max_new_tokens", "stop_ids", "stop_strings")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., max_new_tokens: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., stop_strings: _Optional[_Iterable[str]] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("purpose", "group", "sample", "trajectory", "turn")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    purpose: Purpose
    group: int
    sample: int
    trajectory: int
    turn: int
    def __init__(self, purpose: _Optional[_Union[Purpose, str]] = ..., group: _Optional[int] = ..., sample: _Optional[int] = ..., trajectory: _Optional[int] = ..., turn: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("key", "attempt", "context", "seeds", "sampling", "min_version", "resume", "session", "more")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    key: Key
    attempt: int
    context: bytes
    seeds: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    min_version: int
    resume: _containers.RepeatedCompositeFieldContainer[Sample]
    session: str
    more: bool
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., attempt: _Optional[int] = ..., context: _Optional[bytes] = ..., seeds: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., min_version: _Optional[int] = ..., resume: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., session: _Optional[str] = ..., more: _Optional[bool] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    def __init__(self, requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("seed", "tokens", "logprobs", "versions", "finish", "begins_at", "side")
    class SideEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    BEGINS_AT_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    seed: int
    tokens: bytes
    logprobs: bytes
    versions: _containers.RepeatedScalarFieldContainer[int]
    finish: Finish
    begins_at: int
    side: _containers.ScalarMap[str, bytes]
    def __init__(self, seed: _Optional[int] = ..., tokens: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., versions: _Optional[_Iterable[int]] = ..., finish: _Optional[_Union[Finish, str]] = ..., begins_at: _Optional[int] = ..., side: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("key", "samples", "given_up", "tokens", "more")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    key: Key
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    given_up: bool
    tokens: _containers.RepeatedScalarFieldContainer[int]
    more: bool
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., given_up: _Optional[bool] = ..., tokens: _Optional[_Iterable[int]] = ..., more: _Optional[bool] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("key", "attempt")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    key: Key
    attempt: int
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., attempt: _Optional[int] = ...) -> None: ...

class GiveUpRequest(_message.Message):
    __slots__ = ("unwanted", "oldest")
    UNWANTED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    unwanted: _containers.RepeatedCompositeFieldContainer[Attempt]
    oldest: int
    def __init__(self, unwanted: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., oldest: _Optional[int] = ...) -> None: ...

class GiveUpReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("version", "figures", "draining")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    version: int
    figures: _containers.ScalarMap[str, float]
    draining: bool
    def __init__(self, version: _Optional[int] = ..., figures: _Optional[_Mapping[str, float]] = ..., draining: _Optional[bool] = ...) -> None: ...

class ConfigRequest(_message.Message):
    __slots__ = ("worker", "doing")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    worker: str
    doing: str
    def __init__(self, worker: _Optional[str] = ..., doing: _Optional[str] = ...) -> None: ...

class ConfigReply(_message.Message):
    __slots__ = ("config", "versions")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    config: bytes
    versions: _containers.ScalarMap[str, str]
    def __init__(self, config: _Optional[bytes] = ..., versions: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SideChannel(_message.Message):
    __slots__ = ("dtype", "trailing", "over")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TRAILING_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    trailing: _containers.RepeatedScalarFieldContainer[int]
    over: str
    def __init__(self, dtype: _Optional[str] = ..., trailing: _Optional[_Iterable[int]] = ..., over: _Optional[str] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("slots", "vocabulary", "context_tokens", "seeded", "logprobs", "resumes", "scores", "verification", "side", "stop_strings", "weights_format")
    class SideEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SideChannel
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SideChannel, _Mapping]] = ...) -> None: ...
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEEDED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FORMAT_FIELD_NUMBER: _ClassVar[int]
    slots: int
    vocabulary: int
    context_tokens: int
    seeded: bool
    logprobs: bool
    resumes: bool
    scores: bool
    verification: str
    side: _containers.MessageMap[str, SideChannel]
    stop_strings: bool
    weights_format: str
    def __init__(self, slots: _Optional[int] = ..., vocabulary: _Optional[int] = ..., context_tokens: _Optional[int] = ..., seeded: _Optional[bool] = ..., logprobs: _Optional[bool] = ..., resumes: _Optional[bool] = ..., scores: _Optional[bool] = ..., verification: _Optional[str] = ..., side: _Optional[_Mapping[str, SideChannel]] = ..., stop_strings: _Optional[bool] = ..., weights_format: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("worker", "address", "config_hash", "version", "process", "capabilities", "token", "certificate", "versions", "incarnation")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker: str
    address: str
    config_hash: str
    version: int
    process: str
    capabilities: Capabilities
    token: str
    certificate: str
    versions: _containers.ScalarMap[str, str]
    incarnation: int
    def __init__(self, worker: _Optional[str] = ..., address: _Optional[str] = ..., config_hash: _Optional[str] = ..., version: _Optional[int] = ..., process: _Optional[str] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., token: _Optional[str] = ..., certificate: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("accepted", "reason", "parameter_server", "latest_version", "incarnation", "name_taken", "unfit", "other_versions")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVER_FIELD_NUMBER: _ClassVar[int]
    LATEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_TAKEN_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    OTHER_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    parameter_server: str
    latest_version: int
    incarnation: str
    name_taken: bool
    unfit: bool
    other_versions: bool
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., parameter_server: _Optional[str] = ..., latest_version: _Optional[int] = ..., incarnation: _Optional[str] = ..., name_taken: _Optional[bool] = ..., unfit: _Optional[bool] = ..., other_versions: _Optional[bool] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("key", "attempt", "moves", "unfinished")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    key: Key
    attempt: int
    moves: int
    unfinished: int
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., attempt: _Optional[int] = ..., moves: _Optional[int] = ..., unfinished: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker", "version", "figures", "draining", "process", "pin", "progress", "capabilities")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    version: int
    figures: _containers.ScalarMap[str, float]
    draining: bool
    process: str
    pin: int
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    capabilities: Capabilities
    def __init__(self, worker: _Optional[str] = ..., version: _Optional[int] = ..., figures: _Optional[_Mapping[str, float]] = ..., draining: _Optional[bool] = ..., process: _Optional[str] = ..., pin: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("known", "latest_version", "stop", "pin", "fenced")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LATEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    known: bool
    latest_version: int
    stop: bool
    pin: int
    fenced: str
    def __init__(self, known: _Optional[bool] = ..., latest_version: _Optional[int] = ..., stop: _Optional[bool] = ..., pin: _Optional[int] = ..., fenced: _Optional[str] = ...) -> None: ...

class DeregisterRequest(_message.Message):
    __slots__ = ("worker", "quarantine", "process", "damaged", "error")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    worker: str
    quarantine: str
    process: str
    damaged: str
    error: str
    def __init__(self, worker: _Optional[str] = ..., quarantine: _Optional[str] = ..., process: _Optional[str] = ..., damaged: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class DeregisterReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("shape", "dtype", "fingerprint")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    fingerprint: int
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., fingerprint: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("name", "path", "format", "tensors", "memory")
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    format: str
    tensors: _containers.MessageMap[str, Tensor]
    memory: MemoryCopy
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., format: _Optional[str] = ..., tensors: _Optional[_Mapping[str, Tensor]] = ..., memory: _Optional[_Union[MemoryCopy, _Mapping]] = ...) -> None: ...

class MemoryCopy(_message.Message):
    __slots__ = ("pid", "descriptor", "token")
    PID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    pid: int
    descriptor: int
    token: bytes
    def __init__(self, pid: _Optional[int] = ..., descriptor: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version", "step", "canary", "parts", "converted")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CONVERTED_FIELD_NUMBER: _ClassVar[int]
    version: int
    step: int
    canary: Canary
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    converted: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, version: _Optional[int] = ..., step: _Optional[int] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., converted: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("tokens", "logprobs", "tolerance")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    logprobs: bytes
    tolerance: float
    def __init__(self, tokens: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., tolerance: _Optional[float] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("version", "restart")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    version: Version
    restart: bool
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., restart: _Optional[bool] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LatestRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LatestReply(_message.Message):
    __slots__ = ("any", "version")
    ANY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    any: bool
    version: Version
    def __init__(self, any: _Optional[bool] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("version", "holder", "format")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    version: int
    holder: str
    format: str
    def __init__(self, version: _Optional[int] = ..., holder: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class AcquireReply(_message.Message):
    __slots__ = ("lease", "lease_s", "version")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    lease: str
    lease_s: float
    version: Version
    def __init__(self, lease: _Optional[str] = ..., lease_s: _Optional[float] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("lease_s",)
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    def __init__(self, lease_s: _Optional[float] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after", "machine", "format")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    after: int
    machine: str
    format: str
    def __init__(self, after: _Optional[int] = ..., machine: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class FilesRequest(_message.Message):
    __slots__ = ("lease", "part")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    lease: str
    part: str
    def __init__(self, lease: _Optional[str] = ..., part: _Optional[str] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("name", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class FilesReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[File]
    def __init__(self, files: _Optional[_Iterable[_Union[File, _Mapping]]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("lease", "part", "file", "offset")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    lease: str
    part: str
    file: str
    offset: int
    def __init__(self, lease: _Optional[str] = ..., part: _Optional[str] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("file", "offset", "data", "crc32c")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    data: bytes
    crc32c: int
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32c: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("host", "hosts", "coordinator", "config_hash", "versions", "process")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    host: int
    hosts: int
    coordinator: str
    config_hash: str
    versions: _containers.ScalarMap[str, str]
    process: str
    def __init__(self, host: _Optional[int] = ..., hosts: _Optional[int] = ..., coordinator: _Optional[str] = ..., config_hash: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., process: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("accepted", "reason", "start", "generates")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    GENERATES_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    start: str
    generates: bool
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., start: _Optional[str] = ..., generates: _Optional[bool] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("host", "number")
    HOST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    host: int
    number: int
    def __init__(self, host: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class OrderArray(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class OrderPiece(_message.Message):
    __slots__ = ("number", "kind", "settings", "arrays", "data")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    settings: _containers.ScalarMap[str, str]
    arrays: _containers.RepeatedCompositeFieldContainer[OrderArray]
    data: bytes
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., arrays: _Optional[_Iterable[_Union[OrderArray, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class DecisionRequest(_message.Message):
    __slots__ = ("host", "step")
    HOST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    host: int
    step: int
    def __init__(self, host: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class DecisionReply(_message.Message):
    __slots__ = ("known", "save", "stop", "ended")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    known: bool
    save: bool
    stop: bool
    ended: bool
    def __init__(self, known: _Optional[bool] = ..., save: _Optional[bool] = ..., stop: _Optional[bool] = ..., ended: _Optional[bool] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("host", "failure")
    HOST_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    host: int
    failure: str
    def __init__(self, host: _Optional[int] = ..., failure: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChunksRequest(_message.Message):
    __slots__ = ("host", "version", "part", "written", "chunks", "failure")
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    host: int
    version: int
    part: str
    written: str
    chunks: int
    failure: str
    def __init__(self, host: _Optional[int] = ..., version: _Optional[int] = ..., part: _Optional[str] = ..., written: _Optional[str] = ..., chunks: _Optional[int] = ..., failure: _Optional[str] = ...) -> None: ...

class ChunksReply(_message.Message):
    __slots__ = ("directory", "done")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    directory: str
    done: bool
    def __init__(self, directory: _Optional[str] = ..., done: _Optional[bool] = ...) -> None: ...
