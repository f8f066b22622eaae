"""The index: rows are read back, several processes write at a time, and damage is mended."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Operator
from ooodist.zoo import index as module
from ooodist.zoo.entry import Meta
from ooodist.zoo.index import Index, Row, packed, unpacked
from ooodist.zoo.retention import HALF_LIFE

OUTLINE = (Operator("Input"), Operator("Dense:relu", (0,), ((4, 5), (5,))))


def row(model: str, task: str = "t", dataset: str = "d", size: int = 7) -> Row:
    meta = Meta(model.title(), task, dataset, ("a", "b"), ("alice",), {"accuracy": 0.5}, "parent")
    return Row(model, meta, size, 25, 1000.0, last_used=1000.0)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "index.sqlite")
    yield made
    made.close()


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# Rows


def test_rows_are_read_back(index: Index) -> None:
    rows = [row("a"), row("b", task="other"), Row("c", Meta(), 0, 0, 0.5, 3, 2.5, 9.0)]
    index.put((each, OUTLINE) for each in rows)
    assert index.rows() == rows
    assert index.row("b") == rows[1]
    assert index.row("none") is None
    assert index.states() == {"a": (7, ""), "b": (7, ""), "c": (0, "")}
    assert {k: unpacked(v) for k, v in index.outlines(["a", "c", "none"]).items()} == {
        "a": OUTLINE,
        "c": OUTLINE,
    }


def test_rows_are_there_for_who_opens_the_file_later(index: Index, tmp_path: Path) -> None:
    index.put([(row("a"), OUTLINE)])
    second = Index(tmp_path / "index.sqlite")
    assert second.rows() == [row("a")]
    second.delete(["a", "none"])
    second.close()
    assert index.rows() == []


def test_rows_of_a_task_and_a_data_set(index: Index) -> None:
    index.put((row(t + d, t, d), OUTLINE) for t in "tu" for d in "de")
    assert [each.id for each in index.rows("t")] == ["td", "te"]
    assert [each.id for each in index.rows("t", "e")] == ["te"]
    assert [each.id for each in index.rows("", "d")] == ["td", "ud"]
    assert index.rows("none") == []
    assert index.rows("t' or '1'='1") == []


def test_more_outlines_than_a_statement_has_parameters(index: Index) -> None:
    names = [f"m{number:04}" for number in range(2000)]
    index.put((row(name), OUTLINE) for name in names)
    assert list(index.outlines(names)) == names


def test_putting_a_model_again_replaces_its_row(index: Index) -> None:
    index.put([(row("a"), OUTLINE)])
    index.put([(row("a", size=9), OUTLINE[:1])])
    assert index.states() == {"a": (9, "")}
    assert unpacked(index.outlines(["a"])["a"]) == OUTLINE[:1]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(texts, st.lists(texts, max_size=3), st.floats(0, 1))
def test_any_meta_data_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, words: list[str], number: float
) -> None:
    file = tmp_path_factory.mktemp("meta") / "index.sqlite"
    index = Index(file)
    meta = Meta(text, text, text, tuple(words), tuple(words), {text: number}, text, text)
    index.put([(Row("a", meta, 1, 2, 3.0), OUTLINE)])
    assert index.row("a") == Row("a", meta, 1, 2, 3.0)
    index.close()


shapes = st.lists(st.lists(st.integers(0, 2**40), max_size=4).map(tuple), max_size=3).map(tuple)
operators = st.builds(
    Operator, st.text(max_size=8), st.lists(st.integers(0, 99), max_size=3).map(tuple), shapes
)


@given(st.lists(operators, max_size=6).map(tuple))
def test_outlines_are_unpacked_as_they_were(outline: tuple[Operator, ...]) -> None:
    assert unpacked(packed(outline)) == outline


def test_an_outline_of_a_hundred_operators_is_small() -> None:
    outline = tuple(Operator("Conv2D:relu", (k,), ((3, 3, 64, 64), (64,))) for k in range(100))
    assert len(packed(outline)) < 1000


# Uses


def test_uses_are_counted_and_lose_value(index: Index) -> None:
    index.put([(row("a"), OUTLINE), (row("b"), OUTLINE)])
    index.count_use("a", 1000.0 + HALF_LIFE)
    index.count_use("a", 1000.0 + 2 * HALF_LIFE)
    index.count_use("none", 0.0)
    used = index.row("a")
    assert used is not None
    assert (used.uses, used.value) == (2, 1.75)
    assert used.last_used == 1000.0 + 2 * HALF_LIFE
    assert used.worth(1000.0 + 3 * HALF_LIFE, 0.5) == 0.875
    assert index.row("b") == row("b")


COUNT = """\
import sys
from pathlib import Path
from ooodist.zoo.index import Index, Row
from ooodist.zoo.entry import Meta
from ooodist.transfer.graph.operators import Operator
index = Index(Path(sys.argv[1]))
for number in range(50):
    index.count_use("a", 1000.0)
    name = f"{sys.argv[2]}-{number}"
    index.put([(Row(name, Meta(), 1, 1, 0.0), (Operator("Input"),))])
    if number % 2:
        index.delete([name])
"""


def test_no_use_is_lost_among_processes_and_threads(index: Index) -> None:
    index.put([(row("a"), OUTLINE)])
    processes = [start(COUNT, index.file, number) for number in range(3)]

    def count(_: int) -> None:
        for _ in range(50):
            index.count_use("a", 1000.0)
            index.rows()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, range(3)))
    for process in processes:
        assert process.wait(timeout=60) == 0, process.communicate()[1]
    found = index.row("a")
    assert found is not None
    assert (found.uses, found.value) == (300, 301)
    assert len(index.rows()) == 1 + 3 * 25


# The lock


def test_only_one_at_a_time_is_in_the_lock(index: Index) -> None:
    inside: list[int] = []

    def work(_: int) -> None:
        for _ in range(20):
            with index.exclusively():
                inside.append(1)
                assert len(inside) == 1
                time.sleep(0.0005)
                inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert inside == []


HOLD = """\
import sys, time
from pathlib import Path
from ooodist.zoo.index import Index
with Index(Path(sys.argv[1])).exclusively():
    print("inside", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_does_not_keep_the_lock(index: Index) -> None:
    process = start(HOLD, index.file)
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    got = threading.Event()

    def take() -> None:
        with index.exclusively():
            got.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not got.wait(0.2)
    process.send_signal(signal.SIGKILL)
    assert got.wait(10)
    thread.join()
    process.communicate()


WRITE = """\
import sys
from pathlib import Path
from ooodist.zoo.index import Index, Row
from ooodist.zoo.entry import Meta
from ooodist.transfer.graph.operators import Operator
index = Index(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(10**9):
    rows = [(Row(f"{number}-{k}", Meta(), 1, 1, 0.0), (Operator("Input"),)) for k in range(10)]
    index.put(rows)
    index.delete([row.id for row, _ in rows])
"""


def test_a_writer_that_is_killed_leaves_whole_transactions(index: Index) -> None:
    for seconds in (0.0, 0.01, 0.05, 0.1, 0.2):
        process = start(WRITE, index.file)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.kill()
        process.communicate()
        rows = index.rows()
        assert len(rows) % 10 == 0
        index.delete([each.id for each in rows])
    index.put([(row("a"), OUTLINE)])
    assert index.rows() == [row("a")]


# Damage


def damage_text(file: Path) -> None:
    file.write_bytes(b"no database at all " * 100)


def damage_middle(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096 : len(content) - 100] = b"\xff" * (len(content) - 4196)
    file.write_bytes(content)


def damage_end(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def other_version(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute(f"pragma user_version = {module.VERSION + 1}")
    connection.close()


def delete(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damage_text, "it is damaged: file is not a database"),
        (damage_middle, "it is damaged"),
        (damage_end, "it is damaged"),
        (other_version, f"it is of version {module.VERSION + 1}"),
        (empty, "it is of version 0"),
        (delete, None),
    ],
)
def test_a_damaged_index_is_made_anew(
    change: object, reason: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "index.sqlite"
    index = Index(file)
    index.put((row(f"m{number}"), OUTLINE) for number in range(300))
    index.close()
    assert callable(change)
    change(file)
    with caplog.at_level(logging.WARNING, "ooodist"):
        index = Index(file)
    assert index.rows() == []
    index.put([(row("a"), OUTLINE)])
    assert index.rows() == [row("a")]
    index.close()
    if reason is None:
        assert not caplog.records
    else:
        assert f"the index {file} is made anew from the models ({reason}" in caplog.text


def test_an_index_that_is_damaged_while_it_is_open_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    index = Index(file)
    index.put([(row("a"), OUTLINE)])
    index.close()
    index = Index(file)
    damage_text(file)
    index.reopen()
    assert index.rows() == []
    index.put([(row("b"), OUTLINE)])
    assert index.rows() == [row("b")]
    index.close()


def test_the_folder_of_the_index_is_made(tmp_path: Path) -> None:
    Index(tmp_path / "a" / "b" / "index.sqlite").close()
    assert (tmp_path / "a" / "b" / "index.sqlite").is_file()


def test_where_there_can_be_no_index_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="name another place for it"):
        Index(tmp_path / "file" / "index.sqlite")
    (tmp_path / "folder.sqlite").mkdir()
    with pytest.raises(UserError, match=r"folder\.sqlite of the zoo cannot be used"):
        Index(tmp_path / "folder.sqlite")


OPEN = "import sys; from pathlib import Path; from ooodist.zoo.index import Index; Index(Path(sys.argv[1])).rows()"  # noqa: E501


def test_processes_that_make_the_index_at_the_same_moment_agree(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    damage_text(file)
    processes = [start(OPEN, file) for _ in range(4)]
    for process in processes:
        assert process.wait(timeout=60) == 0, process.communicate()[1]
    index = Index(file)
    assert index.rows() == []
    index.close()
