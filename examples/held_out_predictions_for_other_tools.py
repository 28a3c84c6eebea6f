"""Held-out probabilities of a forest from one fit, passed on to cleanlab and scikit-learn."""

from importlib import import_module
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import gapscope as gs

x, y = load_digits(return_X_y=True)
x, new_x, y, new_y = train_test_split(x, y, train_size=1000, random_state=0)
wrong = np.random.default_rng(0).permutation(1000)[:50]
y[wrong] = (y[wrong] + 3) % 10

forest = RandomForestClassifier(200, random_state=0)
held_out = gs.out_of_sample(forest, (x, y))  # out of bag; any other estimator: five folds
print(f"{held_out}\n")
probabilities = held_out.to_numpy()

# Label errors: cleanlab takes the probabilities, and gapscope any others.
quality = probabilities[np.arange(1000), y]
if find_spec("cleanlab"):
    quality = import_module("cleanlab.rank").get_label_quality_scores(y, probabilities)
print(
    f"{np.isin(np.argsort(quality)[:50], wrong).sum()} of the 50 labels of lowest quality are wrong"
)
issues = gs.find_label_issues(None, (x, y), pred_probs=held_out)
print(
    f"gapscope on the same probabilities: {np.isin(issues.indices[:50], wrong).sum()} of its first 50"
)

new_probabilities = forest.fit(x, y).predict_proba(new_x)
for name, values, labels in (("held out", probabilities, y), ("new", new_probabilities, new_y)):
    observed, stated = calibration_curve(
        values.argmax(1) == labels, values.max(1), n_bins=8, strategy="quantile"
    )
    plt.plot(stated, observed, "o-", label=f"{name} samples")
plt.plot([0, 1], [0, 1], color="0.7")
plt.xlabel("stated probability")
plt.ylabel("observed accuracy")
plt.legend()
