"""A wider model goes on from the trained one of two_lines.py, once that is in a zoo:

python examples/two_lines.py
python -m ooodist.zoo add model.keras --zoo zoo --task classification --accuracy 0.98
python examples/warm_start.py
"""

import ooodist

ooodist.init()

import keras

from ooodist.data.kinds import digits

x, y = digits.load()  # your own data here
x = x[..., None].astype("float32") / 16

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(24, 3, activation="relu"),
        keras.layers.Conv2D(48, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
ooodist.warm_start(model, "zoo", task="classification", batches=[(x[:64], y[:64])])
model = ooodist.distribute(model)
model.fit(x, y, batch_size=32, epochs=1, validation_split=0.1, verbose=2)
