"""Tables: built once and shown in a terminal, a notebook, HTML, Markdown, CSV and LaTeX, with every interval.

A CSV file holds each number in a column of its own (mean, both ends of the interval, rows behind it), in the unit that
its head names. Text that a spreadsheet would read as a formula gets an apostrophe in front, as OWASP advises ("CSV
Injection"); numbers stay numbers. LaTeX needs the package ``booktabs`` and, for names in Chinese, XeLaTeX or LuaLaTeX.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import compress, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolellm.core.files import open_atomic
from rolellm.core.sanitize import escape_markdown, make_visible, measure_width, show_on_line, truncate

if TYPE_CHECKING:
    import pandas
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

Ends = tuple[float, float]

#: What a cell without a figure shows. Never 0, which would be one.
ABSENT = "–"
#: Characters of a cell that HTML shows; the rest is counted.
MAX_TEXT = 2_000

_NAME_WIDTH = 18
_MEASURING_WIDTH = 10_000
_FORMULA = ("=", "+", "-", "@", "␍", "＝", "＋", "－", "＠")
_DIGITS_MORE = 3
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "⟨": r"\textless{}",
    "⟩": r"\textgreater{}",
    ABSENT: "--",
    "−": r"\ensuremath{-}",
    **{mark: f"\\{mark}" for mark in "&%$#_"},
    # Two of these are a ligature, or close a group of braces early, only where they are bare.
    "[": "{[}",
    "]": "{]}",
    "`": "{`}",
    "'": "{'}",
    "-": "{-}",
}
_CONTROL_PICTURE = re.compile("[\u2400-\u2421]")


class Interval(NamedTuple):
    """A mean and its confidence intervals.

    Attributes:
        mean: Over all values.
        low: Lower end for these roles; ``None`` where the values come from fewer than two clusters, which say nothing
            about spread.
        high: Upper end, or ``None``.
        n: Number of values; 0 where it is not known.
        clusters: Number of distinct clusters among them; 0 where it is not known.
        new_roles: Both ends for new roles; ``None`` with fewer than two roles.
        method: How `low` and `high` were computed; by role, too, where they are for new roles.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    clusters: int = 0
    new_roles: Ends | None = None
    method: str = ""

    @property
    def ends(self) -> Ends | None:
        """Both ends of the interval, low first; ``None`` where it is not known."""
        if self.low is None or self.high is None:
            return None
        return self.low, self.high

    def to_columns(self) -> dict[str, float | None]:
        """Return its numbers as columns of a data frame."""
        low, high = self.new_roles or (None, None)
        wide = {"low_new_roles": low, "high_new_roles": high}
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n, **wide}

    def format_ends(self, digits: int, times: float = 1.0) -> str:
        """Format both ends in brackets, each multiplied and rounded; empty where they are not known."""
        if self.ends is None:
            return ""
        low, high = (format_number(end * times, digits) for end in self.ends)
        return f"[{low}, {high}]"


def describe_intervals(cells: Iterable[tuple[str, Cell]]) -> str:
    """Say by which methods the intervals of some cells, each with its head, were computed; empty where there are none.

    >>> describe_intervals([("CUS", Interval(0.5, 0.4, 0.6, method="Student's t by question"))])
    "95 % intervals for these roles: Student's t by question"
    """
    heads_by_method: dict[str, list[str]] = {}
    for head, cell in cells:
        if isinstance(cell, Interval) and cell.ends and cell.method:
            heads = heads_by_method.setdefault(cell.method, [])
            heads.append(head.rstrip(" ,%"))
    clauses: dict[str, list[str]] = {}
    for method, heads in heads_by_method.items():
        scope = "for new roles" if "by role" in method else "for these roles"
        columns = ", ".join(dict.fromkeys(heads))
        clause = method
        if len(heads_by_method) > 1:
            clause = f"{method} ({columns})"
        clauses.setdefault(scope, []).append(clause)
    texts = [f"{scope}: {', '.join(listed)}" for scope, listed in clauses.items()]
    return f"95 % intervals {'; '.join(texts)}" if texts else ""


#: Signs that a verdict in a cell begins with, to how it is shown: a class in HTML, a style in a terminal.
SIGNS = {"✗": ("bad", "red"), "?": ("open", "yellow"), "✓": ("good", "green")}

#: A score, a count or another number without an interval, a word, or nothing.
Cell = Interval | str | float | None


class Format(NamedTuple):
    """The form of a column's scores: digits after the point, and a factor."""

    digits: int
    scale: float = 1.0

    def round(self, value: float | None) -> float | None:
        """Scale a number for a file: three more digits than in print."""
        if value is None:
            return None
        return round(value * self.scale, self.digits + _DIGITS_MORE)


PERCENT = Format(1, 100.0)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table.

    Attributes:
        names: A cell in each column of names.
        cells: A cell in each other column.
        marks: Words next to the last name.
        band: The group of rows it belongs to, such as ``published`` or ``canary``; neighbors of a band stay together.
    """

    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    marks: tuple[str, ...] = ()
    band: str = ""

    @property
    def marked_name(self) -> str:
        """The last name with its marks."""
        name = self.names[-1]
        if self.marks:
            return f"{name} ({', '.join(self.marks)})"
        return name


class RenderedCell(NamedTuple):
    """A cell as text; ``interval`` and ``n`` are empty where it is not a score or has none."""

    kind: Literal["score", "words", "absent"]
    text: str
    interval: str = ""
    n: str = ""

    @property
    def tone(self) -> str:
        """The meaning of the sign that it begins with: ``bad``, ``open``, ``good`` or nothing."""
        tone, _ = SIGNS.get(self.text[:1], ("", ""))
        return tone if self.kind == "words" else ""

    def join(self) -> str:
        """Return all of it on one line."""
        count = f"n={self.n}" if self.n else ""
        return " ".join(filter(None, (self.text, self.interval, count)))


class RenderedRow(NamedTuple):
    """A row as text.

    Attributes:
        row: The row of the table.
        names: One text a column of names, the last with its marks; empty under a name that continues.
        cells: One a column.
        spans: Number of rows that each name spans; 0 under one that continues.
        closes: Whether a group of rows ends here.
    """

    row: TableRow
    names: list[str]
    cells: list[RenderedCell]
    spans: list[int]
    closes: bool

    @property
    def kinds(self) -> list[str]:
        """The classes of the row in HTML."""
        kinds = []
        if self.row.band:
            kinds = [f"band-{self.row.band}"]
        if len(self.spans) > 1 and self.spans[0]:
            kinds.append("opens")
        elif len(self.spans) == 1 and self.closes:
            kinds.append("closes")
        return kinds


@dataclass(frozen=True, slots=True)
class Table:
    """A table of names and figures.

    Attributes:
        title: What the table shows.
        heads: Heads of the columns that name a row, such as ``("Role", "System")``.
        columns: Heads of the other columns.
        rows: The rows; ``names`` as long as ``heads``, ``cells`` as long as ``columns``.
        note: What a reader must know to compare the rows; may be empty.
        formats: Column to how it prints, where that is neither percent (a head that ends in %) nor ``digits``.
        left: Columns of words, flush left.
        folded: Whether a count that a whole column shares is shown in its head, and not in each cell.
        digits: Digits of a score after the point, where its column has no format.
    """

    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    note: str = ""
    formats: Mapping[str, Format] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    folded: bool = False
    digits: int = 3

    @classmethod
    def from_rows(cls, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
        """Build a table from plain rows, whose first cell is the row's name."""
        head, *heads = columns
        named = [TableRow((str(name),), tuple(cells)) for name, *cells in rows]
        return cls(title, (head,), tuple(heads), tuple(named))

    @property
    def caption(self) -> str:
        """The note, and how the intervals were computed."""
        cells: list[tuple[str, Cell]] = []
        for row in self.rows:
            cells += zip(self.columns, row.cells, strict=True)
        intervals = describe_intervals(cells)
        if not self.note or not intervals:
            return self.note or intervals
        return f"{self.note.removesuffix('.')}. {intervals}"

    def without_empty_columns(self) -> Table:
        """Return the table without the columns in which no row has anything."""
        columns = list(zip(*(row.cells for row in self.rows), strict=True))
        is_full = [any(cell is not None for cell in column) for column in columns]
        rows = []
        for row in self.rows:
            cells = tuple(compress(row.cells, is_full))
            rows.append(replace(row, cells=cells))
        heads = tuple(compress(self.columns, is_full))
        return replace(self, columns=heads, rows=tuple(rows))

    def shared_counts(self) -> dict[str, int]:
        """Map each column whose head shows the number of rows behind its scores to that number."""
        column_counts: dict[str, set[int]] = {}
        for row in self.rows if self.folded else ():
            for head, cell in zip(self.columns, row.cells, strict=True):
                if isinstance(cell, Interval) and cell.n:
                    column_counts.setdefault(head, set()).add(cell.n)
        shared = {}
        for head, counts in column_counts.items():
            if len(counts) == 1:
                shared[head] = counts.pop()
        return shared

    def column_format(self, column: str) -> Format:
        """Return how a column prints; a head that ends in % says so itself."""
        default = PERCENT if column.endswith("%") else Format(self.digits)
        return self.formats.get(column, default)

    def column_heads(self) -> list[str]:
        """Return all heads as text, with the counts that whole columns share."""
        counts = self.shared_counts()
        heads = [*self.heads]
        for head in self.columns:
            count = ""
            if head in counts:
                count = f" (n = {counts[head]:,})"
            heads.append(f"{head}{count}")
        return heads

    def render_rows(self) -> Iterator[RenderedRow]:
        """Render the rows; where a second column names them, equal neighbors in the first are joined to one cell.

        Where there is one column of names, neighbors of the same band are a group.
        """
        is_joined = len(self.heads) > 1
        counts = self.shared_counts()
        groups = groupby(self.rows, key=lambda row: row.names[0] if is_joined else row.band)
        for _, group in groups:
            rows = list(group)
            for index, row in enumerate(rows):
                cells = []
                for head, cell in zip(self.columns, row.cells, strict=True):
                    form = self.column_format(head)
                    cells.append(_render_cell(cell, form, counted=head in counts))
                names = [*row.names[:-1], row.marked_name]
                spans = [1] * len(names)
                if is_joined:
                    spans[0] = 0 if index else len(rows)
                    names[0] = "" if index else names[0]
                closes = row is rows[-1]
                if not is_joined and row is self.rows[-1]:
                    # Where the table itself ends, a group needs no end.
                    closes = False
                yield RenderedRow(row, names, cells, spans, closes)

    def to_rich(self) -> RichTable:
        """Return the table for a terminal."""
        from rich.table import Table as RichTable
        from rich.text import Text

        caption = Text(make_visible(self.caption)) if self.caption else None
        title = Text(make_visible(self.title))
        table = RichTable(title=title, title_justify="left", caption=caption, caption_justify="left")
        lines = list(self.render_rows())
        cells = [[_rich_cell(cell) for cell in line.cells] for line in lines]
        heads = [Text(make_visible(head)) for head in self.column_heads()]
        longest = 0
        for row in self.rows:
            longest = max([longest, *map(measure_width, row.names)])
        for head in heads[: len(self.heads)]:
            # Numbers fold between their parts; a name has to be read.
            table.add_column(head, overflow="fold", min_width=min(longest, _NAME_WIDTH))
        for index, column in enumerate(self.columns):
            head = heads[len(self.heads) + index]
            if column in self.left:
                table.add_column(head, overflow="fold")
                continue
            # A figure that is cut, or folded, cannot be read.
            width = 0
            for row_cells in cells:
                parts = row_cells[index].plain.splitlines()
                width = max([width, *map(measure_width, parts)])
            table.add_column(head, justify="right", min_width=width)
        for line, row_cells in zip(lines, cells, strict=True):
            names = [Text(make_visible(name)) for name in line.names]
            table.add_row(*names, *row_cells, end_section=line.closes)
        return table

    def print_to(self, console: Console) -> None:
        """Print the table; where a terminal is too narrow for it, a block of lines for each row.

        In a file or a pipe, it is as wide as it needs to be, unless ``COLUMNS`` says how wide.
        """
        from rich.console import Console
        from rich.measure import Measurement

        table = self.to_rich()
        narrowest, widest = Measurement.get(console, console.options.update(width=_MEASURING_WIDTH), table)
        if narrowest <= console.width:
            console.print(table)
        elif console.is_terminal or os.environ.get("COLUMNS"):
            self._print_blocks(console)
        else:
            Console(file=console.file, width=widest).print(table)

    def _print_blocks(self, console: Console) -> None:
        from rich.text import Text

        console.print(Text(make_visible(self.title)), style="bold")
        _, *heads = map(show_on_line, self.column_heads())
        for line in self.render_rows():
            name, *more_names = [*line.row.names[:-1], line.row.marked_name]
            console.print(Text(show_on_line(name), style="bold"))
            texts = [*more_names, *(cell.join() for cell in line.cells)]
            for head, text in zip(heads, map(show_on_line, texts), strict=True):
                if text not in ("", ABSENT):
                    console.print(Text(f"  {head}: {text}" if head else f"  {text}"))
        if self.caption:
            console.print(Text(make_visible(self.caption)), style="dim")

    def __str__(self) -> str:
        from rich.console import Console

        stream = io.StringIO()
        self.print_to(Console(file=stream, width=_MEASURING_WIDTH, color_system=None))
        return "\n".join(map(str.rstrip, stream.getvalue().splitlines()))

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_markdown(self) -> str:
        """Return the table in GitHub's Markdown, names escaped, with the note under it."""
        rules = ["---" for _ in self.heads]
        rules += ["---" if head in self.left else "---:" for head in self.columns]
        lines: list[Iterable[str]] = [map(escape_markdown, self.column_heads()), rules]
        for line in self.render_rows():
            names = map(escape_markdown, line.names)
            lines.append([*names, *map(_markdown_cell, line.cells)])
        texts = [f"| {' | '.join(cells)} |" for cells in lines]
        if self.caption:
            texts += ["", escape_markdown(self.caption)]
        return "\n".join([*texts, ""])

    def to_html(self) -> str:
        """Return the table as one ``<table>`` element, all text escaped; a page's style sheet gives it its looks."""
        return self._render("table.html.jinja", autoescape=True, finalize=_make_inert)

    def to_latex(self, *, label: str = "") -> str:
        r"""Return the table as a LaTeX ``table`` with the title as caption and the note under it.

        Args:
            label: For ``\\ref``; letters, digits and hyphens.
        """
        marks = {"block_start_string": "<%", "block_end_string": "%>"}
        marks |= {"variable_start_string": "<<", "variable_end_string": ">>"}
        return self._render("table.tex.jinja", label, finalize=_escape_latex, **marks) + "\n"

    def _render(self, template: str, label: str = "", **options: Any) -> str:
        from jinja2 import Environment
        from markupsafe import Markup

        environment = Environment(trim_blocks=True, lstrip_blocks=True, **options)
        environment.filters["number"] = lambda text: text.replace("-", "−")
        text = resources.files("rolellm.core").joinpath("templates", template).read_text(encoding="utf-8")
        counts = self.shared_counts()
        values = {"table": self, "lines": self.render_rows(), "counts": counts, "label": Markup(label)}
        return environment.from_string(text).render(values)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with each number in a column of its own, in the unit that its head names."""
        import pandas

        heads = [*self.heads, "marks"]
        columns: list[Any] = []
        for index in range(len(self.heads)):
            columns.append([row.names[index] for row in self.rows])
        columns.append([" ".join(row.marks) for row in self.rows])
        for index, head in enumerate(self.columns):
            cells = [row.cells[index] for row in self.rows]
            form = self.column_format(head)
            scores = [Interval(cell) if isinstance(cell, int | float) else cell for cell in cells]
            if any(isinstance(score, str) for score in scores):
                heads.append(head)
                rounded = [form.round(score.mean) if isinstance(score, Interval) else score for score in scores]
                columns.append(rounded)
                continue
            for name in ("mean", "low", "high"):
                values = [getattr(score, name, None) for score in scores]
                heads.append(head if name == "mean" else f"{head} {name}")
                columns.append(list(map(form.round, values)))
            heads.append(f"{head} n")
            counts = [getattr(score, "n", 0) or None for score in scores]
            columns.append(pandas.array(counts, dtype="Int64"))
        for number, column in enumerate(columns):
            if isinstance(column, list):
                columns[number] = [show_on_line(value) if isinstance(value, str) else value for value in column]
        frame = pandas.DataFrame(dict(enumerate(columns)))
        frame.columns = pandas.Index(map(show_on_line, heads))
        return frame

    def to_csv(self) -> str:
        """Return `to_pandas` as CSV, with the note last, in which no text is a formula."""
        from pandas.api.types import is_numeric_dtype

        frame = self.to_pandas()
        frame["note"] = show_on_line(self.caption)
        frame = frame.apply(lambda column: column if is_numeric_dtype(column) else column.map(escape_csv))
        frame = frame.set_axis(map(escape_csv, frame.columns), axis="columns")
        text: str = frame.to_csv(index=False, lineterminator="\n")
        return text


def write_tables(folder: Path, tables: Mapping[str, Table]) -> list[Path]:
    """Write each table as ``NAME.md``, ``NAME.csv`` and ``NAME.tex``.

    Args:
        folder: Made where needed; other files in it stay.
        tables: Name, fit for a file, to table.

    Returns:
        The files written.
    """
    written = []
    for name, table in tables.items():
        texts = {"md": f"## {escape_markdown(table.title)}\n\n{table.to_markdown()}"}
        texts["csv"] = table.to_csv()
        texts["tex"] = table.to_latex(label=name)
        for ending, text in texts.items():
            path = folder / f"{name}.{ending}"
            with open_atomic(path) as stream:
                stream.write(text)
            written.append(path)
    return written


def format_number(value: float, digits: int) -> str:
    """Format a score with a fixed number of digits."""
    return f"{value:.{digits}f}"


def _render_cell(cell: Cell, form: Format, *, counted: bool) -> RenderedCell:
    if cell is None:
        return RenderedCell("absent", ABSENT)
    if isinstance(cell, str):
        return RenderedCell("words", cell)
    if isinstance(cell, int):
        return RenderedCell("words", f"{cell:,}")
    if not isinstance(cell, Interval):
        return RenderedCell("words", f"{cell:.2f}")
    count = ""
    if cell.n and not counted:
        count = f"{cell.n:,}"
    text = format_number(cell.mean * form.scale, form.digits)
    return RenderedCell("score", text, cell.format_ends(form.digits, form.scale), count)


def _rich_cell(cell: RenderedCell) -> RichText:
    from rich.text import Text

    if cell.kind == "absent":
        return Text(cell.text, style="dim")
    if cell.kind == "words":
        _, style = SIGNS.get(cell.text[:1], ("", ""))
        return Text(make_visible(cell.text), style=style)
    count = f"n={cell.n}  " if cell.n else ""
    ends = f"\n{cell.interval}" if cell.interval else ""
    return Text.assemble((count, "dim"), (cell.text, "bold"), (ends, "dim"))


def _markdown_cell(cell: RenderedCell) -> str:
    if cell.kind != "score":
        return escape_markdown(cell.text)
    count = f"n = {cell.n}" if cell.n else ""
    details = ", ".join(filter(None, (cell.interval, count)))
    if details:
        return f"{cell.text} ({details})"
    return cell.text


def _make_inert(value: Any) -> Any:
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return make_visible(truncate(value, MAX_TEXT))
    return value


def escape_csv(value: Any) -> Any:
    """Put an apostrophe in front of what a spreadsheet would run."""
    if not isinstance(value, str):
        return value
    if value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _escape_latex(value: Any) -> str:
    """Escape what LaTeX would obey; controls become their code points, which every font can set."""
    if hasattr(value, "__html__"):
        return str(value)
    text = show_on_line(str(value))
    text = _CONTROL_PICTURE.sub(lambda match: f"⟨U+{ord(match[0]) - 0x2400:04X}⟩", text)
    return "".join(_LATEX.get(character, character) for character in text)
