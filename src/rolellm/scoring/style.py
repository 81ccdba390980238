"""A meter of the role that a reply sounds like, without a language model; it always says how often it is right itself.

For each language, a linear classifier over characters and words learns the roles from their references to general
instructions, which say nothing about a role (role-specific questions give it away by content), less what a reply
repeats of its instruction. The instructions are dealt into five folds, and a reply is judged by the classifier that has
seen no reply to its instruction, whoever wrote it. So the meter is as good on references as it can be expected to be on
new replies, and what a model reaches is read against that.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rolellm.core.errors import DataError, require
from rolellm.core.fingerprint import hash_json
from rolellm.core.progress import track_progress
from rolellm.core.records import Language, Row, Subset
from rolellm.core.result import Result
from rolellm.core.settings import suggest_keywords
from rolellm.core.table import Cell, Interval, Table, TableRow
from rolellm.core.text import fold
from rolellm.scoring.predictions import complete_source, match_predictions, read_predictions
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.statistics.intervals import (
    SHARE,
    ClusteredSample,
    Measured,
    estimate_interval,
    select_intervals,
)

FOLDS: Final = 5
#: What is counted by language, in runs of least and most; see dev/measurements.md for what else was tried.
VIEWS: Final[Mapping[Language, Mapping[str, tuple[int, int]]]] = {
    "en": {"char": (3, 4), "word": (1, 2)},
    "zh": {"char": (1, 3)},
}
COST: Final = 0.1
#: References that a language's meter learns from, at most; what more would bring is in dev/measurements.md.
MOST: Final = 40_000
#: The same for a meter that is a reward, which stays in memory.
MOST_LEARNED: Final = 20_000
#: Fewer turns than this tell no voice from another.
LEAST_TURNS: Final = 30
#: Of the curve from a lead, in the classifier's units, to a share; the order of replies is the same for any.
_STEEPNESS: Final = 2.0
_LONG_WORD: Final = re.compile(r"\w{4,}")

Floats = npt.NDArray[np.float64]


#: What a word of a reply is: marks and signs count, for they are style.
WORD: Final = r"\w+|[^\w\s]"


def mask_repeats(text: str, question: str, language: Language) -> str:
    """The text between ``^`` and ``$``, with ``#`` for what it repeats of the question.

    That is a word of four letters or more; in Chinese, a pair of characters.

    >>> mask_repeats("Arr, London be the capital!", "What is the capital of England?", "en")
    '^Arr, London be the #!$'
    >>> mask_repeats("俺老孙以为首都是北京", "中国的首都是哪里", "zh")
    '^俺老孙以为#北京$'
    """
    if language == "en":
        repeated_words = set(_LONG_WORD.findall(question.lower()))

        def mask_word(match: re.Match[str]) -> str:
            word = match[0]
            return "#" if word.lower() in repeated_words else word

        return f"^{_LONG_WORD.sub(mask_word, text.strip())}$"
    pairs = set(pairwise(question))
    characters = list(text)
    for index, pair in enumerate(pairwise(text)):
        if pair in pairs:
            characters[index : index + 2] = "##"
    masked = re.sub("#+", "#", "".join(characters))
    return f"^{masked.strip()}$"


class StyleReply(NamedTuple):
    """A reply, who gave it or was to be played, and the instruction, folded."""

    role: str
    question: str
    text: str


@dataclass(frozen=True, slots=True)
class StyleFigures:
    """Figures of how well the roles of some replies are told.

    Attributes:
        top1: Share that sound most like their role.
        chance: What `top1` would be by chance.
        same_instruction: Share of pairs with another role that answers the same instruction in which the own role is
            the likelier one.
        by_role: `top1` of each role.
        confusion: Role to the roles that its replies sound most like, with counts.
    """

    top1: Measured
    chance: float
    same_instruction: Measured
    by_role: dict[str, Measured]
    confusion: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class LanguageStyle:
    """The meter and the replies in one language.

    Attributes:
        subset: The rows that it learned from.
        roles: The roles that it tells apart.
        meter: Its own accuracy, on references.
        replies: A system's replies; ``None`` where there are none.
    """

    subset: Subset
    roles: tuple[str, ...]
    meter: StyleFigures
    replies: StyleFigures | None = None

    @property
    def parts(self) -> dict[str, StyleFigures]:
        """The meter and the replies by what tables call them."""
        parts = {"references": self.meter}
        if self.replies is None:
            return parts
        return {**parts, "replies": self.replies}


@dataclass(frozen=True, slots=True, repr=False)
class StyleResult(Result):
    """Figures of how far a system's replies sound like their roles.

    Attributes:
        settings: How the meter was made.
        languages: Language to its figures.
        config: The rows' config.
        split: The split that was answered.
        dataset: The data set's fingerprint.
        warnings: What was left open in joining predictions to rows.
    """

    settings: dict[str, Any]
    languages: dict[str, LanguageStyle]
    config: str | None = None
    split: str | None = None
    dataset: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def leading(self) -> dict[str, LanguageStyle]:
        """The languages as tables show them: with the intervals that the config asks for as the only ones."""
        return select_intervals(self.languages, self.config)

    def tables(self) -> Sequence[Table]:
        """Build a table of the meter and the replies, and one of roles for each language."""
        rows = []
        by_role = []
        for language, style in self.leading.items():
            for name, figures in style.parts.items():
                label = "the meter, on references" if name == "references" else name
                cells = (figures.top1, Interval(figures.chance), figures.same_instruction)
                rows.append(TableRow((language, label), cells))
            by_role.append(_build_role_table(language, style))
        columns = ("Top-1 %", "Chance %", "Told from another role %")
        return [Table("Style", ("Language", "Measured"), columns, tuple(rows)), *by_role]

    def notes(self) -> Sequence[str]:
        """Return the warnings."""
        return [f"warning: {warning}" for warning in self.warnings]


def _build_role_table(language: str, style: LanguageStyle) -> Table:
    parts = style.parts
    *_, last = parts.values()
    rows = []
    for role, counts in last.confusion.items():
        cells: list[Cell] = [figures.by_role.get(role) for figures in parts.values()]
        total = sum(counts.values())
        likeliest = []
        for name, count in Counter(counts).most_common(4):
            likeliest.append(f"{name} {100 * count / total:.0f}")
        rows.append(TableRow((role,), (*cells, ", ".join(likeliest))))
    heads = [f"Top-1 of {name} %" for name in parts]
    subset = style.subset.replace("_", "-")
    title = f"By role ({language}, {subset} rows)"
    last_head = "Sounds like, %"
    return Table(title, ("Role",), (*heads, last_head), tuple(rows), left=(last_head,))


@suggest_keywords()
def style(
    predictions: str | Path | Sequence[str | Path] = (),
    config: str | None = None,
    *,
    split: str | None = None,
    data_dir: str | Path | None = None,
) -> StyleResult:
    """Measure which role replies sound like, next to the meter's accuracy on the references.

    Args:
        predictions: Files of predictions, as for `rolellm.score`; with none, the meter alone is measured.
        config: The dataset's config; by default the one that the predictions were generated for.
        split: The split that the predictions answer; by default as recorded, else ``test``.
        data_dir: A local copy of the release.
    """
    paths = [predictions] if isinstance(predictions, str | Path) else predictions
    files = list(map(Path, paths))
    folder = None if data_dir is None else Path(data_dir)
    config, split, folder = complete_source(files, config, split, folder)
    return measure_file_style({"": files}, config, split, folder)[""]


def measure_style(rows: Sequence[Row], answers: Mapping[str, Mapping[str, str]]) -> dict[str, StyleResult]:
    """Measure how well roles can be told apart by their replies, and how far systems' replies sound like theirs.

    Args:
        rows: What the meter learns from, once for all systems, and the rows that they answered.
        answers: System to its replies by row id; without replies, the meter alone is measured.

    Raises:
        MissingExtraError: Without scikit-learn.
        DataError: When no language has two roles with references, or no answer of a system is to a row that can be
            measured.
    """
    require("sklearn", extra="style")
    by_language = {}
    for language in sorted({row.language for row in rows}):
        language_rows = [row for row in rows if row.language == language]
        styles = _measure_language(language_rows, answers)
        if styles is not None:
            by_language[language] = styles
    if not by_language:
        raise DataError("too few references; the meter needs two roles with replies to several instructions each")
    settings = {"views": VIEWS, "C": COST, "folds": FOLDS, "most": MOST}
    results = {}
    for system, texts in answers.items():
        languages: dict[str, LanguageStyle] = {name: styles[system] for name, styles in by_language.items()}
        if texts and not any(style.replies for style in languages.values()):
            raise DataError("no reply answers a row that the meter can measure")
        results[system] = StyleResult(settings, languages)
    return results


def measure_difference(rows: Sequence[Row], replies: Sequence[str]) -> Interval | None:
    """Measure in what share of cases the meter tells a system's replies from what was said; 0.5 is chance.

    The meter learns two voices, which answer the same turns, and judges a dialogue by the others.

    Args:
        rows: What was said, as references.
        replies: The system's, one a row.

    Returns:
        That of the language with the most rows; None where there are too few.
    """
    require("sklearn", extra="style")
    ((language, _),) = Counter(row.language for row in rows).most_common(1)
    voices = []
    for row, reply in zip(rows, replies, strict=True):
        if row.language == language and reply.strip():
            real = replace(row, role="said", question=row.dialogue or row.question)
            voices += [real, replace(real, role="system", references=(reply,))]
    if len(voices) < 2 * LEAST_TURNS:
        return None
    styles = _measure_language(voices, {"": {}})
    if styles is None:
        return None
    return styles[""].meter.same_instruction


def measure_file_style(
    files: Mapping[str, Sequence[Path]], config: str, split: str, data_dir: Path | None
) -> dict[str, StyleResult]:
    """`measure_style` of predictions in files, by a meter that learns from all splits of a config that are here.

    Args:
        files: System to its predictions for the split, as for `rolellm.score`; without files, the meter alone is
            measured.
        config: The dataset's config; by default the one that the predictions were generated for.
        split: The split that the predictions answer; by default as recorded, else ``test``.
        data_dir: A local copy of the release.
    """
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

    splits = {}
    for name, table in load_rolebench(config, data_dir=data_dir).items():
        splits[name] = read_dataset_rows(table)
    learned_rows = list(chain.from_iterable(splits.values()))
    if files and split not in splits:
        # A slice is not among the splits.
        splits[split] = read_dataset_rows(load_rolebench(config, split, data_dir=data_dir))
    answers: dict[str, dict[str, str]] = {}
    warnings: dict[str, tuple[str, ...]] = {}
    for name, paths in files.items():
        answers[name] = {}
        warnings[name] = ()
        if paths:
            rows = splits[split]
            predictions = read_predictions(paths)
            matching = match_predictions(rows, predictions, where=f"{config}/{split}")
            answers[name] = predictions.map_texts(rows, matching.answers)
            warnings[name] = tuple(finding.text for finding in matching.findings if finding.refused)
    results = measure_style(learned_rows, answers)
    fingerprint = dataset_fingerprint(config, data_dir)
    for name, result in results.items():
        results[name] = replace(result, config=config, split=split, dataset=fingerprint, warnings=warnings[name])
    return results


def _measure_language(rows: Sequence[Row], answers: Mapping[str, Mapping[str, str]]) -> dict[str, LanguageStyle] | None:
    """Measure the systems in one language; ``None`` where it has too few roles or instructions."""
    general_rows = [row for row in rows if row.subset == "general"]
    has_general = any(row.references for row in general_rows)
    subset: Subset = "general" if has_general else "role_specific"
    rows = [row for row in rows if row.subset == subset]
    references = _draw_references(rows, MOST)
    references.sort()
    roles = sorted({reply.role for reply in references})
    for part in range(FOLDS):
        # A role that is missing from the other folds could not be learned.
        learned_roles = {reply.role for reply in references if _get_fold(reply) != part}
        if len(learned_roles) < max(len(roles), 2):
            return None
    groups = [references]
    for texts in answers.values():
        replies = []
        for row in rows:
            if row.role in roles and row.id in texts:
                replies.append(StyleReply(row.role, fold(row.question), texts[row.id]))
        groups.append(replies)
    margins, *reply_margins = _compute_margins(groups, roles, rows[0].language)
    roles_by_question: dict[str, set[str]] = defaultdict(set)
    for reply in references:
        roles_by_question[reply.question].add(reply.role)
    meter = _compute_figures(references, margins, roles, roles_by_question)
    styles = {}
    for name, replies, leads in zip(answers, groups[1:], reply_margins, strict=True):
        figures = None
        if replies:
            figures = _compute_figures(replies, leads, roles, roles_by_question)
        styles[name] = LanguageStyle(subset, tuple(roles), meter, figures)
    return styles


def _draw_references(rows: Sequence[Row], limit: int) -> list[StyleReply]:
    """Draw some of the rows' distinct references, always the same."""
    distinct = set()
    for row in rows:
        question = fold(row.question)
        distinct |= {StyleReply(row.role, question, text) for text in row.references if text.strip()}
    return sorted(distinct, key=hash_json)[:limit]


class StyleMeter:
    """A meter that learns once, from all instructions, and also tells role-free answers from the roles; for rewards.

    A reply to an instruction that it learned from gains nothing by its content where several roles answer the same
    instructions. It should not be read as a measure: `measure_style` keeps instructions apart.

    Args:
        rows: What it learns from: references and role-free answers, general ones where there are any.
        language: Only rows in this language count.

    Attributes:
        voices: The roles, and ``""`` for role-free answers.

    Raises:
        MissingExtraError: Without scikit-learn.
        DataError: When there are not two voices.
    """

    def __init__(self, rows: Sequence[Row], language: Language) -> None:
        require("sklearn", extra="style")
        from sklearn.svm import LinearSVC

        rows = [row for row in rows if row.language == language and row.references]
        rows = [row for row in rows if row.subset == "general"] or rows
        plain_rows = []
        for row in rows:
            if row.raw_reference is not None:
                plain_rows.append(replace(row, role="", references=(row.raw_reference,)))
        learned = _draw_references(rows, MOST_LEARNED) + _draw_references(plain_rows, MOST_LEARNED)
        self.voices: list[str] = sorted({reply.role for reply in learned})
        if len(self.voices) < 2:
            raise DataError(
                "the style reward needs two voices to tell apart: two roles, or a role and `raw_reference` (language: "
                f"{language})"
            )
        self._language = language
        self._vectors = _build_vectors(language)
        features = self._vectors.fit_transform(self._mask(learned))
        machine = LinearSVC(C=COST, random_state=0, class_weight="balanced")
        machine.fit(features, [self.voices.index(reply.role) for reply in learned])
        # Half as wide as the machine's own: a call of 64 replies takes a tenth less.
        self._weights = machine.coef_.T.astype(np.float32, order="C")
        self._offsets = machine.intercept_

    def _mask(self, replies: Sequence[StyleReply]) -> list[str]:
        return [mask_repeats(reply.text, reply.question, self._language) for reply in replies]

    def measure(self, replies: Sequence[StyleReply]) -> list[float]:
        """The lead of each reply's own voice over the next best, as a share from 0 to 1; above 0.5 it is the first.

        Args:
            replies: Of roles that it learned.
        """
        if not replies:
            return []
        features = self._vectors.transform(self._mask(replies))
        margins = _split_margins(features @ self._weights + self._offsets)
        numbers = np.array([self.voices.index(reply.role) for reply in replies])
        indices = (np.arange(len(replies)), numbers)
        own = margins[indices].copy()
        margins[indices] = -np.inf
        leads = own - margins.max(axis=1)
        odds = np.exp(-_STEEPNESS * leads)
        shares: list[float] = (1 / (1 + odds)).tolist()
        return shares


def _split_margins(margins: Any) -> Any:
    """Give each of two voices a margin; a linear machine has one for both."""
    margins = margins.reshape(len(margins), -1)
    if margins.shape[1] > 1:
        return margins
    return np.concatenate([-margins, margins], axis=1)


def _get_fold(reply: StyleReply) -> int:
    digest = hashlib.sha256(reply.question.encode("utf-8", "replace"))
    return int(digest.hexdigest(), 16) % FOLDS


def _compute_margins(groups: Sequence[Sequence[StyleReply]], roles: Sequence[str], language: Language) -> list[Floats]:
    """Compute how far each reply lies on each role's side, of shape (replies, roles) a group, by unseen instructions.

    Args:
        groups: The references, which alone are learned from, and any replies.
        roles: All roles of the references.
        language: The replies' language.
    """
    from sklearn.svm import LinearSVC

    replies = list(chain.from_iterable(groups))
    masked = [mask_repeats(reply.text, reply.question, language) for reply in replies]
    texts = np.array(masked, object)
    parts = np.array([_get_fold(reply) for reply in replies])
    own = np.array([roles.index(reply.role) for reply in replies])
    is_reference = np.arange(len(replies)) < len(groups[0])
    margins = np.zeros((len(replies), len(roles)))
    for part in track_progress(np.unique(parts), "style meter"):
        is_judged = parts == part
        is_training = is_reference & ~is_judged
        vectors = _build_vectors(language)
        machine = LinearSVC(C=COST, random_state=0)
        machine.fit(vectors.fit_transform(texts[is_training]), own[is_training])
        judged = vectors.transform(texts[is_judged])
        margins[is_judged] = _split_margins(machine.decision_function(judged))
    ends = np.cumsum([len(group) for group in groups[:-1]])
    return np.split(margins, ends)


def _build_vectors(language: Language) -> Any:
    """Build what weighs a language's views by TF-IDF, each of what two texts have."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    views = []
    for kind, size in VIEWS[language].items():
        # Only the view of words looks at their pattern.
        pattern = WORD if kind == "word" else None
        view = TfidfVectorizer(
            analyzer=kind, ngram_range=size, token_pattern=pattern, min_df=2, sublinear_tf=True, dtype=np.float32
        )
        views.append(view)
    return make_union(*views)


def _compute_figures(
    replies: Sequence[StyleReply],
    margins: Floats,
    roles: Sequence[str],
    roles_by_question: Mapping[str, set[str]],
) -> StyleFigures:
    numbers = {role: number for number, role in enumerate(roles)}
    own = np.array([numbers[reply.role] for reply in replies])
    own_margins = margins[np.arange(len(own)), own]
    rank = (margins > own_margins[:, None]).sum(axis=1)
    likeliest = margins.argmax(axis=1)
    wins = []
    win_replies = []
    for index, reply in enumerate(replies):
        for rival in roles_by_question.get(reply.question, set()) - {reply.role}:
            lead = own_margins[index] - margins[index, numbers[rival]]
            wins.append((1 + np.sign(lead)) / 2)
            win_replies.append(reply)
    by_role = {}
    confusion = {}
    for role, number in numbers.items():
        indices = np.flatnonzero(own == number).tolist()
        if indices:
            role_replies = [replies[index] for index in indices]
            by_role[role] = _estimate_share(rank[indices] == 0, role_replies)
            counts = Counter(roles[rival] for rival in likeliest[indices])
            confusion[role] = dict(counts.most_common())
    top1 = _estimate_share(rank == 0, replies)
    same_instruction = _estimate_share(wins, replies=win_replies)
    return StyleFigures(
        top1=top1,
        chance=1 / len(roles),
        same_instruction=same_instruction,
        by_role=by_role,
        confusion=confusion,
    )


def _estimate_share(values: Sequence[Any] | npt.NDArray[Any], replies: Sequence[StyleReply]) -> Interval | None:
    questions = [reply.question for reply in replies]
    roles = [reply.role for reply in replies]
    return estimate_interval(ClusteredSample(list(map(float, values)), questions, roles), SHARE)
