"""The gallery: every script of examples/ is run, and its page shows what it printed and drew, and how long it took.

Outputs are cached under site-cache/, by the content of the script, so that a second build is quick; `make clean`
empties it. A clean clone runs every script.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / "site-cache"
GROUPS = {
    "Data": ["check_a_table", "tried_advice", "label_errors_in_images", "label_errors_in_a_table",
             "correct_labels_and_retrain", "learning_curve_of_a_function", "held_out_predictions_for_other_tools",
             "prediction_sets_without_a_split"],
    "Before and after training": ["forecast_before_training", "which_network_to_train", "compare_trained_networks",
                                  "california_with_pandas"],
    "While training": ["cnn_with_batch_norm", "penalty_against_label_noise", "batch_size_and_batch_norm",
                       "lightning_module"],
    "Pretrained networks": ["label_errors_in_photographs", "check_photographs", "intents_of_texts", "confused_intents"],
    "Fine-tuning": ["fine_tune_memorizing", "hf_trainer", "bert_with_lora"],
    "Many networks": ["many_networks", "own_pool_to_an_estimate"],
    "Papers": ["output_sensitivity_and_test_loss", "unit_sparsity_and_label_noise", "batch_norm_theory"],
}  # fmt: skip
RUNNER = """
import runpy, sys, time
path, folder = sys.argv[1:]
sys.argv = [path]
runpy.run_path(path, run_name="__main__")
import matplotlib.pyplot as plt
for number in plt.get_fignums():
    plt.figure(number).savefig(f"{folder}/{number}.png", dpi=80, bbox_inches="tight")
open(f"{folder}/seconds.txt", "w").write(str(time.process_time()))
"""


def title_of(name: str) -> str:
    """Title of an example: its file name in words, with the usual capitals."""
    words = name.replace("_", " ")
    for lower, upper in {
        "bert": "BERT",
        "lora": "LoRA",
        "cnn": "CNN",
        "hf trainer": "Hugging Face Trainer",
    }.items():
        words = words.replace(lower, upper)
    return words[0].upper() + words[1:]


def summary_of(path: Path) -> str:
    """First paragraph of an example's docstring."""
    return (
        (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    )


def run_example(path: Path) -> Path:
    """Run an example, unless its output is cached.

    Returns:
        The folder with output.json and its pictures.

    Raises:
        RuntimeError: It failed.
    """
    folder = CACHE / f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    if (folder / "output.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-c", RUNNER, str(path), str(folder)],
            capture_output=True, text=True, cwd=empty, env=environment, check=False,
        )  # fmt: skip
    skipped = done.stderr.startswith("skipped:")  # an extra that it needs is not installed
    if done.returncode and not skipped:
        raise RuntimeError(f"The example {path.name} failed:\n{done.stderr}")
    printed = (
        "not run when this page was made: an extra is not installed"
        if skipped
        else done.stdout.rstrip()
    )
    seconds = folder / "seconds.txt"
    content = {
        "printed": printed,
        "seconds": float(seconds.read_text()) if seconds.exists() else None,
    }
    (folder / "output.json").write_text(json.dumps(content))
    return folder


def page_of(path: Path, folder: Path) -> str:
    """Markdown of an example's page."""
    output, source = json.loads((folder / "output.json").read_text()), path.read_text()
    lines = [f"# {title_of(path.stem)}", "", summary_of(path), ""]
    took = f"Took {output['seconds']:.0f} CPU seconds. " if output["seconds"] else ""
    lines += [f"{took}[Download the script]({path.name}).", ""]
    pictures = sorted(folder.glob("*.png"))
    lines += [f"![Output of {path.stem}]({path.stem}-{picture.name})\n" for picture in pictures]
    lines += ["```text", output["printed"], "```", ""] if output["printed"] else []
    return "\n".join([*lines, f"```python\n{source}```", ""])


def card_class(pictures: list[Path]) -> str:
    """CSS class of a card: of a tall picture, only the top is shown."""
    if not pictures:
        return "card"
    # in the header of every PNG
    width, height = struct.unpack(">II", pictures[0].read_bytes()[16:24])
    return "card tall" if height > 1.2 * width else "card"


def gallery() -> dict[str, str | bytes]:
    """Every file of the gallery by its path on the site: pages, scripts, pictures, and the index."""
    paths = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
    with ThreadPoolExecutor(2) as pool:
        folders = dict(zip(paths, pool.map(run_example, paths.values()), strict=True))
    index = [
        "# Gallery",
        "",
        "The scripts ran when this site was built, at a small scale; a page says where data or an extra were missing.",
        "",
    ]
    files: dict[str, str | bytes] = {}
    for group, names in GROUPS.items():
        index += [f"## {group}", "", '<div class="gallery" markdown>', ""]
        for name in names:
            path, folder = paths[name], folders[name]
            files[f"examples/{name}.md"] = page_of(path, folder)
            files[f"examples/{name}.py"] = path.read_text()
            pictures = sorted(folder.glob("*.png"))
            files |= {
                f"examples/{name}-{picture.name}": picture.read_bytes() for picture in pictures
            }
            shown = (
                f"[![{title_of(name)}]({name}-{pictures[0].name})]({name}.md)\n" if pictures else ""
            )
            seconds = json.loads((folder / "output.json").read_text())["seconds"]
            took = f" {seconds:.0f} CPU s." if seconds else ""
            index += [
                f'<div class="{card_class(pictures)}" markdown>\n{shown}\n[{title_of(name)}]({name}.md)\n',
                f"{summary_of(path)}{took}\n</div>\n",
            ]
        index += ["</div>", ""]
    files["examples/index.md"] = "\n".join(index)
    return files
