"""Held-out probabilities of a forest from one fit, passed on to cleanlab, MAPIE and scikit-learn."""

from importlib import import_module
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
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
print(f"{np.isin(np.argsort(quality)[:50], wrong).sum()} of the 50 labels of lowest quality are wrong")
issues = gs.find_label_issues(None, (x, y), pred_probs=held_out)
print(f"gapscope on the same probabilities: {np.isin(issues.indices[:50], wrong).sum()} of its first 50\n")

# Prediction sets that hold the label of 90 % of new samples: split conformal prediction without a split. The quantile
# of the held-out scores is used with the forest that is fitted to all samples.
new_probabilities = forest.fit(x, y).predict_proba(new_x)
scores = np.sort(1 - probabilities[np.arange(1000), y])
sets = 1 - new_probabilities <= scores[int(np.ceil(0.9 * 1001)) - 1]


class _Passed(ClassifierMixin, BaseEstimator):
    """Classifier whose inputs are its probabilities: MAPIE asks for an estimator."""

    classes_ = np.arange(10)

    def fit(self, x: np.ndarray, y: np.ndarray) -> "_Passed":
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(1)


if find_spec("mapie"):
    mapie = import_module("mapie.classification").SplitConformalClassifier(_Passed(), confidence_level=0.9)
    mapie.conformalize(probabilities, y)
    theirs = mapie.predict_set(new_probabilities)[1][:, :, 0]
    print(f"MAPIE's sets are equal to the closed form: {np.array_equal(theirs, sets)}")
held = sets[np.arange(len(new_y)), new_y].mean()
print(f"90 % sets hold {held:.1%} of the {len(new_y)} new labels, with {sets.sum(1).mean():.2f} classes on average")

for name, values, labels in (("held out", probabilities, y), ("new", new_probabilities, new_y)):
    observed, stated = calibration_curve(values.argmax(1) == labels, values.max(1), n_bins=8, strategy="quantile")
    plt.plot(stated, observed, "o-", label=f"{name} samples")
plt.plot([0, 1], [0, 1], color="0.7")
plt.xlabel("stated probability")
plt.ylabel("observed accuracy")
plt.legend()
