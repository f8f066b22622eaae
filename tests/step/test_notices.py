"""What ranks tell each other beside their logs."""

from __future__ import annotations

import numpy as np

from ooodist.step.notices import Notice, Notices


def test_all_ranks_learn_the_sums() -> None:
    ranks = [Notices() for _ in range(3)]
    assert [rank.total(Notice.STOP) for rank in ranks] == [0, 0, 0]
    ranks[1].tell(Notice.STOP, 1)
    for number, rank in enumerate(ranks):
        rank.tell(Notice.WRITTEN, 4 + number)
    sums = np.sum([rank.own() for rank in ranks], axis=0)
    ranks[0].tell(Notice.DUE, 9)  # too late for this call
    for rank in ranks:
        rank.learn(sums)
    for rank in ranks:
        assert [rank.total(notice) for notice in Notice] == [1, 0, 15]
    assert ranks[0].own().dtype == np.float32
