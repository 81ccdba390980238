"""How well the speakers of novels are found, without a model and with one.

    python benchmarks/attribution.py --script NOVEL.txt --labels LABELS.jsonl --role NAME [--alias NAME ...]
    python benchmarks/attribution.py --pdnc FOLDER [--only NOVEL ...]
    python benchmarks/attribution.py --wp FILE
    ... [--llm FILE.yaml --out DIR --sample 100]

A label is ``{"offset", "speaker", "also"}``: a character inside the quotation marks, counted in the decoded file from
0, who speaks (null of what nobody says), and other names of that person. ``--pdnc`` is the folder ``data`` of the
Project Dialogism Novel Corpus (arXiv 2204.05836, github.com/Priya22/project-dialogism-novel-corpus): 28 English novels
and 37,131 quotations, of each of which the first part counts. A speaker's names are those of the corpus, and what the
words next to the quotation call the speaker. ``--wp`` is a file ``*_unsplit.txt`` of World of Plainness
(github.com/YueChenkkk/SPC-Novel-Speaker-Identification): passages of a Chinese novel, each with one labeled quotation;
``name_list.txt`` is in the same folder or above it.

`right` is the share of labeled quotations given to one of the speaker's names, or to nobody where nobody speaks them;
`open` the share for which nobody was found; `precision` the share of right ones among the others. The reading was not
told any name, but for the figures that begin with `role_`: precision is how many of the quotations given to the role
are its own, and recall how many of its own are given to it. The role of a novel of the corpus is whoever speaks most.
With a model, only passages that hold a labeled quotation are asked about; `--sample` draws that many labels a novel.
"""

from __future__ import annotations

import argparse
import ast
import csv
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from common import environment, existing, report

from rolellm.characters.scripts.names import normalize_name
from rolellm.characters.scripts.parse import ScriptReading, read_script
from rolellm.characters.scripts.source import make_source
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_jsonl
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.making.attribution import accept_speakers, apply_speakers, list_passages, request_speakers


@dataclass(frozen=True)
class Label:
    """Who speaks the quotation at a place, nobody without names; how, and in which words, the text says so."""

    offset: int
    names: frozenset[str]
    kind: str = ""
    told: str = ""


@dataclass(frozen=True)
class Novel:
    """A text with its labels, and the names of its role."""

    name: str
    script: Path | str
    labels: Sequence[Label]
    role: Sequence[str] = ()


def of_jsonl(script: Path, files: Sequence[Path], names: Sequence[str]) -> Novel:
    """A novel with labels of our own form."""
    labels = [
        Label(
            value["offset"],
            frozenset(normalize_name(name) for name in (value["speaker"], *value.get("also", ())) if name),
        )
        for path in files
        for _, value in read_jsonl(path)
    ]
    return Novel(script.name, script, labels, names)


def of_pdnc(folder: Path) -> Novel:
    """A novel of the Project Dialogism Novel Corpus."""
    with (folder / "character_info.csv").open(encoding="utf-8", newline="") as file:
        people = [{row["Main Name"], *ast.literal_eval(row["Aliases"])} for row in csv.DictReader(file)]
    with (folder / "quotation_info.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    called = {row["speaker"]: {row["speaker"]}.union(*(one for one in people if row["speaker"] in one)) for row in rows}
    labels = [
        Label(
            ast.literal_eval(row["quoteByteSpans"])[0][0],
            frozenset(map(normalize_name, called[row["speaker"]])),
            row["quoteType"].lower(),
            normalize_name(row["referringExpression"]),
        )
        for row in rows
    ]
    ((most, _),) = Counter(row["speaker"] for row in rows).most_common(1)
    return Novel(folder.name, folder / "novel_text.txt", labels, [most, *sorted(called[most] - {most})])


# In a passage of World of Plainness, the line with the labeled quotation.
_MIDDLE: Final = 10


def of_wp(file: Path) -> Iterator[Novel]:
    """The passages of World of Plainness."""
    names = next(folder / "name_list.txt" for folder in file.parents if (folder / "name_list.txt").is_file())
    people = [set(line.split()[1:]) for line in names.read_text(encoding="utf-8-sig").splitlines()]
    for block in re.split(r"Instance index: \d+\n", file.read_text(encoding="utf-8"))[1:]:
        text, _, about = block.partition("Speaker: ")
        speaker, kind = re.findall(r"^(?:Category: )?(\S+)$", about, re.MULTILINE)
        lines = text.rstrip("\n").split("\n")
        # The corpus parts sentences: here what follows a colon or a quotation is of the same paragraph again.
        before, after = (
            re.sub("(?<=[:：])\n|(?<=”)\n(?!“)", "", "\n".join(part)) for part in (lines[:_MIDDLE], lines[_MIDDLE:])
        )
        is_same = before[-1:] in ":：" or (before[-1:] == "”" and after[0] != "“")
        whole = f"{before}{'' if is_same else chr(10)}{after}"
        place = whole.index("“", len(before)) + 1
        called = {speaker}.union(*(one for one in people if speaker in one))
        yield Novel("World of Plainness", whole, [Label(place, frozenset(map(normalize_name, called)), kind)])


def said_at(reading: ScriptReading, labels: Sequence[Label]) -> tuple[list[int], list[str | None]]:
    """For each label, the place of its turn and the key of the speaker that was found; nothing where none was."""
    starts = [reading.source.place(turn.start, turn.end)[0] for turn in reading.found]
    # A label may point at white space that the turn has left out.
    places = [max(0, bisect_right(starts, label.offset + 2) - 1) for label in labels]
    turns = [reading.found[place] for place in places]
    return places, [normalize_name(turn.speaker) if turn.kind == "speech" and turn.speaker else None for turn in turns]


def is_right(said: str | None, label: Label) -> bool:
    """Whether the speaker is the label's."""
    if not label.names:
        return said is None
    return said in label.names or (said is not None and f" {said} " in f" {label.told} ")


def shares(found: Sequence[tuple[str | None, Label]]) -> dict[str, float | None]:
    """What the module's docstring says of all speakers."""
    named = [is_right(said, label) for said, label in found if said is not None]
    return {
        "right": sum(is_right(said, label) for said, label in found) / len(found),
        "open": 1 - len(named) / len(found),
        "precision": sum(named) / len(named) if named else None,
    }


def of_role(reading: ScriptReading, novel: Novel) -> dict[str, float | None]:
    """Precision and recall of what is given to the role."""
    role = set(map(normalize_name, novel.role))
    own = [bool(label.names & role) for label in novel.labels]
    said = said_at(reading, novel.labels)[1]
    given = [
        name in role or (name is not None and name in label.names and mine)
        for name, label, mine in zip(said, novel.labels, own, strict=True)
    ]
    both = sum(mine and one for mine, one in zip(own, given, strict=True))
    return {
        "role_precision": both / sum(given) if any(given) else None,
        "role_recall": both / sum(own) if any(own) else None,
    }


def with_model(reading: ScriptReading, labels: Sequence[Label], llm: LLM, client: Client) -> ScriptReading:
    """The novel with the speakers that a model finds in the passages that hold a labeled quotation."""
    wanted = set(said_at(reading, labels)[0])
    passages = [
        passage
        for passage in list_passages(reading, llm.counter)
        if wanted & {place for places in passage.asked for place in places}
    ]
    language = reading.hints.language
    requests = [request_speakers(passage, language, number) for number, passage in enumerate(passages, start=1)]
    outcomes = client.ask(requests, accept_speakers, label="attributing quotations")
    return apply_speakers(reading, passages, outcomes)[0]


def read(novel: Novel, names: Sequence[str] = ()) -> ScriptReading:
    """The novel, read by rule."""
    script = novel.script if isinstance(novel.script, Path) else make_source(novel.script)
    return read_script(script, names, format="novel")


def main() -> None:
    """Read the texts, compare with the labels, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=existing, help="a novel")
    parser.add_argument("--labels", type=existing, default=[], nargs="+", help="JSON Lines of its labels")
    parser.add_argument("--role", help="its role")
    parser.add_argument("--alias", action="append", default=[], help="another name of the role; may be repeated")
    parser.add_argument("--pdnc", type=existing, help="the corpus' folder `data`")
    parser.add_argument("--only", nargs="*", default=[], help="novels of the corpus")
    parser.add_argument("--wp", type=existing, help="a file of passages")
    parser.add_argument("--llm", type=Path, help="settings of the model to ask")
    parser.add_argument("--out", type=Path, help="folder for the model's replies")
    parser.add_argument("--sample", type=int, help="labels a novel, or passages")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if bool(given.llm) != bool(given.out):
        parser.error("--llm and --out DIR go together")
    names = [name for name in (given.role, *given.alias) if name]
    novels: list[Novel] = []
    if given.script:
        novels.append(of_jsonl(given.script, given.labels, names))
    if given.pdnc:
        folders = sorted(path.parent for path in given.pdnc.glob("*/quotation_info.csv"))
        novels += [of_pdnc(folder) for folder in folders if not given.only or folder.name in given.only]
    if given.wp:
        novels += sorted(of_wp(given.wp), key=lambda novel: hash_json(novel.script))[: given.sample]

    found: list[tuple[str, str | None, Label]] = []
    figures: dict[str, Any] = {}
    llm = LLM.of(given.llm) if given.llm else None
    with Client(given.out, llm.models, llm.options) if llm else nullcontext() as client:
        for novel in novels:
            labels = sorted(novel.labels, key=lambda label: hash_json(label.offset))[: given.sample]
            reading = read(novel)
            if client and llm:
                reading = with_model(reading, labels, llm, client)
            found += [
                (novel.name, said, label) for said, label in zip(said_at(reading, labels)[1], labels, strict=True)
            ]
            if novel.role and not llm:
                of = f"{novel.name}_" if len(novels) > 1 else ""
                figures |= {of + name: share for name, share in of_role(read(novel, novel.role), novel).items()}
    if not found:
        parser.error("no labeled quotation was read; give --script with --labels, --pdnc or --wp")
    for title in dict.fromkeys(name for name, _, _ in found):
        here = shares([(said, label) for name, said, label in found if name == title])
        figures |= {f"{title}_{name}": share for name, share in here.items() if len(novels) > 1}
    for kind in sorted({label.kind for _, _, label in found}):
        here = shares([(said, label) for _, said, label in found if label.kind == kind])
        figures |= {f"{kind}_{name}": share for name, share in here.items() if kind}
    figures |= shares([(said, label) for _, said, label in found])
    report("attribution", {"ratios": {}, "figures": figures, "n": len(found), **environment()}, [], given.json)


if __name__ == "__main__":
    main()
