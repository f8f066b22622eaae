"""Cuts a pipeline stage into three functions: F (forward), I (= dX) and W (= dW).

The stage is traced once, forward and backward, and each op is assigned to one of the three by
which results need it; no layer is recognized by name or type::

    inputs ----------> [ F ] ----------> outputs
                         | saved
    input       <------ [ I ] <--------- output gradients
    gradients            | saved
                       [ W ] ----------> added to the accumulators

    I = the ops downstream of the output gradients that an input gradient needs
    W = the other ops downstream of the output gradients that a weight's gradient needs

W may run at any time after I. What I and W need from F is saved, except what depends only on
constants and weights (shapes, casts of a weight), which is recomputed. Weights must not change
between F and W of a micro-batch. A max-pooling is recomputed too, where its gradient is computed:
oneDNN computes that gradient thirty times as fast next to the pooling itself, which leaves it the
positions of the maxima, as from the pooling's result. State that F itself changes (moving
averages, random states) is saved and not read again, so dropout has the same mask in F, I and W.

A stage whose input gradients nobody wants, such as the first of a model, has an empty I, and all
of its backward pass is in W. There each dW waits for the dX before it, and the next dX for that
dW: left alone, TensorFlow runs ahead with dX whenever a thread happens to be free, and keeps in
memory what dW has yet to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from ooodist.errors import UserError
from ooodist.graph import ops as graphs
from ooodist.graph.accumulation import accumulate
from ooodist.graph.buffers import buffer_of
from ooodist.graph.order import baseline_order, impose_order
from ooodist.graph.subgraphs import Part, Subgraphs
from ooodist.graph.units import Gradient, find_backward_units

Stage = Callable[..., Sequence[tf.Tensor]]
READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
PY_FUNCTION = "EagerPyFunc"
POOLING_GRADIENTS = ("MaxPoolGrad", "MaxPool3DGrad")  # inputs: (input, pooled result, gradient)


class Saved(NamedTuple):
    """The tensors that F saves for I (``for_input``) and for W (``for_weights``)."""

    for_input: list[tf.Tensor]
    for_weights: list[tf.Tensor]


@dataclass(frozen=True)
class CutStage:
    """A pipeline stage as three functions, with the memory that each needs.

    Attributes:
        forward: (inputs) -> (outputs, Saved).
        input_gradient: (output gradients, ``Saved.for_input``) -> (input gradients, tensors for W);
            takes one gradient for each floating-point output and returns one for each input, None
            where there is none.
        weight_gradient: (``Saved.for_weights``, the tensors that I made for W) -> nothing; adds the
            gradients to the accumulators.
        weight_gradient_parts: the same in parts, one for each bucket, to be called in this order:
            (what ``weight_gradient`` takes, each tensor an argument, or what the last part
            returned) -> what the next part takes, and no more; empty if there are no buckets.
        input_bytes: bytes that a micro-batch keeps from F to I, and no longer.
        weight_bytes: bytes that it keeps from F to W.
        gradient_bytes: bytes that it keeps from I to W.
        output_bytes: bytes of F's outputs that are not among the saved tensors.
        workspace_bytes: the most bytes that F, I or W needs in addition while it runs, including
            inputs that are not kept.
    """

    forward: Callable[[Sequence[tf.Tensor]], tuple[list[tf.Tensor], Saved]]
    input_gradient: Callable[
        [Sequence[tf.Tensor], Sequence[tf.Tensor]], tuple[list[tf.Tensor | None], list[tf.Tensor]]
    ]
    weight_gradient: Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], None]
    weight_gradient_parts: tuple[Callable[..., list[tf.Tensor]], ...]
    input_bytes: int
    weight_bytes: int
    gradient_bytes: int
    output_bytes: int
    workspace_bytes: int


def cut_stage(
    stage: Stage,
    inputs: Sequence[tf.TensorSpec],
    variables: Sequence[tf.Variable],
    accumulators: Sequence[tf.Variable],
    *,
    input_gradients: bool = True,
    recompute: bool = False,
    buckets: Sequence[Sequence[int]] = (),
) -> CutStage:
    """Cuts a stage into F, I and W.

    Args:
        stage: maps input tensors to output tensors.
        inputs: shapes and dtypes of the inputs of a micro-batch.
        variables: the variables that are trained.
        accumulators: one for each of ``variables``, of its shape and dtype; W adds the gradients
            to them.
        input_gradients: whether anybody wants them; without them and variables nothing is saved.
        recompute: save only the inputs, and run F again in I (activation checkpointing); W may
            still run later.
        buckets: W is also made in parts, one for each of these groups of indices of ``variables``,
            which together are all. What several parts need is computed by the first of them, and
            passed on. Where W has all of the backward pass, that is little if the last layers come
            first.

    Raises:
        UserError: a ``tf.py_function`` has a gradient, which TensorFlow computes from the latest
            call alone, while several micro-batches are under way.
    """
    traced = _Traced(stage, inputs, variables, input_gradients=input_gradients)
    return _Cutting(traced, accumulators, recompute=recompute).cut(buckets)


class _Traced:
    """The traced graph of a stage, forward and backward; it is never run."""

    def __init__(
        self,
        stage: Stage,
        inputs: Sequence[tf.TensorSpec],
        variables: Sequence[tf.Variable],
        *,
        input_gradients: bool,
    ) -> None:
        self.gradients: list[Gradient] = []
        self.seeds: list[tf.Tensor] = []

        def whole(*tensors: tf.Tensor) -> list[tf.Tensor]:
            # Through an identity, so that an input that is also an output has an op of its own.
            self.inputs = [tf.identity(tensor) for tensor in tensors]
            is_watched = [t.dtype.is_floating and input_gradients for t in self.inputs]
            watched = [t for t, yes in zip(self.inputs, is_watched, strict=True) if yes]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*watched, *variables])
                self.outputs = [tf.identity(output) for output in stage(*self.inputs)]
                targets = [output for output in self.outputs if output.dtype.is_floating]
            self.seeds = [tf.identity(tf.ones_like(output)) for output in targets]
            found = tape.gradient(targets, [*watched, *variables], output_gradients=self.seeds)
            by_input = iter(found[: len(watched)])
            self.input_gradients: list[tf.Tensor | None] = [
                next(by_input) if yes else None for yes in is_watched
            ]
            self.gradients = found[len(watched) :]
            if all(gradient is None for gradient in self.input_gradients):
                names = [str(number) for number in range(len(self.gradients))]
                units = find_backward_units(self.seeds, self.gradients, names)
                impose_order(units, baseline_order(units))
            return self.outputs

        self.graph = tf.function(whole, autograph=False).get_concrete_function(*inputs).graph


class _Cutting:
    """Assigns each op of a traced stage to F, I or W, and decides what is saved."""

    def __init__(
        self, traced: _Traced, accumulators: Sequence[tf.Variable], *, recompute: bool
    ) -> None:
        self._traced, self._accumulators = traced, accumulators
        self._recompute = recompute
        self._subgraphs = Subgraphs(traced.graph)
        self._ops = self._subgraphs.ops
        seeds = {seed.op for seed in traced.seeds}  # fed to I and W, and part of neither
        self._backward = self._downstream(seeds)
        parts = self._backward - seeds
        if found := next((op for op in self._ops if op in parts and op.type == PY_FUNCTION), None):
            raise UserError(
                f"{found.name} is the gradient of a tf.py_function, which TensorFlow can compute "
                "of the latest call alone, and a pipeline has several micro-batches under way; "
                "compute it with TensorFlow's or Keras's operations, or, if no gradient is "
                "needed, with tf.numpy_function"
            )
        self._fetched_of_i = [g for g in traced.input_gradients if g is not None]
        self._fetched_of_w = [t for g in traced.gradients for t in _tensors_of(g)]
        self._i_ops = set(graphs.ancestors(t.op for t in self._fetched_of_i)) & parts
        self._w_ops = set(graphs.ancestors(t.op for t in self._fetched_of_w)) & parts - self._i_ops
        self._varying = self._find_varying()

    def cut(self, buckets: Sequence[Sequence[int]]) -> CutStage:
        traced = self._traced
        gradients = self._fetched_of_i
        of_i = self._boundary(self._i_ops, gradients)
        of_w = self._boundary(self._w_ops, self._fetched_of_w)
        if self._recompute:
            # I recomputes whatever of F it or W needs, from F's inputs and saved state.
            again = [t for t in (*of_i, *of_w) if t.op not in self._backward]
            for_input = self._sources(again)
            for_weights: list[tf.Tensor] = []
            from_i = of_w
        else:
            for_input = [t for t in of_i if t.op not in self._backward]
            for_weights = [t for t in of_w if t.op not in self._backward]
            from_i = [t for t in of_w if t.op in self._backward]
        effects = [
            op for op in self._ops if op not in self._backward and graphs.has_side_effects(op)
        ]
        of_forward = Part(traced.inputs, [*traced.outputs, *for_input, *for_weights], effects)
        of_input = Part([*traced.seeds, *for_input], [*gradients, *from_i])
        of_weights = Part([*for_weights, *from_i], self._fetched_of_w)
        forward, input_gradient = map(self._subgraphs.function, (of_forward, of_input))
        everything = range(len(traced.gradients))
        weight_gradient = self._subgraphs.function(of_weights, then=self._accumulating(everything))
        num_outputs, num_saved = len(traced.outputs), len(for_input)

        def run_forward(inputs: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Saved]:
            results = forward(*inputs)
            saved = results[num_outputs:]
            return results[:num_outputs], Saved(saved[:num_saved], saved[num_saved:])

        def run_input_gradient(
            output_gradients: Sequence[tf.Tensor], saved: Sequence[tf.Tensor]
        ) -> tuple[list[tf.Tensor | None], list[tf.Tensor]]:
            results = input_gradient(*output_gradients, *saved)
            found = iter(results[: len(gradients)])
            by_input = [None if g is None else next(found) for g in traced.input_gradients]
            return by_input, results[len(gradients) :]

        def run_weight_gradient(saved: Sequence[tf.Tensor], made: Sequence[tf.Tensor]) -> None:
            weight_gradient(*saved, *made)

        longer = {t.name for t in for_weights}
        saved_of_forward, saved_of_input = [*for_input, *for_weights], from_i
        return CutStage(
            run_forward,
            run_input_gradient,
            run_weight_gradient,
            self._parts(of_weights.feeds, buckets),
            input_bytes=_num_bytes(t for t in for_input if t.name not in longer),
            weight_bytes=_num_bytes(for_weights),
            gradient_bytes=_num_bytes(from_i),
            output_bytes=_bytes_besides(saved_of_forward, traced.outputs),
            workspace_bytes=max(
                self._subgraphs.workspace_bytes(of_forward, of_forward.fetches)
                + _bytes_besides(saved_of_forward, traced.inputs),
                self._subgraphs.workspace_bytes(of_input, of_input.fetches)
                + _bytes_besides(saved_of_input, traced.seeds),
                # Each large gradient is accumulated before the next one is computed.
                self._subgraphs.workspace_bytes(of_weights, ()),
            ),
        )

    def _parts(
        self, feeds: Sequence[tf.Tensor], buckets: Sequence[Sequence[int]]
    ) -> tuple[Callable[..., list[tf.Tensor]], ...]:
        """W in parts; see :class:`CutStage`."""
        fetched = [
            [t for number in bucket for t in _tensors_of(self._traced.gradients[number])]
            for bucket in buckets
        ]
        left = set(self._w_ops)
        functions: list[Callable[..., list[tf.Tensor]]] = []
        for place, (bucket, own) in enumerate(zip(buckets, fetched, strict=True)):
            ops = set(graphs.ancestors(tensor.op for tensor in own)) & left
            # A dX that waits for a dW stays behind it: TensorFlow merges a dW that nothing waits
            # for with the bias's gradient, which it then adds up in another order. (Not all such
            # merging is kept: the sum of a bias's gradient may differ in its last bit.)
            then = [op for op in left - ops if not ops.isdisjoint(op.control_inputs)]
            left -= set(graphs.ancestors([*ops, *then]))
            passed_on = self._boundary(left, [t for later in fetched[place + 1 :] for t in later])
            part = Part(feeds, [*own, *passed_on], then)
            functions.append(self._subgraphs.function(part, then=self._accumulating(bucket)))
            feeds = passed_on
        return tuple(functions)

    def _downstream(self, begin: Iterable[tf.Operation]) -> set[tf.Operation]:
        """These ops and all that depend on them."""
        found = set(begin)
        for op in self._ops:
            if any(producer in found for producer in graphs.producers(op)):
                found.add(op)
        return found

    def _find_varying(self) -> set[tf.Operation]:
        """The forward ops whose results differ between micro-batches."""
        forward = [op for op in self._ops if op not in self._backward]
        changed = {op.inputs[0].name for op in forward if graphs.has_side_effects(op) and op.inputs}
        inputs = {tensor.op for tensor in self._traced.inputs}
        varying: set[tf.Operation] = set()
        for op in forward:
            reads_changed = op.type in READS and op.inputs[0].name in changed
            begins = op in inputs or reads_changed or graphs.has_side_effects(op)
            if begins or any(tensor.op in varying for tensor in op.inputs):
                varying.add(op)
        return varying

    def _boundary(self, part: set[tf.Operation], fetched: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What a part reads from others: varying tensors, and other backward tensors."""
        again = {op.inputs[1].op for op in part if op.type in POOLING_GRADIENTS}

        def is_elsewhere(op: tf.Operation) -> bool:
            if op in self._backward:
                return op not in part
            return op in self._varying and op not in again

        return _first_before(fetched, is_elsewhere)

    def _sources(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that must be saved to recompute these forward tensors."""
        inputs = {tensor.op for tensor in self._traced.inputs}

        def cannot_run_again(op: tf.Operation) -> bool:
            again = not graphs.has_side_effects(op) and op.type not in READS
            return op in self._varying and (op in inputs or not again)

        return _first_before(tensors, cannot_run_again)

    def _accumulating(
        self, numbers: Sequence[int]
    ) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
        """A function that adds its first arguments, the flat gradients of the variables
        with these numbers, to their accumulators, and returns the others."""

        gradients = [self._traced.gradients[number] for number in numbers]
        accumulators = [self._accumulators[number] for number in numbers]

        def add(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            left = iter(tensors)
            accumulate([_remade(gradient, left) for gradient in gradients], accumulators)
            return list(left)

        return add


def _first_before(
    tensors: Sequence[tf.Tensor], stops: Callable[[tf.Operation], bool]
) -> list[tf.Tensor]:
    """Walks up from these tensors; returns those whose op satisfies ``stops``, sorted by name."""
    found: dict[str, tf.Tensor] = {}
    entered: set[tf.Operation] = set()
    left = list(tensors)
    while left:
        tensor = left.pop()
        if stops(tensor.op):
            found[tensor.name] = tensor
        elif tensor.op not in entered:
            entered.add(tensor.op)
            left.extend(tensor.op.inputs)
    return sorted(found.values(), key=lambda tensor: tensor.name)


def _tensors_of(gradient: Gradient) -> list[tf.Tensor]:
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [] if gradient is None else [gradient]


def _remade(gradient: Gradient, tensors: Iterator[tf.Tensor]) -> Gradient:
    """The gradient made of the next of these tensors, as :func:`_tensors_of` lists them."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(next(tensors), next(tensors))
    return None if gradient is None else next(tensors)


def _bytes_besides(saved: Iterable[tf.Tensor], tensors: Iterable[tf.Tensor]) -> int:
    """The bytes of the tensors that share no memory with the saved ones."""
    buffers = {buffer_of(tensor) for tensor in saved}
    return _num_bytes(tensor for tensor in tensors if buffer_of(tensor) not in buffers)


def _num_bytes(tensors: Iterable[tf.Tensor]) -> int:
    return sum(graphs.num_bytes(tensor) for tensor in tensors)
