"""Rows that a model was trained on and answers, according to the manifests of its training.

Each config promises that training held something out: roles (``role-generalization-…``) or instructions (the others). A
row is *contaminated* when the model was trained on that part of it: its score then shows what it memorized. The other
part is counted too, but is expected: whoever tests new instructions may have tuned on the role. A model without a
manifest is unknown, which does not mean clean.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, PredictionError, RoleLLMWarning
from rolellm.core.records import Row
from rolellm.core.typed_json import read_as
from rolellm.models.find import ModelSource, find_manifests
from rolellm.models.training_record import Part, TrainedOn, hash_instruction, read_manifest
from rolellm.scoring.predictions import MatchFinding, Matching, Predictions, describe_item, get_sidecar_path

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Contamination:
    """The parts of some rows that a model was trained on.

    Attributes:
        held_out: The part that the config promises to be new; ``None`` where it promises nothing.
        rows: The rows of which it is known.
        parts: For each of them, what was trained on.
        trained_on: Each training that is known: ``model``, the data set's ``config``, ``split`` and ``fingerprint``,
            and how many ``roles`` and ``instructions`` there were.
        unknown: Rows answered by models whose training is not known.
    """

    held_out: Part | None
    rows: tuple[Row, ...]
    parts: tuple[frozenset[Part], ...]
    trained_on: tuple[dict[str, Any], ...]
    unknown: int = 0

    def select_rows(self, part: Part | None) -> list[Row]:
        """The rows of which this part was trained on."""
        pairs = zip(self.rows, self.parts, strict=True)
        return [row for row, parts in pairs if part in parts]

    @property
    def contaminated(self) -> list[Row]:
        """The rows of which the part was trained on that should be new."""
        return self.select_rows(self.held_out)

    def to_dict(self) -> dict[str, Any]:
        """Counts of rows, and what they were compared with; ``contaminated`` is null where nothing is promised."""
        contaminated = None if self.held_out is None else len(self.contaminated)
        return {
            "held_out": self.held_out,
            "rows": len(self.rows),
            "contaminated": contaminated,
            "by_role": len(self.select_rows("role")),
            "by_instruction": len(self.select_rows("instruction")),
            "trained_on": list(self.trained_on),
        }

    def to_sidecar(self) -> dict[str, Any]:
        """`to_dict`, with the roles and instructions behind the counts, by which a score finds the rows again."""
        roles = frozenset(row.role for row in self.select_rows("role"))
        instructions = frozenset(hash_instruction(row.question) for row in self.select_rows("instruction"))
        return {**self.to_dict(), **TrainedOn(roles, instructions).to_dict()}

    def describe(self, where: str) -> MatchFinding | None:
        """Describe the contaminated rows; ``None`` where there are none.

        Args:
            where: What the rows are: config and split.
        """
        touched = self.contaminated
        if not touched:
            return None
        by = "; ".join(dict.fromkeys(map(_describe_training, self.trained_on)))
        examples = map(describe_item, touched[:_EXAMPLES])
        count = f"{len(touched):,} of {len(self.rows):,}"
        text = (
            f"rows of {where} whose {self.held_out} the model was trained on: {count} ({by}); "
            f"their scores do not show {self.held_out} generalization"
        )
        return MatchFinding("contaminated", len(touched), text, tuple(examples))


def find_held_out_part(config: str | None) -> Part | None:
    """Find the part that a config's name promises to be new in its test split; ``-strict`` promises the same.

    >>> find_held_out_part("role-generalization-eng"), find_held_out_part("instruction-generalization-zh-strict")
    ('role', 'instruction')
    """
    name = config or ""
    if name.startswith("role-generalization"):
        return "role"
    return "instruction" if name.startswith(("instruction-generalization", "sample")) else None


def check_contamination(
    rows: Sequence[Row], source: ModelSource, *, config: str | None, split: str | None, strict: bool = False
) -> Contamination | None:
    """Compare rows with what a model was trained on, before it answers them; base and adapter count together.

    Args:
        rows: The rows to answer.
        source: The model.
        config: The rows' config.
        split: Their split.
        strict: Refuse instead of warning.

    Returns:
        What was found; ``None`` where no manifest says what the model was trained on.

    Raises:
        DataError: Under ``strict``, when rows are contaminated or a manifest cannot be read.

    Warns:
        RoleLLMWarning: In the same cases without ``strict``.
    """
    records = _read_manifests(source, strict=strict)
    if not records:
        return None
    trained_parts = reduce(or_, records.values())
    trained_on: list[dict[str, Any]] = []
    for name, record in records.items():
        entry = {"model": name, "config": record.config, "split": record.split, "fingerprint": record.fingerprint}
        trained_on.append({**entry, "roles": len(record.roles), "instructions": len(record.instructions)})
    parts = tuple(trained_parts.find_parts(rows))
    contamination = Contamination(find_held_out_part(config), tuple(rows), parts, tuple(trained_on))
    where = "/".join(filter(None, (config, split))) or "the data set"
    finding = contamination.describe(where)
    if finding is None:
        return contamination
    way_out = (
        "Answer a config that the model was not tuned on, or tune on one that ends in -strict, whose train split holds "
        f"no {contamination.held_out} of its test split"
    )
    if strict:
        raise DataError(f"refused, as asked by strict: {finding}. {way_out}")
    examples = "".join(f"\n  {example}" for example in finding.examples)
    warnings.warn(f"{finding.text}{examples}\n{way_out}; --set strict=true refuses", RoleLLMWarning, stacklevel=4)
    return contamination


def _read_manifests(source: ModelSource, *, strict: bool) -> dict[str, TrainedOn]:
    """Read the manifests of an adapter and of its base, by model."""
    records: dict[str, TrainedOn] = {}
    for name in filter(None, (source.adapter, source.base)):
        try:
            manifests = map(read_manifest, find_manifests(name))
            record = next(filter(None, manifests), None)
        except DataError as error:
            if strict:
                raise DataError(f"refused, as asked by strict: {error}") from error
            text = f"{error}; so whether {name} was trained on these rows is unknown"
            warnings.warn(text, RoleLLMWarning, stacklevel=5)
            continue
        # An adapter and the base that was built for it lie in one run.
        if record is not None and record not in records.values():
            records[name] = record
    return records


def _describe_training(entry: dict[str, Any]) -> str:
    """Name the data that a model was trained on, by its manifest."""
    parts = [str(entry[key]) for key in ("config", "split") if entry.get(key)]
    data = "/".join(parts) or "other data"
    return f"{entry.get('model')} was tuned on {data}"


def find_contamination(
    rows: Sequence[Row], predictions: Predictions, matching: Matching, config: str | None
) -> Contamination | None:
    """Compare the rows that were answered with what the sidecars say of the models.

    The rows are looked at again, one by one, so that it holds for whatever part of them is scored, in any config.

    Args:
        rows: All rows of the split.
        predictions: What is scored.
        matching: Which prediction answers which row.
        config: The rows' config; by default the one that the predictions were made for.

    Returns:
        What was found; ``None`` where none of the sidecars says what the model was trained on.

    Raises:
        PredictionError: When a sidecar's entry has another shape than `rolellm generate` gives it.
    """
    answered: defaultdict[Path | None, list[Row]] = defaultdict(list)
    for row, answer in zip(rows, matching.answers, strict=True):
        if answer is not None:
            file = predictions.find_file(answer)
            path = None if file is None else file.path
            answered[path].append(row)
    pairs: list[tuple[Row, frozenset[Part]]] = []
    trained_on: list[dict[str, Any]] = []
    for file in predictions.files:
        meta = file.meta or {}
        entry = meta.get("contamination")
        if entry is None:
            continue
        trained_parts, trainings = _read_sidecar_entry(entry, get_sidecar_path(file.path))
        config = config or str(meta.get("config"))
        file_rows = answered.pop(file.path, [])
        pairs += zip(file_rows, trained_parts.find_parts(file_rows), strict=True)
        trained_on += [training for training in trainings if training not in trained_on]
    if not pairs:
        return None
    checked_rows, parts = zip(*pairs, strict=True)
    unknown = sum(map(len, answered.values()))
    return Contamination(find_held_out_part(config), checked_rows, parts, tuple(trained_on), unknown)


def _read_sidecar_entry(entry: Any, sidecar: Path) -> tuple[TrainedOn, list[dict[str, Any]]]:
    """Read what a sidecar says the model was trained on, and in which trainings."""
    try:
        trained_parts = TrainedOn.from_dict(entry)
        return trained_parts, read_as(list[dict[str, Any]], entry.get("trained_on"), '"trained_on"')
    except DataError as error:
        raise PredictionError(
            f'"contamination" does not look as `rolellm generate` writes it: {error.problem}; '
            "remove it to score without it",
            path=sidecar,
        ) from error
