"""The default sizes are those of the papers."""

import keras
import numpy as np
import pytest

from ooodist.compat.keras_deferred import made_without_values
from ooodist.models import MODELS, ModelConfig, build

from .samples import Description, images, tokens

IMAGENET = images(224, num_classes=1000)


def _built(config: ModelConfig, data: Description) -> keras.Model:
    """Without values, which take seconds and gigabytes to draw."""
    return made_without_values(lambda: build(config, data))


def _count(config: ModelConfig, data: Description) -> int:
    return _built(config, data).count_params()


def _count_trainable(config: ModelConfig, data: Description) -> int:
    """Without the moving averages of batch normalization."""
    return sum(int(np.prod(v.shape)) for v in _built(config, data).trainable_variables)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet50", 25_636_712),
        ("resnet101", 44_707_176),
        ("resnet152", 60_419_944),
        ("vgg16", 138_357_544),
        ("densenet121", 8_062_504),
        ("mobilenet_v2", 3_538_984),
        ("mobilenet_v3_large", 5_507_432),
    ],
)
def test_applications(name: str, count: int) -> None:
    assert _count(MODELS[name].config(), IMAGENET) == count


@pytest.mark.parametrize(
    ("name", "data", "layers", "count"),
    [
        ("vit_b16", IMAGENET, 12, 86_567_656),
        # 109,514,298 in the published masked-language model, less its 2 x 768 segment vectors.
        ("bert_12", tokens(512, num_classes=30_522), 12, 109_512_762),
        # 335,174,458 there, less 2 x 1024.
        ("bert_24", tokens(512, num_classes=30_522), 24, 335_172_410),
        ("gpt", tokens(1024, num_classes=50_257), 12, 124_439_808),
        # "350M" in the paper; 24 x (12 x 1024^2 + 13 x 1024) in blocks, (50,257 + 2048) x 1024 in
        # embeddings, 2 x 1024 in the last normalization.
        ("gpt3_medium", tokens(2048, num_classes=50_257), 24, 355_871_744),
    ],
)
def test_transformers(name: str, data: Description, layers: int, count: int) -> None:
    """All blocks are alike, so one and two of them tell the size of all (in little memory)."""
    config = MODELS[name].config
    assert config().layers == layers
    one, two = (_count(config(layers=layers), data) for layers in (1, 2))
    assert one + (layers - 1) * (two - one) == count


@pytest.mark.parametrize(
    ("depth", "count"), [(121, 8_062_504), (169, 14_307_880), (201, 20_242_984)]
)
def test_densenets(depth: int, count: int) -> None:
    """As keras.applications', which have this growth rate alone."""
    assert _count(MODELS["densenet"].config(depth=depth, growth_rate=32), IMAGENET) == count


@pytest.mark.parametrize(("blocks", "count"), [(3, 269_722), (9, 853_018)])
def test_small_resnets(blocks: int, count: int) -> None:
    """0.27M and 0.85M in table 6 of the paper: ResNet-20 and ResNet-56 for CIFAR-10."""
    config = MODELS["resnet20"].config(blocks_per_stage=blocks)
    assert _count_trainable(config, images(32, num_classes=10)) == count


@pytest.mark.parametrize(("name", "count"), [("resnet18", 11_689_512), ("resnet34", 21_797_672)])
def test_resnets_of_basic_blocks(name: str, count: int) -> None:
    """As torchvision's, which follow table 1 of the paper."""
    assert _count_trainable(MODELS[name].config(), IMAGENET) == count
