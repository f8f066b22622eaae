"""Mutations of valid files: of text, of what YAML text means, and of bytes."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import strategies as st

_STRANGE = [
    *(
        "",
        "null",
        "~",
        "true",
        "-1",
        "0",
        "1e999",
        "-1e999",
        ".nan",
        "9" * 400,
        "0x10",
        "1_0",
        "2:30",
    ),
    *(
        "[]",
        "{}",
        "[[[]]]",
        "''",
        "'\\0'",
        "é",
        "\u202e",
        "\0",
        "\t",
        "🙂",
        "|",
        "- ",
        "? ",
        "<<: 1",
    ),
    *("&a [*a]", "*a", "!!python/object/apply:os.getcwd []", "!!binary aGk=", "2026-11-26", "%TAG"),
    *("../../etc/passwd", "/dev/null", "a" * 5000, "[" * 500, "{a: " * 500, "a.b:c", "s3://x/y"),
]
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.text(max_size=8),
    st.sampled_from(_STRANGE),
    st.builds(list),  # a new one each time, as it may be changed
    st.builds(dict),
    st.builds(lambda: [[], {}]),
    st.builds(lambda: {"": None, "name": 3}),
)


@st.composite
def texts(draw: st.DrawFn, valid: list[str]) -> str:
    """One of the texts, a few pieces of which were deleted, doubled, swapped or replaced."""
    text = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 40)))
        piece = text[begin:end]
        put = draw(st.sampled_from(["", piece * 2, piece[::-1], *_STRANGE]))
        text = text[:begin] + put + text[end:]
    return text


@st.composite
def yaml_texts(draw: st.DrawFn, valid: list[str]) -> str:
    """One of the texts, in which a few values or keys of any depth were changed."""
    content = yaml.safe_load(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 3))):
        content = _changed(draw, content)
    return str(yaml.safe_dump(content, allow_unicode=True))


def _changed(draw: st.DrawFn, content: Any) -> Any:
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        keys = node.keys() if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                collect(node[key])

    if not isinstance(content, dict | list) or not content:
        return draw(_VALUES)
    collect(content)
    node, key = draw(st.sampled_from(places))
    how = draw(st.sampled_from(["value", "value", "value", "delete", "add", "rename"]))
    if how == "value":
        node[key] = draw(_VALUES)
    elif how == "delete":
        del node[key]
    elif isinstance(node, list):
        node.append(draw(_VALUES))
    elif how == "add":
        node[draw(st.text(max_size=6) | st.integers(0, 3))] = draw(_VALUES)
    else:
        node[f"{key}s"] = node.pop(key)
    return content


@st.composite
def blobs(draw: st.DrawFn, valid: bytes) -> bytes:
    """The bytes, a few of which were changed, or cut out, or moved; or only some are left."""
    blob = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(blob)))
        end = min(len(blob), begin + draw(st.sampled_from([1, 2, 4, 64, 4096])))
        how = draw(st.sampled_from(["flip", "cut", "zeros", "ones", "double", "end"]))
        if how == "flip" and begin < len(blob):
            blob[begin] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del blob[begin:end]
        elif how in ("zeros", "ones"):
            blob[begin:end] = (b"\0" if how == "zeros" else b"\xff") * (end - begin)
        elif how == "double":
            blob[begin:begin] = blob[begin:end]
        elif how == "end":
            del blob[begin:]
    return bytes(blob)
