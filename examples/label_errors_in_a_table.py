"""Find label errors in a table with strings and missing values, and write a list to review."""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

import gapscope as gs

bunch = load_wine(as_frame=True)
table = bunch.data.drop(columns="color_intensity")
table["colour"] = pd.cut(bunch.data["color_intensity"], 3, labels=["light", "medium", "dark"])
table.loc[::11, "alcohol"] = None
labels = bunch.target.map({0: "Barolo", 1: "Grignolino", 2: "Barbera"})
labels.iloc[[5, 80, 150]] = ["Barbera", "Barolo", "Grignolino"]  # three errors

numbers = pd.get_dummies(table, dtype=float)
x = StandardScaler().fit_transform(SimpleImputer().fit_transform(numbers)).astype("float32")
issues = gs.find_label_issues(None, (x, labels))
print(issues)
issues.to_csv("review.csv")  # fill in the column `label`, then gs.apply_label_corrections

rows = issues.to_pandas().head(20)
plt.barh(
    rows["sample"].astype(str)[::-1],
    rows["margin"][::-1],
    color=["tab:red" if f else "0.7" for f in rows["flagged"]][::-1],
)
plt.xlabel("margin of the given label (red: flagged)")
plt.ylabel("sample")
