"""YAML text to plain values and back: the scalars of YAML 1.2, and no surprises.

What is read makes nothing but dicts, lists, text, numbers, booleans and None. Duplicate keys, and
files larger than any of ours, are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ooodist.errors import UserError

# No file of ours comes near these; more would take minutes, or the machine's memory, to read.
MOST_CHARACTERS = 4096  # in one word or number, which is the length of the longest path
MOST_VALUES = 1_000_000  # in a file, each alias counted as what it stands for


def parse(text: str, source: str) -> Any:
    """Parses YAML text into a plain value (dict, list, str, int, float, bool, None).

    Raises UserError, which starts with ``source``, for invalid YAML, for duplicate keys, and for
    what is larger than any file of ours (``MOST_CHARACTERS``, ``MOST_VALUES``).
    """
    try:
        # Subclasses of SafeLoader: they make nothing but plain values.
        try:
            return yaml.load(text, _FastLoader)
        except yaml.YAMLError:
            return yaml.load(text, _Loader)  # its errors name the line in which they begin
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source}{line}: this is not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{source}: this is not valid YAML: {error}") from error


def parse_file(file: Path, option: str, *, most_characters: int | None = None) -> Any:
    """Parses a YAML file that was given as this option. Raises UserError.

    Args:
        file: the file.
        option: is named in errors.
        most_characters: those that the file may have; None: any number.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option} {file} cannot be read: {error}") from error
    if most_characters is not None and len(text) > most_characters:
        raise UserError(
            f"{option} {file} has {len(text):,} characters; a file of this kind has "
            f"{most_characters:,} at most: give another one"
        )
    return parse(text, f"{option} {file}")


def dump(value: Any) -> str:
    """Writes a plain value as YAML text, from which :func:`parse` makes the same value."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


class _Strict(yaml.constructor.SafeConstructor):
    """Refuses what no file of ours has."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _num_values(node, {}) > MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                problem=f"it has more than {MOST_VALUES:,} values, or its aliases stand for as many"
            )
        # Depth first, which refuses what contains itself.
        return self.construct_object(node, deep=True)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        if isinstance(node, yaml.ScalarNode) and len(node.value) > MOST_CHARACTERS:
            raise yaml.constructor.ConstructorError(
                problem=f"{node.value[:20]}... has {len(node.value):,} characters; a value may "
                f"have {MOST_CHARACTERS:,}",
                problem_mark=node.start_mark,
            )
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    problem="a key must be a word", problem_mark=key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key_node.value!r} is there twice; keep one of them",
                    problem_mark=key_node.start_mark,
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _Loader(_Strict, yaml.SafeLoader):
    """YAML with the scalars of version 1.2, where `1e-3` is a number and `no` is text.

    (PyYAML's own are of version 1.1, where it is the other way round.)
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own name and type)


class _FastLoader(_Strict, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same, six times as fast where PyYAML has libyaml: costs of a model are long."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for, with those that its aliases repeat.

    ``known``: of nodes that were counted; what contains itself counts once, and is refused later.
    """
    if id(node) not in known:
        known[id(node)] = 1
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            children = [value for _, value in node.value]
        known[id(node)] += sum(_num_values(child, known) for child in children)
    return known[id(node)]


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads: it puts the text `1e-3` in quotes."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Unicode's own line breaks are read back as they are only if they are escaped.
        style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


_SCALARS = (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.inf|\.nan",
        list("-+.0123456789"),
    ),
)
for _name, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first
        )
