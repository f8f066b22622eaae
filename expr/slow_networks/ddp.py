"""What PyTorch does on the same network: DistributedDataParallel, with its PowerSGD hook or not.

The model is that of ``expr/data_par/jobs/bert.yaml``. The rows take turns, step by step, as in
run.py. Needs an environment of its own with PyTorch and NumPy, in which ooodist need not be:

    python launch/netlab.py -np 2 --rate 100Mbit -- TORCH/bin/python expr/slow_networks/ddp.py
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 4, 512, 8, 8192, 64, 16
WARM_UP = 6  # DDP makes its buckets anew after the first step, and the hook begins after a few


class Bert(nn.Module):
    """The encoder, whose logits are products with the embeddings of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Makes logits of (batch, length, vocabulary) from tokens of (batch, length)."""
        return self.layers(self.tokens(tokens) + self.positions) @ self.tokens.weight.T


def connect() -> int:
    """Connects the ranks as ooodist's launcher has described them; returns the rank."""
    cluster = json.loads(os.environ["TF_CONFIG"])
    workers, rank = cluster["cluster"]["worker"], cluster["task"]["index"]
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
    host, port = workers[0].rsplit(":", 1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=len(workers)
    )
    return rank


def main() -> None:
    """Measures, and prints the rows on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rank", type=int, default=4, help="of the hook")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = connect()
    torch.manual_seed(rank)
    hooked = DistributedDataParallel(Bert())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=options.rank, start_powerSGD_iter=2
    )
    hooked.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    rows: dict[str, nn.Module] = {
        "DDP": DistributedDataParallel(Bert()),
        f"DDP, PowerSGD {options.rank}": hooked,
        "no network": Bert(),
    }
    optimizers = {
        name: torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
        for name, model in rows.items()
    }
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    loss_of = nn.CrossEntropyLoss()
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for turn in range(-WARM_UP, options.turns):
        for name, model in rows.items():
            if name == "DDP" and turn < -2:  # it takes long, and needs no more
                continue
            dist.barrier()
            began = time.perf_counter()
            optimizers[name].zero_grad()
            loss_of(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizers[name].step()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - began)
    if rank == 0:
        alone = statistics.median(seconds["no network"])
        for name, own in seconds.items():
            median = statistics.median(own)
            print(f"| {name} | {median:.3f} s | {median / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
