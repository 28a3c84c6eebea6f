"""Find label errors among images, without a network, and show the worst."""

import matplotlib.pyplot as plt
import torch

import gapscope as gs

digits = gs.load_dataset("digits").train
# replaces the errors of your annotators
noisy = gs.data.inject_label_noise(digits.targets, 0.05, n_classes=10)
wrong = torch.nonzero(noisy != digits.targets).flatten().tolist()

issues = gs.find_label_issues(None, (digits.inputs, noisy))
print(issues)
flagged = issues.to_pandas().query("flagged")["sample"].tolist()
hits = len(set(flagged) & set(wrong))
print(
    f"{hits} of the {len(flagged)} flagged samples are wrong; {hits} of {len(wrong)} errors are found."
)

figure, panels = plt.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
for panel, (_, row) in zip(panels.flat, issues.to_pandas().iterrows(), strict=False):
    panel.imshow(digits.inputs[int(row["sample"]), 0], cmap="gray_r")
    panel.set_title(f"{row['given']} → {row['suggested']}")
    panel.axis("off")
