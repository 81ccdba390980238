"""How well the speakers of a novel are found, without a model and with one, and how fast it is read.

    python benchmarks/attribution.py --script NOVEL.txt --labels LABELS.jsonl --role NAME [--llm FILE.yaml --out DIR]

A label is ``{"offset", "speaker", "also"}``: a character inside the quotation marks, counted in the decoded file from
0, who speaks (null of what nobody says), and other names of that person. `right` is the share of labelled quotations
with one of these names, or that nobody is said to speak where nobody does; `open` the share for which nobody was found;
`precision` the share of right ones among those for which somebody was. For the role, precision is how many of the
quotations given to it are its own, and recall how many of its own are given to it. Figures that begin with `unasked_`
are of a reading that was not told the role's names, `model_` with a model's answers. A model is asked only about
passages that hold a labelled quotation; the folder keeps its replies. Speed is CPU time on copies of the script.
"""

from __future__ import annotations

import argparse
import json
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common import environment, peak_memory_mb, report

from rolellm.construct.attribution import attribute, passages_in
from rolellm.construct.scripts.novel import read_novel
from rolellm.construct.scripts.parse import Reading, read_script
from rolellm.construct.scripts.reading import Hints, Source, key
from rolellm.construct.scripts.source import source_of
from rolellm.core.jsonl import read_jsonl
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM


@dataclass(frozen=True)
class Label:
    """Who speaks the quotation at a place; nobody without names."""

    offset: int
    names: frozenset[str]


def load_labels(path: Path) -> list[Label]:
    """The labels of a file."""
    return [
        Label(value["offset"], frozenset(key(name) for name in (value["speaker"], *value.get("also", ())) if name))
        for _, value in read_jsonl(path)
    ]


def index_at(reading: Reading) -> Callable[[int], int]:
    """A function from an offset of the decoded file to the place of its turn."""
    starts = [reading.source.place(turn.start, turn.end)[0] for turn in reading.found]
    # A label may point at white space that the turn has left out.
    return lambda offset: max(0, bisect_right(starts, offset + 2) - 1)


def figures_of(reading: Reading, labels: Sequence[Label], names: Sequence[str]) -> dict[str, float | None]:
    """What the module's docstring says."""
    at, role = index_at(reading), {key(name) for name in names}
    turns = [reading.found[at(label.offset)] for label in labels]
    said = [key(turn.speaker) if turn.kind == "speech" and turn.speaker else None for turn in turns]
    right = [name in label.names if label.names else name is None for name, label in zip(said, labels, strict=True)]
    named = [is_right for name, is_right in zip(said, right, strict=True) if name is not None]
    own = [bool(label.names & role) for label in labels]
    given = [name in role or (is_right and is_own) for name, is_right, is_own in zip(said, right, own, strict=True)]
    both = sum(is_own and is_given for is_own, is_given in zip(own, given, strict=True))
    return {
        "right": sum(right) / len(labels),
        "open": sum(turn.kind == "speech" and turn.speaker is None for turn in turns) / len(labels),
        "precision": sum(named) / len(named) if named else None,
        "role_precision": both / sum(given) if any(given) else None,
        "role_recall": both / sum(own) if any(own) else None,
    }


def with_model(reading: Reading, labels: Sequence[Label], llm: LLM, folder: Path) -> Reading:
    """The novel with the speakers that a model finds in the passages that hold a labelled quotation."""
    at = index_at(reading)
    wanted = {at(label.offset) for label in labels}
    passages = [
        passage
        for passage in passages_in(reading, llm.counter)
        if wanted & {place for places in passage.asked for place in places}
    ]
    with Client(folder, llm.models, llm.options) as client:
        return attribute(reading, passages, client)[0]


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
    parser.add_argument("--labels", type=Path, required=True, nargs="+", help="JSON Lines of labels")
    parser.add_argument("--role", required=True, help="the role")
    parser.add_argument("--alias", action="append", default=[], help="another name of the role; may be repeated")
    parser.add_argument("--llm", type=Path, help="settings of the model to ask")
    parser.add_argument("--out", type=Path, help="folder for the model's replies")
    parser.add_argument("--megabytes", type=float, nargs="*", default=[5.0], help="sizes for the speed; none: skip it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.llm and not options.out:
        parser.error("--llm needs --out DIR")

    names = [options.role, *options.alias]
    labels = [label for path in options.labels for label in load_labels(path)]
    # As for everybody, and as for the role.
    plain, reading = (read_script(options.script, given, format="novel") for given in ((), names))
    figures: dict[str, object] = dict(figures_of(reading, labels, names))
    figures |= {f"unasked_{name}": value for name, value in figures_of(plain, labels, names).items()}
    if options.llm:
        asked = with_model(replace(reading), labels, LLM.of(options.llm), options.out)
        figures |= {f"model_{name}": value for name, value in figures_of(asked, labels, names).items()}
    for megabytes in options.megabytes:
        seconds, read = seconds_per_mb(reading.source, reading.hints, megabytes)
        figures[f"seconds_per_mb_at_{read:.0f}_mb"] = seconds
    figures["peak_memory_mb"] = peak_memory_mb()
    result = {"ratios": {}, "figures": figures, "n": len(labels), **environment()}
    report("attribution", result, [f"{options.script.name}: {json.dumps(names, ensure_ascii=False)}"], options.json)


if __name__ == "__main__":
    main()
