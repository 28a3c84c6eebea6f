"""Formatting of numbers and names: few digits, real minus signs, no 1.2e-05."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from numbers import Real
from typing import Any

from gapscope.base.type_guards import is_dict

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_number(value: Any, digits: int = 3) -> str:
    """Format a number with `digits` significant digits (an en dash if missing).

    >>> [format_number(value) for value in (0.12345, -1234567, 4810, 2.5e-7, float("nan"), float("inf"), None)]
    ['0.123', '−1.23×10⁶', '4,810', '2.5×10⁻⁷', '–', '∞', '–']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    value = float(value) + 0.0  # no negative zero
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{float(mantissa):g}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    elif size >= 10**digits:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def format_fixed(value: Any, decimals: int = 3) -> str:
    """Format a number with fixed decimals (an en dash if missing).

    >>> format_fixed(0.5), format_fixed(-0.02, 2), format_fixed(float("nan"))
    ('0.500', '−0.02', '–')
    """
    if value is None or not math.isfinite(value):
        return format_number(value)
    return f"{value:.{decimals}f}".replace("-", "−")


def setting_name(path: str) -> str:
    """Return the readable name of a setting.

    >>> setting_name("data.label_noise"), setting_name("network.options.width"), setting_name("seed")
    ('label noise', 'width', 'seed')
    """
    if path != "network.name":
        return path.rsplit(".", 1)[-1].replace("_", " ")
    return "network"


def setting_value(value: Any) -> str:
    """Format the value of a setting (lists as in `records_to_pandas`).

    >>> [setting_value(value) for value in (0.2, 64, True, None, float("nan"), "vgg11", "[]")]
    ['0.2', '64', 'yes', '–', '–', 'vgg11', 'none']
    >>> setting_value('[{"name": "weight", "options": {"strength": 0.002}}]')
    'weight (strength 0.002)'
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return format_number(value, 4)
    if str(value).startswith("["):
        with suppress(ValueError):
            return ", ".join(map(_item, json.loads(value))) or "none"
    return str(value)


def setting_order(value: Any) -> tuple[bool, float, str]:
    """Return a sorting key for values of a setting: numbers, then texts and missing values."""
    if isinstance(value, Real) and value == value:
        return False, float(value), ""
    return True, 0.0, str(value)


def _item(item: Any) -> str:
    """Format one item of a list setting, such as a penalty with its options."""
    if not is_dict(item) or "name" not in item:
        return setting_value(item)
    options = ", ".join(
        f"{setting_name(key)} {setting_value(value)}"
        for key, value in item.get("options", {}).items()
    )
    if options:
        return f"{item['name']} ({options})"
    return str(item["name"])


def pluralize(n: int, noun: str) -> str:
    """Return number and noun, in the plural unless the number is 1.

    >>> pluralize(1, "network"), pluralize(1200, "network"), pluralize(2, "class")
    ('1 network', '1,200 networks', '2 classes')
    """
    if n != 1:
        noun += "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}"


def describe_repeats(repeats: int, samples: int, other: str = "") -> str:
    """Return the beginning of a sentence on samples that repeat an earlier one.

    >>> describe_repeats(1, 30, ", with another target"), describe_repeats(12, 30)
    ('1 of 30 samples repeats an earlier one, with another target', '12 of 30 samples repeat an earlier one')
    """
    verb = "repeats" if repeats == 1 else "repeat"
    return f"{repeats:,} of {pluralize(samples, 'sample')} {verb} an earlier one{other}"


def expected_test_accuracy(train_accuracy: float, gap: float, low: float, high: float) -> str:
    """Format the expected accuracy on new data in percent (an en dash without an estimate).

    >>> nan = float("nan")
    >>> expected_test_accuracy(0.99, 0.28, 0.235, 0.326), expected_test_accuracy(0.99, nan, nan, nan)
    ('71 % (66 to 76)', '–')
    """
    if not math.isfinite(gap):
        return "–"
    value, worst, best = (
        100 * min(max(train_accuracy - each, 0.0), 1.0) for each in (gap, high, low)
    )
    return f"{value:.0f} % ({worst:.0f} to {best:.0f})"
