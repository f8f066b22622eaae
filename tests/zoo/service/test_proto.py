"""The generated code is that of zoo.proto as it stands, and runs with the versions we ask for."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ooodist.zoo.service import zoo_pb2
from ooodist.zoo.service.calls import Calls
from ooodist.zoo.service.extra import LEAST_GRPC

ROOT = Path(__file__).parents[3]
FOLDER = Path(zoo_pb2.__file__).parent
PROTO = "ooodist/zoo/service/zoo.proto"
GENERATED = ("zoo_pb2.py", "zoo_pb2.pyi")

Field = tuple[str, str, str, int]  # its label, type, name and number
CPP_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def text() -> str:
    """zoo.proto without comments."""
    return re.sub(r"//.*", "", (FOLDER / "zoo.proto").read_text())


def messages_in_text() -> dict[str, set[Field]]:
    """The fields of each message; those of a oneof have its name as their label."""
    found: dict[str, set[Field]] = {}
    pattern = r"^message (\w+) \{(\}|\n.*?^\})"
    for name, body in re.findall(pattern, text(), re.MULTILINE | re.DOTALL):
        fields: set[Field] = set()
        for one, inner in re.findall(r"oneof (\w+) \{(.*?)\}", body, re.DOTALL):
            fields |= {(one, *rest[1:]) for rest in _fields(inner)}
        found[name] = fields | _fields(re.sub(r"oneof \w+ \{.*?\}", "", body, flags=re.DOTALL))
    return found


def _fields(body: str) -> set[Field]:
    pattern = r"(?:(repeated|optional) )?(\w+|map<\w+, \w+>) (\w+) = (\d+);"
    return {(label, kind, name, int(no)) for label, kind, name, no in re.findall(pattern, body)}


def _field(field: FieldDescriptor) -> Field:
    named = field.message_type or field.enum_type
    kind = named.name if named else CPP_TYPES[field.type]
    if field.message_type and field.message_type.GetOptions().map_entry:
        of = [CPP_TYPES[each.type] for each in field.message_type.fields]
        kind = f"map<{', '.join(of)}>"
    one = field.containing_oneof
    if one is not None:
        label = "optional" if one.name.startswith("_") else one.name
    else:
        label = "repeated" if _is_repeated(field) else ""
    return label, kind, field.name, field.number


def _is_repeated(field: FieldDescriptor) -> bool:
    message = zoo_pb2.__dict__[field.containing_type.name]()
    return hasattr(getattr(message, field.name), "append")


def test_the_messages_are_those_of_the_file() -> None:
    types: dict[str, Descriptor] = zoo_pb2.DESCRIPTOR.message_types_by_name
    generated = {name: {_field(each) for each in kind.fields} for name, kind in types.items()}
    assert generated == messages_in_text()
    assert ("part", "bytes", "chunk", 2) in generated["FetchResponse"]
    assert ("repeated", "Operator", "outline", 5) in generated["QueryRequest"]


def test_the_calls_are_those_of_the_file() -> None:
    assert f"package {zoo_pb2.DESCRIPTOR.package};" in text()
    (service,) = zoo_pb2.DESCRIPTOR.services_by_name.values()
    assert f"service {service.name} {{" in text()
    pattern = r"rpc (\w+)\(stream (\w+)\) returns \(stream (\w+)\);"
    in_text = set(re.findall(pattern, text()))
    assert len(in_text) == text().count("rpc ")
    assert {(m.name, m.input_type.name, m.output_type.name) for m in service.methods} == in_text
    for name, _, _ in in_text:
        assert hasattr(Calls, name)
        assert f"class {name}Request(" in (FOLDER / "zoo_pb2.pyi").read_text()


def tools() -> str:
    """The version of grpcio-tools that generates."""
    found = re.search(r"^GRPCIO_TOOLS=(.*)$", (ROOT / "scripts/proto.sh").read_text(), re.M)
    assert found is not None
    return found[1]


def test_it_is_generated_anew_bit_for_bit(tmp_path: Path) -> None:
    made_by = tools()
    try:
        installed = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != made_by:
        pytest.skip(f"grpcio-tools {made_by} is not installed ({installed}); scripts/proto.sh")
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    root = FOLDER.parents[2]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={root}", *outputs, PROTO]
    subprocess.run(command, check=True, timeout=60, cwd=root)
    for name in GENERATED:
        made = (tmp_path / PROTO).with_name(name)
        assert made.read_text() == (FOLDER / name).read_text(), name


def test_the_extra_asks_for_what_it_was_generated_for() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    grpcio, protobuf = project["optional-dependencies"]["zoo"]
    made_for = ".".join(tools().split(".")[:2])
    assert grpcio == f"grpcio>={made_for}"
    assert made_for == ".".join(map(str, LEAST_GRPC))
    head = (FOLDER / "zoo_pb2.py").read_text()
    version = re.search(r"^# Protobuf Python Version: ([\d.]+)$", head, re.MULTILINE)
    assert version is not None
    # A runtime takes generated code of its own major version and of the one before.
    assert protobuf == f"protobuf>={version[1]},<{int(version[1].split('.')[0]) + 2}"
