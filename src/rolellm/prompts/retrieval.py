"""The prompts of the paper's ablation: lines of the role's script, found by BM25 for each question, for a profile.

In the paper (arXiv 2310.00746) RoleLLaMA carries a role's description in the system instruction; its ablation shows the
top 5 dialogue pairs by BM25 instead. What counts as a pair, the wording, and the order (best first) are our choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from rolellm.errors import RecipeError
from rolellm.fingerprint import hash_bytes
from rolellm.prompts.script import script_line
from rolellm.prompts.template import fill_slots
from rolellm.records import UNKNOWN, Language, Profile, Row, Turn
from rolellm.retrieval import TextIndex

RETRIEVED = 5
"""How many exchanges the paper shows."""
_PARTED = 40


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a role said, and what came right before it in the scene: someone else's line, or else narration."""

    before: Turn
    line: Turn

    @property
    def text(self) -> str:
        """Both texts, which a question is compared with."""
        return f"{self.before.content}\n{self.line.content}"

    def show(self, language: Language) -> str:
        """Both as they stand in a prompt, a line each."""
        return f"{script_line(self.before, language)}\n{script_line(self.line, language)}"


def whole_lines(turns: Iterable[Turn], language: Language) -> list[Turn]:
    """Turns, with those put together again that a stage direction or a ``said he`` parts in the source.

    They are of one speaker and one scene, nobody speaks in between, and at most `_PARTED` characters of the source lie
    between them (our choice); without places in a source nothing is put together. What parted them is left out.
    """
    lines: list[Turn] = []
    last: int | None = None
    for turn in turns:
        if turn.kind != "speech":
            lines.append(turn)
            continue
        said = None if last is None else lines[last]
        if said is not None and _goes_on(said, turn):
            gap = "" if language == "zh" else " "
            del lines[last:]
            lines.append(replace(said, content=f"{said.content}{gap}{turn.content}", end=turn.end))
        else:
            lines.append(turn)
        last = len(lines) - 1
    return lines


def _goes_on(said: Turn, turn: Turn) -> bool:
    near = min(said.start, turn.start) >= 0 and 0 <= turn.start - said.end <= _PARTED
    return near and said.speaker == turn.speaker != UNKNOWN and said.scene == turn.scene


def exchanges(profile: Profile) -> list[Exchange]:
    """The exchanges of a role, in the order of the script.

    Narration between a line and its answer is passed over. A line that opens its scene, or follows the role's own,
    answers nothing and is in none. What a word or two of the narrator's parts, such as ``said he``, is one line.
    """
    found: list[Exchange] = []
    before: Turn | None = None
    for turn in whole_lines(profile.turns, profile.language):
        if before is not None and before.scene != turn.scene:
            before = None
        if not profile.owns(turn):
            if turn.kind == "speech" or before is None or before.kind == "narration":
                before = turn
        elif before is not None:
            found.append(Exchange(before, turn))
            before = None
    return found


@dataclass(frozen=True, slots=True)
class RetrievalTemplate:
    """A system instruction with the slots ``{role}`` and ``{examples}``.

    The paragraph (what stands between blank lines) that names ``{examples}`` is left out for a role that has none.
    Slots are filled in one pass, so braces inside a script stay text.
    """

    text: str

    @property
    def hash(self) -> str:
        """SHA-256 of the template's text, in hex."""
        return hash_bytes(self.text.encode("utf-8"))

    def fill(self, role: str, examples: str) -> str:
        """Fill the slots.

        Args:
            role: The role's name.
            examples: The exchanges as text; none drops the paragraph that asks for them.
        """
        values = {"role": role, "examples": examples}
        kept = [part for part in self.text.split("\n\n") if examples or "{examples}" not in part]
        return fill_slots("\n\n".join(kept), values)


def retrieval_template(language: Language, path: str | Path | None = None) -> RetrievalTemplate:
    """The system instruction for a language, or the user's own from a file.

    Args:
        language: ``en`` or ``zh``.
        path: A UTF-8 text file with the slots ``{role}`` and ``{examples}``.

    Raises:
        RecipeError: When the file is not there, or lacks a slot.
    """
    if path is None:
        source = resources.files("rolellm.prompts").joinpath(language, "retrieval.txt")
        return RetrievalTemplate(source.read_text(encoding="utf-8").strip())
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"no system template at {file}; leave it out to use the one that ships")
    text = file.read_text(encoding="utf-8").strip()
    lacking = [slot for slot in ("{role}", "{examples}") if slot not in text]
    if lacking:
        raise RecipeError(f"{file} has no slot {' and no '.join(lacking)}; a template for retrieval needs both")
    return RetrievalTemplate(text)


class RetrievalPrompts:
    """Makes the messages that ask a row's question of its role, with exchanges found for that question.

    The exchanges stand in the system turn, where the description is otherwise, best first. A role without a profile, or
    whose profile has no exchange, is asked without any, so that no row is lost.

    Args:
        profiles: The roles' scripts, as from `rolellm.rolebench.profiles.load_profiles` with the rows' roles.
        count: The most exchanges in a prompt.
        path: A system instruction of the user's own, see `retrieval_template`.

    Raises:
        RecipeError: For a template that will not do.
        MissingExtraError: Without ``bm25s``, which the extra ``train`` brings.
    """

    def __init__(self, profiles: Iterable[Profile], *, count: int = RETRIEVED, path: str | Path | None = None) -> None:
        languages: tuple[Language, ...] = ("en", "zh")
        self._count = count
        self._templates = {language: retrieval_template(language, path) for language in languages}
        self._roles = {
            (profile.language, profile.role): (found, TextIndex([item.text for item in found], profile.language))
            for profile in profiles
            if (found := exchanges(profile))
        }

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of each language's template."""
        return {language: template.hash for language, template in self._templates.items()}

    def examples(self, row: Row) -> list[Exchange]:
        """The exchanges that a row's prompt shows, best first."""
        found, index = self._roles.get((row.language, row.role), ((), None))
        return [] if index is None else [found[place] for place in index.top(row.question, self._count)]

    def __call__(self, row: Row) -> list[dict[str, str]]:
        """One system turn, one user turn, as `rolellm.prompts.render.prompt_messages` makes them."""
        examples = "\n\n".join(item.show(row.language) for item in self.examples(row))
        return [
            {"role": "system", "content": self._templates[row.language].fill(row.role, examples)},
            {"role": "user", "content": row.question},
        ]
