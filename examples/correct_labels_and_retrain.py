"""Correct the flagged labels of a noisy data set, and compare the accuracy before and after."""

import matplotlib.pyplot as plt

import gapscope as gs

digits = gs.load_dataset("digits")
x, clean, test = digits.train.inputs[:600], digits.train.targets[:600], digits.test
settings = gs.TrainingSpec(epochs=40, momentum=0.9)
before, after, rates = [], [], [0.1, 0.2, 0.3]
for rate in rates:
    noisy = gs.data.inject_label_noise(clean, rate, n_classes=10)
    issues = gs.find_label_issues(None, (x, noisy))
    corrected = noisy.clone()
    for _, row in issues.to_pandas().query("flagged").iterrows():
        corrected[int(row["sample"])] = int(row["suggested"])  # a person would decide
    for labels, scores in ((noisy, before), (corrected, after)):
        network = gs.build_network(
            "fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=128
        )
        gs.train(network, (x, labels), settings)
        scores.append(float(gs.functional.accuracy(network, test.inputs, test.targets)))
    print(
        f"label noise {rate:.0%}: estimated {issues.noise.rate:.0%}, test accuracy {before[-1]:.3f} -> {after[-1]:.3f}"
    )

plt.plot(rates, before, "o-", label="labels as they are")
plt.plot(rates, after, "s-", label="flagged labels replaced by the suggestion")
plt.xlabel("label noise")
plt.ylabel("test accuracy")
plt.legend()
