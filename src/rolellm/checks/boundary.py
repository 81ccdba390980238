"""The boundary of a character's knowledge: assertions for its test file, made from its story without a model.

What the role must know comes from the script-based pairs of ``rolellm instruct``; what it cannot know are people of
other stories and things that began after its time. A model that knows everything fails the second, one that knows
nothing the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolellm.characters.folder import open_character
from rolellm.checks.character_tests import locate_tests, read_tests, write_first_file
from rolellm.core.errors import SettingsError
from rolellm.core.files import open_atomic
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Profile
from rolellm.core.result import Result
from rolellm.core.settings import load_words, read_word_list
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.making.content_words import extract_content_words, make_word_finder
from rolellm.making.instruct.run import KEPT, Question, read_questions
from rolellm.models.prompts.render import load_texts

#: The words of an answer that tell who knows it: those that at most 3 turns of the script have, or 5 %.
_RARE, _RARE_SHARE = 3, 0.05
_NO_NAMES = load_words("no_names")
_SURNAMES = load_words("surnames_zh")
_LONG_SURNAMES = tuple(read_word_list("long_surnames_zh"))


def make_story_items(sheet: Profile, pairs: Iterable[Question]) -> Iterator[dict[str, Any]]:
    """Yield what a role must know: script-based pairs whose answers have rare words of the script.

    Words that the question or the role's description has tell nothing.
    """
    lines = _list_lines(sheet)
    turns = [make_word_finder(line, sheet.language) for line in lines]
    most = max(_RARE, _RARE_SHARE * len(turns))
    for pair in pairs:
        if pair.type != "script_based":
            continue
        known_text = "\n".join((pair.question, *_list_texts(sheet)))
        is_told = make_word_finder(known_text, sheet.language)
        words = []
        for word in extract_content_words(pair.answer, sheet.language):
            count = sum(has_word(word) for has_word in turns)
            if 0 < count <= most and not is_told(word):
                words.append(word)
        if words:
            yield {"ask": pair.question, "says": words}


def make_stranger_items(sheet: Profile, strangers: Iterable[Profile]) -> Iterator[dict[str, Any]]:
    """Yield questions about people of other stories.

    The roles of these stories themselves may be famous; the people around them are not.
    """
    question = load_texts("boundary", sheet.language)["other_story"]
    story = "\n".join((*_list_texts(sheet), *_list_lines(sheet)))
    is_known = make_word_finder(story, sheet.language)
    for stranger in strangers:
        if stranger.language != sheet.language:
            continue
        speakers = {turn.speaker: None for turn in stranger.turns if not stranger.owns(turn)}
        for speaker in speakers:
            names = _extract_names(speaker, stranger)
            if names and not any(map(is_known, names)):
                name = speaker.title() if speaker.isupper() else speaker
                yield {"ask": question.replace("{name}", name)}


def make_modern_items(sheet: Profile, world_year: int | None) -> Iterator[dict[str, Any]]:
    """Yield questions about things that began after the year of the character's world; none without a year."""
    if world_year is None:
        return
    for invention in load_texts("boundary", sheet.language)["modern"]:
        if invention["year"] > world_year:
            yield {"ask": invention["ask"]}


def _list_lines(sheet: Profile) -> list[str]:
    return [f"{turn.speaker} {turn.content}" for turn in sheet.turns]


def _list_texts(sheet: Profile) -> Sequence[str]:
    return (sheet.full_description or "", *sheet.names)


def _extract_names(speaker: str, story: Profile) -> list[str]:
    """Return the words of a speaker's name that are no titles or common words; none where nobody can tell."""
    if story.language == "zh":
        has_surname = speaker[:1] in _SURNAMES or speaker.startswith(_LONG_SURNAMES)
        return [speaker] if has_surname and len(speaker) > 1 else []
    if len(speaker.split()) < 2:
        return []
    text = " ".join(turn.content for turn in story.turns)
    names = []
    for word in re.findall(r"\w{3,}", speaker):
        is_common_here = re.search(rf"\b{word.lower()}\b", text)
        if not is_common_here and word.casefold() not in _NO_NAMES:
            names.append(word)
    return names


@dataclass(frozen=True, slots=True, repr=False)
class BoundaryResult(Result):
    """Assertions that were written into a character's test file.

    Attributes:
        file: The file.
        story: Number of questions about its own story.
        strangers: Number of questions about people of other stories.
        modern: Number of questions about what its world does not have yet.
    """

    file: Path
    story: int
    strangers: int
    modern: int

    def remarks(self) -> list[str]:
        """Return how many assertions were added."""
        unknown = f"{self.strangers} about people of other stories, {self.modern} about a later world"
        return [f"Added to {self.file}: knows: {self.story} about its story; does_not_know: {unknown}."]

    def notes(self) -> list[str]:
        """Return what could not be asked about, and why."""
        notes = []
        if not self.story:
            notes.append("note: nothing about its story; that needs a script, and pairs of `rolellm instruct`")
        if not self.modern:
            notes.append("note: nothing about a later world; give the year of the character's world (--world-year)")
        return notes

    @property
    def continues_with(self) -> tuple[str]:
        """The command line that runs the tests."""
        return (f"rolellm check {self.file} --model FOLDER",)


def write_boundary(profile: str | Path, *, world_year: int | None = None, limit: int = 20) -> BoundaryResult:
    """Add assertions about the boundary of a character's knowledge to its test file, which is made here where needed.

    Args:
        profile: A character's folder, with its script and the pairs of ``rolellm instruct``, or its card.
        world_year: The year in which the character lives.
        limit: Maximum questions of each kind, drawn by a hash of their text.

    Raises:
        DataError: For a character that cannot be read.
        SettingsError: For a test file in which ``knows`` or ``does_not_know`` is not a block list.
    """
    sheet, home = open_character(profile)
    path = locate_tests(sheet)
    if not path.exists():
        write_first_file(str(profile))
    tests = read_tests(path)
    present = {fact.ask[-1] for fact in tests.knows}
    present.update(secret.ask[-1] for secret in tests.does_not_know)
    pairs: list[Question] = []
    if home is not None:
        for file in sorted(home.glob(f"instruct*/{KEPT}")):
            pairs += read_questions(file)

    def draw(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        by_question = {item["ask"]: item for item in items if item["ask"] not in present}
        return sorted(by_question.values(), key=hash_json)[:limit]

    story = draw(make_story_items(sheet, pairs))
    strangers = draw(make_stranger_items(sheet, load_profiles(SAMPLE)))
    modern = draw(make_modern_items(sheet, world_year))
    text = path.read_text(encoding="utf-8")
    for key, items in {"knows": story, "does_not_know": [*strangers, *modern]}.items():
        text = _insert_items(text, key, items, path)
    with open_atomic(path) as stream:
        stream.write(text)
    return BoundaryResult(path, len(story), len(strangers), len(modern))


def _insert_items(text: str, key: str, items: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Insert items in front of a key's list in a YAML file, which otherwise stays as its author wrote it."""
    block = re.search(rf"(?m)^{key}:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*( *)- ", text)
    if block is None and re.search(rf"(?m)^{key}\s*:", text):
        raise SettingsError(f"{path}: {key} is not a list with one item a line; write it as one and try again")
    indent = "  " if block is None else block[1]
    lines = []
    for item in items:
        # JSON is YAML.
        mark = "-"
        for name, value in item.items():
            lines.append(f"{indent}{mark} {name}: {json.dumps(value, ensure_ascii=False)}\n")
            mark = " "
    new = "".join(lines)
    if block is not None:
        start = block.start(1)
        return text[:start] + new + text[start:]
    return f"{text.rstrip()}\n\n{key}:\n{new}" if new else text
