"""Who takes part: predictions joined to the rows, the baseline, and the canaries; and which family a model is of."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import get_args

from rolellm.core.errors import PredictionError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Row
from rolellm.core.settings import packaged_yaml
from rolellm.core.text import whole_text
from rolellm.evaluation.matching import Finding, match
from rolellm.evaluation.predictions import Predictions, read_predictions
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.types import Comparison, System, SystemKind

NULL_MODEL = "canary: null model"
ECHO = "canary: echo"
OTHER_ROLE = "canary: another role"
#: The baseline that comes with the rows: the release's own RoleGPT replies.
ROLEGPT = "rolegpt"
ROLEGPT_NAME = "RoleGPT"
NO_BASELINE = "none"
# An echo's own verdict has to stay within what a judge is shown, however long the description is.
_MOST_ECHOED = 1500


def canary_answers(rows: Sequence[Row]) -> list[tuple[System, dict[str, str]]]:
    """Attackers that take part in every judgement: where one of them wins, the judge can be won without an answer.

    One says the same friendly words to every question; one repeats what the judge was given and adds a verdict.

    Returns:
        Each with its answers by row id, in the row's language.
    """
    found = []
    for name in (NULL_MODEL, ECHO):
        rule = name.removeprefix("canary: ")
        folder = resources.files("rolellm.judging") / "canaries"
        texts = {
            language: folder.joinpath(f"{rule.replace(' ', '_')}.{language}.txt").read_text(encoding="utf-8").strip()
            for language in get_args(Language)
        }
        answers = {
            row.id: texts[row.language].format(
                description=(row.role_description or row.role)[:_MOST_ECHOED],
                question=row.question.strip()[:_MOST_ECHOED],
            )
            for row in rows
        }
        found.append((System(name, "canary", source={"rules": rule, "texts_sha256": hash_json(texts)}), answers))
    return found


def planted_losers(
    rows: Sequence[Row], replies: Mapping[str, str], among: Sequence[Row], most: int = 50
) -> dict[str, str]:
    """What the baseline said as another role, to the same question where it was asked it: a judge should notice.

    Args:
        rows: All rows of the split.
        replies: The baseline's, by row id.
        among: The rows that are judged.
        most: How many of them get a loser (our choice), so that a fitness test costs no more on a large split.

    Returns:
        Row id to the planted reply, in the row's language; a row for which there is none is absent.
    """
    spoken: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.id in replies:
            spoken[row.language].append(row)
            spoken[f"{row.language} {row.question}"].append(row)
    able = [row for row in among if row.id in replies]
    found: dict[str, str] = {}
    for row in sorted(able, key=lambda row: hash_json(["planted", row.id])):
        if len(found) == most:
            break
        for shared in (f"{row.language} {row.question}", row.language):
            others = [one.id for one in spoken[shared] if one.role != row.role and replies[one.id] != replies[row.id]]
            if others:
                found[row.id] = replies[random.Random(row.id).choice(others)]
                break
    return found


def parse_sources(given: Sequence[str]) -> dict[str, list[Path]]:
    """Systems from ``P.jsonl`` (named by the file) or ``NAME=P.jsonl``; one name given twice is one system.

    Raises:
        SettingsError: For two files that would have one name, or an empty name.

    >>> {name: len(paths) for name, paths in parse_sources(["a.jsonl", "b=x.jsonl", "b=y.jsonl"]).items()}
    {'a': 1, 'b': 2}
    """
    found: dict[str, list[Path]] = {}
    by_file: set[str] = set()
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or Path(text).is_file():
            path, name = text, Path(text).name.removesuffix(".jsonl")
            if name in found:
                raise SettingsError(
                    f"two systems would be called {name}; name them: FIRST={found[name][0]} SECOND={path}"
                )
            by_file.add(name)
        elif name in by_file:
            raise SettingsError(f"{name} is already a system, named after its file; choose another name in {text}")
        if not name.strip() or not path:
            raise SettingsError(f"{text!r}: expected P.jsonl or NAME=P.jsonl")
        found.setdefault(name, []).append(Path(path))
    return found


def make_comparison(
    rows: Sequence[Row], given: Mapping[str, Predictions], settings: JudgingSettings, where: str = "these rows"
) -> tuple[Comparison, list[tuple[str, Finding]]]:
    """Join answers to rows, and draw the sample.

    Args:
        rows: Of one split.
        given: System name to predictions.
        settings: The baseline, the sample, and whether canaries take part.
        where: What the rows are, for messages: config and split.

    Returns:
        The comparison, of rows that at least two systems (canaries aside) answered, and what a reader must know of
        each join, by system.

    Raises:
        PredictionError: When a file cannot be read or answers no row, or no row has two answers.
        SettingsError: When the baseline is not there, or a system is alone or has a canary's name; says what to do.
    """
    given, base = _with_baseline(rows, given, settings, where)
    canaries = canary_answers(rows) if settings.canaries else []
    for name in (NULL_MODEL, ECHO, OTHER_ROLE) if settings.canaries else ():
        if name in given:
            raise SettingsError(f"{name} is the name of a canary; give your system another name")
    if len(given) < 2:
        raise SettingsError(
            f"{next(iter(given))} is alone, and there is nothing to compare it with; give another system, or a baseline"
        )
    systems, answers = [], {}
    findings: list[tuple[str, Finding]] = []
    for name, predictions in given.items():
        matching = match(rows, predictions, where=where)
        # Rows without a released reply are nothing that the user gave.
        released = settings.baseline == ROLEGPT and name == base == ROLEGPT_NAME
        findings += [] if released else [(name, finding) for finding in matching.findings]
        one = _system(name, predictions, "baseline" if name == base else "model")
        systems.append(replace(one, source={"rows": ROLEGPT, **one.source}) if released else one)
        texts = texts_by_row(rows, predictions, matching.answers)
        answers[name] = {row: whole_text(text) for row, text in texts.items()}
    kept = _sampled(rows, answers, base, settings)
    if not kept:
        raise PredictionError(f"no row of {where} has two answers to compare; give predictions for the same rows")
    if canaries and settings.baseline == ROLEGPT and (losers := planted_losers(rows, answers[ROLEGPT_NAME], kept)):
        canaries.append((System(OTHER_ROLE, "canary", source={"rules": ROLEGPT}), losers))
    answers |= {one.name: texts for one, texts in canaries}
    shown = {name: {row.id: texts[row.id] for row in kept if row.id in texts} for name, texts in answers.items()}
    return Comparison(kept, [*systems, *(one for one, _ in canaries)], shown), findings


def texts_by_row(rows: Sequence[Row], predictions: Predictions, answers: Sequence[int | None]) -> dict[str, str]:
    """Row id to the prediction that answers it, by its number; rows without one are left out."""
    joined = zip(rows, answers, strict=True)
    return {row.id: predictions.items[answer].prediction for row, answer in joined if answer is not None}


def _with_baseline(
    rows: Sequence[Row], given: Mapping[str, Predictions], settings: JudgingSettings, where: str
) -> tuple[dict[str, Predictions], str | None]:
    """The systems, the baseline among them, and its name."""
    wanted = settings.baseline
    if wanted == NO_BASELINE or wanted in given:
        return dict(given), None if wanted == NO_BASELINE else wanted
    if wanted == ROLEGPT:
        if ROLEGPT_NAME in given:
            raise SettingsError(
                f"{ROLEGPT_NAME} is the name of the baseline that comes with the rows; give yours another"
            )
        own = {row.id: row.rolegpt for row in rows if row.rolegpt is not None}
        if not any(own.values()):
            raise SettingsError(
                f"{where} has no released RoleGPT reply to compare with; name a system or a file as the "
                "baseline (--baseline NAME or P.jsonl), or rank without one (--baseline none --judge role-list)"
            )
        return {**given, ROLEGPT_NAME: Predictions.from_texts(list(own), list(own.values()))}, ROLEGPT_NAME
    ((name, paths),) = parse_sources([wanted]).items()
    if not paths[0].is_file():
        known = ", ".join(given)
        raise SettingsError(f"no baseline {wanted!r}: expected rolegpt, none, a file, or one of the systems: {known}")
    if name in given:
        raise SettingsError(f"the baseline would have the name of a system, {name}; use --baseline NAME={paths[0]}")
    return {**given, name: read_predictions(paths, skip_bad=settings.skip_bad)}, name


def _system(name: str, predictions: Predictions, kind: SystemKind) -> System:
    """A system with its model, as a file's sidecar names it: an adapter's base first, whose name tells the family."""
    named = ((file.meta or {}).get("model") for file in predictions.files)
    model = next((one for one in named if isinstance(one, str) and one), None)
    files = [{"file": file.path.name, "sha256": file.sha256, "generation": file.meta} for file in predictions.files]
    content = hash_json([[one.id, one.prediction] for one in predictions.items])
    return System(
        name, kind, model, family_of(model) or family_of(name), {"files": files} if files else {"sha256": content}
    )


def _sampled(
    rows: Sequence[Row], answers: Mapping[str, Mapping[str, str]], base: str | None, settings: JudgingSettings
) -> list[Row]:
    """The rows that can be compared, or a sample of them: of those that the baseline answered, for pairs need it."""
    found = [row for row in rows if sum(row.id in texts for texts in answers.values()) > 1]
    if settings.sample is None:
        return found
    able = found if base is None else [row for row in found if row.id in answers[base]]
    drawn = sorted(able, key=lambda row: hash_json(["sample", settings.seed, row.id]))[: settings.sample]
    kept = {row.id for row in drawn}
    return [row for row in found if row.id in kept]


_PATTERNS = {
    family: re.compile(pattern) for family, pattern in packaged_yaml("rolellm.judging", "families.yaml").items()
}
# Programs that serve or train any model and carry a family's name.
_PROGRAMS = re.compile(r"(?<![a-z])ollama(?![a-z])|llama[-.]?(?:cpp|factory|file|index|stack|swap)|autogpt")


def families_of(name: str | None) -> tuple[str, ...]:
    """Every family in a model's name, Hub id or path; more than one for a model distilled into another.

    In a path, only the last part that names a family counts, not the folders above it.

    Args:
        name: Such as ``gpt-4o``, ``lmsys/vicuna-7b-v1.5`` or ``runs/rolellama-7b/checkpoint-716``.

    >>> families_of("deepseek-ai/DeepSeek-R1-Distill-Llama-8B")
    ('llama', 'deepseek')
    """
    if not name:
        return ()
    for part in reversed(re.split(r"[/\\:]", name[-1000:].casefold())):
        plain = _PROGRAMS.sub(" ", re.sub(r"[_\s]+", "-", part.strip()))
        found = tuple(family for family, pattern in _PATTERNS.items() if pattern.search(plain))
        if found:
            return found
    return ()


def family_of(name: str | None) -> str | None:
    """The family of a model by its name, Hub id or path; ``None`` where it is not recognized.

    Of several in one name, the last: most likely the one whose weights it has.

    >>> family_of("RoleGPT"), family_of("THUDM/chatglm2-6b"), family_of("philosophy-7b")
    ('gpt', 'glm', None)
    """
    found = families_of(name)
    if len(found) < 2:
        return found[0] if found else None
    text = re.sub(r"[_\s]+", "-", (name or "").casefold())
    return max(found, key=lambda family: max((place.start() for place in _PATTERNS[family].finditer(text)), default=-1))
