"""Draws general instructions from instruction data sets, as the paper did from Super-NaturalInstructions, COIG, BELLE.

The paper (arXiv 2310.00746) caps English ones at 100 words and Chinese ones at 100 characters, and removes
near-duplicates by BM25 similarity; its threshold is open. Ours: `rolellm.construct.duplicates`.

The draw goes by content: a row's turn comes by a hash of the seed, its instruction and its answer, so the same rows in
another order give the same draw.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from rolellm.construct.duplicates import repeats
from rolellm.construct.instruction_sources import Source
from rolellm.construct.scripts.detect import detect_language
from rolellm.errors import DataError, RecipeError
from rolellm.files import write_json
from rolellm.fingerprint import hash_file
from rolellm.jsonl import write_jsonl
from rolellm.records import Language
from rolellm.text import HAN, fold, half_in
from rolellm.version import __version__

Duplicates = Literal["bm25", "minhash", "exact"]
DUPLICATES: Final[tuple[Duplicates, ...]] = get_args(Duplicates)
_LETTER: Final = re.compile(r"[^\W\d_]")
# More than is wanted, as some will be near-duplicates; of the rest nothing need be compared.
_POOL: Final = 1.25


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """How instructions are drawn.

    Attributes:
        language: ``en`` or ``zh``; rows of another writing are left out.
        max_words: Of an English instruction; the paper's 100.
        max_chars: Of a Chinese one; the paper's 100.
        seed: Another one draws others.
        duplicates: ``bm25`` or ``minhash`` similarity, or ``exact``: case and white space folded.
        similarity: From which on an instruction is a near-duplicate; by default the method's own.

    Raises:
        RecipeError: For a value out of range.
    """

    language: Language
    max_words: int = 100
    max_chars: int = 100
    seed: int = 0
    duplicates: Duplicates = "bm25"
    similarity: float | None = None

    def __post_init__(self) -> None:
        if self.duplicates not in DUPLICATES:
            raise RecipeError(f"duplicates by {self.duplicates!r}: there are {', '.join(DUPLICATES)}")
        if self.similarity is not None and not 0 < self.similarity <= 1:
            raise RecipeError(f"a similarity of {self.similarity}: it has to be above 0, and at most 1")
        if min(self.max_words, self.max_chars) < 1:
            raise RecipeError("a length cap below 1 leaves nothing to draw")


@dataclass(frozen=True, slots=True)
class Drawn:
    """An instruction that was drawn: its text, its role-free answer, its data set and its row there, from 0."""

    instruction: str
    target: str
    dataset: int
    row: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was drawn.

    Attributes:
        settings: How.
        sources: From what.
        counts: How many were asked of each source.
        drawn: By source, then in the order of the draw.
        dropped: Of each source, how many rows were left out and why.
    """

    settings: SampleSettings
    sources: Sequence[Source]
    counts: Sequence[int]
    drawn: tuple[Drawn, ...]
    dropped: Sequence[Mapping[str, int]] = field(default_factory=tuple)

    def summary(self) -> dict[str, Any]:
        """For the manifest, and for ``--json``: what was read, left out and drawn, of each source."""
        had = Counter(item.dataset for item in self.drawn)
        sources = [
            {
                **source.to_dict(),
                "rows": len(source.rows),
                "dropped": dict(self.dropped[number]),
                "asked": self.counts[number],
                "drawn": had[number],
            }
            for number, source in enumerate(self.sources)
        ]
        return {
            "drawn": len(self.drawn),
            "asked": sum(self.counts),
            "sources": sources,
            "settings": asdict(self.settings),
        }

    def write(self, path: str | Path) -> Path:
        """Write the instructions, and beside them ``NAME.meta.json``, each complete or not at all.

        Returns:
            The path of the second file.
        """
        target = Path(path)
        write_jsonl(target, (self._line(item) for item in self.drawn))
        meta = target.with_name(f"{target.name}.meta.json")
        write_json(meta, {"rolellm": __version__, "sha256": hash_file(target), **self.summary()})
        return meta

    def _line(self, item: Drawn) -> dict[str, Any]:
        source = self.sources[item.dataset]
        place = {"dataset": source.name, "split": source.split, "row": item.row}
        return {"instruction": item.instruction, "target": item.target, "source": place}


def told_language(sources: Sequence[Source]) -> Language:
    """The language of most instructions; English where they are even."""
    zh = [detect_language(instruction) == "zh" for source in sources for instruction, _ in source.rows if instruction]
    return "zh" if 2 * sum(zh) > len(zh) else "en"


def sample_instructions(sources: Sequence[Source], counts: Sequence[int], settings: SampleSettings) -> Sample:
    """Draw instructions.

    Args:
        sources: Data sets, as `rolellm.construct.instruction_sources.read_source` reads them.
        counts: How many from each; fewer come where there are no more. What is drawn from one is no near-duplicate of
            what was drawn from those before it.
        settings: How.

    Raises:
        RecipeError: When the counts do not fit the sources.
        DataError: When a source has no row that will do; says why its rows will not.
        MissingExtraError: With ``bm25``, where ``bm25s`` is not installed.
    """
    if len(counts) != len(sources) or min(counts, default=0) < 1:
        raise RecipeError(f"{len(sources)} data sets and the counts {list(counts)}; give each a count of 1 or more")
    drawn: list[Drawn] = []
    dropped: list[Counter[str]] = []
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        fit, lost = _fit(source, settings)
        if not fit:
            raise DataError(f"{source.name}: none of its {len(source.rows)} rows will do ({_told(lost)})")
        ordered = sorted(fit, key=lambda row: _turn(source.rows[row], settings.seed))
        taken, repeated = _draw([item.instruction for item in drawn], source, ordered, count, settings)
        drawn += [Drawn(*source.rows[row], number, row) for row in taken]
        dropped.append(lost + Counter({"near_duplicate": repeated} if repeated else {}))
    return Sample(settings, sources, counts, tuple(drawn), tuple(dropped))


def _draw(
    before: Sequence[str], source: Source, ordered: Sequence[int], count: int, settings: SampleSettings
) -> tuple[list[int], int]:
    """The rows to take in the order of their turns, and how many of those looked at repeat another."""
    size = count
    while True:
        size = min(int(size * _POOL) + 100, len(ordered))
        texts = [*before, *(source.rows[row][0] for row in ordered[:size])]
        repeated = _repeated(texts, settings)
        kept = [place for place in range(len(before), len(texts)) if place not in repeated]
        if len(kept) >= count or size == len(ordered):
            taken = kept[:count]
            # With all that was asked for, what comes after the last one was not looked at.
            last = taken[-1] if len(taken) == count else len(texts) - 1
            lost = sum(len(before) <= place <= last for place in repeated)
            return [ordered[place - len(before)] for place in taken], lost
        size = 2 * size


def _repeated(texts: Sequence[str], settings: SampleSettings) -> set[int]:
    if settings.duplicates != "exact":
        return set(repeats(texts, settings.language, settings.duplicates, settings.similarity))
    first: dict[str, int] = {}
    return {place for place, text in enumerate(texts) if first.setdefault(fold(text), place) != place}


def _fit(source: Source, settings: SampleSettings) -> tuple[list[int], Counter[str]]:
    """The rows that will do, and why the others will not."""
    lost: Counter[str] = Counter()
    fit: list[int] = []
    seen: set[tuple[str, str]] = set()
    for row, pair in enumerate(source.rows):
        reason = _unfit(*pair, settings)
        if reason is None and pair in seen:
            reason = "repeated_row"
        if reason is None:
            seen.add(pair)
            fit.append(row)
        else:
            lost[reason] += 1
    return fit, lost


def _unfit(instruction: str, target: str, settings: SampleSettings) -> str | None:
    if not instruction:
        return "no_instruction"
    if not target:
        return "no_target"
    if half_in(instruction, target):
        return "half_a_character"
    if settings.language == "zh":
        if len(instruction) > settings.max_chars:
            return "too_long"
    elif len(instruction.split()) > settings.max_words:
        return "too_long"
    # An instruction may quote the other language; a Chinese character stands for several letters.
    han, letters = len(HAN.findall(instruction)), len(_LETTER.findall(instruction))
    own = 4 * han > letters if settings.language == "zh" else 2 * han <= letters
    return None if own else "other_language"


def _turn(pair: tuple[str, str], seed: int) -> bytes:
    text = f"{seed}\0{pair[0]}\0{pair[1]}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _told(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{reason.replace('_', ' ')}: {count}" for reason, count in lost.items()) or "there are none"
