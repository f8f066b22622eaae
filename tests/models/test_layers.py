import keras
import numpy as np
import tensorflow as tf

from ooodist.models.layers import ClassToken, PaddedShortcut, PositionEmbedding, TokenEmbedding


def test_token_embedding_looks_up_and_scores_with_one_table() -> None:
    layer = TokenEmbedding(5, 3)
    vectors = layer(np.array([[0, 4], [2, 2]]))
    table = layer.table.numpy()
    np.testing.assert_array_equal(vectors, table[[[0, 4], [2, 2]]])
    np.testing.assert_allclose(
        layer(vectors, reverse=True), np.asarray(vectors) @ table.T, rtol=1e-6, atol=1e-7
    )
    assert len(layer.trainable_variables) == 1


def test_token_embedding_adds_its_bias_only_in_reverse() -> None:
    layer = TokenEmbedding(4, 2, reverse_bias=True)
    layer.build((None, 3))
    layer.bias.assign([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(layer(np.zeros((1, 2)), reverse=True), [[1, 2, 3, 4]])
    np.testing.assert_array_equal(layer(np.array([[1]]))[0, 0], layer.table.numpy()[1])


def test_token_embedding_takes_bytes() -> None:
    """Byte-level text may come as uint8, which tf.gather does not take."""
    layer = TokenEmbedding(256, 2)
    np.testing.assert_array_equal(
        layer(np.array([[255, 0]], "uint8"))[0], layer.table.numpy()[[255, 0]]
    )


def test_lookup_has_a_sparse_gradient_also_in_mixed_precision() -> None:
    for dtype in ("float32", "mixed_bfloat16"):
        layer = TokenEmbedding(100, 2, dtype=dtype)
        with tf.GradientTape() as tape:
            total = keras.ops.sum(layer(np.array([[3, 7]])))
        gradient = tape.gradient(total, layer.table.value)
        assert isinstance(gradient, tf.IndexedSlices)
        np.testing.assert_array_equal(gradient.indices, [3, 7])


def test_position_embedding_adds_a_vector_a_position() -> None:
    layer = PositionEmbedding()
    output = layer(np.zeros((2, 4, 3), "float32"))
    np.testing.assert_array_equal(output, np.stack([layer.positions.numpy()] * 2))


def test_class_token_comes_first() -> None:
    layer = ClassToken()
    sequence = np.ones((2, 3, 4), "float32")
    layer.build(sequence.shape)
    layer.token.assign(np.full((1, 1, 4), 7.0))
    output = np.asarray(layer(sequence))
    np.testing.assert_array_equal(output[:, 0], np.full((2, 4), 7.0))
    np.testing.assert_array_equal(output[:, 1:], sequence)


def test_padded_shortcut_takes_every_second_pixel_and_pads_channels() -> None:
    pixels = np.arange(2 * 5 * 4 * 3, dtype="float32").reshape(2, 5, 4, 3)
    output = np.asarray(PaddedShortcut(filters=5, stride=2)(pixels))
    assert output.shape == (2, 3, 2, 5)
    np.testing.assert_array_equal(output[..., :3], pixels[:, ::2, ::2])
    np.testing.assert_array_equal(output[..., 3:], 0)
