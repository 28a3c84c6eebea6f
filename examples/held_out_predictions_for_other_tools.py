"""Held-out probabilities without holding out, passed on to cleanlab and scikit-learn."""

import time
from importlib import import_module
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import gapscope as gs

x, y = load_digits(return_X_y=True)
x, y = (x[:1000] / 16).astype("float32"), y[:1000].copy()
wrong = np.random.default_rng(0).permutation(1000)[:50]
y[wrong] = (y[wrong] + 3) % 10

sources = {"closed form": None, "logistic regression, 5 folds": LogisticRegression(max_iter=1000)}
for name, source in sources.items():
    start = time.process_time()
    result = gs.out_of_sample(source, (x, y))
    print(f"{name} ({time.process_time() - start:.1f} s)\n{result}\n")
    probabilities = result.to_numpy()
    quality, whose = probabilities[np.arange(1000), y], "self-confidence"
    if find_spec("cleanlab"):
        cleanlab = import_module("cleanlab.rank")
        quality, whose = cleanlab.get_label_quality_scores(y, probabilities), "cleanlab's label quality"
    found = np.isin(np.argsort(quality)[:50], wrong).sum()
    print(f"{found} of the 50 samples of lowest {whose} have wrong labels\n")
    top = probabilities.max(1)
    observed, stated = calibration_curve(probabilities.argmax(1) == y, top, n_bins=8, strategy="quantile")
    plt.plot(stated, observed, "o-", label=name)

# prediction sets that hold the label of 90 % of new samples (split conformal prediction)
probabilities = gs.out_of_sample(None, (x, y)).to_numpy()
scores = np.sort(1 - probabilities[np.arange(1000), y])
sizes = (1 - probabilities <= scores[int(np.ceil(0.9 * 1001)) - 1]).sum(1)
print(f"90 % prediction sets hold {sizes.mean():.2f} classes on average")
plt.plot([0, 1], [0, 1], color="0.7")
plt.xlabel("stated probability")
plt.ylabel("observed accuracy")
plt.legend()
