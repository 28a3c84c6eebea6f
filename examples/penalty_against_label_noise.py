"""Train with and without the gradient similarity penalty on noisy labels, and follow the test accuracy."""

import matplotlib.pyplot as plt

import gapscope as gs

digits = gs.load_dataset("digits")
x, test = digits.train.inputs[:400], digits.test
noisy = gs.data.inject_label_noise(digits.train.targets[:400], 0.4, n_classes=10)
runs = {"no penalty": [], "strength 0.003": [gs.GradientSimilarityPenalty(0.003)],
        "strength 0.01": [gs.GradientSimilarityPenalty(0.01)]}  # fmt: skip
for name, penalties in runs.items():
    network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=128)
    settings = gs.TrainingSpec(epochs=60, learning_rate=0.1, momentum=0.5)
    result = gs.train(network, (x, noisy), settings, test=test, penalties=penalties)
    accuracies = [row["test_accuracy"] for row in result.history]
    print(f"{name}: best {max(accuracies):.3f}, last {accuracies[-1]:.3f}")
    plt.plot(range(1, len(accuracies) + 1), accuracies, label=name)
plt.xlabel("epoch")
plt.ylabel("test accuracy (clean labels)")
plt.title("40 % of the training labels are wrong")
plt.legend()
