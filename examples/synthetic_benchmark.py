"""Horovod's synthetic benchmark for Keras, changed as in docs/from_horovod.md: it trains a model
of keras.applications on random images, and prints the images per second of each worker and of all.
"""

import argparse
import time

import ooodist

ooodist.init()

import keras
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="ResNet50", help="a class of keras.applications")
parser.add_argument("--image-size", type=int, default=224, help="pixels")
parser.add_argument("--batch-size", type=int, default=32, help="per worker")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--order", default="inorder", help="inorder, first_k, priority or planned")
parser.add_argument("--num-warmup-batches", type=int, default=10)
parser.add_argument("--num-batches-per-iter", type=int, default=10)
parser.add_argument("--num-iters", type=int, default=10)
arguments = parser.parse_args()


class Speed(keras.callbacks.Callback):
    """Prints images per second of this worker after each epoch, which is an iteration."""

    def __init__(self):
        super().__init__()
        self.speeds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self.start
        self.speeds.append(arguments.batch_size * arguments.num_batches_per_iter / seconds)
        if ooodist.rank() == 0:
            print(f"Iter #{epoch}: {self.speeds[-1]:.1f} img/sec per worker")


shape = (arguments.image_size, arguments.image_size, 3)
model = getattr(keras.applications, arguments.model)(weights=None, input_shape=shape)
model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
model = ooodist.distribute(
    model,
    order=arguments.order,
    wire="float16" if arguments.fp16_allreduce else "float32",
)


def batches(number):
    """The arrays of a number of batches for each worker."""
    samples = number * arguments.batch_size * ooodist.size()
    random = np.random.default_rng(1)
    return random.random((samples, *shape), "float32"), random.integers(0, 1000, samples)


if ooodist.rank() == 0:
    print(f"Model: {arguments.model}, batch size {arguments.batch_size}, {ooodist.size()} workers")
speed = Speed()
options = {"batch_size": arguments.batch_size, "verbose": 0}
model.fit(*batches(arguments.num_warmup_batches), **options)
x, y = batches(arguments.num_batches_per_iter)
model.fit(x, y, epochs=arguments.num_iters, callbacks=[speed], **options)

every = ooodist.allgather_object(float(np.mean(speed.speeds)))
if ooodist.rank() == 0:
    spread = 1.96 * np.std(speed.speeds)
    print(f"Img/sec per worker: {np.mean(every):.1f} +-{spread:.1f}")
    print(f"Total img/sec on {ooodist.size()} workers: {sum(every):.1f}")
