"""Adapter of models whose output has a field `logits`."""

from __future__ import annotations

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.inspection.outputs import raw_outputs


class LogitsOnly(nn.Module):
    """Network that returns the field `logits` of a model's output.

    For token numbers the model also receives an `attention_mask`, which excludes the token `padding`.
    """

    def __init__(self, model: nn.Module, padding: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    def forward(self, x: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n k"]:
        """Return the logits of images, or of token numbers [n, length]."""
        is_masked = self.padding is not None and not x.is_floating_point()
        if is_masked:
            output = self.model(x, attention_mask=(x != self.padding).long())
        else:
            output = self.model(x)
        logits = raw_outputs(output)
        if logits is output:
            raise InvalidInput(
                f"The model must return an object with `logits`; {type(self.model).__name__} returned "
                f"{type(output).__name__}. Use a classification model, such as BertForSequenceClassification."
            )
        return logits
