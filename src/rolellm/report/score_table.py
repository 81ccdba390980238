"""Score tables: built once, shown in a terminal, in Markdown and in HTML, and as CSV and LaTeX, with every interval.

A CSV holds each number in a column of its own (mean, both ends of the interval, rows behind it), in the unit that its
head names. A text that a spreadsheet would read as a formula gets an apostrophe before it, as OWASP advises ("CSV
Injection"); numbers stay numbers. LaTeX wants the packages ``booktabs`` and, for names in Chinese, XeLaTeX or LuaLaTeX.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rolellm.core.files import whole_file
from rolellm.core.sanitize import markdown_text, visible, width
from rolellm.core.text import listed
from rolellm.evaluation.score import METRICS, ScoreReport, Summary
from rolellm.evaluation.statistics.bootstrap import Interval
from rolellm.report.published import PublishedTable
from rolellm.report.templates import environment

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

ABSENT = "–"
"""What a cell without a score shows. Never 0, which would be a score."""

COLUMNS = (*METRICS, "avg")
"""What a score table shows: the three scores and their mean."""

Cell = Interval | str | None
"""What a column holds: a score, a word such as a count that has no interval, or nothing."""

_NAME = 18
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


@dataclass(frozen=True, slots=True)
class Format:
    """How a column prints its scores: digits after the point, and what a score is multiplied by."""

    digits: int
    scale: float = 1.0


PERCENT = Format(1, 100.0)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table.

    Attributes:
        names: A cell in each column of names.
        scores: A cell in each column of scores.
        marks: Words next to the last name.
        band: The group of lines it belongs to, such as ``published`` or ``canary``; neighbors of a band stay together.
    """

    names: tuple[str, ...]
    scores: tuple[Cell, ...]
    marks: tuple[str, ...] = ()
    band: str = ""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A table of scores.

    Attributes:
        title: What the table shows.
        heads: Heads of the columns that name a line, such as ``("Role", "System")``.
        columns: Heads of the columns that hold scores.
        rows: The lines; ``names`` as long as ``heads``, ``scores`` as long as ``columns``.
        note: What a reader must know to compare the lines; may be empty.
        formats: Column to how it prints, where that is not percent (a head that ends in %) or the renderer's choice.
        left: Columns of words, flush left.
        folded: Whether a count that a whole column shares is shown in its head, and not in each cell.
    """

    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    note: str = ""
    formats: Mapping[str, Format] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    folded: bool = False

    def counts(self) -> dict[str, int]:
        """Column to the number of rows behind each of its scores, where its head shows it."""
        found: dict[str, int] = {}
        for at, head in enumerate(self.columns if self.folded else ()):
            every = {score.n for row in self.rows if isinstance(score := row.scores[at], Interval) and score.n}
            found |= {head: every.pop()} if len(every) == 1 else {}
        return found

    def form(self, column: str, digits: int) -> Format:
        """How a column prints; a head that ends in % says so itself."""
        return self.formats.get(column) or (PERCENT if column.endswith("%") else Format(digits))

    def shown(self, cells: tuple[Cell, ...], digits: int) -> list[Shown]:
        """The cells of a line as text."""
        counts, columns = self.counts(), zip(self.columns, cells, strict=True)
        return [_shown(cell, self.form(head, digits), counted=head in counts) for head, cell in columns]

    def _repr_html_(self) -> str:
        """How a notebook shows the table."""
        return to_html(self)


@dataclass(frozen=True, slots=True)
class Shown:
    """A cell as text; ``kind`` is ``score``, ``words`` or ``none``, and without a score only ``text`` is filled."""

    kind: str
    text: str
    interval: str = ""
    count: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line as a renderer writes it.

    Attributes:
        opened: The name cells that begin here, each with the number of lines it spans; ``None`` under such a cell.
        row: The row of the table.
        closes: Whether a group of lines ends here.
    """

    opened: tuple[tuple[str, int] | None, ...]
    row: TableRow
    closes: bool = False

    @property
    def names(self) -> list[str]:
        """The names that the line opens with, the last with its marks; empty under one that continues."""
        names = [cell[0] if cell else "" for cell in self.opened]
        return [*names[:-1], f"{names[-1]} ({', '.join(self.row.marks)})" if self.row.marks else names[-1]]


def lines(table: ScoreTable) -> list[Line]:
    """The lines of a table; where a second column names them, equal neighbors in the first are joined to one cell.

    Where there is one column of names, neighbors of the same band are a group.
    """
    alone = len(table.heads) == 1
    found = []
    for first, block in groupby(table.rows, key=lambda row: row.band if alone else row.names[0]):
        rows = list(block)
        for at, row in enumerate(rows):
            joined = (first, len(rows)) if at == 0 else None
            rest = tuple((name, 1) for name in (row.names if alone else row.names[1:]))
            opened = rest if alone else (joined, *rest)
            found.append(Line(opened, row, closes=at + 1 == len(rows)))
    if alone and found:
        # Under the last line the table itself ends.
        found[-1] = replace(found[-1], closes=False)
    return found


def number(value: float, digits: int) -> str:
    """A score with a fixed number of digits."""
    return f"{value:.{digits}f}"


def _shown(cell: Cell, form: Format, *, counted: bool) -> Shown:
    if cell is None:
        return Shown("none", ABSENT)
    if isinstance(cell, str):
        return Shown("words", cell)
    count = f"{cell.n:,}" if cell.n and not counted else ""
    return Shown("score", number(cell.mean * form.scale, form.digits), cell.brackets(form.digits, form.scale), count)


def head_text(table: ScoreTable, column: str) -> str:
    """A column's head, with the count that all of its scores share where the table folds it."""
    count = table.counts().get(column)
    return column if count is None else f"{column} (n = {count:,})"


def roles_of(reports: Iterable[ScoreReport]) -> tuple[str, ...]:
    """The roles that any of the reports breaks down, as first met."""
    return tuple(dict.fromkeys(role for report in reports for role in report.by_role))


def score_table(reports: Mapping[str, ScoreReport], *, title: str = "Rouge-L") -> ScoreTable:
    """Systems by CUS, RAW, SPE and avg.

    Args:
        reports: System name to its score report.
        title: The table's heading.
    """
    table = summary_table(title, "System", {name: one.metrics for name, one in reports.items()})
    return replace(with_markers(table, reports), note=". ".join([recipe(reports), *standings(reports)]))


def with_markers(table: ScoreTable, reports: Mapping[str, ScoreReport]) -> ScoreTable:
    """The table with a line for each floor, baseline and ceiling of its systems that is not one of its lines.

    Systems that answered other rows have other floors; each is then marked with the systems whose rows it is on.
    """
    found: dict[str, list[tuple[TableRow, list[str]]]] = {}
    names = {row.names[-1] for row in table.rows}
    for system, report in reports.items():
        for name, marker in (report.scale.markers if report.scale else {}).items():
            line = TableRow((name,), tuple(map(marker.metrics.get, table.columns)), (marker.kind,), marker.kind)
            known = found.setdefault(name, [])
            same = next((systems for row, systems in known if row == line), None)
            if same is not None:
                same.append(system)
            elif name not in names:
                known.append((line, [system]))
    lines = [
        line if len(variants) == 1 else replace(line, marks=(*line.marks, f"rows of {listed(systems)}"))
        for variants in found.values()
        for line, systems in variants
    ]
    return replace(table, rows=(*table.rows, *lines))


def standings(reports: Mapping[str, ScoreReport]) -> list[str]:
    """Where each system is between floor and ceiling, and what is absent, in words."""
    scales = {name: report.scale for name, report in reports.items() if report.scale}
    notes = dict.fromkeys(note for scale in scales.values() for note in scale.notes)
    return [*(f"{name}: {scale.text}" for name, scale in scales.items()), *notes]


def summary_table(title: str, head: str, summaries: Mapping[str, Summary], note: str = "") -> ScoreTable:
    """Anything that has CUS, RAW, SPE and avg, a line each."""
    rows = (TableRow((name,), tuple(map(one.get, COLUMNS))) for name, one in summaries.items())
    return ScoreTable(title, (head,), COLUMNS, tuple(rows), note)


def role_table(reports: Mapping[str, ScoreReport], *, title: str = "Rouge-L by role") -> ScoreTable:
    """Roles, and within each role the systems, by CUS, RAW and SPE.

    Args:
        reports: System name to its score report.
        title: The table's heading.
    """
    rows = tuple(
        TableRow((role, name), tuple(report.by_role.get(role, {}).get(metric) for metric in METRICS))
        for role in roles_of(reports.values())
        for name, report in reports.items()
    )
    return ScoreTable(title, ("Role", "System"), METRICS, rows, recipe(reports))


def published_table(table: PublishedTable) -> ScoreTable:
    """A table of the paper in the form of ours; the paper gives neither intervals nor counts."""
    rows = tuple(TableRow((name,), tuple(map(Interval, scores))) for name, scores in table.rows.items())
    return ScoreTable(table.title, ("System",), COLUMNS, rows, f"Published: {table.source}; protocol {table.protocol}.")


def disagreements(reports: Mapping[str, ScoreReport]) -> dict[str, tuple[str, ...]]:
    """What must be equal for the numbers to be comparable and is not: protocol, config or split to the values found."""
    found = {}
    for name in ("protocol", "config", "split"):
        values = tuple(dict.fromkeys(str(getattr(report.options, name)) for report in reports.values()))
        if len(values) > 1:
            found[name] = values
    return found


def recipe(reports: Mapping[str, ScoreReport]) -> str:
    """The recipe that all lines share, or a warning that they share none."""
    odd = disagreements(reports)
    if odd:
        found = "; ".join(f"{name}: {', '.join(values)}" for name, values in odd.items())
        return f"Not comparable: the lines differ in {found}."
    options = next((report.options for report in reports.values()), None)
    named = [(name, getattr(options, name, None)) for name in ("protocol", "config", "split")]
    return ", ".join(f"{name} {value}" for name, value in named if value)


def to_rich(table: ScoreTable, *, digits: int = 4) -> RichTable:
    """The table for a terminal.

    Args:
        table: What to show.
        digits: Digits after the point; the paper prints four.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(visible(table.title)), caption=Text(visible(table.note)) if table.note else None)
    longest = max((width(name) for row in table.rows for name in row.names), default=0)
    for head in table.heads:
        # Numbers fold between their parts; a name has to be read.
        shown.add_column(Text(visible(head)), overflow="fold", min_width=min(longest, _NAME))
    for head in table.columns:
        shown.add_column(Text(visible(head_text(table, head))), justify="left" if head in table.left else "right")
    for line in lines(table):
        names = [Text(visible(name)) for name in line.names]
        cells = (_rich_score(cell) for cell in table.shown(line.row.scores, digits))
        shown.add_row(*names, *cells, end_section=line.closes)
    return shown


def _rich_score(cell: Shown) -> RichText:
    from rich.text import Text

    if cell.kind != "score":
        return Text(visible(cell.text), style="dim" if cell.kind == "none" else "")
    count = f"n={cell.count}  " if cell.count else ""
    ends = f"\n{cell.interval}" if cell.interval else ""
    return Text.assemble((count, "dim"), (cell.text, "bold"), (ends, "dim"))


def to_markdown(table: ScoreTable, *, digits: int = 4) -> str:
    """The table in GitHub's Markdown, names escaped, with the note under it.

    Args:
        table: What to show.
        digits: Digits after the point; the paper prints four.
    """
    heads = map(markdown_text, (*table.heads, *(head_text(table, column) for column in table.columns)))
    rules = (*("---" for _ in table.heads), *("---" if head in table.left else "---:" for head in table.columns))
    body = [
        [*map(markdown_text, line.names), *map(_markdown_score, table.shown(line.row.scores, digits))]
        for line in lines(table)
    ]
    note = ["", markdown_text(table.note)] if table.note else []
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in (heads, rules, *body)), *note]) + "\n"


def _markdown_score(cell: Shown) -> str:
    if cell.kind != "score":
        return markdown_text(cell.text)
    count = f"n = {cell.count}" if cell.count else ""
    details = ", ".join(part for part in (cell.interval, count) if part)
    return cell.text + (f" ({details})" if details else "")


def to_html(table: ScoreTable, *, digits: int = 4) -> str:
    """The table as one ``<table>`` element, all text escaped; the page's style sheet gives it its looks.

    Args:
        table: What to show.
        digits: Digits after the point; the paper prints four.
    """
    template = environment().get_template("table.html.jinja")
    body = [(line, table.shown(line.row.scores, digits)) for line in lines(table)]
    return template.render(table=table, lines=body, counts=table.counts())


def write_tables(folder: Path, tables: Mapping[str, ScoreTable], *, digits: int = 4) -> list[Path]:
    """Write each table as ``NAME.md``, ``NAME.csv`` and ``NAME.tex``.

    Args:
        folder: Made where needed; other files in it stay.
        tables: Name, fit for a file, to table.
        digits: After the point, where a column has no number of its own.

    Returns:
        The files written.
    """
    written = []
    for name, table in tables.items():
        texts = {
            "md": f"## {markdown_text(table.title)}\n\n{to_markdown(table, digits=digits)}",
            "csv": to_csv(table, digits=digits),
            "tex": to_latex(table, digits=digits, label=name),
        }
        for ending, text in texts.items():
            path = folder / f"{name}.{ending}"
            with whole_file(path) as stream:
                stream.write(text)
            written.append(path)
    return written


def to_csv(table: ScoreTable, *, digits: int = 4) -> str:
    """The table as CSV: a line each, names spelled out on every one, the note (with protocol, config and split) last.

    Args:
        table: What to write.
        digits: After the point, where a column has no number of its own; three more are written.
    """
    words = {
        head for at, head in enumerate(table.columns) if any(isinstance(row.scores[at], str) for row in table.rows)
    }
    heads = [*table.heads, "marks"]
    for head in table.columns:
        heads += [head] if head in words else [head, f"{head} low", f"{head} high", f"{head} n"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(_csv, [*heads, "note"]))
    for row in table.rows:
        writer.writerow(
            [*map(_csv, row.names), _csv(" ".join(row.marks)), *_numbers(table, row, words, digits), _csv(table.note)]
        )
    return stream.getvalue()


def _numbers(table: ScoreTable, row: TableRow, words: set[str], digits: int) -> Iterator[str]:
    """Each score's mean, low, high and n as plain numbers, empty where there is none; a column of words as it is."""
    for head, cell in zip(table.columns, row.scores, strict=True):
        form, score = table.form(head, digits), cell if isinstance(cell, Interval) else None
        ends = (score.mean, score.low, score.high) if score else (None,) * 3
        found = ["" if end is None else f"{end * form.scale:.{form.digits + _DIGITS_MORE}f}" for end in ends]
        if head in words:
            yield _csv(cell) if isinstance(cell, str) else found[0]
        else:
            yield from (*found, str((score and score.n) or ""))


def _csv(text: str) -> str:
    shown = _one_line(text)
    return f"'{shown}" if text.startswith(_FORMULA) or shown.startswith(_FORMULA) else shown


def to_latex(table: ScoreTable, *, digits: int = 4, label: str = "") -> str:
    r"""The table as a LaTeX ``table`` with the title as caption and the note under it.

    Args:
        table: What to write.
        digits: After the point, where a column has no number of its own.
        label: For ``\\ref``; letters, digits and hyphens.
    """
    columns = "l" * len(table.heads) + "".join("l" if head in table.left else "r" for head in table.columns)
    heads = [*table.heads, *(head_text(table, column) for column in table.columns)]
    body = [r"\begin{table}", r"\centering\small", f"\\caption{{{_latex(table.title)}}}"]
    body += [f"\\label{{tab:{label}}}"] if label else []
    body += [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", _line(map(_latex, heads)), r"\midrule"]
    rows = lines(table)
    for at, line in enumerate(rows, start=1):
        cells = [_latex_cell(cell) for cell in table.shown(line.row.scores, digits)]
        body.append(_line([*map(_latex, line.names), *cells]))
        body += [r"\midrule"] if line.closes and at < len(rows) else []
    body += [r"\bottomrule", r"\end{tabular}"]
    body += [f"\\par\\smallskip\\footnotesize {_latex(table.note)}"] if table.note else []
    return "\n".join([*body, r"\end{table}"]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Shown) -> str:
    ends = f" {{\\scriptsize {_number(cell.interval)}}}" if cell.interval else ""
    count = f" {{\\scriptsize n={cell.count}}}" if cell.count else ""
    return f"{_number(cell.text) if cell.kind == 'score' else _latex(cell.text)}{ends}{count}"


def _number(text: str) -> str:
    """A number with a minus, which a hyphen is not."""
    return _latex(text.replace("-", "−"))


def _latex(text: str) -> str:
    """Text with nothing in it that LaTeX would obey; controls as their code points, which every font can set."""
    spelt = _CONTROL_PICTURE.sub(lambda found: f"⟨U+{ord(found[0]) - 0x2400:04X}⟩", _one_line(text))
    return "".join(_LATEX.get(character, character) for character in spelt)


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())
