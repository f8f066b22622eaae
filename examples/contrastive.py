"""A contrastive loss whose negatives are the samples of all workers: each worker encodes two noisy
views of its own digits and gathers the second views of all. Gradients flow back through the gather,
so the training is that of one process with the whole batch.
"""

import ooodist

ooodist.init()

import keras
import numpy as np
import tensorflow as tf

from ooodist.data.kinds import digits


class Contrastive(keras.Model):
    """Brings two views of a sample together, and views of different samples apart."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(16)]
        )

    def call(self, views):
        return keras.ops.normalize(self.encoder(views))

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        one, other = y_pred[:, 0], y_pred[:, 1]
        scores = 10 * tf.matmul(one, ooodist.allgather(other), transpose_b=True)
        first = ooodist.rank() * tf.shape(one)[0]  # of this worker's samples among all
        labels = first + tf.range(tf.shape(one)[0])
        losses = keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
        return tf.reduce_mean(losses)


x, y = digits.load()
x = x[:1792].reshape(-1, 1, 64).astype("float32") / 16  # whole batches
random = np.random.default_rng(1)
views = x + random.normal(0, 0.3, (len(x), 2, 64)).astype("float32")

model = Contrastive()
model.compile("adam")
model = ooodist.distribute(model)
model.fit(views, views, batch_size=64, epochs=3, verbose=2 if ooodist.rank() == 0 else 0)
