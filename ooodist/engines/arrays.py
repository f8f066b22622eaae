"""Blocking exchanges of NumPy arrays, and agreement between ranks, built on sums over all ranks.

Gathered and broadcast data travels as a sum of integers in which, at each place, all ranks but one
have zero. So the bits of that rank arrive unchanged, whatever they mean, on any engine. Sums and
means are the engine's own, and the same to the last bit on every rank.
"""

import itertools
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from ooodist.errors import SharedError, UserError, brief
from ooodist.util.digest import digest

Operation = Literal["sum", "mean", "max", "min"]
TEXT_BYTES = 1000  # how much of a rank's error the others see
# Of a message: each that has arrived is progress. (Many versions of MPI allow up to 2 GB.)
MOST_BYTES = 1 << 24


class ArrayExchange(ABC):
    """Collective operations on arrays outside of the traced step.

    All ranks make the same calls in the same order, and return from each together. Not to be
    called while a launch with exchanges is running. Operations that gather are meant for small
    arrays: each rank receives the arrays of all.

    Attributes:
        rank, size: number of this process, from 0 to size - 1, and number of processes.
        timeout: for how many seconds ranks wait in a method that others have not called.
    """

    rank: int = 0
    size: int = 1
    timeout: float = 600.0

    @abstractmethod
    def _sum_array(self, array: np.ndarray) -> np.ndarray:
        """Sums a 1-D array of int32, int64 or float64, of one length on all ranks, over the ranks.

        Every rank gets the same bits.
        """

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Stacks the arrays of all ranks, which have one shape and dtype: (size, ...), by rank."""
        own = _as_bytes(array)
        num_words = -(-own.size // 4)
        words = np.zeros((self.size, num_words), np.int32)
        words[self.rank].view(np.uint8)[: own.size] = own
        summed = self._sum_array(words.reshape(-1)).reshape(self.size, num_words)
        content = summed.view(np.uint8)[:, : own.size].copy()
        return content.reshape(-1).view(array.dtype).reshape((self.size, *array.shape))

    def all_reduce(self, array: np.ndarray, operation: Operation) -> np.ndarray:
        """Combines the arrays of all ranks, element by element; the same bits on every rank.

        The dtype stays, except that the mean of integers is float64. Integers are exact; floats
        are summed in float64, in an order that the engine chooses. A sum or mean needs the memory
        of one more array, of int64 or float64; a maximum or minimum gathers.
        """
        if operation in ("max", "min"):
            stacked = self.gather(array)
            return np.asarray(stacked.max(axis=0) if operation == "max" else stacked.min(axis=0))
        is_integer = array.dtype.kind in "iu"
        wide = np.int64 if is_integer else np.float64
        total = self._sum_array(array.astype(wide).reshape(-1)).reshape(array.shape)
        if operation == "sum":
            return np.asarray(total.astype(array.dtype))
        return np.asarray(total / self.size, np.float64 if is_integer else array.dtype)

    def broadcast(self, arrays: list[np.ndarray], root: int = 0) -> list[np.ndarray]:
        """The arrays of rank ``root`` on every rank.

        Raises:
            RuntimeError: number, shapes or dtypes of the arrays differ between ranks.
        """
        kinds = str([(array.shape, str(array.dtype)) for array in arrays])
        if different := self.ranks_that_differ(kinds.encode()):
            raise RuntimeError(
                f"broadcast: the arrays of ranks {different} have other shapes or dtypes than "
                f"those of rank 0; here (rank {self.rank}) they are {kinds}"
            )
        num_bytes = sum(array.nbytes for array in arrays)
        words = np.zeros(-(-num_bytes // 4), np.int32)
        if self.rank == root and arrays:
            content = np.concatenate([_as_bytes(array) for array in arrays])
            words.view(np.uint8)[:num_bytes] = content
        content = self._sum_array(words).view(np.uint8)
        result, start = [], 0
        for array in arrays:
            part = content[start : start + array.nbytes].copy()
            result.append(part.view(array.dtype).reshape(array.shape))
            start += array.nbytes
        return result

    def broadcast_text(self, text: str, root: int = 0) -> str:
        """The text of rank ``root`` on every rank; the others' texts are ignored."""
        content = np.frombuffer(text.encode(), np.uint8)
        length = int(self.broadcast([np.array([content.size], np.int64)], root)[0][0])
        if self.rank != root:
            content = np.zeros(length, np.uint8)
        return self.broadcast([content], root)[0].tobytes().decode()

    def gather_text(self, text: str) -> list[str]:
        """The texts of all ranks, by rank."""
        content = np.frombuffer(text.encode(), np.uint8)
        sizes = self.gather(np.array([content.size], np.int64))[:, 0]
        own = np.zeros(int(sizes.max()), np.uint8)
        own[: content.size] = content
        return [
            row[:size].tobytes().decode() for row, size in zip(self.gather(own), sizes, strict=True)
        ]

    def barrier(self) -> None:
        """Waits until all ranks have called it."""
        self.gather(np.zeros(1, np.int32))

    def agree(self, error: str | None) -> None:
        """Makes all ranks fail if one has failed; called after each part of set-up that can fail.

        Args:
            error: what went wrong on this rank; None if nothing did.

        Raises:
            SharedError: on all ranks, if something went wrong on some; it has the texts of those.
        """
        own = np.zeros(1 + TEXT_BYTES, np.uint8)  # whether it failed, then the text
        if error is not None:
            text = error.encode()
            if len(text) > TEXT_BYTES:
                text = text[: TEXT_BYTES - 4] + b" ..."
            own[0] = 1
            own[1 : 1 + len(text)] = np.frombuffer(text, np.uint8)
        failed: dict[str, list[int]] = {}
        for rank, row in enumerate(self.gather(own)):
            if row[0]:
                text = row[1:].tobytes().rstrip(b"\0").decode(errors="replace")
                failed.setdefault(text, []).append(rank)
        if list(failed.values()) == [list(range(self.size))]:
            raise SharedError(error)  # every rank has the same error
        if failed:
            parts = [f"rank {', '.join(map(str, at))}: {text}" for text, at in failed.items()]
            raise SharedError("; ".join(parts))

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raises SharedError on all ranks if the block fails on any of them."""
        error = None
        try:
            yield
        except UserError as caught:
            error = str(caught)
        except Exception as caught:
            traceback.print_exc()
            error = f"{brief(caught)}; its traceback stands above"
        self.agree(error)

    def check_equal(self, what: str, value: str | bytes) -> None:
        """Checks that all ranks have the same ``value``.

        Args:
            what: what the message calls the value, such as "the configuration".

        Raises:
            SharedError: on all ranks, if the values differ.
        """
        data = value.encode() if isinstance(value, str) else value
        if different := self.ranks_that_differ(data):
            raise SharedError(
                f"{what} differs between ranks: ranks {different} (of {self.size}) do not have "
                "what rank 0 has; start all ranks with the same program, files and arguments"
            )

    def check_each(self, what: str, values: Sequence[str], names: Sequence[str]) -> None:
        """Checks that all ranks have the same values, in the same order.

        Args:
            what: what the message calls each value, such as "variable".
            values: one line each.
            names: for each value, what this rank calls it; ranks may call it differently.

        Raises:
            SharedError: on all ranks, if values differ; it names the first that does, on rank 0 and
                on the first rank that has another.
        """
        different = self.ranks_that_differ("\n".join(values).encode())
        if not different:
            return
        ranks = (0, different[0])
        shown = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
        lines = [text.splitlines() for text in self.gather_text("\n".join(values))]
        lines_shown = [text.splitlines() for text in self.gather_text("\n".join(shown))]
        pairs = itertools.zip_longest(*(lines[rank] for rank in ranks))
        at = next(number for number, (one, other) in enumerate(pairs) if one != other)
        found = [[*lines_shown[rank], *["missing"] * (at + 1)][at] for rank in ranks]
        raise SharedError(
            f"the model differs between ranks: its {what} number {at + 1} is {found[0]} on rank 0, "
            f"but {found[1]} on rank {different[0]}; ranks {different} (of {self.size}) do not "
            "have what rank 0 has: build the same model on all ranks"
        )

    def ranks_that_differ(self, value: bytes) -> list[int]:
        """The ranks whose value differs from rank 0's; the same list on all ranks."""
        digests = self.gather(np.frombuffer(digest(value), np.uint8))
        return [rank for rank in range(self.size) if (digests[rank] != digests[0]).any()]


def messages_of(array: np.ndarray) -> list[np.ndarray]:
    """The memory of a contiguous array as messages of bytes; none if it is empty."""
    content = array.reshape(-1).view(np.uint8)
    return [content[at : at + MOST_BYTES] for at in range(0, content.size, MOST_BYTES)]


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
