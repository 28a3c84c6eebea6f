"""Settings of a transformers Trainer that writes, reports and shows nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def training_arguments(folder: Path | str, **options: Any) -> Any:
    """Return `TrainingArguments` for batches of 8 on the CPU, always in the same order; `options` come first."""
    import transformers

    settings: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "learning_rate": 0.01, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "seed": 3,
    } | options  # fmt: skip
    return transformers.TrainingArguments(**settings)
