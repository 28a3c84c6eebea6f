"""The gradient similarity penalty on noisy labels beside generalized cross-entropy, at equal training time."""

import matplotlib.pyplot as plt
import numpy as np

import gapscope as gs

digits = gs.load_dataset("digits")
x, test = digits.train.inputs[:400], digits.test
noisy = gs.data.inject_label_noise(digits.train.targets[:400], 0.4, n_classes=10)
robust = gs.LossSpec(name="generalized_cross_entropy")
penalty = gs.GradientSimilarityPenalty(0.01)
every_fourth = gs.GradientSimilarityPenalty(0.01, every=4)
runs = {  # number of epochs, loss, penalties
    "no penalty": (300, gs.LossSpec(), []),
    "generalized cross-entropy": (300, robust, []),
    "penalty, every step": (60, gs.LossSpec(), [penalty]),
    "penalty, every fourth step": (150, gs.LossSpec(), [every_fourth]),
}
curves = {}
for name, (epochs, loss, penalties) in runs.items():
    network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=128)
    settings = gs.TrainingSpec(epochs=epochs, learning_rate=0.1, momentum=0.5, loss=loss)
    history = gs.train(network, (x, noisy), settings, test=test, penalties=penalties).history
    curves[name] = (
        np.cumsum([row["seconds"] for row in history]),
        [row["test_accuracy"] for row in history],
    )
budget = min(seconds[-1] for seconds, _ in curves.values())
for name, (seconds, accuracies) in curves.items():
    n = int((seconds <= budget).sum())
    print(
        f"{name}: after {budget:.1f} s ({n} epochs) {accuracies[n - 1]:.3f}, best so far {max(accuracies[:n]):.3f}"
    )
    plt.plot(seconds[:n], accuracies[:n], label=name)
plt.xlabel("seconds of training")
plt.ylabel("test accuracy (clean labels)")
plt.title("40 % of the training labels are wrong")
plt.legend()
