"""Methods that some ranks alone call."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import ooodist
from ooodist.engines import timeout
from ooodist.engines.base import Engine
from tests.ranks_in_threads import on_ranks
from tests.trainer.consistency.test_callbacks import V, W, X, Y, made


def test_ranks_that_call_different_methods_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(engine: Engine) -> None:
        model = ooodist.distribute(made())
        if engine.rank == 0:
            model.fit(X, Y, verbose=0)
        else:
            model.evaluate(V, W, verbose=0)

    first, second = on_ranks(monkeypatch, work)
    assert "rank 0 calls fit, but rank 1 calls evaluate at the same time" in str(first)
    assert "rank 1 calls evaluate, but rank 0 calls fit at the same time" in str(second)


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_a_rank_that_is_alone_ends_with_one_message(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], method: str
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(timeout, "abort", lambda code: ended.set())

    def work(engine: Engine) -> Any:
        engine.timeout = 0.5
        model = ooodist.distribute(made())
        if engine.rank:
            engine._meeting.turn.release()
            assert ended.wait(30)
            engine._meeting.turn.acquire()
            raise InterruptedError
        getattr(model, method)(X, Y)

    on_ranks(monkeypatch, work)
    said = (
        f"rank 0 has waited in {method} for 0.5 s, as not all ranks have called it: call {method}"
    )
    assert capfd.readouterr().err.count(said) == 1


def test_where_another_rank_is_gone_it_is_said_who_waited_in_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(engine: Engine) -> None:
        model = ooodist.distribute(made())
        if engine.rank:
            raise InterruptedError
        model.fit(X, Y, verbose=0)

    first, _ = on_ranks(monkeypatch, work)
    assert first is not None
    (note,) = first.__notes__
    assert "rank 0 calls fit, which all 2 ranks have to call together, but another rank" in note
