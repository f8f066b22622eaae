"""Tasks of KerasHub, tiny, made from their configuration; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

SAMPLES = 32
LENGTH = 8
WORDS = ["the", "quick", "brown", "fox", "bad", "good"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def sentences() -> tuple[list[str], np.ndarray]:
    """Strings, as KerasHub's users give them, and a class of each."""
    draw = np.random.default_rng(5)
    text = [" ".join(draw.choice(WORDS, size=4)) for _ in range(SAMPLES)]
    return text, np.array(["bad" in each for each in text], np.int32)


def bert_of_strings() -> Any:
    """With a preprocessor."""
    from keras_hub import models

    keras.utils.set_random_seed(3)
    tokenizer = models.BertTokenizer(vocabulary=VOCABULARY)
    preprocessor = models.BertTextClassifierPreprocessor(tokenizer, sequence_length=LENGTH)
    size: Any = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = models.BertBackbone(
        vocabulary_size=len(VOCABULARY), max_sequence_length=LENGTH, dropout=0.0, **size
    )
    model = models.BertTextClassifier(backbone, 2, preprocessor=preprocessor, dropout=0.0)
    return _compiled(model)


def tokens() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Numbers of tokens, the next ones, as a preprocessor makes them."""
    numbers = np.random.default_rng(5).integers(1, 16, size=(SAMPLES, LENGTH + 1))
    mask = np.ones((SAMPLES, LENGTH), np.int32)
    return {"token_ids": numbers[:, :-1], "padding_mask": mask}, numbers[:, 1:]


def gpt2() -> Any:
    from keras_hub import models

    keras.utils.set_random_seed(3)
    size: Any = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = models.GPT2Backbone(16, max_sequence_length=LENGTH, dropout=0.0, **size)
    return _compiled(models.GPT2CausalLM(backbone, preprocessor=None))


def gemma_with_lora() -> Any:
    from keras_hub import models

    keras.utils.set_random_seed(3)
    heads: Any = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    backbone = models.GemmaBackbone(
        16, num_layers=1, hidden_dim=8, intermediate_dim=16, **heads, dropout=0.0
    )
    backbone.enable_lora(2)
    return _compiled(models.GemmaCausalLM(backbone, preprocessor=None))


def llama_in_bfloat16() -> Any:
    from keras_hub import models

    keras.utils.set_random_seed(3)
    heads: Any = {"num_query_heads": 2, "num_key_value_heads": 1}
    backbone = models.LlamaBackbone(
        16, num_layers=1, hidden_dim=8, intermediate_dim=16, **heads, dtype="bfloat16"
    )
    return _compiled(models.LlamaCausalLM(backbone, preprocessor=None))


def mixtral() -> Any:
    """Experts add to the loss what depends on the whole micro-batch."""
    from keras_hub import models

    keras.utils.set_random_seed(3)
    size: Any = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_experts": 3}
    heads: Any = {"num_query_heads": 2, "num_key_value_heads": 1}
    return _compiled(
        models.MixtralCausalLM(models.MixtralBackbone(16, **size, **heads), preprocessor=None)
    )


def pairs() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The tokens of an encoder and of a decoder, and the next ones."""
    given, following = tokens()
    sides = ("encoder", "decoder")
    return {f"{side}_{name}": given[name] for side in sides for name in given}, following


def t5() -> Any:
    from keras_hub import models

    keras.utils.set_random_seed(3)
    size: Any = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    return _compiled(
        models.T5Seq2SeqLM(models.T5Backbone(16, **size, dropout=0.0), preprocessor=None)
    )


def images() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(SAMPLES, 8, 8, 3)).astype(np.float32)
    return x, draw.integers(0, 3, size=SAMPLES)


def vit() -> Any:
    from keras_hub import models

    keras.utils.set_random_seed(3)
    size: Any = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    return _compiled(models.ViTImageClassifier(models.ViTBackbone((8, 8, 3), 4, **size), 3))


def assert_alike(found: Any, expected: Any, rtol: float = 1e-4, atol: float = 0.0) -> None:
    """Two histories; ``atol`` is for what is rounded to 16 bits."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


def _compiled(model: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=False)
    return model
