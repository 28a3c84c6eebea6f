"""Text that holds numbers or dates: thousands separators, decimal commas, currency, percent, one unit, orders of dates.

The format of a column is found in the first table, and others are read by it. Codes (ZIP codes, phone numbers), and
categories that are numbers, stay text.
"""

from __future__ import annotations

import numbers
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import join_names
from gapscope.data.plain_columns import ISO_DATE, are_numbers

if TYPE_CHECKING:
    import pandas

MIN_SHARE = 0.9
"""Fraction of the cells that are numbers from which on the others are errors, by judgment."""
MAX_CATEGORIES = 20
"""More different values are no categories: text with more than half as many as rows holds names, and integers are
amounts, unless they are numbered from 0 or 1 without a gap."""
MIN_CODE = 5
"""Digits of whole numbers of one length that are codes where other cells are text."""
MIN_PHONE = 7
"""Digits of whole numbers with a plus or in groups of one length, as of phone numbers."""
MAX_DIGITS = 15
"""Whole numbers of more digits are codes: floating point does not tell them apart."""
ERRORS = re.compile(r"\W*|.*\d.*|#.*|(?i:missing|unknown|none|null|nan?|n/a|error|tbd|empty|void)")
"""Cells that are no category beside a few numbers: wrong numbers, and words for missing ones."""
_CURRENCY = (
    r"[$€£¥₹₩₽₺₪฿]|[A-Z]{0,2}\$|USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|BRL|Rs\.?|kr\.?"
)
# a single capital letter at a number is that of a code (12A)
_UNIT = r"[%‰$€£¥₹₩₽₺₪฿]|°[CF]?|[a-zµ][^\W\d_]{0,5}(/[a-z]+)?[²³23]?|[A-Z]{3}|[A-Z][a-z]"
_CELL = re.compile(
    rf"(?P<open>\()?(?P<sign>[-+−]?)(?P<before>({_CURRENCY})? ?)(?P<inner>[-+−]?)"
    rf"(?P<number>\d([\d.,' ’]*\d)?\.?([eE][-+]?\d+)?|[.,]\d+)"
    rf"(?P<after>( ?({_UNIT}))?| [^\W\d_][^\d,;]{{0,15}}[²³23]?)(?P<close>\))?"
)
_NUMBER = {
    point: re.compile(
        rf"(\d{{1,3}}([{mark}' ’])\d{{3}}(\2\d{{3}})*|\d{{1,2}}({mark}\d\d)+{mark}\d{{3}}|\d+)({point}\d*)?"
        rf"([eE][-+]?\d+)?|{point}\d+"
    )
    for point, mark in ((r"\.", ","), (",", r"\."))
}
_DATE = re.compile(
    r"(\d{1,4})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?:[ T]+(\d{1,2})(:\d{2})(:\d{2})? ?([AaPp][Mm])?)?"
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMED_MONTH = re.compile(
    r"(?P<day>\d{1,2})[ ./-](?P<month>[A-Za-z]{3,9})\.?[ ,./-]{1,2}(?P<year>\d{4})"
    r"|(?P<month2>[A-Za-z]{3,9})\.? (?P<day2>\d{1,2}),? (?P<year2>\d{4})"
)
YEARS_OF_1900 = 30
"""Years of two digits from this one on are those of 1900, as in spreadsheets."""


@dataclass(frozen=True)
class TextFormat:
    """How text holds numbers or dates.

    Attributes:
        kind: "number", "date", or "ambiguous" for dates whose day and month cannot be told apart.
        point: Decimal mark of numbers.
        affix: Currency before, and currency or unit after, the numbers.
        order: Order of the numbers of a date, such as "dmy"; empty for ISO 8601.
    """

    kind: str
    point: str = "."
    affix: tuple[str, str] = ("", "")
    order: str = ""

    def values(self, column: pandas.Series) -> pandas.Series:
        """Return the numbers or dates of a column; cells that hold something else are missing.

        Args:
            column: Column of a table.
        """
        import pandas

        parse: Callable[[str], Any] = self._iso_date if self.kind == "date" else self._number
        is_number = self.kind == "number" and not any(self.affix)
        parsed = {
            cell: _finite(cell) if is_number and not isinstance(cell, str) else parse(_plain(cell))
            for cell in column.dropna().unique()
        }
        cells = column.astype(object).map(parsed)
        if self.kind == "date":
            dates = pandas.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
            return dates.dt.tz_localize(None)
        return cells.astype(float)

    def number_in(self, text: str) -> float | None:
        """Return the number in a text of this format; None for other text.

        Args:
            text: Text of a cell.

        >>> TextFormat("number", affix=("", "%")).number_in("13.5%")
        13.5
        """
        value = self._number(_plain(text))
        return None if self.kind != "number" or numpy.isnan(value) else float(value)

    def write(self, value: float, like: str) -> str | None:
        """Return a number as text with the currency or unit of another cell; None if it would be read as another one.

        Args:
            value: The number.
            like: The other cell.
        """
        found = _CELL.fullmatch(_plain(like))
        if found is None:
            return None
        number = repr(abs(value)).removesuffix(".0").replace(".", self.point)
        text = f"{'-' if value < 0 else ''}{found['before']}{number}{found['after']}"
        return text if self._number(text) == value or not any(self.affix) else None

    def _number(self, text: str) -> float:
        found = _split(text)
        if found is None or found.affix != self.affix:
            return numpy.nan
        return found.value(self.point)

    def _iso_date(self, text: str) -> str | None:
        """Return a date as text of ISO 8601 (None for other text); whether it exists is not checked."""
        if not self.order:
            return text if ISO_DATE.fullmatch(text) else None
        found = _DATE.fullmatch(text)
        if found is None:
            return None
        parts = dict(zip(self.order, (found[1], found[3], found[4]), strict=True))
        year = parts["y"]
        if len(year) == 2:
            year = ("19" if int(year) >= YEARS_OF_1900 else "20") + year
        date = f"{year}-{parts['m']:0>2}-{parts['d']:0>2}"
        if found[5] is None:
            return date
        hour = int(found[5])
        if found[8]:
            hour = hour % 12 + 12 * (found[8].lower() == "pm")
        return f"{date}T{hour:02}{found[6]}{found[7] or ''}"

    def describe(self, column: pandas.Series) -> str:
        """Return how a column was read, with an example.

        Args:
            column: Column of the table.
        """
        values = self.values(column).reset_index(drop=True).dropna()
        if self.kind == "date":
            row = values.index[values.dt.day.to_numpy().argmax()]  # a day that is no month
        else:
            is_text = [isinstance(cell, str) for cell in column]
            row = max(values.index, key=lambda row: (is_text[row], len(str(column.iloc[row]))))
        cell = column.iloc[row]
        value = values[row]
        if self.kind == "date":
            return f"{column.name}: read as dates ({str(cell)!r} is {value.date()})."
        return f"{column.name}: text read as numbers ({str(cell)!r} is {value:.12g})."


@dataclass(frozen=True)
class _Parts:
    """Parts of a cell: sign, digits with their marks, and what surrounds them."""

    sign: str
    number: str
    affix: tuple[str, str]

    @property
    def digits(self) -> str:
        return re.sub(r"\D", "", self.number)

    def value(self, point: str) -> float:
        if not _NUMBER[re.escape(point) if point == "." else point].fullmatch(self.number):
            return numpy.nan
        marks = " '’" + ("," if point == "." else ".")
        plain = self.number.translate({ord(mark): None for mark in marks})
        value = float(plain.replace(point, "."))
        return -value if self.sign in ("-", "−", "(") else value


def _finite(cell: Any) -> float:
    value = float(cell)
    return value if numpy.isfinite(value) else numpy.nan


def _plain(cell: Any) -> str:
    """Return a cell as text with usual spaces, a minus before its number, and a date with a named month as ISO 8601."""
    text = " ".join(re.sub(r"[\u00a0\u2009\u202f]", " ", str(cell)).split())
    if re.fullmatch(r"\d[\d.,]*-", text):
        return "-" + text[:-1]
    found = _NAMED_MONTH.fullmatch(text)
    if found is None:
        return text
    day, month, year = (found[name] or found[f"{name}2"] for name in ("day", "month", "year"))
    if month[:3].lower() not in _MONTHS:
        return text
    return f"{year}-{_MONTHS.index(month[:3].lower()) + 1:02}-{day:0>2}"


def _split(text: str) -> _Parts | None:
    found = _CELL.fullmatch(text)
    if found is None or bool(found["open"]) != bool(found["close"]):
        return None
    after = found["after"].strip().casefold()
    if len(after) > 3:  # days and day
        after = after.removesuffix("s")
    sign = found["sign"] or found["inner"] or found["open"] or ""
    return _Parts(sign, found["number"].strip(), (found["before"].strip(), after))


def possible_numbers(text: str) -> tuple[str, ...]:
    """Return the numbers that an amount may be, as text with the same digits; percents also as fractions.

    Args:
        text: Text with marks of thousands, a decimal mark, currency or unit.

    >>> possible_numbers("$1,251.50"), possible_numbers("10.00%")
    (('1251.50',), ('10.00', '10.00e-2'))
    """
    parts = _split(_plain(text))
    if parts is None:
        return ()
    result: list[str] = []
    for point in (".", ","):
        if numpy.isnan(parts.value(point)):
            continue
        marks = str.maketrans("", "", " '’.,".replace(point, ""))
        number = parts.number.translate(marks).replace(point, ".")
        number = ("-" if parts.sign in ("-", "−", "(") else "") + number
        result.append(number)
        if "%" in parts.affix and "e" not in number.lower():
            result.append(f"{number}e-2")
    return tuple(result)


def has_text(column: pandas.Series) -> bool:
    """Return whether the cells of a column are text, perhaps beside numbers, and no declared categories.

    Args:
        column: Column of a table.
    """
    import pandas

    if are_numbers(column) or isinstance(column.dtype, pandas.CategoricalDtype):
        return False
    types = set(map(type, column.dropna()))
    is_usable = all(
        issubclass(each, str | numbers.Real | Decimal) and each is not bool for each in types
    )
    return is_usable and any(issubclass(each, str) for each in types)


def has_numbers_in_text(column: pandas.Series) -> bool:
    """Return whether a column holds numbers beside text, so that its text is not meant to be categories.

    Args:
        column: Column of a table.
    """
    return has_text(column) and not all(isinstance(cell, str) for cell in column.dropna())


def without_declaration(column: pandas.Series) -> pandas.Series:
    """Return a column of declared categories as its values if they are more than categories are, others unchanged.

    Such columns were made categories to save memory.

    Args:
        column: Column of a table.
    """
    import pandas

    if isinstance(column.dtype, pandas.CategoricalDtype) and column.nunique() > MAX_CATEGORIES:
        return column.astype(object)
    return column


def find_format(column: pandas.Series, min_share: float = MIN_SHARE) -> TextFormat | None:
    """Return how a column of text holds numbers or dates; None for other columns, categories and codes.

    Args:
        column: Column of a table.
        min_share: Fraction of the cells that must be such.
    """
    if not has_text(column):
        return None
    counts = Counter(_plain(cell) for cell in column.dropna())
    counts.pop("", None)
    if not counts:
        return None
    real = {_plain(cell) for cell in column.dropna() if not isinstance(cell, str)}
    return _date_format(counts, min_share) or _number_format(counts, real, min_share)


def amounts_format(column: pandas.Series) -> TextFormat | None:
    """Return the format of text of whole numbers of several lengths with nearly as many values as rows; else None.

    As categories they would be dropped. Of a target they are classes, because they were made text.

    Args:
        column: Column of the inputs, which `find_format` has no format for.
    """
    if not has_text(column):
        return None
    cells = {_plain(cell) for cell in column.dropna()}
    is_varied = len(cells) > max(MAX_CATEGORIES, column.count() / 2)
    are_whole = all(re.fullmatch(r"0|[1-9]\d*", cell) for cell in cells)
    if is_varied and are_whole and len(set(map(len, cells))) > 1:
        return TextFormat("number")
    return None


def _share(counts: Counter[str], cells: Sequence[str]) -> float:
    return sum(counts[cell] for cell in cells) / counts.total()


def _number_format(
    counts: Counter[str], real: Collection[str], min_share: float
) -> TextFormat | None:
    """Return how cells hold numbers, of which some are no text (`real`); None for other text."""
    parts = {cell: found for cell in counts if (found := _split(cell)) is not None}
    affixes: Counter[tuple[str, str]] = Counter()
    for cell, found in parts.items():
        affixes[found.affix] += counts[cell]
    if not affixes:
        return None
    affix = affixes.most_common(1)[0][0]
    shares: dict[str, float] = {}
    numeric: dict[str, list[str]] = {}
    for point in (".", ","):
        numeric[point] = [
            cell
            for cell, found in parts.items()
            if found.affix == affix and (cell in real or not numpy.isnan(found.value(point)))
        ]
        shares[point] = _share(counts, numeric[point])
    point = max(shares, key=shares.__getitem__)
    if shares[point] < min_share:
        return None
    if real and shares["."] == shares[","]:
        point = _point_like_numbers(
            [parts[cell] for cell in numeric[point] if cell not in real], real
        )
    known = [parts[cell] for cell in numeric[point]]
    are_known = set(numeric[point])
    others = [cell for cell in counts if cell not in are_known]
    is_plain = affix == ("", "")
    if _are_codes(known, others) or (is_plain and _are_categories(known, others, bool(real))):
        return None
    return TextFormat("number", point, affix)


def _point_like_numbers(text: Sequence[_Parts], real: Collection[str]) -> str:
    """Return the decimal mark with which text is of the size of numbers of its column, a point if both are."""
    size = numpy.log1p(numpy.median([abs(_finite(cell)) for cell in real]))
    if not text:
        return "."
    return min(
        (".", ","),
        key=lambda mark: abs(
            numpy.log1p(numpy.median([abs(part.value(mark)) for part in text])) - size
        ),
    )


def _are_codes(known: Sequence[_Parts], others: Sequence[str]) -> bool:
    """Return whether numbers are codes: leading zeros, phone numbers, and groups of digits of one length."""
    if any(re.match(r"0\d", part.number) for part in known):
        return True
    lengths = {len(part.digits) for part in known}
    if any(part.number.isdigit() and len(part.digits) > MAX_DIGITS for part in known):
        return True
    if any(part.sign == "+" and len(part.digits) >= MIN_PHONE for part in known):
        return True
    if (
        all(" " in part.number for part in known)
        and len(lengths) == 1
        and min(lengths) >= MIN_PHONE
    ):
        return True
    if not all(part.number.isdigit() for part in known):
        return False
    has_codes = any(re.fullmatch(r"\d+([ -]\d+)+", cell) for cell in others)
    return bool(others) and (has_codes or (len(lengths) == 1 and min(lengths) >= MIN_CODE))


def _are_categories(known: Sequence[_Parts], others: Sequence[str], is_mixed: bool) -> bool:
    """Return whether numbers without currency or unit may be categories, or text on purpose.

    Where some cells are numbers, the others are text by chance (`is_mixed`).
    """
    if any(not re.fullmatch(r"\d*\.?\d*([eE][-+]?\d+)?", part.number) for part in known):
        return False  # separators
    if len(known) <= MAX_CATEGORIES:
        return not (others or is_mixed) or not all(map(ERRORS.fullmatch, others))
    return not (others or is_mixed) and all(part.number.isdigit() for part in known)


def _date_format(counts: Counter[str], min_share: float) -> TextFormat | None:
    """Return the order of dates, None for other text; a day and a month that may both be months are ambiguous."""
    iso = [cell for cell in counts if ISO_DATE.fullmatch(cell)]
    if _share(counts, iso) >= min_share:
        return TextFormat("date")
    found = {cell: match for cell in counts if (match := _DATE.fullmatch(cell)) is not None}
    if _share(counts, list(found)) < min_share:
        return None
    days = set[str]()
    months = set[str]()
    years = set[str]()
    for cell, match in found.items():
        first = int(match[1])
        second = int(match[3])
        if len(match[1]) == 4:
            years.add(cell)
        elif match[2] == "." and len(match[4]) == 2 and len(match[1]) + len(match[3]) < 4:
            continue  # a version such as 1.2.11
        else:
            days |= {cell} if 1 <= first <= 31 and 1 <= second <= 12 else set()
            months |= {cell} if 1 <= first <= 12 and 1 <= second <= 31 else set()
    shares = {
        name: _share(counts, list(cells))
        for name, cells in (("ymd", years), ("dmy", days), ("mdy", months))
    }
    order = max(shares, key=shares.__getitem__)
    if shares[order] < min_share:
        return None
    has_points = all(match[2] == "." for match in found.values())
    is_told = order == "ymd" or bool(days - months) != bool(months - days)
    if not is_told and not (has_points and not months - days):
        return TextFormat("ambiguous")
    return TextFormat("date", order=order)


def note_on_errors(column: pandas.Series, values: pandas.Series, noun: str = "numbers") -> str:
    """Return which cells of a column are missing after it was read, with their rows; empty for none.

    Args:
        column: Column of a table.
        values: What was read.
        noun: What was read, for the message.
    """
    wrong = numpy.flatnonzero(values.isna().to_numpy() & column.notna().to_numpy())
    rows: dict[str, list[int]] = {}
    for row in wrong.tolist():
        rows.setdefault(repr(str(column.iloc[row]))[:40], []).append(row + 1)
    if not rows:
        return ""
    listed = join_names(
        f"{cell} ({'row' if len(where) == 1 else 'rows'} {join_names(where)})"
        for cell, where in rows.items()
    )
    return f"cells that are no {noun}: {listed}"


def note_on_unreadable(column: pandas.Series) -> str:
    """Return the cells by which a column is not read as numbers or dates, if most of its cells are such (else empty).

    Args:
        column: Column of a table without a format (see `find_format`).
    """
    text = find_format(column, 0.5)
    if text is None or text.kind == "ambiguous":
        return ""
    wrong = note_on_errors(column, text.values(column), f"{text.kind}s")
    return wrong and f"{column.name}: most cells are {text.kind}s. Correct the {wrong}."
