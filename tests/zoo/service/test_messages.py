"""What travels between a zoo's service and its clients comes back as it was, or is refused."""

from __future__ import annotations

import hashlib
import io
import math
import time
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Operator, Outline
from ooodist.zoo.entry import MOST_TEXT, MOST_TEXTS, Meta
from ooodist.zoo.reading.graph_json import MOST_NODES
from ooodist.zoo.service import messages, zoo_pb2
from ooodist.zoo.service.limits import CHUNK_BYTES, MESSAGE_BYTES, request_bytes
from ooodist.zoo.zoo import Found, Row, Wanted

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


PRINTABLE = TEXTS.filter(str.isprintable)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
METAS = st.builds(
    Meta,
    name=PRINTABLE,
    task=PRINTABLE,
    dataset=PRINTABLE,
    tags=st.lists(PRINTABLE, max_size=3).map(tuple),
    access=st.lists(PRINTABLE, max_size=3).map(tuple),
    metrics=st.dictionaries(PRINTABLE.map(lambda text: f"{text}_loss"), FINITE, max_size=3),
    parent=st.none() | PRINTABLE,
) | st.builds(Meta, metrics=st.just({"accuracy": 0.5, "f1": 1.0}), judged_by=st.just("f1"))
KINDS = [zoo_pb2.QueryRequest, zoo_pb2.FetchRequest, zoo_pb2.RegisterRequest, zoo_pb2.Upload]
DENSE = zoo_pb2.Operator(op="Dense")


def sent(message: Message) -> Message:
    """The message as it arrives on the other side."""
    return messages.parsed(type(message).FromString, message.SerializeToString(), MESSAGE_BYTES)


def shaped(*shapes: list[int]) -> zoo_pb2.Operator:
    """An operator with weights of these shapes."""
    return zoo_pb2.Operator(op="Dense", shapes=[zoo_pb2.Shape(sizes=each) for each in shapes])


def query(outline: Outline) -> zoo_pb2.QueryRequest:
    return messages.query_request(outline, Wanted(), 1)


def outline_in(request: Message) -> Outline:
    return messages.query_of(request, "anna")[0]


class TestMessages:
    @given(meta=METAS, score=st.floats(0, 1, exclude_min=True))
    def test_models_found_come_back_as_they_were(self, meta: Meta, score: float) -> None:
        found = Found("3f", score, meta)
        assert messages.found_of(sent(messages.query_response(found))) == found

    @given(
        meta=METAS,
        numbers=st.lists(st.integers(0, 2**63), min_size=3, max_size=3),
        times=st.lists(st.floats(-1e9, 1e11), min_size=2, max_size=2),
        value=st.floats(0),
    )
    def test_rows_come_back_as_they_were(
        self, meta: Meta, numbers: list[int], times: list[float], value: float
    ) -> None:
        size, parameters, uses = numbers
        row = Row("3f", meta, size, parameters, times[0], uses, value, times[1])
        assert messages.row_of(sent(messages.list_response(row))) == row

    @given(
        outline=outlines(),
        task=TEXTS,
        dataset=TEXTS,
        tags=st.lists(TEXTS, max_size=3),
        count=st.integers(1, 100),
    )
    def test_queries_come_back_as_they_were(
        self, outline: Outline, task: str, dataset: str, tags: list[str], count: int
    ) -> None:
        wanted = Wanted(task=task, dataset=dataset, tags=tuple(tags), user="anna")
        request = messages.query_request(outline, wanted, count)
        assert messages.query_of(sent(request), "anna") == (outline, wanted, count)

    def test_nothing_and_zero_are_not_the_same(self) -> None:
        for meta in (Meta(), Meta(metrics={"accuracy": 0.0}), Meta(parent="")):
            found = Found("3f", 0.5, meta)
            assert messages.found_of(sent(messages.query_response(found))).meta == meta

    def test_the_longest_meta_data_fit_in(self) -> None:
        text = "\N{PILE OF POO}" * MOST_TEXT
        longest = {f"{text[3:]}{number:03}": 1.0 for number in range(MOST_TEXTS)}
        meta = Meta(text, text, text, (text,) * MOST_TEXTS, (text,) * MOST_TEXTS, longest, text)
        found = Found("3f", 1.0, meta)
        assert messages.found_of(sent(messages.query_response(found))) == found

    @given(content=st.binary(max_size=200))
    def test_random_bytes_are_refused_or_a_message(self, content: bytes) -> None:
        for kind in KINDS:
            try:
                found = messages.parsed(kind.FromString, content, 200)
            except UserError:
                continue
            assert isinstance(found, kind)

    @pytest.mark.parametrize(
        "content",
        [
            b"\xff\xfe",
            b"\x0a",  # a text without its length
            b"\x0a\x05ab",  # one that is cut off
            b"\x0a\x02\xff\xfe",  # one that is not UTF-8
            b"\x0a\x03\xed\xa0\x80",  # half of a surrogate pair
            b"\x0a\xff\xff\xff\xff\x0f",  # one of 4 GiB
            b"\x0b" * 60_000,  # groups in groups
            b'{"id": "a"}',
        ],
    )
    def test_damaged_ones_are_refused(self, content: bytes) -> None:
        with pytest.raises(UserError, match=r"a message is not as zoo\.proto has it"):
            messages.parsed(zoo_pb2.FetchRequest.FromString, content, 2**16)

    def test_what_is_too_long_is_not_even_parsed(self) -> None:
        content = b"\x2a\x00" * 10_000_000
        start = time.process_time()
        with pytest.raises(UserError, match="has 20000000 bytes; at most 65536"):
            messages.parsed(zoo_pb2.QueryRequest.FromString, content, 2**16)
        assert time.process_time() - start < 0.1

    def test_what_the_other_side_would_refuse_is_not_sent(self) -> None:
        with pytest.raises(UserError, match="too long to be sent; at most 3145728"):
            messages.query_request((Operator("Dense"),), Wanted(task="x" * 3 * 2**20), 1)
        for wanted, count in ((Wanted(task="\ud800"), 1), (Wanted(), -1), (Wanted(), 2**32)):
            with pytest.raises(UserError, match="cannot be sent"):
                messages.query_request((Operator("Dense"),), wanted, count)
        with pytest.raises(UserError, match="cannot be sent"):
            messages.made(zoo_pb2.FetchRequest, id="\ud800")

    def test_the_worst_message_is_refused_in_seconds(self) -> None:
        """Errors show what is wrong, which must not take long for what is large."""
        most = request_bytes("Query")
        requests = [
            zoo_pb2.QueryRequest(count=1, outline=[zoo_pb2.Operator()] * (most // 2 - 10)),
            zoo_pb2.QueryRequest(count=1, outline=[zoo_pb2.Operator(op="x" * (most - 100))]),
            zoo_pb2.QueryRequest(
                count=1, outline=[zoo_pb2.Operator(op="x", inputs=[0] * (most - 100))]
            ),
            zoo_pb2.QueryRequest(
                count=1,
                outline=[
                    zoo_pb2.Operator(op="x", shapes=[zoo_pb2.Shape(sizes=[0] * (most - 100))])
                ],
            ),
            zoo_pb2.QueryRequest(
                count=1,
                outline=[zoo_pb2.Operator(op="x", shapes=[zoo_pb2.Shape()] * (most // 2 - 10))],
            ),
        ]
        for request in requests:
            content = request.SerializeToString()
            assert most // 2 < len(content) <= most
            start = time.process_time()
            with pytest.raises(UserError, match="operator"):
                outline_in(messages.parsed(zoo_pb2.QueryRequest.FromString, content, most))
            assert time.process_time() - start < 2

    @pytest.mark.parametrize("text", ["", "\n", "\x1b[2J", "x" * (MOST_TEXT + 1)])
    def test_ids_that_no_model_has_are_refused(self, text: str) -> None:
        with pytest.raises(UserError, match="as the id of a model, which none has"):
            messages.checked_id(text)

    @pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, "A" * 64, "0" * 64 + "\n"])
    def test_sums_that_are_none_are_refused(self, text: str) -> None:
        with pytest.raises(UserError, match="it must have 64 hexadecimal digits"):
            messages.check_sha256(text)

    @pytest.mark.parametrize("score", [0.0, -1.0, 1.1, math.nan, math.inf])
    def test_scores_that_are_none_are_refused(self, score: float) -> None:
        with pytest.raises(UserError, match="it must be above 0, at most 1"):
            messages.found_of(zoo_pb2.QueryResponse(id="a", score=score))


class TestOutlines:
    @given(outline=outlines())
    def test_come_back_as_they_were(self, outline: Outline) -> None:
        assert outline_in(sent(query(outline))) == outline

    @given(outline=outlines(), data=st.data())
    def test_whatever_is_damaged_is_refused_or_an_outline(
        self, outline: Outline, data: st.DataObject
    ) -> None:
        content = bytearray(query(outline).SerializeToString())
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        try:
            found = outline_in(
                messages.parsed(zoo_pb2.QueryRequest.FromString, bytes(content), MESSAGE_BYTES)
            )
        except UserError:
            return
        for number, operator in enumerate(found):
            assert all(0 <= each < number for each in operator.inputs)
            assert all(size > 0 for shape in operator.shapes for size in shape)

    @pytest.mark.parametrize(
        ("operators", "reason"),
        [
            ([], "has 0 operators; 1 to 20000"),
            ([DENSE] * (MOST_NODES + 1), "has 20001 operators"),
            ([{}], "its kind must have 1 to 1000 characters"),
            ([{"op": "x" * 1001}], "its kind must have 1 to 1000 characters"),
            ([{"op": "Dense", "inputs": [0]}], "operator 0 reads 0; it must be"),
            ([DENSE, {"op": "Add", "inputs": [0, 1]}], "operator 1 reads 1; it must be"),
            ([DENSE, {"op": "Add", "inputs": [2**32 - 1]}], "operator 1 reads 4294967295; it"),
            ([shaped([0])], r"operator 0 has a weight of shape \[0\]"),
            ([shaped([2**50])], "operator 0 has a weight of shape"),
            ([shaped([1] * 40)], "operator 0 has a weight of shape"),
            ([DENSE, shaped([3, 0])], r"operator 1 has a weight of shape \[3, 0\]"),
            ([shaped(*[[1]] * 65)], "operator 0 has 65 weights; at most 64"),
        ],
    )
    def test_it_is_said_what_is_wrong(self, operators: list[Any], reason: str) -> None:
        with pytest.raises(UserError, match=reason):
            outline_in(zoo_pb2.QueryRequest(count=1, outline=operators))

    @pytest.mark.parametrize("count", [0, 101, 2**32 - 1])
    def test_a_senseless_number_is_refused(self, count: int) -> None:
        with pytest.raises(UserError, match=f"count is {count}; it must be 1 to 100"):
            messages.query_of(zoo_pb2.QueryRequest(count=count, outline=[DENSE]), "anna")

    def test_one_that_the_service_would_refuse_is_not_sent(self) -> None:
        for size in (0, MOST_NODES + 1):
            with pytest.raises(UserError, match=f"the model has {size} operators"):
                query((Operator("Dense"),) * size)
        with pytest.raises(UserError, match="cannot be sent"):
            query((Operator("Dense", (), ((-1,),)),))

    def test_a_large_one_is_read_quickly(self) -> None:
        shapes = ((3, 3, 512, 512), (512,))
        outline = tuple(
            Operator("Conv2D:relu", (number - 1,) if number else (), shapes)
            for number in range(MOST_NODES)
        )
        message = query(outline)
        start = time.process_time()
        assert outline_in(sent(message)) == outline
        assert time.process_time() - start < 5


class TestFiles:
    @pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
    def test_come_back_as_they_were(self, size: int) -> None:
        content = bytes(range(256)) * (size // 256) + bytes(size % 256)
        parts = list(messages.chunks(io.BytesIO(content + b"and more"), size))
        assert [len(chunk) for chunk in parts[:-1]] == [CHUNK_BYTES] * (len(parts) - 1)
        arrived, moved = io.BytesIO(), []
        last = zoo_pb2.FetchResponse(sha256="the message behind it")
        answer = iter([*(zoo_pb2.FetchResponse(chunk=each) for each in parts), last])
        found = messages.receive(answer, size, arrived, lambda: moved.append(1))
        assert arrived.getvalue() == content
        assert found == hashlib.sha256(content).hexdigest()
        assert len(moved) == len(parts)
        assert next(answer) is last

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
        parts = iter([zoo_pb2.RegisterRequest(chunk=bytes(size)) for size in sizes])
        with pytest.raises(UserError, match=reason):
            messages.receive(parts, CHUNK_BYTES + 4, io.BytesIO())

    def test_another_message_than_a_chunk_is_refused(self) -> None:
        for other in (zoo_pb2.FetchResponse(size=7), zoo_pb2.FetchResponse(sha256="7")):
            with pytest.raises(UserError, match="a chunk has 0 bytes; at byte 0 of 7 it must"):
                messages.receive(iter([other]), 7, io.BytesIO())
