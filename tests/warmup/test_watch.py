"""The watch calls when nothing moves, and only then."""

from __future__ import annotations

import threading
import time

from ooodist.warmup.watch import Watch


def test_it_calls_once_when_nothing_moves() -> None:
    called = []
    with Watch(0.05, lambda: called.append(1)) as watch:
        time.sleep(0.3)
    assert called == [1]
    assert watch.expired


def test_it_does_not_call_while_something_moves() -> None:
    called = []
    with Watch(0.5, lambda: called.append(1)) as watch:
        for _ in range(10):
            time.sleep(0.1)
            watch.moved()
    time.sleep(0.6)
    assert called == []
    assert not watch.expired


def test_it_waits_longer_where_it_is_told_so() -> None:
    called = threading.Event()
    start = time.perf_counter()
    with Watch(0.1, called.set) as watch:
        watch.moved(0.5)
        assert called.wait(5)
    assert time.perf_counter() - start > 0.5


def test_it_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in range(10):
        with Watch(60.0, lambda: None):
            pass
    assert threading.active_count() == before


def test_it_may_be_ended_by_what_it_calls() -> None:
    with Watch(0.05, lambda: watch.__exit__()) as watch:
        time.sleep(0.2)
    assert watch.expired
