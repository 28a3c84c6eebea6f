"""Block for a model card: the score that a network is expected to reach on new data, with its interval."""

from __future__ import annotations

import json

from gapscope.base.environment import version
from gapscope.base.errors import InvalidInput
from gapscope.checks.result import CheckResult
from gapscope.results.answer import Answer

_BLOCK = """---
model-index:
- name: {name}
  results:
  - task:
      type: {task}
    dataset:
      name: {dataset}
      type: {dataset}
    metrics:
    - type: {metric}
      value: {value:.4f}
      name: {title}
---
"""


def model_card(result: Answer | CheckResult, *, name: str, dataset: str) -> str:
    """Return a block of Markdown for the card of a model: metadata as on the Hugging Face hub, and a section.

    The metadata name the score as expected on new data, so that nobody takes it for one on test samples. Without an
    answer there are no metadata, and the section says why.

    Args:
        result: A forecast, an estimate, a learning curve, held-out predictions, or the result of `gapscope.check`.
        name: Name of the model.
        dataset: Name of the training data.

    Raises:
        InvalidInput: `result` has no score on new data.

    >>> import gapscope, torch
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> card = model_card(gapscope.forecast_accuracy(None, (x, (x[:, 0] > 0).long())), name="mine", dataset="points")
    >>> [line for line in card.splitlines() if "value" in line]
    ['      value: 0.9850']
    """
    if isinstance(result, CheckResult):
        account = result.account
        if account is None:
            raise InvalidInput(
                "result must have an account of the accuracy; this check had none. Pass a network."
            )
        lines = ["```text", *account.lines, "", result.headline, "```"]
        expected = account.expected
        score_name = account.score
        if result.samples is None:
            task = "classification"
        else:
            task = result.samples.kind
        value = None if expected is None else expected.value
        title = "" if expected is None else f"{score_name} {expected.source}"
    elif isinstance(result, Answer):  # pyright: ignore[reportUnnecessaryIsInstance]  # what users pass
        lines = [result.headline]
        task = result.task
        score_name = result.score_name
        value = None if result.abstained_because else result.score
        title = f"{score_name} on new data, from the training samples"
    else:
        raise InvalidInput(
            f"result must be an answer of gapscope with a score on new data; got {type(result).__name__}. Pass that of "
            "forecast_accuracy, estimate_accuracy, learning_curve, out_of_sample or check."
        )
    section = "\n".join(
        [f"## Expected {score_name}", "", *lines, "", f"Computed by gapscope {version()}."]
    )
    if value is None:
        return f"{section}\n"
    # JSON strings are YAML strings, whatever a name holds
    quoted = {"name": name, "dataset": dataset, "task": task, "metric": score_name, "title": title}
    block = _BLOCK.format(value=value, **{key: json.dumps(text) for key, text in quoted.items()})
    return f"{block}\n{section}\n"
