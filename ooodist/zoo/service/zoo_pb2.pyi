from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServingStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[ServingStatus]
    SERVING: _ClassVar[ServingStatus]
    NOT_SERVING: _ClassVar[ServingStatus]
UNKNOWN: ServingStatus
SERVING: ServingStatus
NOT_SERVING: ServingStatus

class Meta(_message.Message):
    __slots__ = ("name", "task", "dataset", "tags", "access", "parent", "metrics", "judged_by")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    JUDGED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    task: str
    dataset: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    access: _containers.RepeatedScalarFieldContainer[str]
    parent: str
    metrics: _containers.ScalarMap[str, float]
    judged_by: str
    def __init__(self, name: _Optional[str] = ..., task: _Optional[str] = ..., dataset: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., access: _Optional[_Iterable[str]] = ..., parent: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., judged_by: _Optional[str] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Operator(_message.Message):
    __slots__ = ("op", "inputs", "shapes")
    OP_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    op: str
    inputs: _containers.RepeatedScalarFieldContainer[int]
    shapes: _containers.RepeatedCompositeFieldContainer[Shape]
    def __init__(self, op: _Optional[str] = ..., inputs: _Optional[_Iterable[int]] = ..., shapes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("task", "dataset", "tags", "count", "outline")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTLINE_FIELD_NUMBER: _ClassVar[int]
    task: str
    dataset: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    count: int
    outline: _containers.RepeatedCompositeFieldContainer[Operator]
    def __init__(self, task: _Optional[str] = ..., dataset: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., outline: _Optional[_Iterable[_Union[Operator, _Mapping]]] = ...) -> None: ...

class QueryResponse(_message.Message):
    __slots__ = ("id", "score", "meta")
    ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    id: str
    score: float
    meta: Meta
    def __init__(self, id: _Optional[str] = ..., score: _Optional[float] = ..., meta: _Optional[_Union[Meta, _Mapping]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("size", "chunk", "sha256")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    size: int
    chunk: bytes
    sha256: str
    def __init__(self, size: _Optional[int] = ..., chunk: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("size", "sha256")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    size: int
    sha256: str
    def __init__(self, size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("upload", "chunk")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    chunk: bytes
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("id", "meta", "size", "parameters", "created", "uses", "value", "last_used")
    ID_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_FIELD_NUMBER: _ClassVar[int]
    id: str
    meta: Meta
    size: int
    parameters: int
    created: float
    uses: int
    value: float
    last_used: float
    def __init__(self, id: _Optional[str] = ..., meta: _Optional[_Union[Meta, _Mapping]] = ..., size: _Optional[int] = ..., parameters: _Optional[int] = ..., created: _Optional[float] = ..., uses: _Optional[int] = ..., value: _Optional[float] = ..., last_used: _Optional[float] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthCheckRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class HealthCheckResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: ServingStatus
    def __init__(self, status: _Optional[_Union[ServingStatus, str]] = ...) -> None: ...
