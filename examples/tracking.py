"""Callbacks for job files: Weights & Biases and MLflow, with files in this folder only."""

import keras

import ooodist


def wandb_offline(project: str = "digits") -> list[keras.callbacks.Callback]:
    """Keeps a run in the folder wandb, which `wandb sync` can upload later."""
    if ooodist.rank() != 0:  # each rank calls the function, but there is one run
        return []
    import wandb
    from wandb.integration.keras import WandbMetricsLogger

    wandb.init(project=project, mode="offline")
    return [WandbMetricsLogger()]


def mlflow_offline(experiment: str = "digits") -> list[keras.callbacks.Callback]:
    """Keeps a run in mlflow.db, which `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows."""
    if ooodist.rank() != 0:
        return []
    import mlflow
    from mlflow.keras import MlflowCallback

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment(experiment)
    mlflow.start_run()
    return [MlflowCallback()]
