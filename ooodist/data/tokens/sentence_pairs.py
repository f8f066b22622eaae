"""Pairs of segments for BERT's pre-training, cut from documents as the original does.

A segment A begins where the one before ended, and B is what follows A or, in half of all pairs, a
piece of another document; sentences that B took the place of begin the next pair. Pairs fill a
sample, but for a tenth, which are shorter (Devlin et al. 2018, appendix A.2, and
create_pretraining_data.py, which they published)::

    document   | s1 | s2 | s3 | s4 | s5 | s6 | ...
    pair 1     |    A    |    B    |                    B follows A
    pair 2                         | A  |               B is from elsewhere; s6 begins pair 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHORT = 0.1  # of all samples


@dataclass(frozen=True)
class Document:
    """Sentences that follow each other; sentence i is tokens ``ends[i - 1]`` to ``ends[i]``.

    Attributes:
        begin: where the document begins among all tokens.
        ends: where its sentences end among all tokens.
    """

    begin: int
    ends: tuple[int, ...]

    def start_of(self, sentence: int) -> int:
        """Where a sentence begins; of one past the last, where the document ends."""
        return self.ends[sentence - 1] if sentence else self.begin


def sentence_pairs(documents: Sequence[Document], most: int, seed: int) -> np.ndarray:
    """Int64 (pairs, 5): begin and length of A, begin and length of B, whether B is random.

    Args:
        documents: two or more, without empty sentences.
        most: tokens in A and B together, at least 2.
        seed: decides what is drawn.
    """
    chance = np.random.RandomState(seed)  # whose numbers are frozen forever
    pairs = []
    for number, document in enumerate(documents):
        first = 0
        while first < len(document.ends):
            wanted = int(chance.randint(2, most + 1)) if chance.rand() < SHORT else most
            begin = document.start_of(first)
            last = first  # sentences first..last fill the sample
            while last + 1 < len(document.ends) and document.ends[last] - begin < wanted:
                last += 1
            num = last + 1 - first
            in_a = int(chance.randint(1, num)) if num > 1 else 1
            middle = document.start_of(first + in_a)
            is_random = num == 1 or chance.rand() < 0.5
            if is_random:
                other = documents[_another(chance, number, len(documents))]
                b_begin = other.start_of(int(chance.randint(len(other.ends))))
                b_end = min(other.ends[-1], b_begin + max(1, wanted - (middle - begin)))
                first += in_a  # what B took the place of comes again
            else:
                b_begin, b_end = middle, document.ends[last]
                first = last + 1
            a, b = _shortened([begin, middle], [b_begin, b_end], wanted, chance)
            pairs.append((a[0], a[1] - a[0], b[0], b[1] - b[0], int(is_random)))
    return np.array(pairs, np.int64).reshape(-1, 5)


def _another(chance: np.random.RandomState, number: int, count: int) -> int:
    drawn = int(chance.randint(count - 1))
    return drawn + (drawn >= number)


def _shortened(
    a: list[int], b: list[int], most: int, chance: np.random.RandomState
) -> tuple[list[int], list[int]]:
    """Takes tokens off the longer segment, at either end, until both have ``most`` together."""
    while a[1] - a[0] + b[1] - b[0] > most:
        longer = a if a[1] - a[0] > b[1] - b[0] else b
        if chance.rand() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return a, b
