"""Ops that carry no control edge when an order is imposed.

They cost little beside a matrix product, and TensorFlow's graph optimizer (Grappler's arithmetic
stage) rewrites them together with their neighbors: sums of products, chains of element-wise ops.
With an edge on one of them it would rewrite them differently and change the last bit, as happened
to a batch-norm gradient. An op type that is not here counts as heavy and carries edges, which is
always correct and at worst costs that last bit.
"""

LIGHT_OPS = frozenset(
    """
    Abs Add AddN AddV2 BroadcastGradientArgs BroadcastTo Cast Ceil ClipByValue Concat ConcatV2
    Const Cos Div DivNoNan Elu EluGrad Equal Erf Erfc Exp ExpandDims Expm1 Fill Floor FloorDiv
    FloorMod Greater GreaterEqual Identity IdentityN InvGrad InvertPermutation IsFinite IsInf
    IsNan L2Loss LeakyRelu LeakyReluGrad Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mul MulNoNan Neg NotEqual OnesLike Pack Pad PadV2 Pow Range Rank RealDiv
    Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Reshape ReverseV2 Round Rsqrt RsqrtGrad
    Select SelectV2 Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Sin Size Slice Softplus
    SoftplusGrad Softsign SoftsignGrad Split SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze
    StopGradient StridedSlice StridedSliceGrad Sub Tanh TanhGrad Tile Transpose Unpack Xdivy
    Xlog1py Xlogy ZerosLike
    """.split()  # noqa: SIM905
)
