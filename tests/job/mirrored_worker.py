"""A worker of TensorFlow's own MultiWorkerMirroredStrategy that trains a Keras 3 model."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # from TF_CONFIG, as the launcher sets it
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
try:
    model.fit(np.ones((32, 4), np.float32), np.ones((32, 1), np.float32), batch_size=8, verbose=0)
    print("trained", flush=True)
except ValueError as error:
    print("refused:", str(error).replace("\n", " "), flush=True)
