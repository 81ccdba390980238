"""Tables: built once and shown in a terminal, a notebook, HTML, Markdown, CSV and LaTeX, with every interval.

A CSV file holds each number in a column of its own (mean, both ends of the interval, rows behind it), in the unit that
its head names. Text that a spreadsheet would read as a formula gets an apostrophe in front, as OWASP advises ("CSV
Injection"); numbers stay numbers. LaTeX needs the package ``booktabs`` and, for names in Chinese, XeLaTeX or LuaLaTeX.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from rolellm.core.files import open_atomic
from rolellm.core.sanitize import escape_markdown, label, make_visible, measure_width, show_on_line, truncate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

Ends = tuple[float, float]

#: What a cell without a figure shows. Never 0, which would be one.
ABSENT = "–"
#: Characters of a cell that HTML shows; the rest is counted.
MAX_TEXT = 2_000

_NAME_WIDTH = 18
# Lines of a table in a terminal that are no rows: title, head, rules and caption.
_FRAME = 7
_MEASURING_WIDTH = 10_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
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
        return None if self.low is None or self.high is None else (self.low, self.high)

    def to_columns(self) -> dict[str, float | None]:
        """Return its numbers as columns of a data frame."""
        low, high = self.new_roles or (None, None)
        wide = {"low_new_roles": low, "high_new_roles": high}
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n, **wide}

    def format_ends(self, digits: int, times: float = 1.0) -> str:
        """Format both ends in brackets, each multiplied and rounded; empty where they are not known."""
        return "" if self.ends is None else f"[{', '.join(f'{end * times:.{digits}f}' for end in self.ends)}]"


def describe_intervals(cells: Iterable[tuple[str, Cell]]) -> str:
    """Say by which methods the intervals of some cells, each with its head, were computed; empty where there are none.

    >>> describe_intervals([("CUS", Interval(0.5, 0.4, 0.6, method="Student's t by question"))])
    "95 % intervals for these roles: Student's t by question"
    """
    scopes: dict[str, dict[str, dict[str, None]]] = {}
    for head, cell in cells:
        if isinstance(cell, Interval) and cell.ends and cell.method:
            scope = "new roles" if "by role" in cell.method else "these roles"
            methods = scopes.setdefault(scope, {})
            methods.setdefault(cell.method, {})[head.rstrip(" ,%")] = None
    is_single = sum(map(len, scopes.values())) == 1
    clauses = []
    for scope, methods in scopes.items():
        named = [method if is_single else f"{method} ({', '.join(heads)})" for method, heads in methods.items()]
        clauses.append(f"for {scope}: {', '.join(named)}")
    return f"95 % intervals {'; '.join(clauses)}" if clauses else ""


#: Signs that a verdict in a cell begins with, to how it is shown: a class in HTML, a style in a terminal.
SIGNS = {"✗": ("bad", "red"), "?": ("open", "yellow"), "✓": ("good", "green")}

#: A score, a count or another number without an interval, a word, or nothing.
Cell = Interval | str | float | None


class Format(NamedTuple):
    """How a column prints its scores: digits after the point, and what a score is multiplied by."""

    digits: int
    scale: float = 1.0


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
        return f"{self.names[-1]} ({', '.join(self.marks)})" if self.marks else self.names[-1]


class RenderedCell(NamedTuple):
    """A cell as text; ``interval`` and ``n`` are empty where it is not a score or has none."""

    kind: Literal["score", "words", "none"]
    text: str
    interval: str = ""
    n: str = ""


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
        named = (TableRow((str(name),), tuple(cells)) for name, *cells in rows)
        return cls(title, (columns[0],), tuple(columns[1:]), tuple(named))

    @property
    def caption(self) -> str:
        """The note, and how the intervals were computed."""
        cells = (cell for row in self.rows for cell in zip(self.columns, row.cells, strict=True))
        intervals = describe_intervals(cells)
        return f"{self.note.removesuffix('.')}. {intervals}" if self.note and intervals else self.note or intervals

    def shared_counts(self) -> dict[str, int]:
        """Map each column whose head shows the number of rows behind its scores to that number."""
        counts: dict[str, int] = {}
        for index, head in enumerate(self.columns if self.folded else ()):
            every = {cell.n for row in self.rows if isinstance(cell := row.cells[index], Interval) and cell.n}
            counts |= {head: every.pop()} if len(every) == 1 else {}
        return counts

    def column_format(self, column: str) -> Format:
        """Return how a column prints; a head that ends in % says so itself."""
        return self.formats.get(column) or (PERCENT if column.endswith("%") else Format(self.digits))

    def column_heads(self) -> list[str]:
        """Return all heads as text, with the counts that whole columns share."""
        counts = self.shared_counts()
        heads = (f"{head} (n = {counts[head]:,})" if head in counts else head for head in self.columns)
        return [*self.heads, *heads]

    def render_rows(self) -> Iterator[RenderedRow]:
        """Render the rows; where a second column names them, equal neighbors in the first are joined to one cell.

        Where there is one column of names, neighbors of the same band are a group.
        """
        alone, counts = len(self.heads) == 1, self.shared_counts()
        for _, group in groupby(self.rows, key=lambda row: row.band if alone else row.names[0]):
            rows = list(group)
            for index, row in enumerate(rows):
                cells = [
                    _render_cell(cell, self.column_format(head), counted=head in counts)
                    for head, cell in zip(self.columns, row.cells, strict=True)
                ]
                joined = [] if alone else [0 if index else len(rows)]
                spans = [*joined, *(1 for _ in row.names[len(joined) :])]
                names = [name if span else "" for name, span in zip(row.names, spans, strict=True)]
                # Under the last row the table itself ends.
                closes = index + 1 == len(rows) and not (alone and row is self.rows[-1])
                yield RenderedRow(row, [*names[:-1], row.marked_name], cells, spans, closes)

    def to_rich(self) -> RichTable:
        """Return the table for a terminal."""
        from rich.table import Table as RichTable
        from rich.text import Text

        title, caption = Text(make_visible(self.title)), Text(make_visible(self.caption)) if self.caption else None
        shown = RichTable(title=title, title_justify="left", caption=caption, caption_justify="left")
        longest = max((measure_width(name) for row in self.rows for name in row.names), default=0)
        lines = [[_rich_cell(cell) for cell in line.cells] for line in self.render_rows()]
        for index, head in enumerate(self.column_heads()):
            column = index - len(self.heads)
            if column < 0:
                # Numbers fold between their parts; a name has to be read.
                shown.add_column(Text(make_visible(head)), overflow="fold", min_width=min(longest, _NAME_WIDTH))
            elif self.columns[column] in self.left:
                shown.add_column(Text(make_visible(head)), overflow="fold")
            else:
                # A figure that is cut, or folded, cannot be read.
                widths = [measure_width(part) for cells in lines for part in cells[column].plain.splitlines()]
                shown.add_column(Text(make_visible(head)), justify="right", min_width=max(widths, default=0))
        for line, cells in zip(self.render_rows(), lines, strict=True):
            names = (Text(make_visible(name)) for name in line.names)
            shown.add_row(*names, *cells, end_section=line.closes)
        return shown

    def print_to(self, console: Console, lines: int | None = None) -> int:
        """Print the table; where a terminal is too narrow for it, a block of lines for each row.

        In a file or a pipe, it is as wide as it needs to be, unless ``COLUMNS`` says how wide.

        Args:
            console: Where.
            lines: Print only as many rows as fit into this number of lines, and one line of the note.

        Returns:
            How many rows were left out.
        """
        from rich.console import Console

        narrowest, widest = self._measure(console)
        if lines is not None:
            has_ends = any(isinstance(cell, Interval) and cell.ends for row in self.rows for cell in row.cells)
            # A shorter table may be narrow enough for the terminal.
            for height in (2 if has_ends else 1, 1 + len(self.columns)):
                count = max(1, (lines - _FRAME) // height)
                short = replace(self, rows=self.rows[:count], note=label(self.note, min(widest, console.width)))
                if short._measure(console)[0] <= console.width:
                    break
            short.print_to(console)
            return len(self.rows[count:])
        if narrowest <= console.width:
            console.print(self.to_rich())
        elif not (console.is_terminal or os.environ.get("COLUMNS")):
            Console(file=console.file, width=widest).print(self.to_rich())
        else:
            self._print_blocks(console)
        return 0

    def _measure(self, console: Console) -> tuple[int, int]:
        """Return how wide the table is with its words folded, and with nothing folded."""
        from rich.measure import Measurement

        return Measurement.get(console, console.options.update(width=_MEASURING_WIDTH), self.to_rich())

    def _print_blocks(self, console: Console) -> None:
        from rich.text import Text

        console.print(Text(make_visible(self.title)), style="bold")
        heads = [show_on_line(head) for head in self.column_heads()[1:]]
        for line in self.render_rows():
            names = (line.names[0] or line.row.names[0], *line.names[1:])
            name, *texts = map(show_on_line, (*names, *map(_plain_cell, line.cells)))
            console.print(Text(name, style="bold"))
            for head, text in zip(heads, texts, strict=True):
                if text not in ("", ABSENT):
                    console.print(Text(f"  {head}: {text}" if head else f"  {text}"))
        if self.caption:
            console.print(Text(make_visible(self.caption)), style="dim")

    def __str__(self) -> str:
        lines = [self.column_heads(), *([*line.names, *map(_plain_cell, line.cells)] for line in self.render_rows())]
        cells = [[show_on_line(cell) for cell in line] for line in lines]
        widths = [max(map(measure_width, column)) for column in zip(*cells, strict=True)]
        padded = (
            [cell + " " * (wide - measure_width(cell)) for cell, wide in zip(line, widths, strict=True)]
            for line in cells
        )
        rows = ("  ".join(line).rstrip() for line in padded)
        return "\n".join([make_visible(self.title), *rows, *([make_visible(self.caption)] if self.caption else [])])

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_markdown(self) -> str:
        """Return the table in GitHub's Markdown, names escaped, with the note under it."""
        heads = map(escape_markdown, self.column_heads())
        rules = (*("---" for _ in self.heads), *("---" if head in self.left else "---:" for head in self.columns))
        body = [[*map(escape_markdown, line.names), *map(_markdown_cell, line.cells)] for line in self.render_rows()]
        note = ["", escape_markdown(self.caption)] if self.caption else []
        return "\n".join([*(f"| {' | '.join(cells)} |" for cells in (heads, rules, *body)), *note]) + "\n"

    def to_html(self) -> str:
        """Return the table as one ``<table>`` element, all text escaped; a page's style sheet gives it its looks."""
        many = " many" if len(self.columns) > 6 else ""
        counts, left = self.shared_counts(), self.left
        heads = [f'<th scope="col">{_html(head)}</th>' for head in self.heads]
        for head in self.columns:
            count = f' <span class="n">n = {counts[head]:,}</span>' if head in counts else ""
            heads.append(f'<th scope="col" class="{"left" if head in left else "score"}">{_html(head)}{count}</th>')
        lines = [f'<table class="scores of-{len(self.columns)}{many}" aria-label="{_html(self.title)}">']
        lines += [f"<caption>{_html(self.caption)}</caption>"] if self.caption else []
        lines += [f"<thead><tr>{''.join(heads)}</tr></thead>", "<tbody>"]
        lines += (self._html_row(line, counts) for line in self.render_rows())
        return "\n".join([*lines, "</tbody>", "</table>"])

    def _html_row(self, line: RenderedRow, counts: Mapping[str, int]) -> str:
        joined = len(line.spans) > 1
        kinds = ["opens"] if joined and line.spans[0] else ["closes"] if line.closes and not joined else []
        kinds += [f"band-{_html(line.row.band)}"] if line.row.band else []
        cells = []
        for index, (name, span) in enumerate(zip(line.row.names, line.spans, strict=True), start=1):
            marks = line.row.marks if index == len(line.spans) else ()
            words = "".join(f' <span class="mark">{_html(mark)}</span>' for mark in marks)
            group = f' rowspan="{span}" class="group"' if span > 1 else ""
            cells += [f'<th scope="row"{group}>{_html(name)}{words}</th>'] if span else []
        for head, cell in zip(self.columns, line.cells, strict=True):
            count = f" (n = {counts[head]:,})" if head in counts and line.row.band != "published" else ""
            kind = "words left" if head in self.left else {"none": "absent", "words": "words"}.get(cell.kind, "")
            kind += f" {SIGNS[cell.text[0]][0]}" if cell.kind == "words" and cell.text[:1] in SIGNS else ""
            style = f' class="{kind}"' if kind else ""
            cells.append(f'<td data-head="{_html(head)}{count}"{style}>{_html_cell(cell)}</td>')
        return f"<tr{_html_classes(kinds)}>{''.join(cells)}</tr>"

    def to_csv(self) -> str:
        """Return the table as CSV: names spelled out on every row, three more digits, and the note last."""
        columns = zip(self.columns, zip(*(row.cells for row in self.rows), strict=True), strict=False)
        words = {head for head, cells in columns if any(isinstance(cell, str) for cell in cells)}
        heads = [*self.heads, "marks"]
        for head in self.columns:
            heads += [head] if head in words else [head, f"{head} low", f"{head} high", f"{head} n"]
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(map(_csv, [*heads, "note"]))
        for row in self.rows:
            figures = self._csv_figures(row, words)
            writer.writerow([*map(_csv, row.names), _csv(" ".join(row.marks)), *figures, _csv(self.caption)])
        return stream.getvalue()

    def _csv_figures(self, row: TableRow, words: set[str]) -> Iterator[str]:
        """Yield mean, low, high and n of each cell as plain numbers, empty where there are none; words as they are."""
        for head, cell in zip(self.columns, row.cells, strict=True):
            form = self.column_format(head)
            score = cell if isinstance(cell, Interval) else Interval(cell) if isinstance(cell, int | float) else None
            ends = (score.mean, score.low, score.high) if score else (None,) * 3
            figures = ["" if end is None else f"{end * form.scale:.{form.digits + _DIGITS_MORE}f}" for end in ends]
            if head in words:
                yield _csv(cell) if isinstance(cell, str) else figures[0]
            else:
                yield from (*figures, str((score and score.n) or ""))

    def to_latex(self, *, label: str = "") -> str:
        r"""Return the table as a LaTeX ``table`` with the title as caption and the note under it.

        Args:
            label: For ``\\ref``; letters, digits and hyphens.
        """
        columns = "l" * len(self.heads) + "".join("l" if head in self.left else "r" for head in self.columns)
        body = [r"\begin{table}", r"\centering\small", f"\\caption{{{_latex(self.title)}}}"]
        body += [f"\\label{{tab:{label}}}"] if label else []
        body += [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_line(map(_latex, self.column_heads()))]
        body += [r"\midrule"]
        for index, line in enumerate(self.render_rows(), start=1):
            body.append(_latex_line([*map(_latex, line.names), *map(_latex_cell, line.cells)]))
            body += [r"\midrule"] if line.closes and index < len(self.rows) else []
        body += [r"\bottomrule", r"\end{tabular}"]
        body += [f"\\par\\smallskip\\footnotesize {_latex(self.caption)}"] if self.caption else []
        return "\n".join([*body, r"\end{table}"]) + "\n"


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
        texts = {
            "md": f"## {escape_markdown(table.title)}\n\n{table.to_markdown()}",
            "csv": table.to_csv(),
            "tex": table.to_latex(label=name),
        }
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
        return RenderedCell("none", ABSENT)
    if isinstance(cell, Interval):
        text = format_number(cell.mean * form.scale, form.digits)
        count = f"{cell.n:,}" if cell.n and not counted else ""
        return RenderedCell("score", text, cell.format_ends(form.digits, form.scale), count)
    if isinstance(cell, str):
        return RenderedCell("words", cell)
    return RenderedCell("words", f"{cell:,}" if isinstance(cell, int) else f"{cell:.2f}")


def _count(cell: RenderedCell) -> str:
    return f"n={cell.n}" if cell.n else ""


def _plain_cell(cell: RenderedCell) -> str:
    return " ".join(filter(None, (cell.text, cell.interval, _count(cell))))


def _rich_cell(cell: RenderedCell) -> RichText:
    from rich.text import Text

    if cell.kind != "score":
        style = "dim" if cell.kind == "none" else SIGNS.get(cell.text[:1], ("", ""))[1]
        return Text(make_visible(cell.text), style=style)
    count = f"{_count(cell)}  " if cell.n else ""
    ends = f"\n{cell.interval}" if cell.interval else ""
    return Text.assemble((count, "dim"), (cell.text, "bold"), (ends, "dim"))


def _markdown_cell(cell: RenderedCell) -> str:
    if cell.kind != "score":
        return escape_markdown(cell.text)
    count = f"n = {cell.n}" if cell.n else ""
    details = ", ".join(filter(None, (cell.interval, count)))
    return cell.text + (f" ({details})" if details else "")


def _html(text: str) -> str:
    return escape(make_visible(truncate(text, MAX_TEXT)))


def _html_classes(names: Sequence[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""


def _html_cell(cell: RenderedCell) -> str:
    if cell.kind != "score":
        return f'<span class="none">{cell.text}</span>' if cell.kind == "none" else _html(cell.text)
    ends = f' <span class="ci">{cell.interval}</span>' if cell.interval else ""
    count = f' <span class="n">n = {cell.n}</span>' if cell.n else ""
    return f"<b>{cell.text}</b>{ends}{count}"


def _csv(text: str) -> str:
    shown = show_on_line(text)
    return f"'{shown}" if text.startswith(_FORMULA) or shown.startswith(_FORMULA) else shown


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: RenderedCell) -> str:
    ends = f" {{\\scriptsize {_latex_number(cell.interval)}}}" if cell.interval else ""
    count = f" {{\\scriptsize n={cell.n}}}" if cell.n else ""
    return f"{_latex_number(cell.text) if cell.kind == 'score' else _latex(cell.text)}{ends}{count}"


def _latex_number(text: str) -> str:
    """Write a number with a minus sign, which a hyphen is not."""
    return _latex(text.replace("-", "−"))


def _latex(text: str) -> str:
    """Escape what LaTeX would obey; controls become their code points, which every font can set."""
    spelt = _CONTROL_PICTURE.sub(lambda match: f"⟨U+{ord(match[0]) - 0x2400:04X}⟩", show_on_line(text))
    return "".join(_LATEX.get(character, character) for character in spelt)
