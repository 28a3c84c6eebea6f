"""A plain CNN with batch norm in an own loop: monitored with an alarm, then measured."""

import torch
from torch import nn

import gapscope as gs
from gapscope.training.alarms.shared_learning import SharedLearning

torch.manual_seed(0)
x, y = torch.randn(200, 1, 8, 8), torch.arange(200) % 3
x[torch.arange(200), 0, y] += 1.0
network = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(128, 3),
)
optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
monitor = gs.Monitor((x, y), ["ntk_trace", "accuracy"], every=2, alarm=SharedLearning())
for epoch in range(1, 7):
    for part in torch.randperm(200).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[part]), y[part]).backward()
        optimizer.step()
    monitor.observe(network, epoch)
print(monitor)
print(monitor.to_pandas())
print(gs.measure(network, (x, y)))
monitor.plot()
