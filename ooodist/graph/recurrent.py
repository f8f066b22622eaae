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
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.keras_layer import replace_inner_loop, rnn
from ooodist.compat.keras_model import layers_of
from ooodist.errors import UserError

logger = logging.getLogger("ooodist")

States = Sequence[tf.Tensor]
# An iteration: the gates' inputs and the states -> the output, what the recurrent kernel was
# multiplied with, and the new states.
Step = Callable[[tf.Tensor, States], tuple[tf.Tensor, States, States]]
RECURRENT = (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN)


def put_recurrent_gradients_after_loop(model: keras.Model) -> keras.Model:
    """Makes the recurrent layers of a model compute their weight gradients behind their loop.

    Weight gradients of LSTM, GRU and SimpleRNN layers, also inside of other layers, are then
    computed by one matrix product over all times, which an order can put off. They differ from
    plain TensorFlow's by float rounding. Call it before the model is trained; other layers, and
    those that it cannot be done for, stay as they are, and the log names the latter.

    Returns:
        the same model.

    Raises:
        UserError: there is no layer for which it can be done.
    """
    layers = [layer for layer in layers_of(model) if isinstance(layer, keras.layers.RNN)]
    why_not = {layer.name: why for layer in layers if (why := _why_not(layer))}
    reasons = "; ".join(f"{name} {why}" for name, why in why_not.items())
    changed = [layer for layer in layers if layer.name not in why_not]
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
    """Returns why a recurrent layer stays as it is; None if it need not."""
    if type(layer) not in RECURRENT:
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
    initial_state: Any,
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
    if 0 < cell.dropout < 1:
        sequences *= cell.get_dropout_mask(sequences[:, 0])[:, tf.newaxis]
    inputs = keras.ops.matmul(sequences, keras.ops.convert_to_tensor(cell.kernel))
    gate_inputs, step, gradient = _FORMULAS[type(layer)](layer, inputs)
    operands: list[tf.Tensor] = []  # known when the gradient is asked for

    @tf.custom_gradient
    def gates(inputs: tf.Tensor, _recurrent: tf.Tensor) -> Any:
        def slopes(slope: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return slope, gradient(operands, slope)

        return tf.identity(inputs), slopes

    def iteration(inputs: tf.Tensor, states: States) -> tuple[Any, list[tf.Tensor]]:
        output, multiplied, states = step(inputs, states)
        return (output, *multiplied), list(states)

    recurrent = keras.ops.convert_to_tensor(cell.recurrent_kernel)
    last, outputs, states = rnn(
        iteration,
        gates(gate_inputs, recurrent),
        initial_state if isinstance(initial_state, list | tuple) else [initial_state],
        go_backwards=layer.go_backwards,
        mask=mask[0] if isinstance(mask, list | tuple) else mask,
        zero_output_for_mask=layer.zero_output_for_mask,
        # The gradient needs what each iteration has multiplied.
        return_all_outputs=True,
    )
    # Where a step is masked, dz is zero, so it does not matter what is there.
    operands += [tf.reverse(each, [1]) if layer.go_backwards else each for each in outputs[1:]]
    return last[0], outputs[0], states


def _lstm(layer: keras.layers.LSTM, inputs: tf.Tensor) -> tuple[tf.Tensor, Step, Any]:
    cell = layer.cell
    recurrent = keras.ops.convert_to_tensor(cell.recurrent_kernel)

    def step(inputs: tf.Tensor, states: States) -> tuple[tf.Tensor, States, States]:
        before, carry = states
        gates = inputs + tf.matmul(before, tf.stop_gradient(recurrent))
        input_gate, forget_gate, candidate, output_gate = tf.split(gates, 4, axis=1)
        activate = cell.recurrent_activation
        carry = activate(forget_gate) * carry + activate(input_gate) * cell.activation(candidate)
        output = activate(output_gate) * cell.activation(carry)
        return output, [before], [output, carry]

    return _with_bias(inputs, cell.bias), step, _product


def _simple(layer: keras.layers.SimpleRNN, inputs: tf.Tensor) -> tuple[tf.Tensor, Step, Any]:
    cell = layer.cell
    recurrent = keras.ops.convert_to_tensor(cell.recurrent_kernel)

    def step(inputs: tf.Tensor, states: States) -> tuple[tf.Tensor, States, States]:
        (before,) = states
        output = cell.activation(inputs + tf.matmul(before, tf.stop_gradient(recurrent)))
        return output, [before], [output]

    return _with_bias(inputs, cell.bias), step, _product


def _gru(layer: keras.layers.GRU, inputs: tf.Tensor) -> tuple[tf.Tensor, Step, Any]:
    """With ``reset_after``, what is reset also has a bias, and its gradient is not the input's.

    So the loop has it as one more input: columns update, reset, new, and the bias of what is reset.
    """
    cell, units = layer.cell, layer.units
    recurrent = keras.ops.convert_to_tensor(cell.recurrent_kernel)
    bias = None if cell.bias is None else keras.ops.convert_to_tensor(cell.bias)
    if layer.reset_after:
        reset_bias = tf.zeros_like(inputs[..., :units])
        if bias is not None:
            inputs += tf.concat(
                [bias[0, : 2 * units] + bias[1, : 2 * units], bias[0, 2 * units :]], 0
            )
            reset_bias += bias[1, 2 * units :]
        inputs = tf.concat([inputs, reset_bias], 2)
    else:
        inputs = _with_bias(inputs, cell.bias)

    def step(inputs: tf.Tensor, states: States) -> tuple[tf.Tensor, States, States]:
        (before,) = states
        fixed = tf.stop_gradient(recurrent)
        if layer.reset_after:
            product = tf.matmul(before, fixed)
            gates = inputs[:, : 2 * units] + product[:, : 2 * units]
        else:
            gates = inputs[:, : 2 * units] + tf.matmul(before, fixed[:, : 2 * units])
        update, reset = tf.split(cell.recurrent_activation(gates), 2, axis=1)
        multiplied = [before]
        if layer.reset_after:
            new = reset * (product[:, 2 * units :] + inputs[:, 3 * units :])
        else:
            multiplied.append(reset * before)
            new = tf.matmul(reset * before, fixed[:, 2 * units :])
        new = cell.activation(inputs[:, 2 * units : 3 * units] + new)
        output = update * before + (1 - update) * new
        return output, multiplied, [output]

    def gradient(operands: States, slope: tf.Tensor) -> tf.Tensor:
        if layer.reset_after:
            slope = tf.concat([slope[..., : 2 * units], slope[..., 3 * units :]], 2)
            return _product(operands, slope)
        before, after_reset = operands
        return tf.concat(
            [
                _product([before], slope[..., : 2 * units]),
                _product([after_reset], slope[..., 2 * units :]),
            ],
            1,
        )

    return inputs, step, gradient


_FORMULAS = {
    keras.layers.LSTM: _lstm,
    keras.layers.GRU: _gru,
    keras.layers.SimpleRNN: _simple,
}


def _with_bias(inputs: tf.Tensor, bias: keras.Variable | None) -> tf.Tensor:
    return inputs if bias is None else inputs + keras.ops.convert_to_tensor(bias)


def _product(operands: States, slope: tf.Tensor) -> tf.Tensor:
    """Returns dW (units, gates) from operands (batch, time, units), slope (batch, time, gates)."""
    (operand,) = operands
    flat = [tf.reshape(each, [-1, each.shape[-1]]) for each in (operand, slope)]
    return tf.matmul(*flat, transpose_a=True)
