"""Sets that hold the label of 90 % of new samples, from a forest that is fitted to all samples, as MAPIE's."""

from importlib import import_module
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import gapscope as gs

x, new_x, y, new_y = train_test_split(
    *load_digits(return_X_y=True), train_size=1000, random_state=0
)
forest = RandomForestClassifier(200, random_state=0)
probabilities = gs.out_of_sample(forest, (x, y)).to_numpy()  # out of bag
new_probabilities = forest.fit(x, y).predict_proba(new_x)

# Split conformal prediction without a split: the quantile of the held-out scores serves for the forest of all samples.
scores = np.sort(1 - probabilities[np.arange(1000), y])
sets = 1 - new_probabilities <= scores[int(np.ceil(0.9 * 1001)) - 1]
held = sets[np.arange(len(new_y)), new_y].mean()
print(
    f"90 % sets hold {held:.1%} of the {len(new_y)} new labels, with {sets.sum(1).mean():.2f} classes on average"
)
plt.hist(sets.sum(1), bins=np.arange(-0.5, 5))
plt.xlabel("classes in the set of a new sample")


class _Passed(ClassifierMixin, BaseEstimator):
    """Classifier whose inputs are its probabilities: MAPIE asks for an estimator."""

    classes_ = np.arange(10)
    predict_proba = staticmethod(lambda x: x)
    predict = staticmethod(lambda x: x.argmax(1))

    def fit(self, x: np.ndarray, y: np.ndarray) -> "_Passed":
        return self


if find_spec("mapie"):
    mapie = import_module("mapie.classification").SplitConformalClassifier(
        _Passed(), confidence_level=0.9
    )
    mapie.conformalize(probabilities, y)
    print(
        f"equal to MAPIE's: {np.array_equal(mapie.predict_set(new_probabilities)[1][:, :, 0], sets)}"
    )
