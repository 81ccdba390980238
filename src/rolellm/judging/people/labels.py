"""What people said of the answers in a judging run: rankings.

Labels are appended to ``RUN/labels/NAME.jsonl``, each written to disk before it is confirmed. The last line for a row
counts, so a person can change a label. Every label keeps a hash of the question and the answers it is about; one that
is about others than the run's is refused, not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import JsonlAppender, parse_object
from rolellm.core.records import Row
from rolellm.core.text import make_safe_name, replace_surrogates
from rolellm.core.typed_json import read_as
from rolellm.judging.records import LABELS, Comparison, JudgeRun


def list_labelled_systems(comparison: Comparison) -> list[str]:
    """List the systems whose answers people see: all but canaries."""
    return [system.name for system in comparison.systems if system.kind != "canary"]


def sample_rows(comparison: Comparison, size: int) -> list[Row]:
    """Draw rows for ranking, in the order in which people see them; a larger sample begins with a smaller one.

    Args:
        comparison: Rows that one of its systems (canaries aside) did not answer are left out.
        size: Rows wanted; all there are, where there are fewer.

    Raises:
        SettingsError: When nothing can be ranked: fewer than two systems, or no row that all of them answered.
    """
    names = list_labelled_systems(comparison)
    if len(names) < 2:
        raise SettingsError(f"ranking needs at least two systems, canaries aside; the run has {len(names)}")
    answered = set.intersection(*(set(comparison.answers[name]) for name in names))
    rows = [row for row in comparison.rows if row.id in answered]
    if not rows:
        raise SettingsError(f"no row was answered by all of {', '.join(names)}, so there is nothing to rank")
    rows.sort(key=lambda row: hash_json(["rank", row.id]))
    return rows[:size]


def select_answers(comparison: Comparison, row: Row, names: Sequence[str]) -> dict[str, str]:
    """Select the answers to a row of the systems named, where there is one."""
    texts = {name: comparison.answers[name].get(row.id) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def draw_blind_order(annotator: str, row: Row, answers: Mapping[str, str]) -> tuple[str, ...]:
    """Draw the order in which an annotator sees the answers to a row: another for each of them."""

    def draw(name: str) -> str:
        return hash_json([annotator, row.id, name, replace_surrogates(answers[name])])

    return tuple(sorted(answers, key=draw))


def hash_content(row: Row, answers: Mapping[str, str]) -> str:
    """Hash a question and the answers shown with it: what a label is about."""
    texts = {name: replace_surrogates(text) for name, text in answers.items()}
    return hash_json({"role": row.role, "question": replace_surrogates(row.question), "answers": texts})


@dataclass(frozen=True, slots=True)
class Label:
    """What one person said of the answers to one row: a place for each.

    Attributes:
        row: The row's id.
        systems: Systems in the order in which their answers were shown, names masked.
        said: What was chosen by place; ``None`` where the person skipped the row.
        answers: Hash of the question and the answers, see `hash_content`.
    """

    row: str
    systems: tuple[str, ...]
    said: dict[str, str] | None
    answers: str

    def __post_init__(self) -> None:
        if len(set(self.systems)) != len(self.systems):
            raise ValueError("a system is in the order twice")
        if self.said is None:
            return
        if len(self.said) != len(self.systems):
            raise ValueError("expected one place for each system")
        places = tuple(map(str, range(1, len(self.systems) + 1)))
        if not set(places).issuperset(self.said.values()):
            raise ValueError(f"expected {', '.join(places)}")

    @property
    def ranks(self) -> dict[str, int]:
        """System to its place, from 1 (best)."""
        places = map(int, (self.said or {}).values())
        return dict(zip(self.systems, places, strict=False))


def check_annotator(name: str) -> str:
    """Check a name under which labels are kept: one that is a file name as it is.

    Raises:
        SettingsError: When it is not; names one that is.
    """
    safe = make_safe_name(name, fallback="anna")
    if name != safe:
        raise SettingsError(f"labels are kept under the annotator's name, and {name!r} is not a file name; use {safe}")
    return name


def label_path(folder: Path, annotator: str) -> Path:
    """Return the file that keeps a person's rankings."""
    return folder / LABELS / f"{check_annotator(annotator)}.jsonl"


def list_annotators(folder: Path) -> list[str]:
    """List who ranked, sorted."""
    names = [path.stem for path in (folder / LABELS).glob("*.jsonl")]
    return sorted(name for name in names if not name.startswith("."))


def append_label(path: Path, label: Label) -> None:
    """Put a label on the disk, after setting aside what a crash left of the last line.

    Raises:
        OSError: When it cannot be written; what was there is whole, and half a line goes with the next label.
    """
    with JsonlAppender(path) as out:
        out.append([asdict(label)])


def read_labels(run: JudgeRun, annotator: str) -> dict[str, Label]:
    """Read a person's rankings by row id, the last label for each; empty before the first one.

    Raises:
        DataError: For a line that is not such a label, or is about other answers than the run's; names file and line.
    """
    path = label_path(run.folder, annotator)
    if not path.is_file():
        return {}
    labels: dict[str, Label] = {}
    rows = {row.id: row for row in run.comparison.rows}
    names = list_labelled_systems(run.comparison)
    # What follows the last line feed is half a line, which was never confirmed as saved.
    *lines, _ = path.read_bytes().split(b"\n")
    for number, raw in enumerate(lines, start=1):
        value = parse_object(raw + b"\n", path, number)
        label = read_as(Label, value, "the label", path=path, line=number)
        problem = _find_problem(run.comparison, label, rows.get(label.row), names)
        if problem:
            raise DataError(f"{problem}; move the file away to start over", path=path, line=number)
        # The order of first appearance would be that of a correction's first line.
        labels.pop(label.row, None)
        labels[label.row] = label
    return labels


def _find_problem(comparison: Comparison, label: Label, row: Row | None, names: Collection[str]) -> str:
    """Say why a label is not one of this run; nothing where it is."""
    if row is None:
        return f"a label for row {label.row!r}, which is not in this run"
    strangers = sorted(set(label.systems) - set(names))
    if strangers:
        return f"a label for {strangers[0]!r}, which takes no part in this run"
    answers = select_answers(comparison, row, label.systems)
    if hash_content(row, answers) != label.answers:
        return "a label for other answers than this run's, which was judged again since"
    return ""
