r"""The report's tables as files for other programs: Markdown, CSV and LaTeX, with text from outside made inert.

A CSV holds each number in a column of its own (mean, both ends of the interval, rows behind it), in the unit that its
head names. A text that a spreadsheet would read as a formula gets an apostrophe before it, as OWASP advises ("CSV
Injection"); numbers stay numbers. LaTeX wants the packages ``booktabs`` and, for names in Chinese, XeLaTeX or LuaLaTeX.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rolellm.core.files import whole_file
from rolellm.core.sanitize import markdown_text, visible
from rolellm.report.score_table import (
    ABSENT,
    Cell,
    Format,
    ScoreTable,
    Shown,
    TableRow,
    head_text,
    lines,
    to_markdown,
)

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
    # Two of these are a ligature, or close a group of braces early, only where they stand bare.
    "[": "{[}",
    "]": "{]}",
    "`": "{`}",
    "'": "{'}",
    "-": "{-}",
}
_CONTROL_PICTURE = re.compile("[\u2400-\u2421]")


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


def _numbers(table: ScoreTable, row: TableRow, words: set[str], digits: int) -> list[str]:
    found: list[str] = []
    for head, cell in zip(table.columns, row.scores, strict=True):
        parts = _parts(cell, table.form(head, digits))
        found += [_csv(cell) if isinstance(cell, str) else parts[0]] if head in words else parts
    return found


def _parts(cell: Cell, form: Format) -> list[str]:
    """Mean, low, high and n as plain numbers; empty where there is none."""
    if cell is None or isinstance(cell, str):
        return [""] * 4
    numbers = [
        "" if end is None else f"{end * form.scale:.{form.digits + _DIGITS_MORE}f}"
        for end in (cell.mean, cell.low, cell.high)
    ]
    return [*numbers, str(cell.n or "")]


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
        cells = [_latex_cell(cell) for cell in table.shown(line.scores, digits)]
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
