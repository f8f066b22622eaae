"""Where importance takes the gradient: at the weights, or behind the optimizer's first step.

    python expr/elastic/gradient_place.py

ResNet-20 on the handwritten digits. After some steps of training, D is the first step of a new
optimizer on one batch, for all weights; g is the gradient on the next batch, at w and at w + D. An
update of a tensor seems to help if -g . D is positive.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist import engines
from ooodist.compat.keras_model import build_with
from ooodist.config import job as job_file
from ooodist.job.building import load_and_build

OPTIMIZERS = (
    "{name: sgd, learning_rate: 0.1, momentum: 0.9}",
    "{name: sgd, learning_rate: 0.01, momentum: 0.9}",
    "{name: adam, learning_rate: 0.001}",
)
STEPS = (5, 50, 150)


def main() -> None:
    engine = engines.init("local")
    print("| optimizer | steps | loss, then after D | help at w | help at w + D |")
    print("|---|---|---|---|---|")
    for optimizer in OPTIMIZERS:
        config = job_file.load(None, ["batch=64", f"optimizer={optimizer}"])
        data, _, model = load_and_build(config, engine)
        batches = iter(data.train)
        build_with(model, next(batches))
        for line in lines(model, batches):
            print(f"| {optimizer.strip('{}')} | {line}", flush=True)


def lines(model: keras.Model, batches: Any) -> list[str]:
    """A cell for each of STEPS and what was found there."""
    weights, optimizer = model.trainable_variables, model.optimizer

    @tf.function(autograph=False)
    def gradients(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=y, y_pred=model(x, training=True))
        return loss, tape.gradient(loss, [weight.value for weight in weights])

    found, done = [], 0
    for steps in STEPS:
        for _ in range(steps - done):
            optimizer.apply(gradients(*next(batches))[1], weights)
        done = steps
        one, other = next(batches), next(batches)
        held = [*weights, *optimizer.variables]
        before = [variable.numpy() for variable in held]
        for variable in optimizer.variables:
            if not variable.path.endswith("learning_rate"):
                variable.assign(tf.zeros_like(variable.value))
        loss, at_weights = gradients(*other)
        optimizer.apply(gradients(*one)[1], weights)
        moved = [w.numpy() - old for w, old in zip(weights, before, strict=False)]
        loss_behind, behind = gradients(*other)
        for variable, value in zip(held, before, strict=True):
            variable.assign(value)
        shares = [
            np.mean([-(g.numpy() * d).sum() > 0 for g, d in zip(those, moved, strict=True)])
            for those in (at_weights, behind)
        ]
        found.append(
            f"{steps} | {float(loss):.3f}, {float(loss_behind):.3f} | "
            f"{100 * shares[0]:.0f} % | {100 * shares[1]:.0f} % |"
        )
    return found


if __name__ == "__main__":
    main()
