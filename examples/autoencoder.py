"""A variational autoencoder with a ``train_step`` of its own, which stays as it is: ooodist
averages the gradients of any tape that a ``train_step`` uses.
"""

import ooodist

ooodist.init()

import keras
import tensorflow as tf

from ooodist.data.kinds import digits


class Autoencoder(keras.Model):
    """Encodes digits as eight numbers with a normal distribution, and decodes them."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(16)]
        )
        self.decoder = keras.Sequential(
            [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(64)]
        )
        self.noise = keras.random.SeedGenerator(1)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        mean, log_variance = keras.ops.split(self.encoder(x), 2, axis=-1)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.noise)
        return self.decoder(mean + keras.ops.exp(log_variance / 2) * noise), mean, log_variance

    def train_step(self, x):
        with tf.GradientTape() as tape:
            decoded, mean, log_variance = self(x, training=True)
            error = tf.reduce_mean(tf.reduce_sum((decoded - x) ** 2, axis=-1))
            divergence = 1 + log_variance - mean**2 - tf.exp(log_variance)
            loss = error - tf.reduce_mean(tf.reduce_sum(divergence, axis=-1)) / 2
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


x, _ = digits.load()
x = x.reshape(-1, 64).astype("float32") / 16
model = Autoencoder()
model.compile("adam")
model = ooodist.distribute(model)
model.fit(x, batch_size=32, epochs=3, verbose=2 if ooodist.rank() == 0 else 0)
