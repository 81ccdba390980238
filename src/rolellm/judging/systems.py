"""Who takes part: predictions joined to the rows, the baseline, and the canaries; and which family a model is of."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from rolellm.core.errors import PredictionError, SettingsError
from rolellm.core.fingerprint import draw_evenly, hash_json
from rolellm.core.records import Language, Row
from rolellm.core.settings import read_packaged_yaml
from rolellm.core.text import replace_surrogates
from rolellm.judging.records import Comparison, System, SystemKind
from rolellm.judging.settings import JudgingSettings
from rolellm.scoring.predictions import MatchFinding, Predictions, match_predictions, read_predictions

NULL_MODEL = "canary: null model"
ECHO = "canary: echo"
OTHER_ROLE = "canary: another role"
#: The baseline that comes with the rows: the release's own RoleGPT replies.
ROLEGPT = "rolegpt"
ROLEGPT_NAME = "RoleGPT"
NO_BASELINE = "none"
# An echo's own verdict has to stay within what a judge is shown, however long the description is.
_MOST_ECHOED = 1500


def make_canaries(rows: Sequence[Row]) -> Iterator[tuple[System, dict[str, str]]]:
    """Make the attackers that take part in every judgement: where one wins, the judge can be won without an answer.

    One says the same friendly words to every question; one repeats what the judge was given and adds a verdict.

    Yields:
        Each with its answers by row id, in the row's language.
    """
    for name in (NULL_MODEL, ECHO):
        rule = name.removeprefix("canary: ")
        texts = _read_canary(rule)
        answers = {}
        for row in rows:
            description = (row.role_description or row.role)[:_MOST_ECHOED]
            question = row.question.strip()[:_MOST_ECHOED]
            answers[row.id] = texts[row.language].format(description=description, question=question)
        source = {"rules": rule, "texts_sha256": hash_json(texts)}
        yield System(name, "canary", source=source), answers


def _read_canary(rule: str) -> dict[str, str]:
    """Read what a canary says, by language."""
    folder = resources.files("rolellm.judging") / "canaries"
    texts = {}
    for language in get_args(Language):
        file = folder / f"{rule.replace(' ', '_')}.{language}.txt"
        texts[language] = file.read_text(encoding="utf-8").strip()
    return texts


def plant_losers(
    rows: Sequence[Row], replies: Mapping[str, str], among: Sequence[Row], most: int = 50
) -> dict[str, str]:
    """Plant what the baseline said as another role: to the same question, or else to another one of the same subset.

    Args:
        rows: All rows of the split.
        replies: The baseline's, by row id.
        among: The rows that are judged.
        most: How many of them get a loser, so that a large split costs no more.

    Returns:
        Row id to the planted reply, in the row's language; a row for which there is none is absent.
    """
    by_question = group_rows(rows, replies, "language", "subset", "question")
    by_subset = group_rows(rows, replies, "language", "subset")
    losers: dict[str, str] = {}
    for row in sorted(among, key=lambda row: hash_json(["planted", row.id])):
        if len(losers) == most:
            break
        if row.id in replies:
            same_question = by_question[row.language, row.subset, row.question]
            for spoken in (same_question, by_subset[row.language, row.subset]):
                rivals = [rival for rival in spoken if rival.role != row.role]
                if row.id not in losers:
                    draw_loser(losers, row, rivals, replies)
    return losers


def group_rows(rows: Sequence[Row], replies: Mapping[str, str], *names: str) -> Mapping[tuple[Any, ...], list[Row]]:
    """Group the rows that have a reply by some of their columns."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.id in replies:
            key = tuple(getattr(row, name) for name in names)
            groups[key].append(row)
    return groups


def draw_loser(losers: dict[str, str], row: Row, rivals: Sequence[Row], replies: Mapping[str, str]) -> None:
    """Add a loser for a row, drawn from the replies to rivals that are not the row's own; none where there is none."""
    texts = [replies[rival.id] for rival in rivals]
    texts = [text for text in texts if text != replies[row.id]]
    if texts:
        losers[row.id] = random.Random(row.id).choice(texts)


def parse_sources(arguments: Sequence[str]) -> dict[str, list[Path]]:
    """Parse systems from ``P.jsonl`` (named by the file) or ``NAME=P.jsonl``; one name given twice is one system.

    Raises:
        SettingsError: For two files that would have one name, or an empty name.

    >>> {name: len(paths) for name, paths in parse_sources(["a.jsonl", "b=x.jsonl", "b=y.jsonl"]).items()}
    {'a': 1, 'b': 2}
    """
    sources: dict[str, list[Path]] = {}
    by_file: set[str] = set()
    for text in arguments:
        name, equals, path = text.partition("=")
        if not equals or Path(text).is_file():
            path, name = text, Path(text).name.removesuffix(".jsonl")
            if name in sources:
                ways = f"FIRST={sources[name][0]} SECOND={path}"
                raise SettingsError(f"two systems would be called {name}; name them: {ways}")
            by_file.add(name)
        elif name in by_file:
            raise SettingsError(f"{name} is already a system, named after its file; choose another name in {text}")
        if not name.strip() or not path:
            raise SettingsError(f"{text!r}: expected P.jsonl or NAME=P.jsonl")
        sources.setdefault(name, []).append(Path(path))
    return sources


def make_comparison(
    rows: Sequence[Row],
    predictions_by_name: Mapping[str, Predictions],
    settings: JudgingSettings,
    where: str = "these rows",
) -> tuple[Comparison, list[tuple[str, MatchFinding]]]:
    """Join answers to rows, and draw the sample.

    Args:
        rows: Of one split.
        predictions_by_name: System name to predictions.
        settings: The baseline, the sample, and whether canaries take part.
        where: What the rows are, for messages: config and split.

    Returns:
        The comparison, of rows that at least two systems (canaries aside) answered, and what a reader must know of
        each join, by system.

    Raises:
        PredictionError: When a file cannot be read or answers no row, or no row has two answers.
        SettingsError: When the baseline is not there, or a system is alone or has a canary's name; says what to do.
    """
    predictions_by_name, base = _add_baseline(rows, predictions_by_name, settings, where)
    if settings.canaries:
        reserved = {NULL_MODEL, ECHO, OTHER_ROLE} & predictions_by_name.keys()
        if reserved:
            raise SettingsError(f"{min(reserved)} is the name of a canary; give your system another name")
    if len(predictions_by_name) < 2:
        name = next(iter(predictions_by_name))
        raise SettingsError(f"{name} has nothing to be compared with; add another system or a baseline")
    is_released = base == ROLEGPT_NAME and settings.baseline == ROLEGPT
    systems: list[System] = []
    answers: dict[str, dict[str, str]] = {}
    findings: list[tuple[str, MatchFinding]] = []
    for name, predictions in predictions_by_name.items():
        matching = match_predictions(rows, predictions, where=where)
        system = _build_system(name, predictions, "baseline" if name == base else "model")
        if is_released and name == base:
            # Rows without a released reply are nothing that the user gave.
            system = replace(system, source={"rows": ROLEGPT, **system.source})
        else:
            findings += [(name, finding) for finding in matching.findings]
        systems.append(system)
        texts = predictions.map_texts(rows, matching.answers)
        answers[name] = {row: replace_surrogates(text) for row, text in texts.items()}
    selected = _sample_rows(rows, answers, base, settings)
    if not selected:
        raise PredictionError(f"no row of {where} has two answers to compare; give predictions for the same rows")
    if settings.canaries:
        for canary, texts in make_canaries(selected):
            systems.append(canary)
            answers[canary.name] = texts
    if settings.canaries and is_released:
        losers = plant_losers(rows, answers[ROLEGPT_NAME], selected)
        if losers:
            systems.append(System(OTHER_ROLE, "canary", source={"rules": ROLEGPT}))
            answers[OTHER_ROLE] = losers
    ids = {row.id for row in selected}
    selected_answers = {}
    for name, texts in answers.items():
        selected_answers[name] = {row: text for row, text in texts.items() if row in ids}
    return Comparison(selected, systems, selected_answers), findings


def _add_baseline(
    rows: Sequence[Row], predictions: Mapping[str, Predictions], settings: JudgingSettings, where: str
) -> tuple[Mapping[str, Predictions], str | None]:
    """Add the baseline to the systems, and name it."""
    baseline = settings.baseline
    if baseline == NO_BASELINE:
        return predictions, None
    if baseline in predictions:
        return predictions, baseline
    if baseline == ROLEGPT:
        if ROLEGPT_NAME in predictions:
            raise SettingsError(f"{ROLEGPT_NAME} is the name of the rows' own baseline; give your system another")
        replies = {row.id: row.rolegpt for row in rows if row.rolegpt is not None}
        if not any(replies.values()):
            ways = "name a system or a file (--baseline), or rank without (--baseline none --judge role-list)"
            raise SettingsError(f"{where} has no released RoleGPT reply to compare with; {ways}")
        released = Predictions.pair_texts([*replies], [*replies.values()])
        return {**predictions, ROLEGPT_NAME: released}, ROLEGPT_NAME
    ((name, paths),) = parse_sources([baseline]).items()
    if not paths[0].is_file():
        expected = f"rolegpt, none, a file, or one of the systems: {', '.join(predictions)}"
        raise SettingsError(f"no baseline {baseline!r}: expected {expected}")
    if name in predictions:
        raise SettingsError(f"the baseline would have the name of a system, {name}; use --baseline NAME={paths[0]}")
    return {**predictions, name: read_predictions(paths)}, name


def _build_system(name: str, predictions: Predictions, kind: SystemKind) -> System:
    """Build a system with its model, as a file's sidecar names it: an adapter's base first, which tells the family."""
    names = [(file.meta or {}).get("model") for file in predictions.files]
    model = next((item for item in names if isinstance(item, str) and item), None)
    files = [{"file": file.path.name, "sha256": file.sha256, "generation": file.meta} for file in predictions.files]
    source: dict[str, Any] = {"files": files}
    if not files:
        source = {"sha256": hash_json([[item.id, item.prediction] for item in predictions.items])}
    return System(name, kind, model, find_family(model) or find_family(name), source)


def _sample_rows(
    rows: Sequence[Row], answers: Mapping[str, Mapping[str, str]], base: str | None, settings: JudgingSettings
) -> list[Row]:
    """Select the rows that can be compared, or a sample of them that the baseline answered, for pairs need it."""
    counts = Counter(chain(*answers.values()))
    able = [row for row in rows if counts[row.id] > 1]
    if settings.limit is None:
        return able
    if base is not None:
        able = [row for row in able if row.id in answers[base]]
    sample = draw_evenly(able, settings.limit, lambda row: hash_json(["sample", settings.seed, row.id]))
    return [able[index] for index in sample]


_FAMILIES: Mapping[str, str] = read_packaged_yaml("rolellm.judging", "families.yaml")
# Programs that serve or train any model and carry a family's name.
_PROGRAMS = re.compile(r"(?<![a-z])ollama(?![a-z])|llama[-.]?(?:cpp|factory|file|index|stack|swap)|autogpt")


def find_family(name: str | None) -> str | None:
    """Find the family of a model by its name, Hub id or path; ``None`` where it is not recognized.

    Of several in one name, the last: most likely the one whose weights it has. In a path, the last part that names a
    family counts, not the folders above it.

    Args:
        name: Such as ``gpt-4o``, ``lmsys/vicuna-7b-v1.5`` or ``runs/rolellama-7b/checkpoint-716``.

    >>> find_family("RoleGPT"), find_family("DeepSeek-R1-Distill-Llama-8B"), find_family("philosophy-7b")
    ('gpt', 'llama', None)
    """
    for part in reversed(re.split(r"[/\\:]", (name or "")[-1000:].casefold())):
        plain = _PROGRAMS.sub(" ", re.sub(r"[_\s]+", "-", part.strip()))
        families: dict[int, str] = {}
        for family, pattern in _FAMILIES.items():
            for match in re.finditer(pattern, plain):
                families[match.start()] = family
        if families:
            return families[max(families)]
    return None
