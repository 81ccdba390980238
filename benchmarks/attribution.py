"""How well the speakers of a novel are found, and how fast it is read.

    python benchmarks/attribution.py --script NOVEL.txt --labels LABELS.jsonl --role NAME [--alias NAME …] [--json]

A label is ``{"offset", "speaker"}``: a character inside the quotation marks, counted in the decoded file from 0 (the
first one, as a rule), and who speaks; ``speaker`` is null of what nobody says. Precision is how many of the labelled
quotations attributed to the role are the role's, recall how many of the role's are attributed to it; `agreement` is how
many of all labelled quotations are given to exactly the labelled name or one of its aliases. The rival attributes a
quotation to the role where its name stands before it, after the quotation or line before; the ratio is its mistakes
over ours (over one, where there are none). Speed is measured by CPU time on copies of the script, one after another.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import environment, peak_memory_mb, report

from rolellm.construct.scripts.novel import read_novel
from rolellm.construct.scripts.reading import Hints, Source
from rolellm.construct.scripts.source import read_source, source_of
from rolellm.core.jsonl import read_jsonl

Speaker = Callable[[int], str | None]


@dataclass(frozen=True)
class Tally:
    """Labelled quotations of the role, and those attributed to it."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float | None:
        """The share of those attributed to the role that are its own."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def recall(self) -> float | None:
        """The share of the role's own that are attributed to it."""
        return self.right / (self.right + self.missed) if self.right + self.missed else None


def load_labels(path: Path) -> list[tuple[int, str | None]]:
    """Offsets with who speaks there."""
    return [(value["offset"], value["speaker"]) for _, value in read_jsonl(path)]


def speaker_at(source: Source, hints: Hints) -> Speaker:
    """A function from an offset of the decoded file to who speaks there; ``None`` where nobody does or is found."""
    turns = [(source.place(turn.start, turn.end), turn) for turn in read_novel(source, hints)]
    starts = [start for (start, _), _ in turns]

    def speaker(offset: int) -> str | None:
        # A label may point at white space that the turn has left out.
        index = bisect_right(starts, offset + 2) - 1
        if index < 0:
            return None
        (_, end), turn = turns[index]
        return turn.speaker if turn.kind == "speech" and offset < end else None

    return speaker


def nearest_name(source: Source, names: Sequence[str]) -> Speaker:
    """The rival: the role speaks where its name stands last before the quotation, with no other quotation between."""
    pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    places = {source.place(place, place)[0]: place for place in range(len(source.text))}

    def speaker(offset: int) -> str | None:
        place = places.get(offset, 0) - 1
        start = max(source.text.rfind(mark, 0, place) for mark in '\n"”」』')
        found = pattern.search(source.text, start + 1, place)
        return found[0] if found else None

    return speaker


def tally(labels: Sequence[tuple[int, str | None]], speaker: Speaker, names: Sequence[str]) -> Tally:
    """Count what is attributed to the role against what is the role's."""
    right = wrong = missed = 0
    for offset, label in labels:
        is_found, is_own = speaker(offset) in names, label in names
        right += is_found and is_own
        wrong += is_found and not is_own
        missed += is_own and not is_found
    return Tally(right, wrong, missed)


def seconds_per_mb(source: Source, hints: Hints, megabytes: float) -> tuple[float, float]:
    """CPU seconds for a megabyte of UTF-8, and the megabytes read."""
    size = len(source.text.encode())
    copies = max(1, round(megabytes * 1e6 / size))
    long = source_of("\n\n".join([source.text] * copies))
    start = time.process_time()
    read_novel(long, hints)
    read = copies * size / 1e6
    return (time.process_time() - start) / read, read


def main() -> None:
    """Read the script, compare with the labels, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=Path, required=True, help="the novel")
    parser.add_argument("--labels", type=Path, required=True, nargs="+", help="JSON Lines with offset and speaker")
    parser.add_argument("--role", required=True, help="the role")
    parser.add_argument("--alias", action="append", default=[], help="another name of the role; may be repeated")
    parser.add_argument("--language", choices=["en", "zh"], default="zh")
    parser.add_argument("--megabytes", type=float, nargs="*", default=[5.0], help="sizes for the speed; none: skip it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    names = [options.role, *options.alias]
    hints = Hints(options.language, names)
    source = read_source(options.script)
    labels = [label for path in options.labels for label in load_labels(path)]
    speaker = speaker_at(source, hints)
    ours, rival = tally(labels, speaker, names), tally(labels, nearest_name(source, names), names)
    same = sum(speaker(offset) == label or {speaker(offset), label} <= {*names} for offset, label in labels)
    figures: dict[str, object] = {
        "precision": ours.precision,
        "recall": ours.recall,
        "right": ours.right,
        "wrong": ours.wrong,
        "missed": ours.missed,
        "agreement": same / len(labels) if labels else None,
        "rival_precision": rival.precision,
        "rival_recall": rival.recall,
    }
    for megabytes in options.megabytes:
        seconds, read = seconds_per_mb(source, hints, megabytes)
        figures[f"seconds_per_mb_at_{read:.0f}_mb"] = seconds
    figures["peak_memory_mb"] = peak_memory_mb()
    mistakes, rival_mistakes = ours.wrong + ours.missed, rival.wrong + rival.missed
    result = {
        "ratios": {"nearest_name": rival_mistakes / max(1, mistakes)},
        "figures": figures,
        "n": len(labels),
        **environment(),
    }
    report("attribution", result, [f"{options.script.name}: {json.dumps(names, ensure_ascii=False)}"], options.json)


if __name__ == "__main__":
    main()
