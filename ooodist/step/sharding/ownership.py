"""Who updates which weight, where an optimizer is sharded: the same division on all ranks."""

from __future__ import annotations

from collections.abc import Iterable


def divided(weights: Iterable[tuple[str, int, tuple[int, ...]]], replicas: int) -> dict[str, int]:
    """Divides weights among replicas: the largest first, to the replica with the fewest bytes.

    Weights are not sliced. A replica with one huge weight keeps all of its state.

    Args:
        weights: the name of each, its bytes, and the positions that have it. All of these keep
            state of a weight that they share, in the same replica.
        replicas: number of pipelines; in data parallelism each worker is one, of one position.

    Returns:
        the replica that updates each weight, by name; the same for any order of the weights.
    """
    load: dict[tuple[int, int], int] = {}  # bytes, by position and replica
    found = {}
    for name, size, positions in sorted(weights, key=lambda weight: (-weight[1], weight[0])):
        # Of several positions, the one with the most decides, then that with the second most, …
        loads = [
            sorted((load.get((position, replica), 0) for position in positions), reverse=True)
            for replica in range(replicas)
        ]
        found[name] = replica = loads.index(min(loads))
        for position in positions:
            load[position, replica] = load.get((position, replica), 0) + size
    return found
