"""One of the two processes with which ooodist-engines checks an engine it has installed.

    python -m ooodist.install_engines.check_exchange horovod|byteps|mpi

Every process gives integers, which float32 adds exactly, and compares all of the sum. Ends with
code 0 if it is right. Started by horovodrun, ooodist.launch or mpirun.
"""

import sys
from collections.abc import Callable

import numpy as np

SIZES = (1, 1_000, 3_000_001)  # elements; the last one is more than one chunk of BytePS

Sum = Callable[[np.ndarray, str], np.ndarray]


def horovod() -> tuple[int, int, Sum]:
    """Rank, number of processes and the sum over all of them, by Horovod."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    missing = [name for name in ("mpi", "gloo") if not getattr(hvd, f"{name}_built")()]
    if missing:
        sys.exit(f"Horovod was built without {' and '.join(missing)}")
    # NCCL refuses two processes on one GPU: then they exchange what is in the host's memory.
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[hvd.local_rank()] if len(gpus) > 1 else [], "GPU")
    return (
        hvd.rank(),
        hvd.size(),
        lambda array, name: hvd.allreduce(tf.constant(array), op=hvd.Sum, name=name).numpy(),
    )


def byteps() -> tuple[int, int, Sum]:
    """Rank, number of processes and the sum over all of them, by BytePS."""
    import byteps.tensorflow as bps
    import tensorflow as tf
    from byteps.tensorflow.ops import _push_pull

    bps.init()
    return (
        bps.rank(),
        bps.size(),
        lambda array, name: _push_pull(tf.constant(array), "", name).numpy(),
    )


def mpi() -> tuple[int, int, Sum]:
    """Rank, number of processes and the sum over all of them, by mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def total(array: np.ndarray, name: str) -> np.ndarray:
        result = np.empty_like(array)
        world.Allreduce(array, result)
        return result

    return world.Get_rank(), world.Get_size(), total


def main() -> None:
    """Exchanges arrays of several sizes and checks the sums."""
    engine = {"horovod": horovod, "byteps": byteps, "mpi": mpi}[sys.argv[1]]
    rank, size, total = engine()
    if size != 2:
        sys.exit(f"this is one of {size} processes, not of two")
    for num_elements in SIZES:
        values = np.arange(num_elements, dtype=np.float32) % 1000
        result = total(values + rank, f"check_{num_elements}")
        if not np.array_equal(result, 2 * values + 1):
            sys.exit(f"process {rank}: a sum of {num_elements} elements is wrong")
    print(f"process {rank}: all sums are right", flush=True)


if __name__ == "__main__":
    main()
