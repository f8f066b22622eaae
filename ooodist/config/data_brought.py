"""The settings of data that users bring: npz, images, tfrecord, tfds, function.

A ``validation_fraction`` of ``None`` means 0.2, unless a separate validation set is named
(``validation``, ``validation_path``); 0 means no validation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from ooodist.config.data_checks import (
    Channels,
    Classes,
    Seed,
    Task,
    check_one_validation,
    check_task,
)
from ooodist.config.data_layers import DataLayers
from ooodist.errors import UserError
from ooodist.util.yaml_dataclass import Checked, Count, Fraction, Range

DEFAULT_VALIDATION_FRACTION = 0.2
Dtype = Literal["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


@dataclass(frozen=True)
class NpzConfig(DataLayers):
    """Arrays from a NumPy .npz file, samples along the first axis.

    x of dtype uint8 becomes float32 divided by 255 unless ``scale`` is given; other integers
    become int32, other floats float32.
    """

    name: ClassVar[str] = "npz"
    path: str
    x: str = "x"  # the arrays' names in the file
    y: str = "y"
    validation: str | None = None  # another .npz file with the same names
    validation_fraction: Fraction | None = None
    split_seed: Seed = 0
    task: Task | None = None  # None: found from the dtypes and shapes
    num_classes: Classes | None = None  # None: the largest label + 1
    scale: float | None = None  # x is made float32 and multiplied by this

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_validation(self.validation_fraction, "validation", self.validation)
        check_task(self.task, self.num_classes)


@dataclass(frozen=True)
class ImagesConfig(DataLayers):
    """Image files (png, jpeg, bmp, gif) in one folder per class, scaled to [0, 1].

    Images are resized to a square without keeping their proportions. Classes are the sorted
    names of the folders.
    """

    name: ClassVar[str] = "images"
    path: str
    image_size: Count = 224  # pixels
    channels: Channels = 3  # or 1: gray
    validation_path: str | None = None
    validation_fraction: Fraction | None = None
    split_seed: Seed = 0
    check_files: Annotated[int, Range(0)] = 20_000  # of the files, which are opened at the start

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_validation(self.validation_fraction, "validation_path", self.validation_path)


@dataclass(frozen=True)
class FeatureConfig(Checked):
    """One feature of a TFRecord's ``tf.train.Example``.

    ``encoding``: ``none`` (a list of ``float32`` or ``int64`` numbers), ``raw`` (the bytes of an
    array of ``dtype``), ``png`` or ``jpeg`` (resized to ``shape`` = [height, width, channels]).
    """

    keys_at: ClassVar[str] = "data.features"

    use: Literal["x", "y"]
    shape: tuple[Count, ...] = ()
    dtype: Dtype = "float32"
    encoding: Literal["none", "raw", "png", "jpeg"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding == "none" and self.dtype not in ("float32", "int64"):
            raise UserError(
                f"data.features.dtype is {self.dtype}; without an encoding it must be one of "
                "float32, int64"
            )
        if self.encoding in ("png", "jpeg") and self.shape[2:] not in ((1,), (3,)):
            raise UserError(
                f"data.features.shape is {list(self.shape)}: an image's shape is "
                "[height, width, channels] with 1 or 3 channels"
            )


@dataclass(frozen=True)
class TFRecordConfig(DataLayers):
    """TFRecord files of ``tf.train.Example``; several x features become a dictionary.

    uint8 and images become float32 in [0, 1], other integers int32, other floats float32. Each
    worker reads only some of the files; if there are fewer than workers, several read the same.
    """

    name: ClassVar[str] = "tfrecord"
    pattern: str  # a shell pattern of file names: /data/train-*.tfrecord
    features: dict[str, FeatureConfig]
    validation_pattern: str | None = None
    compression: Literal["none", "gzip"] = "none"
    task: Task | None = None
    num_classes: Classes | None = None  # required for classification and language
    shuffle_buffer: Count = 10_000  # samples; the files' order is shuffled too

    def __post_init__(self) -> None:
        super().__post_init__()
        uses = [feature.use for feature in self.features.values()]
        if uses.count("x") < 1 or uses.count("y") != 1:
            raise UserError(
                f"data.features {sorted(self.features)} has {uses.count('x')} features with "
                f"use: x and {uses.count('y')} with use: y; needed are one or more x and one y"
            )
        check_task(self.task, self.num_classes)


@dataclass(frozen=True)
class TFDSConfig(DataLayers):
    """A TensorFlow Datasets name (needs the package tensorflow-datasets).

    x and y are the data set's supervised pair, or the features named here. Dtypes are those of npz.
    """

    name: ClassVar[str] = "tfds"
    dataset: str  # "mnist", "my_dataset:1.0.0"
    split: str = "train"  # also "train[:80%]"
    validation_split: str | None = None
    data_dir: str | None = None  # None: where TensorFlow Datasets keeps its data
    download: bool = True  # download and prepare what data_dir does not have
    x: str | None = None
    y: str | None = None
    image_size: Count | None = None  # images are resized to this square; None: left as they are
    task: Task | None = None
    num_classes: Classes | None = None  # None: as the data set says
    scale: float | None = None
    shuffle_buffer: Count = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.x is None) != (self.y is None):
            raise UserError(f"data.x is {self.x} and data.y is {self.y}: give both or neither")
        check_task(self.task, self.num_classes)


@dataclass(frozen=True)
class FunctionConfig(DataLayers):
    """A user's function that returns a ``tf.data.Dataset`` or ``keras.utils.PyDataset``, or a pair
    of them (training, validation).

    Of pairs (x, y) with known shapes, unbatched; a PyDataset has batches, all but the last of one
    size. They must yield the same elements in the same order every time on every worker: ooodist
    shuffles and shards. One for training may be endless, as a stream (``repeat()``): the job then
    needs ``steps_per_epoch``, and ``num_classes`` if it has classes, and reads all that was used
    before it resumes.
    """

    name: ClassVar[str] = "function"
    function: str  # "package.module:function"
    arguments: dict[str, Any] = field(default_factory=dict)
    task: Task | None = None
    num_classes: Classes | None = None  # None: found by reading all training labels once
    shuffle_buffer: Count = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        module, colon, function = self.function.partition(":")
        if not (module and colon and function):
            raise UserError(
                f"data.function is {self.function!r}: it must be package.module:function"
            )
        check_task(self.task, self.num_classes)
