"""The prompts of RoleGPT's three strategies (arXiv 2310.00746), under a token budget.

``zero-shot`` is the system instruction and the question. ``few-shot-prompt`` shows demonstrations as text in the one
user turn; ``few-shot-dialogue`` shows them as alternating user and assistant turns, and is what the paper's RoleGPT is.

Our choices: the wording; demonstrations go best last, next to the question; whoever speaks before the role is named;
lore goes into the system turn in its own order, after what all of a role's prompts share. What goes over the budget is
left out whole, the worst demonstration first, then the worst lore; nothing is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from rolellm.characters.lore import find_keys
from rolellm.characters.settings import PromptSettings
from rolellm.core.errors import SettingsError
from rolellm.core.records import Profile
from rolellm.llm.model import Message, assistant, system, user
from rolellm.llm.tokens import TokenCounter
from rolellm.models.prompts.render import Template, format_turn, load_system_template, load_template
from rolellm.models.prompts.retrieval import TextIndex, find_exchanges

Reason = Literal["key", "constant", "words"]
_REASONS: Final[tuple[Reason, ...]] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class LoreNote:
    """A piece of lore that a question calls up.

    Attributes:
        place: Its place among the role's lore, from 0.
        by: A key, ``constant``, or ``words`` that it shares with the question.
        score: BM25; 0 where no word is shared.
        name: Its name.
        text: Its content.
    """

    place: int
    by: Reason
    score: float
    name: str
    text: str


_PROMPT, _DIALOGUE, _LORE = "rolegpt_prompt", "rolegpt_dialogue", "rolegpt_lore"


@dataclass(frozen=True, slots=True)
class RolePrompt:
    """A prompt, and how it was put together.

    Attributes:
        messages: System, then demonstrations (`few-shot-dialogue`), then the question.
        demonstrations: The places of those shown among the role's exchanges, best first.
        notes: Lore shown, best first.
        tokens: Of the whole prompt, as counted.
    """

    messages: tuple[Message, ...]
    demonstrations: tuple[int, ...]
    notes: tuple[LoreNote, ...]
    tokens: int


class RolePrompts:
    """Makes a character's prompts.

    Args:
        character: Who is asked.
        settings: How.
        counter: Counts tokens; by default an estimate.

    Raises:
        SettingsError: For an unusable system template.
        MissingExtraError: Without ``bm25s``, which the extra ``llm`` brings.
    """

    def __init__(
        self, character: Profile, settings: PromptSettings | None = None, counter: TokenCounter | None = None
    ) -> None:
        self.character = character
        self.settings = settings or PromptSettings()
        self.counter = counter or TokenCounter()
        self._exchanges = find_exchanges(character)
        exchange_texts = [exchange.text for exchange in self._exchanges]
        self._spoken = TextIndex(exchange_texts, character.language, extra="llm")
        lore_texts = ["\n".join([item.name, *item.keys, item.content]) for item in character.lore]
        self._told = TextIndex(lore_texts, character.language, extra="llm")
        self._system = load_system_template(character.language, self.settings.system_template)
        self._templates: dict[str, Template] = {}
        for name in (_PROMPT, _DIALOGUE, _LORE):
            self._templates[name] = load_template(character.language, name)

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each template by its name: what decides the wording."""
        hashes = {"system": self._system.hash}
        for name, template in self._templates.items():
            hashes[name] = template.hash
        return hashes

    def demonstrations(self, question: str, count: int) -> list[int]:
        """The places of the best exchanges for a question, best first.

        Those that share no word with it come last, as in the script.

        Args:
            question: The query.
            count: How many; fewer only where the role has fewer.
        """
        return self._spoken.rank(question, count)

    def notes(self, question: str, count: int) -> list[LoreNote]:
        """The lore that a question calls up, best first: by a key, then what is constant, then by words.

        Words do not call up an entry with secondary keys: its author said when it is wanted.

        Args:
            question: The query.
            count: The most.
        """
        if not self.character.lore or count <= 0:
            return []
        scores = self._told.scores(question)
        notes: list[LoreNote] = []
        for index, lore in enumerate(self.character.lore):
            score = float(scores[index])
            reason: Reason = "words"
            if find_keys(lore, question):
                reason = "key"
            elif lore.constant:
                reason = "constant"
            elif score <= 0 or lore.secondary_keys:
                continue
            notes.append(LoreNote(index, reason, score, lore.name, lore.content))
        notes.sort(key=lambda note: (_REASONS.index(note.by), -note.score, note.place))
        return notes[:count]

    def __call__(self, question: str) -> RolePrompt:
        """The prompt for a question.

        Raises:
            SettingsError: When the question alone goes over the budget; says by how much.
        """
        demonstrations = self.demonstrations(question, self.settings.shown)
        notes = self.notes(question, self.settings.lore)
        limit = self.settings.max_prompt_tokens
        for count in range(len(demonstrations) + len(notes), -1, -1):
            # The worst demonstration goes first, lore last.
            shown = max(count - len(notes), 0)
            messages = self.messages(question, demonstrations[:shown], notes[:count])
            tokens = self.counter.prompt(messages)
            if limit is None or tokens <= limit:
                return RolePrompt(messages, tuple(demonstrations[:shown]), tuple(notes[:count]), tokens)
        raise SettingsError(
            f"the prompt for {question[:60]!r} has {tokens} tokens without any demonstration, and at most {limit} are "
            "allowed; allow more (--set max_prompt_tokens=…), or use a shorter question or description"
        )

    def messages(self, question: str, demonstrations: Sequence[int], notes: Sequence[LoreNote]) -> tuple[Message, ...]:
        """The messages with these demonstrations and this lore, both best first, whatever they cost."""
        role, language = self.character.role, self.character.language
        parts = [self._system.fill(role=role, description=self.character.full_description)]
        if demonstrations and self.settings.strategy == "few-shot-dialogue":
            parts.append(self._templates[_DIALOGUE].fill())
        if notes:
            in_order = sorted(notes, key=lambda note: note.place)
            lore = "\n".join(f"- {note.text.strip()}" for note in in_order)
            parts.append(self._templates[_LORE].fill(lore=lore))
        opening = system("\n\n".join(parts))
        exchanges = [self._exchanges[place] for place in reversed(demonstrations)]
        if not exchanges or self.settings.strategy == "zero-shot":
            return opening, user(question)
        if self.settings.strategy == "few-shot-prompt":
            text = "\n\n".join(exchange.format(language, is_full=True) for exchange in exchanges)
            prompt = self._templates[_PROMPT].fill(role=role, demonstrations=text, question=question)
            return opening, user(prompt)
        turns: list[Message] = []
        for exchange in exchanges:
            turns.append(user(format_turn(exchange.before, language, is_full=True)))
            turns.append(assistant(exchange.line.content))
        return opening, *turns, user(question)
