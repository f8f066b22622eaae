"""Applies gradients one by one.

Keras's TensorFlow optimizers pass all gradients through ``ReplicaContext.all_reduce``. Without a
tf.distribute strategy that is one IdentityN op over all of them: no weight is updated before the
last gradient is there, and nothing of the next step can overlap this one's exchange. In a
cross-replica context Keras leaves that out; the numbers are the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.attributes import replaced
from ooodist.errors import UserError
from ooodist.step.autograph import not_converted


@not_converted
def apply(optimizer: keras.optimizers.Optimizer, gradients: Any, variables: Any = None) -> None:
    """Calls ``optimizer.apply`` so that each weight is updated as soon as its gradient has arrived.

    For custom training loops that trace several steps into one function; models given to
    :func:`ooodist.distribute` are updated like this anyway. ``global_clipnorm`` and
    dynamic loss scaling need all gradients at once, and still wait for all of them.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.apply(gradients, variables)
    else:
        in_cross_replica_context(optimizer.apply, gradients, variables)


def updating_one_by_one(model: keras.Model) -> AbstractContextManager[None]:
    """Makes every optimizer of the model update weights one by one in a block."""
    # Loss scaling looks at all gradients first, and insists on a replica context.
    able = [
        optimizer
        for optimizer in optimizers_of(model)
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    ]
    return replaced_apply(able, apply_with=in_cross_replica_context)


def not_updating(model: keras.Model) -> AbstractContextManager[None]:
    """Makes ``apply`` of the model's optimizers do nothing in a block."""
    return replaced_apply(optimizers_of(model), apply_with=lambda *_: None)


def not_built(model: keras.Model) -> AbstractContextManager[None]:
    """Makes ``build`` of the model's compiled optimizer do nothing in a block."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return contextlib.nullcontext()
    return replaced(optimizer, build=lambda _variables: None)


@contextlib.contextmanager
def scaling_parts(model: keras.Model, parts: int) -> Iterator[bool]:
    """Divides a scaled loss by the number of parts of a batch in this block.

    Half-precision gradients then overflow where those of the whole batch would, and not earlier.

    Yields:
        whether the loss is scaled, so that gradients are to be summed rather than averaged.
    """
    optimizer = model.optimizer
    if parts == 1 or not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield False
        return
    plain = optimizer.scale_loss
    with replaced(optimizer, scale_loss=lambda loss: plain(loss) / parts):
        yield True


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizer that the model was compiled with, and those among its attributes."""
    held = [getattr(model, "optimizer", None), *vars(model).values()]
    found = {id(o): o for o in held if isinstance(o, keras.optimizers.Optimizer)}
    return list(found.values())


def loss_scale(model: keras.Model) -> tf.Tensor | None:
    """The scale of the loss, a scalar; None if it is not scaled.

    Raises:
        UserError: the model has several optimizers, and some scale the loss.
    """
    optimizers = optimizers_of(model)
    scaling = [o for o in optimizers if isinstance(o, keras.optimizers.LossScaleOptimizer)]
    if not scaling:
        return None
    if len(optimizers) > 1:
        raise UserError(
            f"model {model.name} has {len(optimizers)} optimizers, of which {len(scaling)} scale "
            "the loss: it is not known which scale a gradient has; set exchange.error_feedback to "
            "false"
        )
    return tf.convert_to_tensor(scaling[0].dynamic_scale)


def without_scaling(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer, or the one that it wraps if it scales the loss."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def needs_all_gradients(optimizer: keras.optimizers.Optimizer, *, skips: bool) -> bool:
    """Whether each update needs something of all gradients: their norm, or if they are finite.

    Args:
        optimizer: the optimizer.
        skips: whether updates whose gradients are not finite are left out.
    """
    inner = without_scaling(optimizer)
    return bool(inner.global_clipnorm) or inner is not optimizer or skips


def optimizer_state_of(
    optimizer: keras.optimizers.Optimizer, weights: Mapping[str, keras.Variable]
) -> list[tuple[keras.Variable, str]]:
    """The optimizer's variables, each with the name of its weight; "" if it has none.

    Keras names them after the paths of weights. Where several weights have one path, optimizers
    make what they keep for each in the order of the weights.

    Args:
        optimizer: a built optimizer.
        weights: the weights that it trains by unique name, in the order in which it was built.
    """
    alike: dict[str, list[str]] = {}  # weights, by how the names of their state begin
    for name, weight in weights.items():
        alike.setdefault(state_prefix(weight.path), []).append(name)
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = []
    for variable in optimizer.variables:
        name, shape = variable.path.rpartition("/")[2], tuple(variable.shape)
        start = max((each for each in alike if name.startswith(each)), key=len, default="")
        fitting = alike.get(start, [""])
        if len(fitting) > 1:
            # By shape: an optimizer may keep some of its state for matrices alone.
            fitting = [each for each in fitting if weights[each].shape == shape] or fitting
            fitting = fitting[seen[name, shape] :] or [""]
            seen[name, shape] += 1
        found.append((variable, fitting[0]))
    return found


def state_prefix(path: str) -> str:
    """The prefix of the names that Keras gives to the optimizer state of a weight."""
    return f"{path.replace('/', '_')}_"


@contextlib.contextmanager
def replaced_apply(
    optimizers: Sequence[keras.optimizers.Optimizer], apply_with: Any
) -> Iterator[None]:
    """Replaces ``apply`` of the optimizers in this block.

    Args:
        optimizers: the optimizers.
        apply_with: is called with an optimizer's own ``apply``, the gradients and the weights.
    """

    def replacement(plain: Any) -> Any:
        return lambda grads, trainable_variables=None: apply_with(plain, grads, trainable_variables)

    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(replaced(optimizer, apply=replacement(optimizer.apply)))
        yield


def in_cross_replica_context(apply_plain: Any, gradients: Any, variables: Any) -> None:
    """Calls an optimizer's ``apply`` such that no weight waits for another's gradient."""
    context = tf.distribute.get_replica_context()
    if context is None:
        apply_plain(gradients, variables)
    else:
        context.merge_call(lambda _strategy: apply_plain(gradients, variables))
