"""Selects the samples for validation: a split that is the same on every worker and in every run."""

from __future__ import annotations

import numpy as np


def split_indices(
    num_samples: int, fraction: float, seed: int, labels: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the training and the validation samples, int64, both ascending.

    Validation gets ``round(fraction * num_samples)`` random samples; with ``labels`` (one
    integer per sample) each class contributes its share, to within one sample.
    """
    # RandomState's numbers are frozen forever, default_rng's may change between NumPy
    # versions: a resumed run must not train on former validation samples.
    order = np.random.RandomState(seed).permutation(num_samples)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    num_validation = round(fraction * num_samples)
    # Evenly spaced picks from samples sorted by class take the same share of every class.
    picks = ((np.arange(num_validation) + 0.5) * num_samples / max(num_validation, 1)).astype(int)
    chosen = np.zeros(num_samples, dtype=bool)
    chosen[order[picks]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)
