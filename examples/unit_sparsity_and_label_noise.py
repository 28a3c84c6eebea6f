"""Unit sparsity: how few hidden units each class needs, in networks trained on clean and on noisy labels."""

import matplotlib.pyplot as plt
import torch

import gapscope as gs

digits = gs.load_dataset("digits")
x, y = digits.train.inputs[:400], digits.train.targets[:400]
print("noise  training  test    gap   zeta  kappa")
for noise in (0.0, 0.2, 0.4, 0.6):
    for seed in range(3):
        torch.manual_seed(seed)
        labels = gs.data.inject_label_noise(
            y, noise, n_classes=10, generator=torch.Generator().manual_seed(seed)
        )
        network = gs.build_network(
            "fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=128
        )
        gs.train(network, (x, labels), gs.TrainingSpec(epochs=60, momentum=0.9), seed=seed)
        sparsity = gs.functional.unit_sparsity(network, x, labels)
        train, test = (
            gs.measure(network, data, ["accuracy"], progress=False)["accuracy"].value
            for data in ((x, labels), digits.test)
        )
        print(
            f"{noise:5.1f}  {train:8.3f}  {test:.3f}  {train - test:5.3f}  {sparsity.zeta:.3f}  {sparsity.kappa:.3f}"
        )
        plt.scatter(
            sparsity.zeta,
            train - test,
            color=plt.cm.viridis(noise),
            label=f"{noise:.0%}" if not seed else None,
        )
print("zeta: units that a class needs, as a fraction. kappa: area between the two removal orders.")
plt.xlabel("zeta")
plt.ylabel("generalization gap (clean test labels)")
plt.legend(title="label noise")
