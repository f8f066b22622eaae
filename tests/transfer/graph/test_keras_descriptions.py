"""KerasHub's models twice as wide, and deeper, compute what their parents do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ooodist.transfer import answers
from ooodist.transfer.description_check import check_description
from ooodist.transfer.graph.keras_graph import graph_of
from tests.transfer.models import (
    CLASSES,
    SAME,
    VOCABULARY,
    check_report,
    difference,
    images,
    outputs_of,
    randomize,
    tokens,
    warm,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None,
    reason="keras_hub is not installed: pip install --no-deps keras-hub regex tensorflow-text",
)
LENGTH = 7


def texts() -> dict[str, np.ndarray]:
    """Tokens, of which some are padding."""
    mask = np.ones((3, LENGTH), np.int32)
    mask[1, 4:] = 0
    return {"token_ids": tokens(3, LENGTH).astype(np.int32), "padding_mask": mask}


def gpt2(width: int = 8, heads: int = 2, layers: int = 1) -> Any:
    from keras_hub import models

    backbone = models.GPT2Backbone(
        VOCABULARY, layers, heads, width, 2 * width, max_sequence_length=LENGTH + 1
    )
    return models.GPT2CausalLM(backbone, preprocessor=None)


def gemma(
    width: int = 8, heads: int = 2, groups: int = 1, layers: int = 1, norms: bool = False
) -> Any:
    """``heads`` query heads for each of ``groups`` heads of keys and values."""
    from keras_hub import models

    backbone = models.GemmaBackbone(
        VOCABULARY,
        num_layers=layers,
        num_query_heads=heads * groups,
        num_key_value_heads=groups,
        hidden_dim=width,
        intermediate_dim=4 * width,
        head_dim=4,
        use_post_attention_norm=norms,
        final_logit_soft_cap=30.0,
    )
    return models.GemmaCausalLM(backbone, preprocessor=None)


def llama(width: int = 8, groups: int = 1, layers: int = 1) -> Any:
    """Heads of 4 units, two of queries for each of keys and values."""
    from keras_hub import models

    backbone = models.LlamaBackbone(
        VOCABULARY, layers, 2 * groups, width, 2 * width, num_key_value_heads=groups
    )
    return models.LlamaCausalLM(backbone, preprocessor=None)


def mistral(width: int = 8, groups: int = 1) -> Any:
    from keras_hub import models

    backbone = models.MistralBackbone(
        VOCABULARY, 1, 2 * groups, width, 2 * width, num_key_value_heads=groups
    )
    return models.MistralCausalLM(backbone, preprocessor=None)


def bert(width: int = 8, heads: int = 2) -> Any:
    from keras_hub import models

    backbone = models.BertBackbone(
        VOCABULARY, 1, heads, width, 2 * width, max_sequence_length=LENGTH + 1
    )
    return models.BertTextClassifier(backbone, CLASSES, preprocessor=None)


def vit(width: int = 8, heads: int = 2) -> Any:
    from keras_hub import models

    backbone = models.ViTBackbone((16, 16, 3), 4, 1, heads, width, 2 * width)
    return models.ViTImageClassifier(backbone, CLASSES, preprocessor=None)


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "GPT-2": (gpt2, lambda: gpt2(16, 4)),
    "GPT-2, wider heads": (gpt2, lambda: gpt2(16)),
    "GPT-2, 1.5 times": (gpt2, lambda: gpt2(12)),
    "GPT-2, deeper": (gpt2, lambda: gpt2(16, layers=2)),
    "Gemma": (gemma, lambda: gemma(16, heads=4)),
    "Gemma, more groups": (lambda: gemma(groups=2), lambda: gemma(16, groups=4)),
    "Gemma, more norms": (lambda: gemma(norms=True), lambda: gemma(16, norms=True)),
    "Gemma, 1.5 times": (gemma, lambda: gemma(12, heads=3)),
    "Gemma, deeper": (gemma, lambda: gemma(16, heads=4, layers=2)),
    "Llama": (llama, lambda: llama(16, 2)),
    "Llama, deeper": (llama, lambda: llama(16, 2, layers=2)),
    "Mistral": (mistral, lambda: mistral(16, 2)),
    "BERT": (bert, lambda: bert(16, 4)),
    "ViT": (vit, lambda: vit(16, 4)),
    "ViT, 1.5 times": (vit, lambda: vit(12, 3)),
}
DATA = {
    "BERT": lambda: texts() | {"segment_ids": np.zeros((3, LENGTH), np.int32)},
    "ViT": images,
    "ViT, 1.5 times": images,
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_larger_one_computes_the_same(name: str) -> None:
    small, large = PAIRS[name]
    parent, child = randomize(small()), large()
    known = answers.ask(parent, graph_of(parent))
    made = warm(child, parent)
    check_report(made, child)
    assert made.departures == ()
    assert difference(child, parent, DATA.get(name, texts)()) < SAME
    assert known is not None
    assert answers.difference(child, known) < answers.SAME
    if "deeper" not in name:
        assert made.carried == 1


@pytest.mark.parametrize("build", [gpt2, gemma])
def test_a_backbone_alone_makes_each_of_its_units_again(build: Callable[..., Any]) -> None:
    """That is not the same function, and is not called so."""
    parent, child = randomize(build().backbone), build(16).backbone
    made = warm(child, parent)
    assert made.carried == 1
    assert any("outputs that the parent does not have" in each for each in made.departures)
    (ours,), (theirs,) = outputs_of(child, texts()), outputs_of(parent, texts())
    np.testing.assert_allclose(ours, np.concatenate([theirs, theirs], axis=-1), atol=1e-5)


def test_a_scale_per_unit_is_widened() -> None:
    from keras_hub.src.models.dinov2.dinov2_layers import DINOV2LayerScale

    check_description(lambda units: DINOV2LayerScale(units, init_values=0.1))


def test_weights_that_lora_adds_leave_the_model_as_it_is() -> None:
    """Its attention is then a layer of which nothing is known; the rest is taken over."""
    parent, child = randomize(gpt2()), gpt2()
    for model in (parent, child):
        model.backbone.enable_lora(2)
    randomize(parent)
    made = warm(child, parent)
    assert made.carried == 1
    assert difference(child, parent, texts()) < SAME


def test_another_width_of_rotary_heads_is_not_called_the_same() -> None:
    parent, child = randomize(llama()), llama(16)
    made = warm(child, parent)
    assert any("self_attention/query/kernel does not fit" in each for each in made.departures)
