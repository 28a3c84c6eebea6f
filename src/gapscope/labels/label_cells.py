"""Labels in the cells of reviewed lists, as spreadsheet programs may have rewritten them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED
from gapscope.data.number_text import TextFormat, possible_numbers
from gapscope.data.tables import Cells
from gapscope.results.formatting import pluralize

DROP = "drop"
N_ROWS = "n_rows"
"""Column of a list for the number of rows of its data: rows that are dropped change the numbers of others."""
# Spreadsheet programs may add ".0" to whole numbers. Python's int() and float() also read "1_0" as 10.
INTEGER = re.compile(r"[+-]?[0-9]+(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{1,4}([./-])[0-9]{1,2}\1[0-9]{1,4}")


def count_rows(samples: Samples | None) -> Any:
    """Return the number of rows of the data of which samples were read; empty without samples.

    Args:
        samples: The samples, or None.
    """
    return "" if samples is None else samples.n_rows or len(samples)


def drop_word(class_names: Sequence[str]) -> str:
    """Return the word that removes a sample: "drop", in parentheses if a class has that name.

    >>> drop_word(["cat", "dog"]), drop_word(["pick", "drop"])
    ('drop', '(drop)')
    """
    word = DROP
    while word in {name.strip() for name in class_names}:
        word = f"({word})"
    return word


def written_names(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes as a list for review holds them: a blank one would keep the label.

    >>> written_names(["cat", "", "(empty)"])
    ('cat', '((empty))', '(empty)')
    """
    written = [*class_names]
    for code, name in enumerate(class_names):
        if name.strip():
            continue
        word = "(empty)"
        while word in written:
            word = f"({word})"
        written[code] = word
    return tuple(written)


def _number_in(name: str) -> float | None:
    """Return the number that a text is: spreadsheet programs write 007 and 7.0 as 7."""
    return float(name) if _NUMBER.fullmatch(name.strip()) else None


def _composed(text: str) -> str:
    """Return a text with one character per accented letter and end of line: some programs write two."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))


def stripped(text: str) -> str:
    """Return a text without spaces around it, and with one character per accented letter.

    Args:
        text: A cell, or the name of a class or column.
    """
    return _composed(text.strip())


def folded(text: str) -> str:
    """Return a text as `stripped`, in lower case.

    Args:
        text: A cell, or the name of a class or column.
    """
    return _composed(stripped(text).casefold())


def _epsilon(samples: Samples) -> float:
    """Return the relative error of regression targets in their precision; 0 for classes."""
    dtype = samples.y.dtype
    return 4 * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def are_equal(decision: float | None, label: float, samples: Samples) -> bool:
    """Return whether a decision of a list is the label that the data have, in their precision.

    Args:
        decision: Class or regression target; None to drop the sample.
        label: The label in the data.
        samples: The data.
    """
    if decision is None or samples.kind != "regression":
        return decision == label
    return abs(decision - label) <= _epsilon(samples) * abs(label)


def _are_one_date(text: str, name: str) -> bool:
    """Return whether two texts are dates of the same numbers, in any order and with years of two or four digits."""
    if not (_DATE.fullmatch(text.strip()) and _DATE.fullmatch(name.strip())):
        return False
    numbers = [
        sorted(int(part) % 100 for part in re.findall("[0-9]+", cell)) for cell in (text, name)
    ]
    return numbers[0] == numbers[1]


def _rounds_to(text: str, value: float, epsilon: float) -> bool:
    """Return whether a number that is written with some digits may be the value, within a relative error."""
    if not _NUMBER.fullmatch(text):
        return False
    exponent = Decimal(text).as_tuple().exponent
    assert isinstance(exponent, int), "a text that matches has digits"
    return abs(float(text) - value) <= 0.5 * 10.0**exponent + epsilon * abs(value)


class LabelParser:
    """Parser of the labels of one data set.

    Args:
        samples: The samples.
        cells: Cells of the list.
        form: How the column of the targets holds numbers, if they are text; None for other columns.
    """

    def __init__(self, samples: Samples, cells: Cells, form: TextFormat | None = None) -> None:
        self.form = form
        self.kind = samples.kind
        self.cells = cells
        self.codes: dict[str, int] = {
            name: code for code, name in enumerate(written_names(samples.class_names))
        }
        self.is_number = self.kind == "regression"
        if self.is_number:
            self.occurring = set()
        else:
            self.occurring = {int(label) for label in samples.y.unique()} - {IGNORED}
        self.drop = drop_word(samples.class_names)
        self.names = dict(enumerate(self.codes))
        if self.kind == "multi-label" and self.codes:  # lists have 0 and 1
            self.codes |= {"0": 0, "1": 1}
        self.epsilon = _epsilon(samples)

    @property
    def _needed(self) -> str:
        if self.is_number:
            return "a number"
        names = [repr(name) for name in self.codes] or [
            str(label) for label in sorted(self.occurring)
        ]
        return f"one of the classes {join_names(names)}"

    @property
    def _removal(self) -> str:
        """What a message says of the word that removes a label, in this task."""
        if self.kind == "multi-label":
            return " Leave the field empty to keep the label."
        effect = "so that the position does not count"
        if self.kind != "positions":
            effect = "to remove the sample"
        return f" Or write {self.drop!r} {effect}, or nothing to keep the label."

    def _alike(self, label: str) -> list[int | None]:
        """Return the classes that a text may mean, and None for the removal, by the first way that finds any.

        It is that of the list, or differs by spaces, by its case, or as spreadsheet programs rewrite numbers.
        """
        if label.strip() == self.drop:
            return [None]
        if label in self.codes:
            return [self.codes[label]]
        found: list[int | None] = []
        for way in (_composed, stripped):
            found = [code for name, code in self.codes.items() if way(name) == way(label)]
            if found:
                return found
        word = folded(label)
        found = [code for name, code in self.codes.items() if folded(name) == word]
        if word in (self.drop, f"({DROP})"):
            found.append(None)
        number = _number_in(self.cells.with_point(label.strip()))
        if not found and number is not None:
            found += [code for name, code in self.codes.items() if _number_in(name) == number]
        return found

    def may_mean(self, text: str, label: float) -> bool:
        """Return whether a text of a list, perhaps rewritten by a spreadsheet program, may be a label of the data.

        Args:
            text: Given label.
            label: Class or regression target.
        """
        numbers = (self.cells.with_point(text).strip(), *possible_numbers(text))
        if self.is_number:
            return any(_rounds_to(number, label, self.epsilon) for number in numbers)
        if self.codes.get(text.strip()) == label or self._number(text) == label:
            return True
        name = self.names.get(int(label), str(int(label)))
        if folded(text) == folded(name) or _are_one_date(text, name):
            return True
        value = _number_in(name)
        return value is not None and any(
            _rounds_to(number, value, 0.0) if "e" in number.lower() else _number_in(number) == value
            for number in numbers
        )

    def write(self, label: float) -> str:
        """Return a label of the data as messages name it.

        Args:
            label: Class or regression target.
        """
        if self.is_number:
            return f"{label:.6g}"
        return repr(self.names.get(int(label), int(label)))

    def _number(self, label: str) -> float | None:
        """Return a regression target, or a class that is a number; None if the text is none."""
        text = self.cells.with_point(label).strip()
        if self.is_number and not _NUMBER.fullmatch(text):
            return None if self.form is None else self.form.number_in(label)
        if self.is_number:
            return float(text)
        truth = {"true": 1, "false": 0}.get(text.casefold())  # as spreadsheet programs write them
        if truth is not None and self.occurring <= {0, 1}:
            return truth if truth in self.occurring else None
        if INTEGER.fullmatch(text):
            value = int(text.partition(".")[0])
        else:
            value = _number_in(text)
        return value if value in self.occurring else None

    def is_label(self, text: str) -> bool:
        """Return whether a text is a class that the data have, or a number as regression targets are.

        Args:
            text: Text of a cell.
        """
        return bool(self._alike(text)) or (not self.codes and self._number(text) is not None)

    def parse(self, label: str, where: str) -> float | None:
        """Return a regression target or a class, None to drop the sample.

        Args:
            label: Text of a cell.
            where: File and line, for messages.

        Raises:
            InvalidInput: The text is no label of the data.
        """
        found = self._alike(label)
        if len(found) == 1:
            return found[0]
        value = None if self.codes else self._number(label)
        if value is not None:
            return value
        raise InvalidInput(
            f"{where}: got the label {label!r}; {self._needed} is needed.{self._removal}"
        )


def check_given(
    path: str | Path, parser: LabelParser, lines: Iterable[tuple[int, str, float, bool]]
) -> None:
    """Check that a list was made for the labels that the data have, which another order of the rows changes.

    Args:
        path: The list.
        parser: Parser of the labels of the data.
        lines: Number of the line, given label, label in the data, and whether this is that of the list. Such lines may
            differ, if another one agrees: the data have these corrections already.

    Raises:
        InvalidInput: A label differs.
    """
    agree: dict[tuple[str, float], bool] = {}
    others: list[tuple[int, str, float]] = []
    done: list[tuple[int, str, float]] = []
    n_agreeing = 0
    for line, given, label, is_done in lines:
        if (given, label) not in agree:
            agree[given, label] = not given.strip() or parser.may_mean(given, label)
        if not agree[given, label]:
            (done if is_done else others).append((line, given, label))
        elif given.strip():
            n_agreeing += 1
    if not others and not n_agreeing:
        others = done
    if not others:
        return
    line, given, label = others[0]
    if len(others) > 1:
        more = f" (and {pluralize(len(others) - 1, 'more line')})"
    else:
        more = ""
    advice = "A list without the column `given` is not compared."
    if n_agreeing > len(others) or not parser.is_label(given):
        advice = "Or a program rewrote the column `given`: delete that column to apply the list without comparison."
    raise InvalidInput(
        f"{path}, line {line}: the list was made for a sample with the label {given.strip()!r}, these data have "
        f"{parser.write(label)}{more}: another order of the rows, other data, or data with these corrections. Pass the "
        f"data of which the list was made, and several lists of them together, path=[first, second]. {advice}"
    )
