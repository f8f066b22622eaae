"""What the transformers have in their graphs beyond shapes: who sees whom, and shared tables."""

import numpy as np
import pytest
import tensorflow as tf

from ooodist.models import build

from .samples import SMALL


def _logits_before_and_after_changing_the_last_token(name: str) -> tuple[np.ndarray, np.ndarray]:
    model = build(*SMALL[name])
    before = np.array([[1, 2, 3, 4, 5, 6]])
    after = np.array([[1, 2, 3, 4, 5, 9]])
    return np.asarray(model(before)), np.asarray(model(after))


def test_gpt_sees_no_later_token() -> None:
    before, after = _logits_before_and_after_changing_the_last_token("gpt")
    np.testing.assert_allclose(before[:, :-1], after[:, :-1], rtol=1e-6, atol=1e-7)
    assert not np.allclose(before[:, -1], after[:, -1])


def test_bert_sees_every_token() -> None:
    before, after = _logits_before_and_after_changing_the_last_token("bert_language")
    assert not np.allclose(before[:, 0], after[:, 0])


@pytest.mark.parametrize(
    ("tied", "untied", "extra"),
    # BERT's bias is part of the table's layer when tied, of the last layer when not.
    [("gpt", "gpt_untied", 1), ("bert_language", "bert_untied", 1)],
)
def test_tied_table_is_one_variable(tied: str, untied: str, extra: int) -> None:
    tied_variables = build(*SMALL[tied]).trainable_variables
    untied_variables = build(*SMALL[untied]).trainable_variables
    assert len(untied_variables) == len(tied_variables) + extra
    assert len([v for v in tied_variables if 11 in v.shape and len(v.shape) == 2]) == 1


def test_tied_table_gets_the_gradient_of_both_uses() -> None:
    """Tokens that do not occur in the input still get a gradient, from the scores."""
    model = build(*SMALL["gpt"])
    table = model.get_layer("tokens").table.value
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(np.array([[1, 1, 1, 1, 1, 1]]))))
    gradient = np.asarray(tf.convert_to_tensor(tape.gradient(loss, table)))
    assert np.all(np.any(gradient != 0, axis=1))
