"""A training loop without ``fit``: each worker reads its own part of the digits, a tape averages
the gradients over all workers, and ``ooodist.apply`` updates each weight as soon as its gradient
arrives.
"""

import ooodist

ooodist.init()

import keras
import tensorflow as tf

from ooodist.data.kinds import digits

x, y = digits.load()
dataset = tf.data.Dataset.from_tensor_slices((x.reshape(-1, 64).astype("float32") / 16, y))
dataset = dataset.take(1792).shard(ooodist.size(), ooodist.rank())  # equal parts
dataset = dataset.shuffle(1000).batch(32, drop_remainder=True)

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
)
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ooodist.broadcast([*model.variables, *optimizer.variables])


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = ooodist.DistributedGradientTape(tape, order="first_k", k=1)
    gradients = tape.gradient(loss, model.trainable_variables)
    ooodist.apply(optimizer, gradients, model.trainable_variables)
    return ooodist.allreduce(loss)  # the mean of all workers


for epoch in range(3):
    losses = [float(step(x, y)) for x, y in dataset]
    if ooodist.rank() == 0:
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}")
