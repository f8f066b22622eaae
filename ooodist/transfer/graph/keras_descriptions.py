"""Describes layers of KerasHub and of Keras, by the path of their class.

So KerasHub need not be installed. Its blocks are taken apart: they are made of these layers and of
Keras's. Rotary embeddings give each place in a head a frequency of its own, so heads that have them
keep their width (``_``).
"""

from __future__ import annotations

from keras import layers

from ooodist.transfer.graph.description import LayerDescription

_LAYER_SCALE = LayerDescription({"lambda1": "x"}, output="x", scaling=("lambda1",))
_RMS_NORM = LayerDescription({"scale": "x"}, output="x", averaged=("x",), kind="RMSNormalization")
_RMS_NORM_OF_ONE_PLUS = LayerDescription(
    {"scale": "1 + x"}, output="x", averaged=("x",), kind="RMSNormalization"
)
_LLAMA_ATTENTION = LayerDescription(
    {
        "_query_dense.kernel": "sum(x) kv* _",
        "_key_dense.kernel": "sum(x) kv _",
        "_value_dense.kernel": "sum(x) kv value",
        "_output_dense.kernel": "sum(kv*) sum(value) out",
    },
    output="out",
    scaling=("_output_dense.kernel",),
    kind="LlamaAttention",
)

_GROUPED_QUERY_ATTENTION = LayerDescription(
    {
        "_query_dense.kernel": "sum(x) kv* dot(key)",
        "_query_dense.bias": "kv* dot(key)",
        "_key_dense.kernel": "sum(y) kv key",
        "_key_dense.bias": "kv key",
        "_value_dense.kernel": "sum(y) kv value",
        "_value_dense.bias": "kv value",
        "_gate_dense.kernel": "sum(x) kv* value",
        "_gate_dense.bias": "kv* value",
        "_output_dense.kernel": "sum(kv*) sum(value) out",
        "_output_dense.bias": "out",
    },
    output="out",
    inputs={"query": "x", "value": "y", "key": "y"},
    scaling=("_output_dense.kernel", "_output_dense.bias"),
)

DESCRIPTIONS = {
    "keras.src.layers.attention.grouped_query_attention.GroupedQueryAttention": (
        _GROUPED_QUERY_ATTENTION
    )
} | {
    f"keras_hub.src.{path}": description
    for path, description in {
        "layers.modeling.position_embedding.PositionEmbedding": LayerDescription(
            {"position_embeddings": "rows(places) out"},
            output="out",
            scaling=("position_embeddings",),
            kind="Positions",
        ),
        "layers.modeling.cached_multi_head_attention.CachedMultiHeadAttention": LayerDescription(
            like=layers.MultiHeadAttention
        ),
        "models.gemma.gemma_attention.CachedGemmaAttention": LayerDescription(
            {
                "query_dense.kernel": "kv* sum(x) _",
                "key_dense.kernel": "kv sum(x) _",
                "value_dense.kernel": "kv sum(x) value",
                "output_dense.kernel": "sum(kv*) sum(value) out",
            },
            output="out",
            scaling=("output_dense.kernel",),
        ),
        "models.llama.llama_attention.LlamaAttention": _LLAMA_ATTENTION,
        "models.mistral.mistral_attention.CachedMistralAttention": _LLAMA_ATTENTION,
        "models.gemma.rms_normalization.RMSNormalization": _RMS_NORM_OF_ONE_PLUS,
        "models.gemma3.gemma3_layers.RMSNormalization": _RMS_NORM_OF_ONE_PLUS,
        "models.gpt_oss.gpt_oss_layer_norm.GptOssLayerNormalization": _RMS_NORM,
        "models.llama.llama_layernorm.LlamaLayerNorm": _RMS_NORM,
        "models.mistral.mistral_layer_norm.MistralLayerNormalization": _RMS_NORM,
        "models.mixtral.mixtral_layer_norm.MixtralLayerNormalization": _RMS_NORM,
        "models.phi3.phi3_layernorm.Phi3LayerNorm": _RMS_NORM,
        "models.qwen.qwen_layernorm.QwenLayerNorm": _RMS_NORM,
        "models.qwen_moe.qwen_moe_layernorm.QwenMoeLayerNorm": _RMS_NORM,
        "models.vit.vit_layers.ViTPatchingAndEmbedding": LayerDescription(
            {
                "class_token": "_ _ out",
                "patch_embedding.kernel": "_ _ sum(x) out",
                "patch_embedding.bias": "out",
                "position_embedding.embeddings": "rows(places) out",
            },
            output="out",
            scaling=(
                "class_token",
                "patch_embedding.kernel",
                "patch_embedding.bias",
                "position_embedding.embeddings",
            ),
        ),
        "models.dinov2.dinov2_layers.DINOV2LayerScale": _LAYER_SCALE,
        "models.dinov3.dinov3_layers.DINOV3LayerScale": _LAYER_SCALE,
    }.items()
}
"""The description of each class."""
