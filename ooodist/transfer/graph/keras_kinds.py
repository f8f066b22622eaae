"""Classifies Keras layers for the graph: their kinds, and how their kernels slide."""

from __future__ import annotations

from typing import Any

from keras import layers

from ooodist.transfer.graph.keras_builder import Value

ACROSS_UNITS = ("softmax", "log_softmax", "sparsemax", "sparse_softmax", "glu")
ELEMENTWISE = frozenset(
    (
        *("Relu", "Relu6", "Sigmoid", "Tanh", "Silu", "Gelu", "Softplus", "Softsign", "Elu"),
        *("Selu", "Celu", "LeakyRelu", "HardSigmoid", "HardSilu", "HardTanh", "LogSigmoid"),
        *("Mish", "Squareplus", "Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt", "Square"),
        *("Negative", "Absolute", "Abs", "Sign", "Sin", "Cos", "Clip", "Cast", "Erf"),
        "Reciprocal",
    )
)
"""Functions of keras.ops that treat each number alike, by the names of their classes."""
NOISE = (
    layers.Dropout,
    layers.SpatialDropout1D,
    layers.SpatialDropout2D,
    layers.SpatialDropout3D,
    layers.AlphaDropout,
    layers.GaussianDropout,
    layers.GaussianNoise,
    layers.ActivityRegularization,
    layers.Identity,
    layers.Masking,
)
RECURRENT = (layers.LSTM, layers.GRU, layers.SimpleRNN)
# Older versions of Keras do not have it.
REVERSIBLE = tuple(
    getattr(layers, name) for name in ("ReversibleEmbedding",) if hasattr(layers, name)
)


def function_name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__).lower()


def kind_of(layer: Any) -> str:
    """An operator's kind: the same for layers and functions that compute the same."""
    if isinstance(layer, layers.Activation):
        return function_name(layer.activation)
    name = type(layer).__name__
    if isinstance(layer, layers.ReLU):
        limit = layer.max_value
        slope = layer.negative_slope
        return f"relu{'' if limit is None else f'{limit:g}'}{f':{slope:g}' if slope else ''}"
    if name in ELEMENTWISE:
        return name.lower()
    # A model's stages begin where strides reduce the pixels: only such layers fit each other.
    strides = getattr(layer, "strides", (1,))
    return name if set(strides) == {1} else f"{name}/{'x'.join(map(str, strides))}"


def sliding(layer: Any, value: Value) -> dict[str, Any]:
    """How a kernel moves over pixels; see transform.py."""
    pixels = [-1 if size is None else size for size in value.shape[1:-1]]
    return {
        "strides": list(layer.strides),
        "dilation": list(layer.dilation_rate),
        "padding": layer.padding,
        "pixels": pixels,
    }


def is_channels_last(layer: Any) -> bool:
    return getattr(layer, "data_format", "channels_last") != "channels_first"


def changes_nothing(layer: Any) -> bool:
    """Whether a layer is the identity at inference."""
    if isinstance(layer, NOISE):
        return True
    return isinstance(layer, layers.Activation) and function_name(layer.activation) == "linear"
