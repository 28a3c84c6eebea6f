"""Advice that was tried before it is given: what limits this training, and does the remedy raise the accuracy?"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import gapscope as gs

x, y = load_breast_cancer(return_X_y=True, as_frame=True)
x, x_test, y, y_test = train_test_split(x, y, test_size=0.4, random_state=0, stratify=y)
training = gs.TrainingSpec(epochs=20, optimizer="adam", learning_rate=0.001)


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    )


network = build()
gs.train(network, (x, y), training)
result = gs.check(network, (x, y), train_fn=training)  # the test samples are not passed
print(result)

# does it hold on the test samples? The fix that helped was to standardize: with the training samples' mean and spread
mean, spread = x.mean(), x.std()
fixed = build()
gs.train(fixed, ((x - mean) / spread, y), training)
before = gs.measure(network, (x_test, y_test), ["accuracy"], progress=False)["accuracy"].value
after = gs.measure(fixed, ((x_test - mean) / spread, y_test), ["accuracy"], progress=False)[
    "accuracy"
].value
print(f"\ntest accuracy {before:.3f}, with standardized inputs {after:.3f}")
plt.bar(["as it was", "standardized inputs"], [before, after])
plt.ylabel("test accuracy")
