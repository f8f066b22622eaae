"""A recommender whose embedding tables are large and sparsely used: their gradients travel between
the workers as the rows that a batch uses, if that is less than the whole tables. ooodist logs this.
The ratings are made up.
"""

import ooodist

ooodist.init()

import keras
import numpy as np

USERS, ITEMS, WIDTH = 20_000, 5_000, 16

random = np.random.default_rng(1)
users, items = random.integers(0, USERS, 2048), random.integers(0, ITEMS, 2048)
tastes, qualities = random.normal(size=(USERS, 4)), random.normal(size=(ITEMS, 4))
ratings = np.sum(tastes[users] * qualities[items], axis=-1, keepdims=True).astype("float32")

keras.utils.set_random_seed(1)
user, item = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
of_user = keras.layers.Embedding(USERS, WIDTH)(user)
of_item = keras.layers.Embedding(ITEMS, WIDTH)(item)
model = keras.Model([user, item], keras.layers.Dot(1)([of_user, of_item]))
model.compile(keras.optimizers.Adam(0.01), "mse")
model = ooodist.distribute(model)
verbose = 2 if ooodist.rank() == 0 else 0
model.fit([users, items], ratings, batch_size=64, epochs=3, verbose=verbose)
