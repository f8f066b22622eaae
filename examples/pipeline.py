"""A model whose layers are divided among the ranks: mpirun -np 2 python examples/pipeline.py"""

import ooodist

ooodist.init("mpi")

import keras

from ooodist.data.kinds import digits


def build() -> keras.Model:
    """Returns the compiled model; no rank ever has the whole of it."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,))])
    for _ in range(4):
        model.add(keras.layers.Dense(256, activation="relu"))
    model.add(keras.layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


x, y = digits.load()  # your own data here
x = x.reshape(-1, 64).astype("float32") / 16

model = ooodist.pipelined(build, pipeline=ooodist.size(), microbatches=4, schedule="zb_h1")
model.fit(x, y, batch_size=32, epochs=1, validation_split=0.1, verbose=2)
with ooodist.whole(model):  # in this block all ranks have the whole model
    if ooodist.rank() == 0:
        model.save("pipeline.keras")
