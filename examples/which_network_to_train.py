"""Rank untrained networks by the accuracy that they are expected to reach."""

import matplotlib.pyplot as plt
import torch

import gapscope as gs

digits = gs.load_dataset("digits")
train, test = digits.train.subset(torch.arange(200)), digits.test
shape = {"input_shape": (1, 8, 8), "n_outputs": 10}
candidates = {
    f"width {width}": gs.build_network("fully_connected", width=width, **shape)
    for width in (4, 16, 64, 256)
}
candidates["small CNN"] = gs.build_network("small_cnn", **shape)
ranking = gs.rank_networks(candidates, train)
print(ranking)

reached = {}
for name, network in candidates.items():
    gs.train(network, train, gs.TrainingSpec(epochs=30, momentum=0.9))
    reached[name] = float(gs.functional.accuracy(network, test.inputs, test.targets))
table = ranking.to_pandas()
expected = {name: table.loc[name, "expected_accuracy"] for name in candidates}
plt.scatter([expected[name] for name in candidates], [reached[name] for name in candidates])
for name in candidates:
    plt.annotate(name, (expected[name], reached[name]), xytext=(4, 4), textcoords="offset points")
plt.xlabel("forecast before training")
plt.ylabel("test accuracy after training")
