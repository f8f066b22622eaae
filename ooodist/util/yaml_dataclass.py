"""Frozen dataclasses from YAML and back, with errors that name the key, its value and what is
allowed.

The fields' type hints are the schema::

    @dataclass(frozen=True)
    class Job:
        batch: Annotated[int, Range(1)] = 64
        precision: Literal["float32", "float64"] = "float32"

    read_text(Job, "batch: 0", "job.yaml")   # UserError: batch is 0; it must be at least 1

Known hints: int, float, str, bool, None, Any, Literal, unions, lists, tuples of any length, dicts
with text keys, and dataclasses. An int is a valid float. What the ``metadata`` of a field may have:

* ``"reader"``, a function of (value, path), which reads it instead. Such fields are read last,
  because their readers may import what takes long.
* ``"writer"``, a function of the value, which makes a plain one of it.
* ``"was"``: its key before it was renamed; who gives that is told the new one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import yaml

from ooodist.errors import UserError
from ooodist.util import strict_yaml

T = TypeVar("T")

LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """Bounds of a number, both included unless ``is_open``, which leaves the upper one out; used in
    ``Annotated``. No infinity is within."""

    least: float
    most: float | None = None
    is_open: bool = False

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        if self.is_open:
            return f"at least {self.least} and less than {self.most}"
        return f"{self.least} to {self.most}"

    def contains(self, value: float) -> bool:
        """False for NaN and infinity."""
        within = self.least <= value and (self.most is None or value <= self.most)
        is_bound = self.is_open and value == self.most
        return within and not is_bound and (isinstance(value, int) or math.isfinite(value))


Count = Annotated[int, Range(1)]
Fraction = Annotated[float, Range(0, 1, is_open=True)]


class Checked:
    """A dataclass that checks its values by their type hints, also where a program makes it.

    Raises:
        UserError: as :func:`read` does.
    """

    keys_at: ClassVar[str] = ""
    """Where its keys stand in a file, for errors."""

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if "reader" not in field.metadata and not dataclasses.is_dataclass(value):
                read(hints[field.name], plain(value), join(self.keys_at, field.name))


def read_file(cls: type[T], file: Path, option: str) -> T:
    """An object of the dataclass from a YAML file that was given as this option.

    Raises UserError.
    """
    value = strict_yaml.parse_file(file, option)
    try:
        return read(cls, value)
    except UserError as error:
        raise UserError(f"{option} {file}: {error}") from error


def write_file(value: Any, file: Path) -> None:
    """Writes a dataclass or a plain value as YAML. Raises OSError."""
    file.write_text(dump(value), encoding="utf-8")


def read_text(cls: type[T], text: str, source: str) -> T:
    """An object of the dataclass from YAML text; ``source`` names what is no YAML.

    Raises UserError.
    """
    return read(cls, strict_yaml.parse(text, source))


def dump(value: Any) -> str:
    """Writes a dataclass or plain value as YAML text."""
    return strict_yaml.dump(plain(value))


@overload
def read(hint: type[T], value: Any, path: str = "") -> T: ...
@overload
def read(hint: Any, value: Any, path: str = "") -> Any: ...
def read(hint: Any, value: Any, path: str = "") -> Any:
    """``value``, as parsed from YAML, as an object of the type ``hint``.

    ``path`` names the value in errors, as ``optimizer.momentum``; empty for a whole file.
    Raises UserError.
    """
    members = _members(hint)
    for member in members:
        if _fits(member, value):
            return _read_member(member, value, path)
    choices = [choice for member in members for choice in _choices(member)]
    raise UserError(
        f"{path or 'the whole file'} is {_shown(value)}{did_you_mean(value, choices)}; "
        f"it must be {described(hint)}"
    )


def plain(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, all the way down: what JSON and YAML take.

    A dataclass with a class variable ``name`` gives it as its first key.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = getattr(type(value), "name", None)
        first = {"name": kind} if isinstance(kind, str) else {}
        return first | {
            field.name: field.metadata.get("writer", plain)(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def check_fields(mapping: Mapping[Any, Any], cls: type, path: str) -> None:
    """Raises UserError for the first key of ``mapping``, which stands at ``path``, that is not
    one of a field of the dataclass ``cls``."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    for field in fields:
        if "was" in field.metadata and field.metadata["was"] in mapping:
            old = field.metadata["was"]
            raise UserError(f"{join(path, old)} is called {join(path, field.name)} now")
    check_keys(mapping, [field.name for field in fields], path, path or "the job")


def check_keys(mapping: Mapping[Any, Any], allowed: Iterable[str], path: str, what: str) -> None:
    """Raises UserError for the first key of ``mapping``, which stands at ``path``, that is not
    one of those allowed in ``what``."""
    allowed = list(allowed)
    for key in mapping:
        if key not in allowed:
            raise UserError(
                f"there is no key {join(path, key)}{did_you_mean(key, allowed)}; "
                f"{what} has {', '.join(allowed) or 'no keys'}"
            )


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], path: str = ""
) -> list[tuple[str, Any, Any]]:
    """The keys whose plain values differ, as ``machine.cores``, with the two values."""
    found: list[tuple[str, Any, Any]] = []
    for key in dict.fromkeys([*one, *other]):
        mine, others, place = one.get(key), other.get(key), join(path, key)
        if isinstance(mine, Mapping) and isinstance(others, Mapping):
            found += differences(mine, others, place)
        elif mine != others:
            found.append((place, mine, others))
    return found


def join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def did_you_mean(word: Any, known: Sequence[Any]) -> str:
    """`` (did you mean X?)`` with the nearest known word; empty if none is near."""
    close = get_close_matches(str(word), [str(choice) for choice in known], n=1)
    return f" (did you mean {close[0]}?)" if close and close[0] != str(word) else ""


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _without_range(hint: Any) -> tuple[Any, Range | None]:
    if get_origin(hint) is Annotated:
        return get_args(hint)[0], get_args(hint)[1]
    return hint, None


def _kind(hint: Any) -> Any:
    """The class that a plain value of this type has."""
    hint = get_origin(hint) or hint
    if hint is tuple:
        return list
    return dict if hint is Mapping or dataclasses.is_dataclass(hint) else hint


def _fits(hint: Any, value: Any) -> bool:
    """Whether a plain value can be meant for this type; looks at its outermost level only."""
    hint, bounds = _without_range(hint)
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    kind = _kind(hint)
    if type(value) is not kind and not (kind is float and type(value) is int):
        return False
    return bounds is None or bounds.contains(value)


def _read_member(hint: Any, value: Any, path: str) -> Any:
    hint, _ = _without_range(hint)
    if hint is float:
        return _to_float(value, path)
    if hint is int and abs(value) > LARGEST_INTEGER:
        raise UserError(
            f"{path} is {_shown(value)}, which is too large; it must be {LARGEST_INTEGER} at most"
        )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_dataclass(hint, value, path)
    parts = get_args(hint)
    if _kind(hint) is list and parts:
        items = [read(parts[0], item, f"{path}[{index}]") for index, item in enumerate(value)]
        return tuple(items) if get_origin(hint) is tuple else items
    if _kind(hint) is dict and parts:
        return {
            read(parts[0], key, f"key {key!r} of {path}"): read(parts[1], item, join(path, key))
            for key, item in value.items()
        }
    return value


def _to_float(value: float, path: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise UserError(f"{path} is {_shown(value)}, which is too large for a number") from error


def read_dataclass(cls: type[T], value: Mapping[Any, Any], path: str) -> T:
    """An object of the dataclass ``cls`` from the settings in ``value``. Raises UserError."""
    check_fields(value, cls, path)
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    hints = _hints(cls)  # type: ignore[arg-type]
    arguments = {}
    for field in sorted(fields, key=lambda field: "reader" in field.metadata):
        if field.name in value:
            place = join(path, field.name)
            reader: Callable[[Any, str], Any] | None = field.metadata.get("reader")
            given = value[field.name]
            arguments[field.name] = (
                reader(given, place) if reader else read(hints[field.name], given, place)
            )
        elif field.default is field.default_factory is dataclasses.MISSING:
            needed = described(hints[field.name])
            raise UserError(f"{join(path, field.name)} is missing; it must be {needed}")
    return cls(**arguments)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _shown(value: Any) -> str:
    """The value as a person wrote it, cut off where it gets long."""
    try:
        text = dump(value).removesuffix("\n...\n").strip().replace("\n", " ")
    except yaml.YAMLError:  # a program has made it
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def described(hint: Any) -> str:
    """What values the type ``hint`` has, as ``a whole number, at least 1``."""
    members = _members(hint)
    named = [member for member in members if not (member is int and float in members)]
    return " or ".join(_described(member) for member in named)


def _described(hint: Any) -> str:
    hint, bounds = _without_range(hint)
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        list: "a list",
        dict: "a group of keys",
        types.NoneType: "null",
        Any: "any value",
    }
    if choices := _choices(hint):
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else str(choices[0])
    word = words[_kind(hint)]
    parts = get_args(hint)
    if word == "a list" and parts and parts[0] is not Any:
        word = f"a list, each item {described(parts[0])}"
    return f"{word}, {bounds}" if bounds else word
