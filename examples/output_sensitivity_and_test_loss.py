"""Output sensitivity during training: small noise on the inputs, beside the test loss and the test error."""

import matplotlib.pyplot as plt
import torch

import gapscope as gs

digits = gs.load_dataset("digits")
train = digits.train.subset(torch.arange(300))
network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
rows = []


def record(network, epoch, *rest):
    sensitivity = gs.functional.output_sensitivity(network, train.inputs, method="zero_noise")
    test = gs.measure(network, digits.test, ["loss", "accuracy"], progress=False)
    rows.append((epoch, float(sensitivity), test["loss"].value, 1 - test["accuracy"].value))


for epoch in range(0, 61, 6):
    if epoch:
        gs.train(network, train, gs.TrainingSpec(epochs=6, momentum=0.9), seed=epoch)
    record(network, epoch)

print("epoch  sensitivity  test loss  test error")
for epoch, sensitivity, loss, error in rows:
    print(f"{epoch:5}  {sensitivity:11.2e}  {loss:9.3f}  {error:10.3f}")
print(
    "The logits, and with them the sensitivity, grow on while the test error no longer changes: see the paper's page."
)
_, axes = plt.subplots(1, 2, figsize=(8, 3))
for axis, column, label in zip(axes, (2, 3), ("test loss", "test error"), strict=True):
    axis.plot([row[1] for row in rows], [row[column] for row in rows], "o-")
    axis.set(xscale="log", xlabel="output sensitivity", ylabel=label)
