"""What the settings of several kinds of data share: types of values, and two checks."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from ooodist.errors import UserError
from ooodist.util.yaml_dataclass import Checked, Range

Task = Literal["classification", "language", "regression"]
Channels = Literal[1, 3]
Classes = Annotated[int, Range(2)]
Seed = Annotated[int, Range(0, 2**32 - 1)]


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
