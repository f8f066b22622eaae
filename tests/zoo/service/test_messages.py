"""What travels between a zoo's service and its clients comes back as it was, or is refused."""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Operator, Outline
from ooodist.zoo.entry import MOST_TEXT, MOST_TEXTS, Meta
from ooodist.zoo.graph_json import MOST_NODES
from ooodist.zoo.service import messages
from ooodist.zoo.service.messages import CHUNK_BYTES
from ooodist.zoo.zoo import Found, Wanted

LETTERS = st.characters(exclude_categories=("Cs",))
TEXTS = st.text(LETTERS, max_size=20)


@st.composite
def outlines(draw: st.DrawFn) -> Outline:
    shapes = st.lists(st.lists(st.integers(1, 2**20), max_size=4).map(tuple), max_size=4)
    size = draw(st.integers(1, 12))
    return tuple(
        Operator(
            draw(st.text(LETTERS, min_size=1, max_size=20)),
            tuple(draw(st.lists(st.integers(0, number - 1), max_size=3))) if number else (),
            tuple(draw(shapes)),
        )
        for number in range(size)
    )


METAS = st.builds(
    Meta,
    name=TEXTS,
    task=TEXTS,
    dataset=TEXTS,
    tags=st.lists(TEXTS, max_size=3).map(tuple),
    access=st.lists(TEXTS, max_size=3).map(tuple),
    accuracy=st.none() | st.floats(0, 1),
    parent=st.none() | TEXTS,
)


class TestObjects:
    @given(meta=METAS, score=st.floats(0, 1))
    def test_come_back_as_they_were(self, meta: Meta, score: float) -> None:
        found = Found("3f", score, meta)
        assert messages.read(Found, messages.encode(found)) == found

    @given(task=TEXTS, dataset=TEXTS, tags=st.lists(TEXTS, max_size=3), count=st.integers(1, 100))
    def test_queries_come_back_as_they_were(
        self, task: str, dataset: str, tags: list[str], count: int
    ) -> None:
        query = messages.Query(Wanted(task=task, dataset=dataset, tags=tuple(tags)), count)
        assert messages.read(messages.Query, messages.encode(query)) == query

    def test_the_longest_meta_data_fit_in(self) -> None:
        text = "\N{PILE OF POO}" * MOST_TEXT
        meta = Meta(text, text, text, (text,) * MOST_TEXTS, (text,) * MOST_TEXTS, 1.0, text)
        message = messages.encode(meta, messages.ANSWER_BYTES)
        assert messages.read(Meta, message, messages.ANSWER_BYTES) == meta

    @given(message=st.binary(max_size=200))
    def test_random_bytes_are_refused(self, message: bytes) -> None:
        with pytest.raises(UserError):
            messages.read(messages.Upload, message)

    @given(
        value=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
            lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        )
    )
    def test_random_json_is_refused(self, value: object) -> None:
        for hint in (messages.Upload, messages.Model, messages.Query, messages.Sum):
            with pytest.raises(UserError):
                messages.read(hint, json.dumps(value).encode())

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (b"", "not valid JSON"),
            (b"\xff\xfe", "not valid JSON"),
            (b'{"id": 3}', "id is 3; it must be text"),
            (b"{}", "id is missing"),
            (b'{"id": "a", "path": "/etc"}', "there is no key path"),
            (b'{"id": NaN}', "NaN is not a number"),
            (b'{"id": -Infinity}', "Infinity is not a number"),
            (b'{"id": 1e999}', "too large for a number"),
            (b'{"id": ' + b"9" * 10_000 + b"}", "not valid JSON"),
            (b'{"id": "\\ud800"}', "not valid Unicode"),
            (b'{"\\udfff": "a"}', "not valid Unicode"),
            (b"[" * 10 + b"]" * 10, "nested deeper"),
            (b'{"id":' * 10_000, "nested too deeply"),
            (b"[" * 60_000, "nested too deeply"),
        ],
    )
    def test_it_is_said_what_is_wrong(self, message: bytes, reason: str) -> None:
        with pytest.raises(UserError, match=reason):
            messages.read(messages.Model, message)

    def test_they_may_be_nested_a_little(self) -> None:
        nested = [[[[[[[["x"]]]]]]]]
        assert messages.decode(json.dumps(nested).encode()) == nested

    def test_what_is_too_long_is_not_even_parsed(self) -> None:
        message = b"[" + b"1," * 10_000_000 + b"1]"
        start = time.process_time()
        with pytest.raises(UserError, match="has 20000003 bytes; at most 65536"):
            messages.decode(message)
        assert time.process_time() - start < 0.1

    def test_what_the_other_side_would_refuse_is_not_sent(self) -> None:
        with pytest.raises(UserError, match="too long to be sent"):
            messages.encode({"id": "x" * messages.OBJECT_BYTES})
        with pytest.raises(UserError, match="cannot be sent"):
            messages.encode({"id": math.nan})
        with pytest.raises(UserError, match="cannot be sent"):
            messages.encode({"id": "\ud800"})

    def test_the_worst_message_is_refused_in_seconds(self) -> None:
        """Errors show what is wrong, which must not take long for what is large."""
        values = [
            {"id": [[[1]]] * (messages.OBJECT_BYTES // 9)},
            {"id": {str(number): "" for number in range(messages.OBJECT_BYTES // 13)}},
            {"i" * (messages.OBJECT_BYTES - 100): ""},
            {"idd" + str(number): "" for number in range(messages.OBJECT_BYTES // 16)},
        ]
        for value in values:
            message = json.dumps(value, separators=(",", ":")).encode()
            assert messages.OBJECT_BYTES // 2 < len(message) <= messages.OBJECT_BYTES
            start = time.process_time()
            with pytest.raises(UserError, match="not as it should be"):
                messages.read(messages.Model, message)
            assert time.process_time() - start < 2


class TestOutlines:
    @given(outline=outlines())
    def test_come_back_as_they_were(self, outline: Outline) -> None:
        assert messages.read_outline(messages.encode_outline(outline)) == outline

    @given(message=st.binary(max_size=200))
    def test_random_bytes_are_refused(self, message: bytes) -> None:
        with pytest.raises(UserError):
            messages.read_outline(message)

    @given(outline=outlines(), data=st.data())
    @settings(max_examples=200)
    def test_whatever_is_damaged_is_refused_or_an_outline(
        self, outline: Outline, data: st.DataObject
    ) -> None:
        message = bytearray(messages.encode_outline(outline))
        for _ in range(data.draw(st.integers(1, 3))):
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        try:
            found = messages.read_outline(bytes(message))
        except UserError:
            return
        for number, operator in enumerate(found):
            assert all(0 <= each < number for each in operator.inputs)
            assert all(size > 0 for shape in operator.shapes for size in shape)

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ({}, "must be a list of operators"),
            ([], "has 0 operators; 1 to 20000"),
            ([["Dense", [], []]] * (MOST_NODES + 1), "has 20001 operators"),
            (["Dense"], "operator 0 must be a text and two lists, not 'Dense'"),
            ([["Dense", []]], "operator 0 must be a text and two lists"),
            ([["Dense", [], [], []]], "operator 0 must be a text and two lists"),
            ([[1, [], []]], "operator 0 must be a text and two lists"),
            ([["", [], []]], "its kind must have 1 to 1000 characters"),
            ([["x" * 1001, [], []]], "its kind must have 1 to 1000 characters"),
            ([["Dense", [0], []]], "operator 0 reads 0; it must be"),
            ([["Dense", [], []], ["Add", [0, 1], []]], "operator 1 reads 1; it must be"),
            ([["Dense", [], []], ["Add", [-1], []]], "operator 1 reads -1; it must be"),
            ([["Dense", [], []], ["Add", [False], []]], "operator 1 reads False; it must be"),
            ([["Dense", [], [[1.5]]]], r"operator 0 has a weight of shape \[1.5\]"),
            ([["Dense", [], [[0]]]], r"operator 0 has a weight of shape \[0\]"),
            ([["Dense", [], [[True]]]], r"operator 0 has a weight of shape \[True\]"),
            ([["Dense", [], [[2**50]]]], "operator 0 has a weight of shape"),
            ([["Dense", [], [[1] * 40]]], "operator 0 has a weight of shape"),
            ([["Dense", [], ["ab"]]], "operator 0 has a weight of shape 'ab'"),
            ([["Dense", [], [[1]] * 65]], "operator 0 has 65 weights; at most 64"),
        ],
    )
    def test_it_is_said_what_is_wrong(self, value: object, reason: str) -> None:
        with pytest.raises(UserError, match=reason):
            messages.read_outline(json.dumps(value).encode())

    def test_one_that_the_service_would_refuse_is_not_sent(self) -> None:
        for size in (0, MOST_NODES + 1):
            with pytest.raises(UserError, match=f"the model has {size} operators"):
                messages.encode_outline((Operator("Dense"),) * size)

    def test_a_large_one_is_read_quickly(self) -> None:
        shapes = ((3, 3, 512, 512), (512,))
        outline = tuple(
            Operator("Conv2D:relu", (number - 1,) if number else (), shapes)
            for number in range(MOST_NODES)
        )
        message = messages.encode_outline(outline)
        start = time.process_time()
        assert messages.read_outline(message) == outline
        assert time.process_time() - start < 5


class TestFiles:
    @pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
    def test_come_back_as_they_were(self, size: int) -> None:
        content = bytes(range(256)) * (size // 256) + bytes(size % 256)
        sent = list(messages.chunks(io.BytesIO(content + b"and more"), size))
        assert [len(chunk) for chunk in sent[:-1]] == [CHUNK_BYTES] * (len(sent) - 1)
        arrived, moved = io.BytesIO(), []
        answer = iter([*sent, b"the message behind it"])
        found = messages.receive(answer, size, arrived, lambda: moved.append(1))
        assert arrived.getvalue() == content
        assert found == hashlib.sha256(content).hexdigest()
        assert len(moved) == len(sent)
        assert next(answer) == b"the message behind it"

    def test_one_that_is_too_short_is_not_sent(self) -> None:
        with pytest.raises(UserError, match="has only 1048579 bytes instead of 1048580"):
            list(messages.chunks(io.BytesIO(bytes(CHUNK_BYTES + 3)), CHUNK_BYTES + 4))

    @pytest.mark.parametrize(
        ("sizes", "reason"),
        [
            ([], "ends after 0 bytes instead of 1048580"),
            ([CHUNK_BYTES], "ends after 1048576 bytes instead of 1048580"),
            ([CHUNK_BYTES, 3], "a chunk has 3 bytes; at byte 1048576 of 1048580 it must have 4"),
            ([CHUNK_BYTES, 5], "a chunk has 5 bytes"),
            ([CHUNK_BYTES + 4], "a chunk has 1048580 bytes"),
            ([0], "a chunk has 0 bytes"),
            ([1] * 100, "a chunk has 1 bytes"),
        ],
    )
    def test_chunks_of_wrong_sizes_are_refused(self, sizes: list[int], reason: str) -> None:
        sent: Iterator[bytes] = iter([bytes(size) for size in sizes])
        with pytest.raises(UserError, match=reason):
            messages.receive(sent, CHUNK_BYTES + 4, io.BytesIO())

    def test_their_sum_is_known_before_they_are_sent(self, tmp_path: Path) -> None:
        content = bytes(3_000_000)
        (tmp_path / "file").write_bytes(content)
        assert messages.sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()
