"""Forecast the accuracy of three networks before training, and compare with what training reaches."""

import matplotlib.pyplot as plt
import torch

import gapscope as gs

digits = gs.load_dataset("digits")
train, test = digits.train.subset(torch.arange(300)), digits.test
shape = {"input_shape": (1, 8, 8), "n_outputs": 10}
networks = {
    "narrow": gs.build_network("fully_connected", width=8, **shape),
    "wide": gs.build_network("fully_connected", width=128, **shape),
    "small CNN": gs.build_network("small_cnn", **shape),
}
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for row, (name, network) in enumerate(networks.items()):
    forecast = gs.forecast_accuracy(network, train)
    gs.train(network, train, gs.TrainingSpec(epochs=40, momentum=0.9))
    reached = float(gs.functional.accuracy(network, test.inputs, test.targets))
    print(f"{name}: {forecast.headline}; reached {reached:.1%}")
    low, high = forecast.interval
    axes.plot([low, high], [row, row], color="tab:blue", linewidth=4, alpha=0.4)
    axes.plot(
        forecast.score,
        row,
        "o",
        color="tab:blue",
        label="forecast, 90 % interval" if row == 0 else None,
    )
    axes.plot(
        reached, row, "x", color="tab:red", label="reached on test data" if row == 0 else None
    )
axes.set_yticks(range(len(networks)), networks)
axes.set_xlabel("accuracy")
axes.legend()
