"""A Keras script as people have one, and the lines with which it trains on all workers.

python launch/local.py -np 2 --engine collective -- python expr/at_home/script.py ORDER
"""

from __future__ import annotations

import logging
import sys

import keras

import ooodist
from ooodist.data.kinds.digits import load

if __name__ == "__main__":
    logging.basicConfig(format="ooodist: %(message)s")
    logging.getLogger("ooodist").setLevel(logging.INFO)
    ooodist.init()
    pixels, digits = load()
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *(layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(6)),
            layers.Flatten(),
            *(layers.Dense(256, activation="relu") for _ in range(3)),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    ooodist.distribute(model, order=sys.argv[1])
    model.fit(pixels[..., None] / 16.0, digits, batch_size=32, epochs=20, verbose=2)
