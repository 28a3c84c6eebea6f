"""Extrapolate a learning curve: would more data help this training function?"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import gapscope as gs


def train_fn(x, y):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


digits = gs.load_dataset("digits")
curve = gs.learning_curve(train_fn, digits.train, design="two halves and quarter")
print(curve)

network = train_fn(digits.train.inputs, digits.train.targets)
reached = float(gs.functional.accuracy(network, digits.test.inputs, digits.test.targets))
print(f"Trained on all samples it reaches {reached:.3f} on test data.")

runs = sorted((run.trained_on, run.score) for run in curve.trainings)
plt.plot(*zip(*runs, strict=True), "o", label="runs on parts")
error = [[curve.score - curve.low], [curve.high - curve.score]]
plt.errorbar(
    curve.samples, curve.score, yerr=error, fmt="s", capsize=4, label="prediction, 90 % interval"
)
plt.plot(curve.samples, reached, "x", color="tab:red", label="reached on test data")
plt.xlabel("training samples")
plt.ylabel("accuracy")
plt.legend()
