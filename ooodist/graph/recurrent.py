"""Moves the weight gradients of LSTM, GRU and SimpleRNN out of their loop over time.

TensorFlow's backward loop computes dX and adds up dW in each iteration, so all of it is dX: there
is no dW that could be put off. Here the loop computes dX alone, and stacks the gradients dz of the
sums that enter the gates. Behind it, each dW is one matrix product over all times and samples,
which any order may put off like another dW::

    as Keras does it    | dz3 dW3 | dz2 dW2 | dz1 dW1 |
    here                | dz3 | dz2 | dz1 |   dW = [h0 h1 h2]^T [dz1 dz2 dz3]

The inputs' products with ``kernel`` do not need the states, so they also leave the loops, forward
and backward. The sums are the same, but rounded in another order: gradients differ from plain
TensorFlow's by float rounding. Evaluation and prediction are untouched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ooodist.compat.keras_layer import replace_inner_loop, rnn
from ooodist.compat.keras_model import layers_of
from ooodist.errors import UserError

logger = logging.getLogger("ooodist")

States = Sequence[tf.Tensor]
LARGEST_LENGTH = 2**31 - 1


class Formula(NamedTuple):
    """How a layer computes.

    Attributes:
        inputs: what enters the gates besides the states: (time, batch, gates).
        step: an iteration, from its part of ``inputs`` and the states; it returns the output, the
            operands of the weights' gradients, and the new states, all (batch, units).
        weights: used in the loop without a gradient.
        gradients: theirs, from all operands (time, batch, units) and the slope of ``inputs``.
    """

    inputs: tf.Tensor
    step: Callable[[tf.Tensor, States], tuple[tf.Tensor, States, States]]
    weights: States
    gradients: Callable[[States, tf.Tensor], States]


def put_recurrent_gradients_after_loop(model: keras.Model) -> keras.Model:
    """Makes the recurrent layers of a model compute their weight gradients behind their loop.

    Weight gradients of LSTM, GRU and SimpleRNN layers, also inside of other layers, are then
    computed by one matrix product over all times, which an order can put off. They differ from
    plain TensorFlow's by float rounding. Call it before the model is trained; other layers, and
    those that it cannot be done for, stay as they are, and ooodist logs the latter.

    Returns:
        the same model.

    Raises:
        UserError: there is no layer for which it can be done.
    """
    layers = [layer for layer in layers_of(model) if isinstance(layer, keras.layers.RNN)]
    why_not = [(layer, _why_not(layer)) for layer in layers]
    reasons = "; ".join(f"{layer.name} {why}" for layer, why in why_not if why)
    changed = [layer for layer, why in why_not if not why]
    if not changed:
        raise UserError(
            f"no layer of model {model.name} can have its gradients computed after a loop over "
            f"time: {reasons or 'it has no LSTM, GRU or SimpleRNN'}; leave this out"
        )
    for layer in changed:
        replace_inner_loop(layer, partial(_inner_loop, layer))
    logger.info(
        "weight gradients after the loop over time, equal up to rounding: %s%s",
        ", ".join(layer.name for layer in changed),
        f"; as they were: {reasons}" if reasons else "",
    )
    return model


def _why_not(layer: keras.layers.RNN) -> str | None:
    """Why a recurrent layer stays as it is; None if it need not."""
    if type(layer) not in _FORMULAS:
        return f"is a {type(layer).__name__}, which is not one of Keras's own"
    if layer.unroll:
        return "is unrolled (unroll=True), so it has no loop"
    if layer.recurrent_dropout:
        return f"has recurrent_dropout={layer.recurrent_dropout:g}"
    if getattr(layer.cell, "implementation", 2) != 2:
        return f"has implementation={layer.cell.implementation}"
    if tf.config.list_physical_devices("GPU") and getattr(layer, "use_cudnn", False):
        return "is computed by cuDNN where there is a GPU (use_cudnn=False changes that)"
    return None


def _inner_loop(
    layer: keras.layers.RNN,
    plain: Callable[..., Any],
    sequences: tf.Tensor,
    initial_state: States,
    mask: Any,
    training: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, States]:
    """Takes the place of ``RNN.inner_loop``.

    Args:
        plain: what it takes the place of.
        sequences: (batch, time, inputs).
        initial_state: tensors (batch, units).
        mask: bool (batch, time), or None.
        training: only then something changes.

    Returns:
        the last output (batch, units), all outputs (batch, time, units), and the last states.
    """
    if not training:
        return plain(sequences, initial_state, mask=mask, training=training)
    cell = layer.cell
    # Time first: what enters the gates is up to four times as wide, and is not turned then.
    sequences = _turned(sequences)
    if 0 < cell.dropout < 1:
        sequences *= cell.get_dropout_mask(sequences[0])
    inputs = keras.ops.matmul(sequences, keras.ops.convert_to_tensor(cell.kernel))
    recurrent = keras.ops.convert_to_tensor(cell.recurrent_kernel)
    formula = _FORMULAS[type(layer)](layer, inputs, recurrent)
    operands: list[tf.Tensor] = []  # known when the gradient is asked for

    @tf.custom_gradient
    def gates(inputs: tf.Tensor, *_weights: tf.Tensor) -> Any:
        def slopes(slope: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return slope, *formula.gradients(operands, slope)

        return tf.identity(inputs), slopes

    def iteration(inputs: tf.Tensor, states: States) -> tuple[Any, list[tf.Tensor]]:
        output, multiplied, states = formula.step(inputs, states)
        return (output, *map(tf.stop_gradient, multiplied)), list(states)

    mask = mask[0] if isinstance(mask, list | tuple) else mask
    last, outputs, states = rnn(
        iteration,
        gates(formula.inputs, *formula.weights),
        initial_state,
        go_backwards=layer.go_backwards,
        mask=None if mask is None else _turned(mask),
        time_major=True,
        # Keras would take the batch for the time. If it is not known, Keras counts.
        input_length=formula.inputs.shape[0] or LARGEST_LENGTH,
        zero_output_for_mask=layer.zero_output_for_mask,
        # The gradient needs what each iteration has multiplied.
        return_all_outputs=True,
    )
    # Where a step is masked, dz is zero, so it does not matter what is there.
    operands += [tf.reverse(each, [0]) if layer.go_backwards else each for each in outputs[1:]]
    return last[0], _turned(outputs[0]), states


def _turned(tensor: tf.Tensor) -> tf.Tensor:
    """Swaps batch and time."""
    return tf.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])


def _lstm(layer: keras.layers.LSTM, inputs: tf.Tensor, recurrent: tf.Tensor) -> Formula:
    cell = layer.cell

    def step(inputs: tf.Tensor, states: States) -> tuple[tf.Tensor, States, States]:
        before, carry = states
        gates = inputs + tf.matmul(before, tf.stop_gradient(recurrent))
        input_gate, forget_gate, candidate, output_gate = tf.split(gates, 4, axis=1)
        activate = cell.recurrent_activation
        carry = activate(forget_gate) * carry + activate(input_gate) * cell.activation(candidate)
        output = activate(output_gate) * cell.activation(carry)
        return output, [before], [output, carry]

    return Formula(_with_bias(inputs, cell.bias), step, [recurrent], _product_with_inputs)


def _simple(layer: keras.layers.SimpleRNN, inputs: tf.Tensor, recurrent: tf.Tensor) -> Formula:
    cell = layer.cell

    def step(inputs: tf.Tensor, states: States) -> tuple[tf.Tensor, States, States]:
        (before,) = states
        output = cell.activation(inputs + tf.matmul(before, tf.stop_gradient(recurrent)))
        return output, [before], [output]

    return Formula(_with_bias(inputs, cell.bias), step, [recurrent], _product_with_inputs)


def _gru(layer: keras.layers.GRU, inputs: tf.Tensor, recurrent: tf.Tensor) -> Formula:
    formula = _gru_reset_after if layer.reset_after else _gru_reset_before
    return formula(layer, inputs, recurrent)


def _gru_reset_before(layer: keras.layers.GRU, inputs: tf.Tensor, recurrent: tf.Tensor) -> Formula:
    cell, two = layer.cell, 2 * layer.units  # columns: update and reset, then the candidate

    def step(inputs: tf.Tensor, states: States) -> tuple[tf.Tensor, States, States]:
        (before,), fixed = states, tf.stop_gradient(recurrent)
        gates = inputs[:, :two] + tf.matmul(before, fixed[:, :two])
        update, reset = tf.split(cell.recurrent_activation(gates), 2, axis=1)
        left = reset * before
        candidate = cell.activation(inputs[:, two:] + tf.matmul(left, fixed[:, two:]))
        output = update * before + (1 - update) * candidate
        return output, [before, left], [output]

    def gradients(operands: States, slope: tf.Tensor) -> States:
        before, left = operands
        parts = _product(before, slope[..., :two]), _product(left, slope[..., two:])
        return [tf.concat(parts, 1)]

    return Formula(_with_bias(inputs, cell.bias), step, [recurrent], gradients)


def _gru_reset_after(layer: keras.layers.GRU, inputs: tf.Tensor, recurrent: tf.Tensor) -> Formula:
    """The product with the states has a bias of its own, and is reset with it::

        candidate = activation(inputs + reset * (before @ recurrent + bias))

    So the slope of what is reset is that of the inputs times ``reset``.
    """
    cell, two = layer.cell, 2 * layer.units  # columns: update and reset, then the candidate
    weights = [recurrent]
    if cell.bias is not None:
        outer, inner = tf.unstack(keras.ops.convert_to_tensor(cell.bias))
        inputs += tf.concat([outer[:two] + inner[:two], outer[two:]], 0)
        weights.append(inner[two:])

    def step(inputs: tf.Tensor, states: States) -> tuple[tf.Tensor, States, States]:
        (before,), fixed = states, [tf.stop_gradient(weight) for weight in weights]
        product = tf.matmul(before, fixed[0])
        gates = cell.recurrent_activation(inputs[:, :two] + product[:, :two])
        update, reset = tf.split(gates, 2, axis=1)
        inner = product[:, two:]
        if len(fixed) > 1:
            inner += fixed[1]
        candidate = cell.activation(inputs[:, two:] + reset * inner)
        output = update * before + (1 - update) * candidate
        return output, [before, reset], [output]

    def gradients(operands: States, slope: tf.Tensor) -> States:
        before, reset = operands
        inner = slope[..., two:] * reset
        of_kernel = _product(before, tf.concat([slope[..., :two], inner], 2))
        return [of_kernel, tf.reduce_sum(inner, [0, 1])][: len(weights)]

    return Formula(inputs, step, weights, gradients)


_FORMULAS = {
    keras.layers.LSTM: _lstm,
    keras.layers.GRU: _gru,
    keras.layers.SimpleRNN: _simple,
}


def _with_bias(inputs: tf.Tensor, bias: keras.Variable | None) -> tf.Tensor:
    return inputs if bias is None else inputs + keras.ops.convert_to_tensor(bias)


def _product_with_inputs(operands: States, slope: tf.Tensor) -> States:
    return [_product(operands[0], slope)]


def _product(operand: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    """dW (units, gates) from operand (time, batch, units), slope (time, batch, gates)."""
    flat = [tf.reshape(each, [-1, each.shape[-1]]) for each in (operand, slope)]
    return tf.matmul(*flat, transpose_a=True)
