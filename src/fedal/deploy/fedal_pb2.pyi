from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("kind", "numbers", "tensors")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    numbers: _containers.ScalarMap[str, int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, kind: _Optional[str] = ..., numbers: _Optional[_Mapping[str, int]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class FromSite(_message.Message):
    __slots__ = ("hello", "upload", "done", "leaving", "alive")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    upload: Upload
    done: Done
    leaving: Leaving
    alive: Alive
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., upload: _Optional[_Union[Upload, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ...) -> None: ...

class FromServer(_message.Message):
    __slots__ = ("welcome", "begin", "reply", "finished", "refusal", "probe")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    begin: Begin
    reply: Reply
    finished: Finished
    refusal: Refusal
    probe: Probe
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_major", "protocol_minor", "federation", "site", "run", "rounds_held", "incarnation", "round", "restart", "session")
    PROTOCOL_MAJOR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_HELD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    protocol_major: int
    protocol_minor: int
    federation: str
    site: str
    run: str
    rounds_held: _containers.RepeatedScalarFieldContainer[int]
    incarnation: int
    round: int
    restart: bool
    session: str
    def __init__(self, protocol_major: _Optional[int] = ..., protocol_minor: _Optional[int] = ..., federation: _Optional[str] = ..., site: _Optional[str] = ..., run: _Optional[str] = ..., rounds_held: _Optional[_Iterable[int]] = ..., incarnation: _Optional[int] = ..., round: _Optional[int] = ..., restart: _Optional[bool] = ..., session: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_minor", "run", "settings", "dataset", "input_shape", "n_classes", "public_samples", "public_sha256", "total_rounds", "feature_width", "schema_sha256", "behind")
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    INPUT_SHAPE_FIELD_NUMBER: _ClassVar[int]
    N_CLASSES_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SHA256_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    protocol_minor: int
    run: str
    settings: str
    dataset: str
    input_shape: _containers.RepeatedScalarFieldContainer[int]
    n_classes: int
    public_samples: int
    public_sha256: str
    total_rounds: int
    feature_width: int
    schema_sha256: str
    behind: bool
    def __init__(self, protocol_minor: _Optional[int] = ..., run: _Optional[str] = ..., settings: _Optional[str] = ..., dataset: _Optional[str] = ..., input_shape: _Optional[_Iterable[int]] = ..., n_classes: _Optional[int] = ..., public_samples: _Optional[int] = ..., public_sha256: _Optional[str] = ..., total_rounds: _Optional[int] = ..., feature_width: _Optional[int] = ..., schema_sha256: _Optional[str] = ..., behind: _Optional[bool] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("incarnation", "round", "restore", "save", "report")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    round: int
    restore: bool
    save: bool
    report: bool
    def __init__(self, incarnation: _Optional[int] = ..., round: _Optional[int] = ..., restore: _Optional[bool] = ..., save: _Optional[bool] = ..., report: _Optional[bool] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("incarnation", "round", "exchange", "batch", "payload")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    round: int
    exchange: int
    batch: str
    payload: Payload
    def __init__(self, incarnation: _Optional[int] = ..., round: _Optional[int] = ..., exchange: _Optional[int] = ..., batch: _Optional[str] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("incarnation", "round", "exchange", "payload")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    round: int
    exchange: int
    payload: Payload
    def __init__(self, incarnation: _Optional[int] = ..., round: _Optional[int] = ..., exchange: _Optional[int] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("incarnation", "round", "exchange", "saved", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    round: int
    exchange: int
    saved: bool
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, incarnation: _Optional[int] = ..., round: _Optional[int] = ..., exchange: _Optional[int] = ..., saved: _Optional[bool] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    def __init__(self, rounds: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Probe(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class PublicSetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("federation", "incarnation", "round", "total_rounds", "state", "sites", "connected", "roster", "outsiders")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    OUTSIDERS_FIELD_NUMBER: _ClassVar[int]
    federation: str
    incarnation: int
    round: int
    total_rounds: int
    state: str
    sites: _containers.RepeatedCompositeFieldContainer[SiteStatus]
    connected: int
    roster: int
    outsiders: _containers.RepeatedCompositeFieldContainer[Outsider]
    def __init__(self, federation: _Optional[str] = ..., incarnation: _Optional[int] = ..., round: _Optional[int] = ..., total_rounds: _Optional[int] = ..., state: _Optional[str] = ..., sites: _Optional[_Iterable[_Union[SiteStatus, _Mapping]]] = ..., connected: _Optional[int] = ..., roster: _Optional[int] = ..., outsiders: _Optional[_Iterable[_Union[Outsider, _Mapping]]] = ...) -> None: ...

class Outsider(_message.Message):
    __slots__ = ("name", "refused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    refused: int
    def __init__(self, name: _Optional[str] = ..., refused: _Optional[int] = ...) -> None: ...

class SiteStatus(_message.Message):
    __slots__ = ("site", "connected", "answer_ms", "up_bytes", "down_bytes", "refused", "strikes", "quarantined")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_MS_FIELD_NUMBER: _ClassVar[int]
    UP_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STRIKES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    site: str
    connected: bool
    answer_ms: float
    up_bytes: int
    down_bytes: int
    refused: int
    strikes: int
    quarantined: bool
    def __init__(self, site: _Optional[str] = ..., connected: _Optional[bool] = ..., answer_ms: _Optional[float] = ..., up_bytes: _Optional[int] = ..., down_bytes: _Optional[int] = ..., refused: _Optional[int] = ..., strikes: _Optional[int] = ..., quarantined: _Optional[bool] = ...) -> None: ...
