"""A zoo that others change, too: other processes and threads, killed ones, and files by hand."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.zoo.entry import Meta
from ooodist.zoo.zoo import Wanted, Zoo
from tests.zoo.entries import Adder, ids, models_in, outline
from tests.zoo.writers import ADD, start


def test_two_zoos_at_one_address_see_the_same(zoo: Zoo, add: Adder) -> None:
    with Zoo(zoo.address) as other:
        model = add(zoo, [4, 8])
        assert ids(other.query(outline([4, 8]), Wanted())) == [model]
        other.fetch(model)
        assert zoo.list()[0].uses == 1
        other.evict(model)
        assert zoo.query(outline([4, 8]), Wanted()) == []
        with pytest.raises(UserError, match="there is no model"):
            zoo.fetch(model)


def test_files_that_come_and_go_by_hand_are_seen(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    model = add(zoo, [4, 8], name="first")
    shutil.copy(add.file([4, 8], Meta("copied")), folder / "copied by hand.keras")
    found = ids(zoo.query(outline([4, 8]), Wanted(), count=2))
    assert sorted(found) == ["copied by hand", model]
    assert set(zoo.fetch("copied by hand")[1]) == set(zoo.fetch(model)[1])
    shutil.copy(add.file([4, 5], Meta("another")), folder / "copied by hand.keras")
    assert zoo.query(outline([4, 5]), Wanted())[0].meta.name == "another"
    assert zoo.query(outline([4, 5]), Wanted())[0].score == 1
    (folder / f"{model}.keras").unlink()
    assert [row.id for row in zoo.list()] == ["copied by hand"]


def test_an_index_that_is_deleted_or_damaged_is_made_again(
    zoo: Zoo, add: Adder, tmp_path: Path
) -> None:
    models = {add(zoo, [4, width]) for width in range(1, 6)}
    rows = [replace(row, created=0, last_used=0) for row in zoo.list()]
    zoo.close()
    index = tmp_path / "zoo" / "index.sqlite"
    for change in (index.unlink, lambda: index.write_bytes(b"no database")):
        change()
        with Zoo(tmp_path / "zoo") as again:
            found = [replace(row, created=0, last_used=0) for row in again.list()]
            assert found == rows
            assert {row.id for row in found} == models


def test_an_index_that_is_damaged_while_it_is_used_is_made_again(
    zoo: Zoo, add: Adder, tmp_path: Path
) -> None:
    model = add(zoo, [4, 8])
    other = Zoo(tmp_path / "zoo")
    for ending in ("", "-wal"):
        file = tmp_path / "zoo" / f"index.sqlite{ending}"
        file.write_bytes(b"\xff" * max(file.stat().st_size, 4096))
    assert ids(other.query(outline([4, 8]), Wanted())) == [model]
    other.close()


def test_a_damaged_file_is_logged_once_and_left_out(
    zoo: Zoo, add: Adder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = add(zoo, [4, 8])
    bad = tmp_path / "zoo" / "bad.keras"
    bad.write_bytes(b"no model")
    with caplog.at_level(logging.WARNING, "ooodist"):
        for _ in range(3):
            assert ids(zoo.query(outline([4, 8]), Wanted(), count=5)) == [model]
    assert caplog.text.count("bad.keras is left out") == 1
    shutil.copy(add.file([4, 8], Meta("mended")), bad)
    assert {row.id for row in zoo.list()} == {model, "bad"}


def test_a_writer_that_is_killed_at_any_moment_leaves_a_usable_zoo(
    zoo: Zoo, add: Adder, tmp_path: Path
) -> None:
    """Each adds models of 4 MB until it is killed; what it said to have added is there."""
    generator = random.Random(0)
    said: set[str] = set()
    for number in range(6):
        files = [add.file([1000, 1000 - k], Meta(f"w{number}-{k}")) for k in range(4)]
        process = start(zoo.address, *files)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(generator.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        said |= set(process.communicate()[0].split())
        there = {row.id for row in zoo.list()}
        assert said <= there
        for model in there:
            zoo.entry(model)
            zoo.fetch(model)
        for file in files:
            file.unlink()
    complete = {name for name in models_in(tmp_path / "zoo") if name[0] != "."}
    assert complete == {f"{row.id}.keras" for row in zoo.list()}
    model = add(zoo, [4, 8], name="afterwards")
    assert ids(zoo.query(outline([4, 8]), Wanted())) == [model]


def test_several_processes_and_threads_add_and_query_at_a_time(zoo: Zoo, add: Adder) -> None:
    shared = add.file([7, 7], Meta("shared"))
    files = [[add.file([4, 3 + k], Meta(f"p{p}-{k}")) for k in range(5)] for p in range(3)]
    processes = [start(zoo.address, *some, shared) for some in files]

    def work(number: int) -> None:
        for k in range(8):
            model = add(zoo, [5, 4 + k], name=f"t{number}-{k}")
            assert zoo.query(outline([5, 4 + k]), Wanted(), count=3)
            zoo.fetch(model)
            if k % 2:
                zoo.evict(model)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    for process in processes:
        assert process.wait(timeout=60) == 0, process.communicate()[1]
    names = sorted(row.meta.name for row in zoo.list())
    expected = [f"p{p}-{k}" for p in range(3) for k in range(5)] + ["shared"]
    expected += [f"t{number}-{k}" for number in range(3) for k in range(0, 8, 2)]
    assert names == sorted(expected)


def test_a_capacity_is_kept_by_several_processes(add: Adder, tmp_path: Path) -> None:
    program = ADD.replace("Zoo(address, ", "Zoo(address, capacity_bytes=60_000, ")
    commands = [
        [sys.executable, "-c", program, str(tmp_path / "zoo"), ""]
        + [
            str(add.file([30, 30 + k], Meta(f"{p}-{k}", metrics={"accuracy": 0.5 + k / 50})))
            for k in range(6)
        ]
        for p in range(3)
    ]
    for process in [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]:
        assert process.wait(timeout=60) in (0, 1)  # 1: worth less than what is there
    sizes = [file.stat().st_size for file in (tmp_path / "zoo").glob("*.keras")]
    assert 40_000 < sum(sizes) <= 60_000


def test_who_has_a_model_open_reads_it_to_the_end(zoo: Zoo, add: Adder) -> None:
    file = add.file([300, 300], Meta())
    model = zoo.add(file)
    with zoo.open(model) as opened:
        zoo.evict(model)
        assert opened.read() == file.read_bytes()
