"""The settings of the kinds of data that need no user files: digits, text, synthetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ooodist.config.data_checks import Channels, Classes, DataSettings, Seed
from ooodist.config.data_layers import READ_AUGMENT_OF_DIGITS, DataLayers, Layers
from ooodist.errors import UserError
from ooodist.util.yaml_dataclass import Count, Fraction, Range


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
