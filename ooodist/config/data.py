"""The settings under ``data:`` in a job file: one dataclass per kind of data.

Nothing here imports TensorFlow or reads a file: the classes only hold the settings and reject
invalid ones with :class:`ooodist.errors.UserError`. ``KINDS`` maps the ``name`` in the job file to
its class.

Digits, text and synthetic data need no user files. For data that users bring (npz, images, tsv,
tfrecord, tfds, function), a ``validation_fraction`` of ``None`` means 0.2, unless a separate
validation set is named (``validation``, ``validation_path``); 0 means no validation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

from ooodist.config.named_arguments import NamedArguments, checked_by, write_all_named
from ooodist.errors import UserError
from ooodist.util.yaml_dataclass import Checked, Count, Fraction, Range

DEFAULT_VALIDATION_FRACTION = 0.2

Task = Literal["classification", "language", "regression"]
Channels = Literal[1, 3]
Classes = Annotated[int, Range(2)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Dtype = Literal["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
Layers = tuple[NamedArguments, ...]


class DataSettings(Checked):
    """The settings of a kind of data."""

    keys_at: ClassVar[str] = "data"


def check_one_validation(fraction: float | None, key: str, value: str | None) -> None:
    """Raises UserError if a fraction is given and a separate validation set, under ``key``, too."""
    if fraction is not None and value is not None:
        raise UserError(
            f"data.validation_fraction is {fraction} and data.{key} is {value}: "
            "give only one of them"
        )


def check_task(task: Task | None, num_classes: int | None) -> None:
    """Raises UserError for classes of a regression."""
    if task == "regression" and num_classes is not None:
        raise UserError(f"data.num_classes is {num_classes}, but regression has no classes")


_read = checked_by("keras_layers.check_layer", is_list=True)


def _read_augment_of_digits(value: Any, path: str) -> Any:
    return value if isinstance(value, bool) else _read(value, path)


def _write(value: bool | Layers) -> Any:
    """What is read as this value."""
    return value if isinstance(value, bool) else write_all_named(value)


READ_AUGMENT_OF_DIGITS = {"reader": _read_augment_of_digits, "writer": _write}


@dataclass(frozen=True, kw_only=True)
class DataLayers(DataSettings):
    """``preprocess``: layers of Keras by name with their arguments, and functions
    ``package.module:function`` of x, through which x goes in training and validation.
    ``augment``: the same behind them, in training only and with random numbers of each sample's
    own, which depend on the job's seed and the sample's place in the training alone."""

    preprocess: Layers = field(default=(), metadata={"reader": _read, "writer": _write})
    augment: Any = field(default=(), metadata={"reader": _read, "writer": _write})


@dataclass(frozen=True)
class DigitsConfig(DataLayers):
    """1,797 handwritten digits of 8x8 pixels that come with ooodist, scaled to [0, 1]."""

    name: ClassVar[str] = "digits"
    image_size: Count = 8  # pixels; other sizes are resized bilinearly
    channels: Channels = 1  # 1, or 3 (the gray value three times)
    validation_fraction: Fraction = 0.2
    split_seed: Seed = 0  # chooses the validation samples, independently of the run's seed
    # True: shifts by up to an eighth of the image.
    augment: bool | Layers = field(default=False, metadata=READ_AUGMENT_OF_DIGITS)


@dataclass(frozen=True)
class TextConfig(DataSettings):
    """Text for a byte-level language model, which predicts byte i + 1 from the bytes up to i."""

    name: ClassVar[str] = "text"
    source: str = "topics"  # the help texts that ship with Python, or the path of a text file
    sequence_length: Count = 128  # bytes per sample
    validation_fraction: Fraction = 0.1  # taken from the end of the text


@dataclass(frozen=True)
class MaskedTextConfig(DataSettings):
    """Pairs of segments of text with masked tokens, for the pre-training of a BERT.

    Each file is a document of a sentence or paragraph a line, or several with empty lines between
    them. Half of the second segments are from another document. 15 % of all tokens are to be
    predicted: eight tenths of them are masked and one tenth replaced, others in each epoch. Needs
    the package tokenizers (``ooodist[text]``).
    """

    name: ClassVar[str] = "masked_text"
    vocabulary: str  # a file of a token per line, as BERT's; learned and written if not there
    path: str = "topics"  # the help texts that ship with Python, a text file, or a folder of *.txt
    length: Annotated[int, Range(8)] = 128  # tokens of a sample, with [CLS] and both [SEP]
    predictions: Count | None = None  # in a sample, at most; None: 15 % of length
    # Tokens to learn, at most; of a file, all lines count.
    vocabulary_size: Annotated[int, Range(100)] = 30_522
    lowercase: bool = True
    validation_fraction: Fraction = 0.1  # taken from the end of the text
    seed: Seed = 0  # draws the pairs

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.length - 3
        if (self.predictions or 0) > most:
            raise UserError(
                f"data.predictions is {self.predictions}; it must be 1 to {most}, as data.length "
                f"is {self.length}"
            )


@dataclass(frozen=True)
class TsvConfig(DataSettings):
    """Texts, or pairs of texts, with a class or a number: a TSV file, as those of GLUE, for a BERT.

    The first line names the columns. Classes are the sorted labels of the training file. The
    longer of two texts is shortened to fit. Needs the package tokenizers (``ooodist[text]``).
    """

    name: ClassVar[str] = "tsv"
    path: str
    texts: tuple[str, ...]  # the columns of one text, or of two
    vocabulary: str  # a file of a token per line, as BERT's; learned and written if not there
    label: str = "label"  # its column
    validation_path: str | None = None
    validation_fraction: Fraction | None = None
    split_seed: Seed = 0
    task: Literal["classification", "regression"] = "classification"
    length: Annotated[int, Range(8)] = 128  # tokens of a sample, with [CLS] and each [SEP]
    vocabulary_size: Annotated[int, Range(100)] = 30_522  # tokens to learn, at most
    lowercase: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_validation(self.validation_fraction, "validation_path", self.validation_path)
        if len(self.texts) not in (1, 2):
            raise UserError(
                f"data.texts is {list(self.texts)}; it must name one or two columns, as "
                "[sentence1, sentence2]"
            )


@dataclass(frozen=True)
class SyntheticConfig(DataLayers):
    """Random samples of any shape with targets that can be learned.

    ``num_classes`` makes it classification, ``target_shape`` regression, and neither, with
    ``dtype: int32``, language (the targets are the inputs' next tokens).
    """

    name: ClassVar[str] = "synthetic"
    input_shape: tuple[Count, ...]
    num_classes: Classes | None = None
    target_shape: tuple[Count, ...] | None = None
    num_samples: Count = 1024  # training and validation together
    dtype: Literal["float32", "int32"] = "float32"  # int32: token numbers below `vocabulary`
    vocabulary: Annotated[int, Range(2)] | None = None
    validation_fraction: Fraction = 0.2
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes is not None and self.target_shape is not None:
            raise UserError("data has both num_classes and target_shape: give only one of them")
        if self.dtype == "int32" and self.vocabulary is None:
            raise UserError("data.dtype is int32: give data.vocabulary, the number of tokens")
        if self.dtype == "float32" and self.vocabulary is not None:
            raise UserError("data.vocabulary is only for data.dtype int32, it is float32")
        if self.num_classes is None and self.target_shape is None:
            if self.dtype == "float32":
                raise UserError("synthetic data needs data.num_classes or data.target_shape")
            if len(self.input_shape) != 1:
                raise UserError(
                    f"data.input_shape is {list(self.input_shape)}: synthetic language samples "
                    "have one length, [sequence_length]; or give num_classes or target_shape"
                )


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


DataConfig = (
    DigitsConfig
    | TextConfig
    | MaskedTextConfig
    | TsvConfig
    | SyntheticConfig
    | NpzConfig
    | ImagesConfig
    | TFRecordConfig
    | TFDSConfig
    | FunctionConfig
)

KINDS: dict[str, type] = {kind.name: kind for kind in get_args(DataConfig)}
