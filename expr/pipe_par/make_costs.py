"""Writes the cost files of this folder: the encoder layers of a BERT on V100-like GPUs.

From formulas, for a micro-batch of 2 sentences of 128 words in mixed precision; h is the hidden
size, s the words of a sentence, b the sentences, a the heads:

* Arithmetic of a layer's forward pass: 24 b s h^2 + 4 b s^2 h (Narayanan et al., "Efficient
  Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC'21, appendix). I and W
  take as much each: two products for each of the forward pass.
* Activations: s b h (34 + 5 a s / h) bytes a layer (Korthikanti et al., "Reducing Activation
  Recomputation in Large Transformer Models", MLSys'23, section 4.1). Of these, W needs the inputs
  of the four products with weights: 2 s b h each for the projections to queries, keys and values
  (one input), for that of the heads' output and for the first of the MLP, 8 s b h for its second.
  I makes the gradients of these products' outputs: 6, 2, 8 and 2 s b h.
* Weights: 12 h^2 + 13 h a layer (the same paper), with 18 bytes each: 2 for what is computed
  with, 4 for the gradient's sum, 12 for Adam's (Rajbhandari et al., "ZeRO", SC'20, section 3.1).
  Replicas of a pipeline exchange the sums.
* From layer to layer, and back: 2 b s h bytes.
* A device's rate: what a V100 was published to reach with this model, see RATE.

Embeddings and the head are left out (with 20 masked words a sentence they take 0.4 times as
long as one layer), and so is the update: all layers are alike, and F = I = W.

The files named halves divide each layer into its attention and its MLP, with 2 b s h bytes from
one to the other as well. Activations include those of each half's layer norm, 2 s b h::

                 F, without scores   activations      for W    from I to W   weights
    attention    8 b s h^2           13 + 5 a s / h   2 + 2    6 + 2         4 h^2 + 6 h
    MLP          16 b s h^2          21               2 + 8    8 + 2         8 h^2 + 7 h
                                     |------------ s b h each ----------|

    python expr/pipe_par/make_costs.py
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import yaml

from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts, merged
from ooodist.util import strict_yaml, yaml_dataclass

COSTS = Path(__file__).parent / "costs"
HIDDEN, HEADS, WORDS, SENTENCES = 1024, 16, 128, 2
LAYERS = {"bert_24": 24, "bert_48": 48}
IN_HALVES = {"bert_12": 12, "bert_24": 24, "bert_36": 36, "bert_48": 48}
STATE_BYTES, SUM_BYTES = 14, 4  # of each weight
MEMORY = 32 * 10**9  # bytes of a V100 32GB

SENTENCES_PER_SECOND = 168.63  # BERT-large with its head on one V100, batch 64, of 128 words
SOURCE = (
    "https://github.com/NVIDIA/DeepLearningExamples/blob/master/TensorFlow/LanguageModeling/BERT/"
    "README.md (DGX-1 32GB, 1 GPU, sequence length 128, mixed precision)"
)
MASKED, VOCABULARY = 20, 30522  # words of a sentence that are predicted, and the head's outputs

# A neighbor on a DGX-1 has up to two of a V100's six links, of 25 GB/s each way
# (https://www.nvidia.com/en-us/data-center/v100/: 300 GB/s in all); 10 us are assumed.
# Ethernet as in expr/planning_at_scale.
LINKS = {
    "nvlink": Link(latency=10e-6, seconds_per_byte=1 / 50e9),
    "10gbe": Link(latency=30e-6, seconds_per_byte=8 / 10e9),
}


def layer_flops(sentences: float) -> float:
    """Of the forward pass of an encoder layer."""
    return 24 * sentences * WORDS * HIDDEN**2 + 4 * sentences * WORDS**2 * HIDDEN


def head_flops(sentences: float) -> float:
    """Of the forward pass of the head, for the masked words: a dense layer and all words."""
    return 2 * sentences * MASKED * HIDDEN * (HIDDEN + VOCABULARY)


# Of F, I and W of the whole model at the published speed: FLOP/s.
RATE = 3 * SENTENCES_PER_SECOND * (24 * layer_flops(1) + head_flops(1))


def layer(name: str) -> LayerCost:
    """What one encoder layer costs for a micro-batch."""
    attention, mlp = halves(name)
    (both,) = merged([attention, mlp], [range(2)])
    seconds = float(f"{layer_flops(SENTENCES) / RATE:.4g}")
    return replace(
        both, name=name, forward=seconds, input_gradient=seconds, weight_gradient=seconds
    )


def halves(name: str) -> tuple[LayerCost, LayerCost]:
    """What the attention and the MLP of an encoder layer cost for a micro-batch."""
    unit = SENTENCES * WORDS * HIDDEN
    scores = 5 * HEADS * WORDS * WORDS * SENTENCES
    mlp_flops = 16 * SENTENCES * WORDS * HIDDEN**2
    attention = _part(
        f"{name}_attention",
        flops=layer_flops(SENTENCES) - mlp_flops,
        activations=unit * (11 + 2) + scores,
        for_weights=unit * (2 + 2),
        gradients=unit * (6 + 2),
        weights=4 * HIDDEN**2 + 6 * HIDDEN,
    )
    mlp = _part(
        f"{name}_mlp",
        flops=mlp_flops,
        activations=unit * (19 + 2),
        for_weights=unit * (2 + 8),
        gradients=unit * (8 + 2),
        weights=8 * HIDDEN**2 + 7 * HIDDEN,
    )
    return attention, mlp


def _part(
    name: str, *, flops: float, activations: int, for_weights: int, gradients: int, weights: int
) -> LayerCost:
    seconds = float(f"{flops / RATE:.4g}")
    return LayerCost(
        name=name,
        forward=seconds,
        input_gradient=seconds,
        weight_gradient=seconds,
        base_bytes=(STATE_BYTES + SUM_BYTES) * weights,
        state_bytes=STATE_BYTES * weights,
        input_bytes=activations - for_weights,
        weight_bytes=for_weights,
        gradient_bytes=gradients,
        sent_bytes=2 * SENTENCES * WORDS * HIDDEN,
        exchanged_bytes=SUM_BYTES * weights,
    )


def model_costs(layers: int, link: Link, *, in_halves: bool = False) -> ModelCosts:
    """Of so many encoder layers."""
    names = [f"layer_{number}" for number in range(1, layers + 1)]
    parts = [halves(name) if in_halves else (layer(name),) for name in names]
    return ModelCosts(tuple(itertools.chain.from_iterable(parts)), link, MEMORY)


def as_yaml(costs: ModelCosts, comment: str) -> str:
    """Compact YAML, a layer a line."""
    plain = yaml_dataclass.plain(costs)
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"memory_limit: {plain['memory_limit']}", f"link: {_flow(plain['link'])}", "layers:"]
    lines += [f"- {_flow(item)}" for item in plain["layers"]]
    return "\n".join(lines) + "\n"


def _flow(item: dict[str, float | str]) -> str:
    given = {key: value for key, value in item.items() if value != 0}
    return yaml.safe_dump(given, default_flow_style=True, sort_keys=False, width=10_000).strip()


def _write(file: str, costs: ModelCosts, model: str, links: str) -> None:
    comment = (
        f"{model}, hidden {HIDDEN}; a micro-batch of {SENTENCES} sentences of {WORDS} words, mixed "
        f"precision.\nMade by make_costs.py: {RATE / 1e12:.1f} TFLOP/s, which gives the "
        f"{SENTENCES_PER_SECOND:g} sentences/s of\n{SOURCE}.\n"
        f"Links as {links}; without embeddings, head and update."
    )
    text = as_yaml(costs, comment)
    read = yaml_dataclass.read(ModelCosts, strict_yaml.parse(text, file))
    assert read == costs, file
    (COSTS / f"{file}.yaml").write_text(text, encoding="utf-8")
    seconds = sum(each.forward for each in costs.layers)
    sent = costs.layers[0].sent_bytes
    print(
        f"{file}.yaml: {model}, F = I = W = {seconds * 1e3:.3f} ms in all, "
        f"{sent >> 10} KiB take {costs.link.seconds(sent) * 1e3:.3f} ms"
    )


def main() -> None:
    for model, layers in LAYERS.items():
        for name, link in LINKS.items():
            costs = model_costs(layers, link)
            _write(f"{model}_{name}", costs, f"{model}: {layers} encoder layers", name)
    for model, layers in IN_HALVES.items():
        costs = model_costs(layers, LINKS["nvlink"], in_halves=True)
        _write(f"{model}_halves", costs, f"{model}: {layers} encoder layers in halves", "nvlink")


if __name__ == "__main__":
    main()
