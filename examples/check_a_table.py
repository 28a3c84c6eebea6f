"""Check a table: string labels, a categorical column and missing values, from pandas to findings."""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler
from torch import nn

import gapscope as gs

bunch = load_breast_cancer(as_frame=True)
table = bunch.data.iloc[:, :8].copy()
# a categorical column
table["size"] = pd.cut(table.pop("mean radius"), 3, labels=["small", "medium", "large"])
table.loc[::17, "mean texture"] = None  # missing values
labels = bunch.target.map({0: "malignant", 1: "benign"})

numbers = pd.get_dummies(table, dtype=float)  # networks need numbers: one-hot, imputed, scaled
x = StandardScaler().fit_transform(SimpleImputer().fit_transform(numbers)).astype("float32")
network = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 2))
initial_state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
gs.train(network, (x, labels), gs.TrainingSpec(epochs=30, momentum=0.9))
print(gs.check(network, (x, labels), initial_state=initial_state))

gs.forecast_accuracy(None, (x, labels)).plot()
plt.title("Leave-one-out accuracy without a network")
