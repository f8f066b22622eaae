"""Horovod's example for ImageNet and ResNet-50, changed as in docs/from_horovod.md: 16-bit
gradients, several batches for each update, a learning rate that is warmed up and lowered in steps,
weight decay, and a training that continues from its newest backup. ``--train-dir`` and
``--val-dir`` name folders with a folder of images for each class; without them, the images are
random.
"""

import argparse

import ooodist

ooodist.init()

import keras
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--train-dir", help="default: random images")
parser.add_argument("--val-dir", help="default: no validation")
parser.add_argument("--model", default="ResNet50", help="or VGG16: of keras.applications")
parser.add_argument("--image-size", type=int, default=224, help="pixels")
parser.add_argument("--batch-size", type=int, default=32, help="per worker")
parser.add_argument("--batches-per-allreduce", type=int, default=1)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--warmup-epochs", type=int, default=5)
parser.add_argument("--base-lr", type=float, default=0.0125, help="of one worker")
parser.add_argument("--random-images", type=int, default=64, help="without --train-dir")
arguments = parser.parse_args()


def images(folder, shuffle):
    """This worker's batches of the images in a folder."""
    dataset = keras.utils.image_dataset_from_directory(
        folder,
        batch_size=None,
        image_size=(arguments.image_size, arguments.image_size),
        shuffle=shuffle,
        seed=1,  # all workers must read in the same order, to take different parts
    )
    part = dataset.shard(ooodist.size(), ooodist.rank()).batch(arguments.batch_size)
    return part.map(lambda x, y: (keras.applications.resnet50.preprocess_input(x), y))


if arguments.train_dir:
    training = {"x": images(arguments.train_dir, shuffle=True)}
else:
    random = np.random.default_rng(1)
    shape = (arguments.random_images, arguments.image_size, arguments.image_size, 3)
    training = {  # arrays, which fit shares out
        "x": random.normal(size=shape).astype("float32"),
        "y": random.integers(0, 1000, arguments.random_images),
        "batch_size": arguments.batch_size,
    }
if arguments.val_dir:
    training["validation_data"] = images(arguments.val_dir, shuffle=False)

full = arguments.base_lr * ooodist.size() * arguments.batches_per_allreduce


def rate(epoch, current):
    """The learning rate of an epoch: warmed up, then divided by 10 after epochs 30, 60 and 80."""
    if epoch < arguments.warmup_epochs:
        return full * (epoch + 1) / arguments.warmup_epochs
    return full * 10.0 ** -sum(epoch >= boundary for boundary in (30, 60, 80))


keras.utils.set_random_seed(1)
shape = (arguments.image_size, arguments.image_size, 3)
model = getattr(keras.applications, arguments.model)(weights=None, input_shape=shape)
model.compile(
    keras.optimizers.SGD(full, momentum=0.9, weight_decay=5e-5),
    "sparse_categorical_crossentropy",
    metrics=["accuracy", "sparse_top_k_categorical_accuracy"],
)
model = ooodist.distribute(
    model,
    wire="float16" if arguments.fp16_allreduce else "float32",
    accumulate=arguments.batches_per_allreduce,
)
model.fit(
    **training,
    epochs=arguments.epochs,
    callbacks=[
        keras.callbacks.LearningRateScheduler(rate),
        keras.callbacks.BackupAndRestore("imagenet-backup"),  # continues from it
        keras.callbacks.TensorBoard("imagenet-logs"),
    ],
    verbose=2 if ooodist.rank() == 0 else 0,
)
