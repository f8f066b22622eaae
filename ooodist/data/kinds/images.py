"""Image files in one folder per class."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ooodist.config.data import DEFAULT_VALIDATION_FRACTION, ImagesConfig
from ooodist.data.kinds.image_files import check_images, class_folders, find_images
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.data.split import split_indices
from ooodist.errors import UserError


def source(config: ImagesConfig) -> IndexedSource:
    """Makes a source of files that are decoded when their turn comes, several at a time."""
    classes = class_folders(config.path)
    if len(classes) < 2:
        raise UserError(f"{config.path} has one class folder, {classes[0]}: needed are two or more")
    files, labels = find_images(config.path, classes)
    num_files = len(files)
    train, validation = np.arange(num_files), None
    if config.validation_path is not None:
        unknown = set(class_folders(config.validation_path)) - set(classes)
        if unknown:
            raise UserError(
                f"{config.validation_path} has class folders that {config.path} does not have: "
                f"{', '.join(sorted(unknown))}"
            )
        present = [name for name in classes if name in class_folders(config.validation_path)]
        more_files, more_labels = find_images(config.validation_path, present)
        files += more_files
        labels += [classes.index(present[label]) for label in more_labels]
        validation = np.arange(num_files, len(files))
    elif config.validation_fraction != 0:
        fraction = config.validation_fraction or DEFAULT_VALIDATION_FRACTION
        train, validation = split_indices(num_files, fraction, config.split_seed, np.array(labels))
    check_images(files, config.check_files)
    paths, targets = tf.constant(files), tf.constant(labels, tf.int32)

    def read(index: tf.Tensor) -> Pair:
        content = tf.io.read_file(tf.gather(paths, index))
        size = (config.image_size, config.image_size)
        return decode_image(content, size, config.channels), tf.gather(targets, index)

    size = f"{config.image_size}x{config.image_size}x{config.channels}"
    meaning = Meaning(
        kind=config.name,
        description=f"{config.path}, images of {size}, {len(classes)} classes",
        task="classification",
        num_classes=len(classes),
    )
    return IndexedSource(meaning, train, validation, read, one_by_one=True)


def decode_image(content: tf.Tensor, size: tuple[int, int], channels: int) -> tf.Tensor:
    """Decodes a png, jpeg, bmp or gif file to float32 (height, width, channels) in [0, 1].

    An animation gives its first picture.
    """
    # Every format can be decoded to 3 channels, but gif not to 1.
    pixels = tf.io.decode_image(content, channels=3, expand_animations=False)
    pixels.set_shape((None, None, 3))
    pixels = tf.image.resize(pixels, size, "bilinear", antialias=True) / 255.0
    return tf.image.rgb_to_grayscale(pixels) if channels == 1 else pixels
