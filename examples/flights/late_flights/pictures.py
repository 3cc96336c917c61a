"""The loss curve as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def loss_curve(history: Mapping[str, Sequence[float]], path: str, *, base: float) -> None:
    """Draw training and validation loss per epoch, and the loss of predicting the base rate."""
    import math

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    epochs = range(1, len(history["loss"]) + 1)
    axes.plot(epochs, history["loss"], marker="o", label="training")
    axes.plot(epochs, history["val_loss"], marker="o", label="validation")
    entropy = -(base * math.log(base) + (1 - base) * math.log(1 - base))
    axes.axhline(entropy, color="grey", linestyle="--", label="always the base rate")
    axes.set(
        xlabel="epoch",
        ylabel="binary cross-entropy",
        title="Will the flight leave late?",
        xticks=list(epochs),
    )
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
