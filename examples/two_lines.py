"""A Keras program with the two lines of ooodist: handwritten digits on any number of workers."""

import ooodist

ooodist.init()  # 1. before anything else

import keras

from ooodist.data.kinds import digits

x, y = digits.load()  # your own data here
x = x[..., None].astype("float32") / 16

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model = ooodist.distribute(model, order="planned")  # 2.

model.fit(x, y, batch_size=32, epochs=3, validation_split=0.1, verbose=2)
if ooodist.rank() == 0:
    model.save("model.keras")
