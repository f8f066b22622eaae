"""Any data set of TensorFlow Datasets, if that package is installed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from ooodist.config.data import TFDSConfig
from ooodist.data.elements import assert_labels, check_dtype, find_task, to_input, to_target
from ooodist.data.lanes import RecordFile, RecordFiles
from ooodist.data.sources import Meaning, Pair, SequentialSource
from ooodist.errors import UserError

log = logging.getLogger("ooodist")

# tensorflow-datasets 4.9 imports importlib_resources without requiring it.
INSTALL = "pip install tensorflow-datasets importlib_resources"


def source(config: TFDSConfig) -> SequentialSource:
    """Makes a source of the data set's splits; the worker that trains on an image decodes it."""
    tfds = _import()
    builder = _builder(tfds, config)
    names = _names(config, builder)
    num_samples = _count(config, builder, config.split)
    decoding = _decoding(tfds, builder, names)
    decode_features = _decoder(tfds, config, builder.info.features, names)
    elements: tf.data.Dataset | RecordFiles
    decode_stored: Callable[[Any], tuple[tf.Tensor, tf.Tensor]] = decode_features
    if builder.info.file_format == tfds.core.FileFormat.TFRECORD:
        elements = _files(builder, config.split)
        stored = decoding.extract_features(builder.info.features)

        def decode_record(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return decode_features(stored.deserialize_example(record, decoders=decoding.decoders))

        decode_stored = decode_record
    else:  # only the package can read such files
        elements = builder.as_dataset(config.split, shuffle_files=False, decoders=decoding)
    validation = num_validation = None
    if (split := config.validation_split) is not None:
        num_validation = _count(config, builder, split)
        if isinstance(elements, RecordFiles):
            validation = _files(builder, split).in_order()
        else:
            validation = builder.as_dataset(split, shuffle_files=False, decoders=decoding)
    in_order = elements.in_order() if isinstance(elements, RecordFiles) else elements
    x_spec, y_spec = in_order.map(decode_stored).element_spec
    for name, spec in zip(names, (x_spec, y_spec), strict=True):
        if not spec.shape.is_fully_defined():
            raise UserError(
                f"feature {name} of {config.dataset} has shape {spec.shape}: samples need one "
                "known shape; for images set data.image_size"
            )
    task = find_task(config.dataset, config.task, config.num_classes, x_spec, y_spec)
    num_classes = config.num_classes
    if task != "regression" and num_classes is None:
        num_classes = getattr(builder.info.features[names[1]], "num_classes", None)
        if num_classes is None:
            raise UserError(f"data.num_classes is missing: {config.dataset} does not tell it")

    def decode(element: Any) -> Pair:
        x, y = decode_stored(element)
        y = to_target(y, task)
        return x, y if num_classes is None else assert_labels(y, num_classes, config.dataset)

    classes = "" if num_classes is None else f", {num_classes} classes"
    description = f"{builder.info.full_name}, x {list(x_spec.shape)}{classes}"
    return SequentialSource(
        Meaning(config.name, description, task, num_classes),
        elements,
        num_samples,
        validation,
        num_validation,
        config.shuffle_buffer,
        decode,
    )


def _decoder(
    tfds: ModuleType, config: TFDSConfig, features: Any, names: tuple[str, str]
) -> Callable[[dict[str, tf.Tensor]], tuple[tf.Tensor, tf.Tensor]]:
    """Makes a function from the stored features to x for a model, and y as stored."""
    for name in names:
        check_dtype(f"feature {name} of {config.dataset}", features[name].dtype)
    if config.image_size is not None and not _is_image(tfds, features[names[0]]):
        raise UserError(
            f"data.image_size is {config.image_size}, but feature {names[0]} of {config.dataset} "
            "is no image: leave it out"
        )

    def decode(name: str, stored: dict[str, tf.Tensor]) -> tf.Tensor:
        feature, value = features[name], stored[name]
        return feature.decode_example(value) if _is_image(tfds, feature) else value

    def decode_pair(stored: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = (decode(name, stored) for name in names)
        scale = config.scale
        if config.image_size is not None:
            # Resizing makes floats: images of bytes would lose their scaling to [0, 1].
            scale = 1 / 255 if scale is None and x.dtype == tf.uint8 else scale
            x = tf.image.resize(x, [config.image_size] * 2, "bilinear", antialias=True)
        return to_input(x, scale), y

    return decode_pair


def _import() -> ModuleType:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise UserError(
            f"data.name is tfds, which needs the package tensorflow-datasets ({error}): install it "
            f"with {INSTALL}"
        ) from error
    module: ModuleType = tensorflow_datasets
    return module


def _builder(tfds: ModuleType, config: TFDSConfig) -> Any:
    """The data set's builder, once the data is on disk."""
    try:
        builder = tfds.builder(config.dataset, data_dir=config.data_dir)
        if builder.is_prepared():
            return builder
    except (ValueError, AssertionError) as error:  # no such name, no such version
        raise UserError(
            f"data.dataset {config.dataset} is not known to TensorFlow Datasets "
            f"({str(error).splitlines()[0]}): correct the name, or set data.data_dir to where it is"
        ) from error
    if not config.download:
        raise UserError(
            f"data.dataset {config.dataset} is not prepared in {builder.data_dir} and "
            "data.download is false: set data.data_dir, or allow the download"
        )
    with _lock(Path(builder.data_dir).parent / ".ooodist.lock"):
        # Another worker of this machine may have prepared it in the meantime.
        builder = tfds.builder(config.dataset, data_dir=config.data_dir)
        if not builder.is_prepared():
            log.info("preparing %s in %s", builder.info.full_name, builder.data_dir)
            try:
                builder.download_and_prepare()
            except Exception as error:  # whatever its download and its own code raise
                raise UserError(
                    f"data.dataset {config.dataset} cannot be downloaded and prepared "
                    f"({type(error).__name__}: {error}): prepare it once where a network allows "
                    "it and set data.data_dir"
                ) from error
    return builder


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _names(config: TFDSConfig, builder: Any) -> tuple[str, str]:
    features = builder.info.features
    names: Any = builder.info.supervised_keys if config.x is None else (config.x, config.y)
    is_pair = isinstance(names, tuple) and len(names) == 2
    if not is_pair or any(not isinstance(name, str) or name not in features for name in names):
        raise UserError(
            f"data.x and data.y of {config.dataset} are {names}: name two of its features, "
            f"{', '.join(sorted(features))}"
        )
    return names[0], names[1]


def _count(config: TFDSConfig, builder: Any, split: str) -> int:
    try:
        return int(builder.info.splits[split].num_examples)
    except (ValueError, KeyError) as error:
        known = ", ".join(sorted(builder.info.splits))
        raise UserError(
            f"{config.dataset} has no split {split}: it has {known}, also parts such as train[:80%]"
        ) from error


def _is_image(tfds: ModuleType, feature: Any) -> bool:
    return isinstance(feature, tfds.features.Image)


def _decoding(tfds: ModuleType, builder: Any, names: tuple[str, str]) -> Any:
    """The decoding that takes only these features and leaves images encoded."""
    features = builder.info.features
    images = [name for name in names if _is_image(tfds, features[name])]
    return tfds.decode.PartialDecoding(
        set(names), decoders={name: tfds.decode.SkipDecoding() for name in images}
    )


def _files(builder: Any, split: str) -> RecordFiles:
    parts = builder.info.splits[split].file_instructions
    files = (RecordFile(str(part.filename), part.take, part.skip) for part in parts)
    return RecordFiles(tuple(files), compression="")
