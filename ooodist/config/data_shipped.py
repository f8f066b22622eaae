"""The settings of the kinds of data that need no user files: digits, text, synthetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ooodist.config.data_checks import check_choice, check_fraction, check_range, check_shape
from ooodist.config.data_layers import READ_AUGMENT_OF_DIGITS, DataLayers, Layers
from ooodist.errors import UserError


@dataclass(frozen=True)
class DigitsConfig(DataLayers):
    """1,797 handwritten digits of 8x8 pixels that come with ooodist, scaled to [0, 1]."""

    name: ClassVar[str] = "digits"
    image_size: int = 8  # pixels; other sizes are resized bilinearly
    channels: int = 1  # 1, or 3 (the gray value three times)
    validation_fraction: float = 0.2
    split_seed: int = 0  # chooses the validation samples, independently of the run's seed
    # True: shifts by up to an eighth of the image.
    augment: bool | Layers = field(default=False, metadata=READ_AUGMENT_OF_DIGITS)

    def __post_init__(self) -> None:
        check_range("image_size", self.image_size, 1)
        check_choice("channels", self.channels, (1, 3))
        check_fraction(self.validation_fraction)
        check_range("split_seed", self.split_seed, 0, 2**32 - 1)


@dataclass(frozen=True)
class TextConfig:
    """Text for a byte-level language model, which predicts byte i + 1 from the bytes up to i."""

    name: ClassVar[str] = "text"
    source: str = "topics"  # the help texts that ship with Python, or the path of a text file
    sequence_length: int = 128  # bytes per sample
    validation_fraction: float = 0.1  # taken from the end of the text

    def __post_init__(self) -> None:
        check_range("sequence_length", self.sequence_length, 1)
        check_fraction(self.validation_fraction)


@dataclass(frozen=True)
class MaskedTextConfig:
    """Pairs of segments of text with masked tokens, for the pre-training of a BERT.

    Each file is a document of a sentence or paragraph a line, or several with empty lines between
    them. Half of the second segments are from another document. 15 % of all tokens are to be
    predicted: eight tenths of them are masked and one tenth replaced, others in each epoch. Needs
    the package tokenizers (``ooodist[text]``).
    """

    name: ClassVar[str] = "masked_text"
    vocabulary: str  # a file of a token per line, as BERT's; learned and written if not there
    path: str = "topics"  # the help texts that ship with Python, a text file, or a folder of *.txt
    length: int = 128  # tokens of a sample, with [CLS] and both [SEP]
    predictions: int | None = None  # tokens to predict in a sample, at most; None: 15 % of length
    vocabulary_size: int = 30_522  # tokens to learn, at most; of a file, all lines count
    lowercase: bool = True
    validation_fraction: float = 0.1  # taken from the end of the text
    seed: int = 0  # draws the pairs

    def __post_init__(self) -> None:
        check_range("length", self.length, 8)
        check_range("predictions", self.predictions, 1, self.length - 3)
        check_range("vocabulary_size", self.vocabulary_size, 100)
        check_fraction(self.validation_fraction)
        check_range("seed", self.seed, 0, 2**32 - 1)


@dataclass(frozen=True)
class SyntheticConfig(DataLayers):
    """Random samples of any shape with targets that can be learned.

    ``num_classes`` makes it classification, ``target_shape`` regression, and neither, with
    ``dtype: int32``, language (the targets are the inputs' next tokens).
    """

    name: ClassVar[str] = "synthetic"
    input_shape: tuple[int, ...]
    num_classes: int | None = None
    target_shape: tuple[int, ...] | None = None
    num_samples: int = 1024  # training and validation together
    dtype: str = "float32"  # or int32: token numbers below `vocabulary`
    vocabulary: int | None = None
    validation_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape("input_shape", self.input_shape)
        check_range("num_classes", self.num_classes, 2)
        check_shape("target_shape", self.target_shape)
        check_range("num_samples", self.num_samples, 1)
        check_choice("dtype", self.dtype, ("float32", "int32"))
        check_range("vocabulary", self.vocabulary, 2)
        check_fraction(self.validation_fraction)
        check_range("seed", self.seed, 0, 2**32 - 1)
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
