"""Training loop, checkpoints without pickle, the monitor and its overfitting alarms.

Common parameters:
    network: Network that returns raw outputs [n, K]; alarms and monitors leave it unchanged.
    samples: Fixed monitored part of the training samples, with class labels [n] for alarms.
    epoch: Number of finished epochs, or another increasing count.
    window: Number of observations that are averaged.
    patience: Number of consecutive observations after which an alarm is raised.
    outputs: Logits [n, K] of the monitored samples.
    labels: Class labels [n] that are trained on, on the CPU.
    probabilities: Softmax of the outputs, [n, K].
    predictions: Leave-one-out predictions [n, K] at the initial weights, the same at every observation.
    neighbours: Indices of the neighbours of each sample, [n, k].
    tensors: Name -> tensor of a checkpoint.
    metadata: Name -> JSON-serializable value of a checkpoint.
    state: Result of `state_dict` of an object with the same class and settings.
    path: File to read or write.
    seed: Seed of the random stream.
"""

from gapscope.penalties.automatic_strength import AutomaticStrength as AutomaticStrength
