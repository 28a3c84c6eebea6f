"""Tabular regression from pandas: California housing where scikit-learn has it on disk, a random table elsewhere."""

import matplotlib.pyplot as plt
import numpy
import pandas
import torch
from torch import nn

import gapscope as gs

try:
    from sklearn.datasets import fetch_california_housing

    frame = fetch_california_housing(as_frame=True, download_if_missing=False).frame.sample(
        400, random_state=0
    )
    target = frame.pop("MedHouseVal")
except OSError:
    values = numpy.random.default_rng(0).normal(size=(400, 8))
    frame = pandas.DataFrame(values, columns=[f"x{i}" for i in range(8)])
    target = frame["x0"] * frame["x1"] + frame["x2"]
frame = (frame - frame.mean()) / frame.std()
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))  # returns [n]
x, y = torch.tensor(frame.to_numpy()).float(), torch.tensor(target.to_numpy()).float()
optimizer = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.mse_loss(network(x), y).backward()
    optimizer.step()
print(gs.measure(network, (frame, target)))
plt.scatter(target, network(x).detach(), s=8)
plt.xlabel("target")
plt.ylabel("prediction")
