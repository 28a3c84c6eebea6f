"""Compare trained networks on their training data: which one generalizes better?"""

import torch

import gapscope as gs

digits = gs.load_dataset("digits")
train, test = digits.train.subset(torch.arange(200)), digits.test
networks = {}
for noise in (0.0, 0.1, 0.3):  # networks that fit more and more corrupted labels
    labels = gs.data.inject_label_noise(train.targets, noise, n_classes=10)
    network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
    gs.train(network, (train.inputs, labels), gs.TrainingSpec(epochs=60, momentum=0.9))
    networks[f"trained with {noise:.0%} label noise"] = network
comparison = gs.compare(networks, train)
print(comparison)
for name, network in networks.items():
    print(
        f"{name}: test accuracy {float(gs.functional.accuracy(network, test.inputs, test.targets)):.3f}"
    )
comparison.plot()
