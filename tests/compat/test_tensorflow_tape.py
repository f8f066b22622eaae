"""Contract: whether tapes record."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ooodist.compat import tensorflow_tape
from tests.compat.contract import Contract


def _others() -> None:
    with tf.GradientTape() as tape:
        assert not tensorflow_tape.others_record(tape)
    assert not tensorflow_tape.others_record(tape)
    with tf.GradientTape() as outer:
        assert tensorflow_tape.others_record(tape)
        with tf.GradientTape() as inner:
            assert tensorflow_tape.others_record(inner)
            with outer.stop_recording():
                assert not tensorflow_tape.others_record(inner)


CONTRACTS = [
    Contract("could_possibly_record", "tensorflow-cpu", tensorflow_tape.others_record, _others)
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_tensorflow_keeps(contract: Contract) -> None:
    contract.hold()
