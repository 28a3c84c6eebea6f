"""ResNet-18s of your own, trained elsewhere, to an estimate of the gap of another; small, so that it runs at once."""

import tempfile

import torch
from torch import nn

import gapscope as gs

generator = torch.Generator().manual_seed(0)
x, test_x = (torch.randn(60, 3, 8, 8, generator=generator) for _ in range(2))
y, test_y = ((images.mean((1, 2, 3)) > 0).long() for images in (x, test_x))
NAMES = ["ntk_trace", "input_jacobian_norm", "loss", "accuracy"]


def trained(seed: int, noise: float) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(seed)
    network = gs.build_network(
        "resnet18", input_shape=(3, 8, 8), n_outputs=2, width_multiplier=0.0625
    )
    labels = torch.where(torch.rand(60) < noise, 1 - y, y)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network.train()(x), labels).backward()
        optimizer.step()
    return network, (x, labels)


pool = gs.Pool(tempfile.mkdtemp() + "/pool")
for seed in range(8):
    network, data = trained(seed, noise=0.05 * seed)
    pool.add(
        network,
        data,
        test=(test_x, test_y),
        name=f"resnet {seed}",
        family="resnet18",
        measures=NAMES,
    )
estimator = gs.gap.suggest_estimator(pool.records())
table = gs.gap.complete_rows(pool.to_pandas(), estimator.features)
estimator.fit(table, table["gap"])
network, data = trained(99, noise=0.1)
new = gs.record_network(network, data, name="new", family="resnet18", measures=NAMES)
# eight networks are too few for 90 %
print(estimator.assess(gs.pools.records_to_pandas([new]), level=0.8).T)
