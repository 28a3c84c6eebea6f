"""Features of pretrained networks: forecasts, label errors, choice of a network, and the NTK beside them.

The rule is `rule.toml`: data sets, sizes, seeds, networks and bars. It was committed before the study was run.

Truth is the accuracy of a linear probe (logistic regression on standardized features, scikit-learn's C = 1) on test
samples, which nothing else reads. Test samples are of the published test half, where there is one, else of a fixed
split. The ResNets were trained on the training images of CIFAR-10; its samples here are test images, in two halves.
`python_lines` are lines of the standard library, the class is the package; the texts therefore depend on the version
of Python, and a hash of them is stored.

Compared on the same features and samples:

- accuracy: `forecast_accuracy`, `learning_curve` of the probe (from 300 samples), the probe in five folds, and the
  probe on a 20 % hold-out. Errors against the truth, coverage of the 90 % intervals, CPU seconds without features.
- label errors, planted evenly or towards similar classes: `find_label_issues`, and cleanlab's self-confidence, the
  probability of the given label by the probe in five folds. AUROC and average precision.
- choice of a network for the same training samples: the forecast, five folds, the hold-out, LogME and the parameter
  count. Regret: truth of the best candidate minus that of the chosen one.
- NTK: ridge on features, on the NTK of all layers but the head (projected), and on the sum of the two, each scaled to
  mean diagonal 1; the ridge is chosen by leave-one-out. Test accuracy.
"""
