"""The rows that a recipe trains on, of RoleBench, of a script or of one's own, as prompts and their replies."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import DataError, ModelError, RecipeError, RoleLLMWarning
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.records import Language, Profile, Row, Turn
from rolellm.core.text import format_count, join_names
from rolellm.data.own_rows import (
    DIALOGUES,
    Dialogue,
    OwnRows,
    RowForm,
    load_own_rows,
    read_messages,
    read_objects,
    read_options,
)
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.data.rolebench.source import find_own_manifest
from rolellm.models.prompts.encode import encode_prompt, limit_prompt
from rolellm.models.prompts.render import ONWARD, OPENING, DescriptionPrompts, Template, format_turn, shorten_turn
from rolellm.models.training_record import TrainedOn, hash_instruction
from rolellm.training.recipe import DataRecipe, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Names of rows or roles in a message, at most.
NAMED = 10
#: Turns of a script before the line to learn, at most (our choice).
SCRIPT_TURNS = 6
# Dialogues whose languages are looked at.
_SAMPLED = 1000


# What the chat template gets.
_OPTIONS = ("tools", "chat_template_kwargs")
# What rewards get of a row of RoleBench.
_REWARDED = ("role", "language", "subset", "question", "references", "raw_reference", "role_description")
# The replies of a row for each trainer of TRL, by its names for them.
_REPLIES: Mapping[str, tuple[str, ...]] = {"dpo": ("chosen", "rejected"), "kto": ("completion",), "grpo": ()}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt as text, with what is learned from it.

    Attributes:
        row_id: The row it comes from.
        messages: The turns that ask for a reply.
        replies: What the model says, to the letter, under TRL's name for it: ``completion``, or ``chosen`` and
            ``rejected``; none for GRPO.
        reference: Which of the row's references the reply is, counted from 0.
        role: Who speaks, where the data says so.
        columns: What else TRL gets: ``tools`` and ``chat_template_kwargs``; KTO's ``label``; with GRPO, all other
            columns, which rewards get by name.
        extras: The turns of replies that have more than their text, such as ``tool_calls``, by the reply's name.
    """

    row_id: str
    messages: tuple[dict[str, Any], ...]
    replies: Mapping[str, str]
    reference: int = 0
    role: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    extras: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def turns(self) -> dict[str, dict[str, Any]]:
        """The replies as turns of the assistant, by name."""
        turns = {name: {"role": "assistant", "content": text} for name, text in self.replies.items()}
        return turns | self.extras

    @property
    def options(self) -> dict[str, Any]:
        """Options of the chat template."""
        tools = self.columns.get("tools")
        options = {"tools": tools} if tools else {}
        return options | (self.columns.get("chat_template_kwargs") or {})

    @property
    def is_plain(self) -> bool:
        """True where turns have texts only, and the chat template gets nothing else."""
        keys: set[str] = set().union(*self.messages, *self.turns.values())
        return not self.options and keys <= {"role", "content"}

    @property
    def question(self) -> str:
        """The text of the last user's turn."""
        return find_question(self.messages)

    @property
    def language(self) -> Language:
        """The language of the first reply; of the question where there is none."""
        return detect_language(next(iter(self.replies.values()), "") or self.question)

    def to_row(self) -> dict[str, Any]:
        """Give the same in TRL's conversational format."""
        replies = {name: [turn] for name, turn in self.turns.items()}
        return {"prompt": list(self.messages), **replies, **self.columns}


def find_question(turns: Sequence[Mapping[str, Any]]) -> str:
    """Find what the last user's turn asks; empty without any."""
    for turn in reversed(turns):
        if turn["role"] == "user":
            return str(turn["content"])
    return ""


Replies = Sequence[Row] | Sequence[Conversation] | OwnRows[Dialogue]
Ask = Callable[[Row], list[dict[str, str]]]


def load_replies(recipe: Recipe) -> Replies:
    """Load what the recipe's data section names."""
    if recipe.data.source == "dataset":
        raise RecipeError("data.source: dataset needs --data FILE (data.path), or train_dataset=... from Python")
    if recipe.data.source == "script":
        templates = DescriptionPrompts(recipe.prompt.system_template).templates
        return make_script_conversations(load_script_profiles(recipe.data), templates, recipe.data.max_rows)
    return load_rows(recipe)


def select_base_rows(recipe: Recipe, replies: Replies) -> list[Row]:
    """Select what a base is built from: the rows trained on and, where these have no plain answers, the sample's."""
    # Dialogues are not read for rows that they do not hold.
    rows: list[Row] = []
    if not isinstance(replies, OwnRows):
        rows = [item for item in replies if isinstance(item, Row)]
    if recipe.base.build is not None and recipe.data.source == "script":
        rows = load_rows(recipe)
    if recipe.base.build is None or any(row.raw_reference for row in rows):
        return rows
    languages = list_languages(replies)
    for row in _read_split(DataRecipe(config=SAMPLE)):
        if row.language in languages:
            rows.append(replace(row, id=f"{SAMPLE}/{row.id}"))
    return rows


def collect_trained_on(recipe: Recipe, replies: Sequence[Row] | Sequence[Conversation]) -> TrainedOn:
    """Collect the roles and instructions among what is trained on."""
    trained = TrainedOn.of(replies)
    # The lines before a line of a script are not an instruction.
    return replace(trained, instructions=frozenset()) if recipe.data.source == "script" else trained


def prepare_ask(recipe: Recipe, rows: Sequence[Row]) -> DescriptionPrompts:
    """Prepare what turns a row into its messages."""
    prompt = recipe.prompt
    if prompt.profile == "description":
        return DescriptionPrompts(prompt.system_template)
    from rolellm.data.rolebench.release import load_profiles
    from rolellm.models.prompts.retrieval import RetrievalPrompts

    roles = sorted({row.role for row in rows})
    profiles = load_profiles(recipe.data.config, recipe.data.data_dir, roles=roles)
    return RetrievalPrompts(profiles, count=prompt.retrieved, path=prompt.system_template)


def load_rows(recipe: Recipe) -> list[Row]:
    """Load the rows that a recipe trains on, from the dataset that it names.

    Raises:
        SettingsError: When the dataset has no such split, or the recipe leaves no row of it.
        ReleaseNotFoundError: When there is no release.
    """
    return select_rows(_read_split(recipe.data), recipe.data, recipe.training.seed)


def _read_split(data: DataRecipe) -> Iterator[Row]:
    """Read the rows of the split that a recipe names."""
    from rolellm.data.rolebench import load_rolebench

    return map(Row.from_columns, load_rolebench(data.config, data.split, data_dir=data.data_dir))


def read_own_rows(
    data: Any, trainer: str = "sft", columns: Mapping[str, str] | None = None, *, skip_bad: bool = False
) -> Replies:
    """Read rows of one's own: dialogues, rows of RoleBench, or TRL's rows for another trainer than ``sft``.

    Dialogues are read as they are needed. RoleBench's columns other than ``role``, ``question`` and ``references`` may
    be missing.

    Args:
        data: As for `load_own_rows`, and so are the others.
        trainer: As in `rolellm.training.recipe.TrainingRecipe`.
        columns: The columns of a form, by the names that it gives them.
        skip_bad: Skip bad rows and count them.

    Raises:
        DataError: When the columns fit no form or several, there are no rows, or one is bad.
    """
    forms: list[RowForm[Any]] = [RowForm("RoleBench", ("role", "question", "references"), _read_row)]
    if trainer == "sft":
        forms += DIALOGUES
    else:
        needed = ["prompt", *_REPLIES[trainer]]
        if trainer == "kto":
            needed.append("label")
        read_row = partial(_read_conversation, trainer=trainer)
        forms.append(RowForm(trainer, tuple(needed), read_row))
    rows = load_own_rows(data, forms, columns=columns, skip_bad=skip_bad)
    if rows.form in DIALOGUES:
        return rows
    items = list(rows)
    count = format_count(len(items), "row")
    sys.stderr.write(f"{rows.title}: {count}{describe_skipped(rows)}\n")
    return items


def describe_skipped(rows: OwnRows[Any]) -> str:
    """Say how many rows were skipped, to go after what else is said; empty where none was."""
    if not rows.skipped:
        return ""
    count = format_count(len(rows.skipped), "bad row")
    return f"; {count} skipped, the first: {rows.skipped[0]}"


def list_languages(replies: Replies) -> tuple[Language, ...]:
    """List the languages of replies; of dialogues, those of the first ones."""
    most = _SAMPLED if isinstance(replies, OwnRows) else None
    languages = {voice.language for voice in islice(list_voices(replies), most)}
    return tuple(sorted(languages))


def list_voices(replies: Replies) -> Iterator[Row | Conversation]:
    """Yield each row or, of a dialogue, its first reply."""
    for item in replies:
        if isinstance(item, Dialogue):
            number = item.replies[0]
            before = item.messages[:number]
            reply = {"completion": item.messages[number]["content"]}
            yield Conversation(item.id, before, reply, role=item.role)
        else:
            yield item


def _read_row(columns: Mapping[str, Any]) -> Row:
    references = columns["references"]
    if isinstance(references, str):
        references = [references]
    texts = [columns["question"], *references]
    if not all(isinstance(text, str) for text in texts):
        raise DataError("found no texts in question and references; expected a text, and a list of texts")
    values: dict[str, Any] = {"subset": "general", "language": detect_language("".join(texts))}
    for name, value in columns.items():
        if value is not None:
            values[name] = value
    values["references"] = references
    return Row.from_columns(values)


def _read_conversation(columns: Mapping[str, Any], trainer: str) -> Conversation:
    """Read a prompt with the replies that a trainer of TRL compares."""
    prompt = read_messages(columns["prompt"], "user")
    for turn in prompt:
        turn.pop("weight", None)
    texts: dict[str, str] = {}
    extras: dict[str, dict[str, Any]] = {}
    for name in _REPLIES[trainer]:
        turns = read_messages(columns[name], "assistant")
        is_reply = len(turns) == 1 and turns[0]["role"] == "assistant"
        if not is_reply or not turns[0].pop("weight", 1):
            raise DataError(f"{name} must be one reply, a text or one assistant message")
        extras[name] = turns[0]
        texts[name] = turns[0]["content"]
    row_id, role = str(columns["id"]), columns.get("role")
    selected = _select_columns(columns, trainer)
    return Conversation(row_id, tuple(prompt), texts, role=role, columns=selected, extras=extras)


def _select_columns(columns: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Select what a trainer of TRL gets besides the turns."""
    if trainer == "grpo":
        unused = [name for name in _OPTIONS if columns.get(name)]
        if unused:
            raise DataError(f"trainer grpo cannot use the column {', '.join(unused)}; remove it")
        return {name: value for name, value in columns.items() if name != "prompt"}
    selected: dict[str, Any] = {}
    if "tools" in columns:
        tools = columns["tools"]
        selected["tools"] = read_objects("tools", tools) if tools else None
    if "chat_template_kwargs" in columns:
        read_options(columns)
        selected["chat_template_kwargs"] = columns["chat_template_kwargs"] or {}
    if trainer == "kto":
        selected["label"] = bool(columns["label"])
    return selected


def split_held_out(
    replies: Sequence[Row] | Sequence[Conversation], share: float, seed: int
) -> tuple[list[Any], list[Any]]:
    """Split off rows to hold out, with all replies to their instructions, whatever the role.

    An instruction's place depends on its text and the seed alone.

    Args:
        replies: Rows or conversations.
        share: Of the instructions, to hold out; one at least, unless there is only one.
        seed: For the draw.
    """
    places = [draw_place(hash_instruction(item.question), seed) for item in replies]
    limit = find_held_out_limit(places, share)
    trained: list[Any] = []
    held_out: list[Any] = []
    for place, item in zip(places, replies, strict=True):
        if place < limit:
            held_out.append(item)
        else:
            trained.append(item)
    return trained, held_out


def find_held_out_limit(places: Iterable[float], share: float) -> float:
    """Find the place below which items are held out: the share, and one place at least on either side of it."""
    distinct = sorted(set(places))
    if len(distinct) < 2:
        return 0.0
    return min(max(share, distinct[1]), distinct[-1])


def select_rows(rows: Iterable[Row], data: DataRecipe, seed: int) -> list[Row]:
    """Select the rows that a recipe trains on, in their order.

    A row's place in the mix depends on its id and the seed alone, so that adding rows moves no other row in or out.

    Args:
        rows: All rows of the split.
        data: What to take.
        seed: For the mix.

    Raises:
        RecipeError: When a role is not in the rows (with those that are), or nothing is left.
    """
    everything = list(rows)
    roles = {row.role for row in everything}
    unknown = sorted(set(data.roles or ()) - roles)
    if unknown:
        raise RecipeError(f"data.roles: {', '.join(unknown)} not in the rows; there are {', '.join(sorted(roles))}")
    shares = {"general": data.mix.general, "role_specific": data.mix.role_specific}
    chosen = []
    for row in everything:
        if data.roles is not None and row.role not in data.roles:
            continue
        if data.languages is not None and row.language not in data.languages:
            continue
        if draw_place(row.id, seed) < shares[row.subset]:
            chosen.append(row)
    if not chosen:
        raise RecipeError(f"the recipe's data section leaves none of {len(everything)} rows to train on")
    return chosen[: data.max_rows]


def draw_place(row_id: str, seed: int) -> float:
    """Draw a place from 0 to 1 by content: other rows move nothing."""
    digest = hash_bytes(f"{seed}\0{row_id}".encode())
    return int(digest[:14], 16) / 16**14


def make_conversations(
    rows: Iterable[Row | Conversation], ask: Ask, trainer: str = "sft", *, first_only: bool = False
) -> Iterator[Conversation]:
    """Make the conversations that rows of RoleBench hold for a trainer, in order; one that is made stays as it is.

    With ``sft`` there is one per (row, reference). With ``dpo`` and ``kto``, a row's first reply in the role's voice is
    preferred to the role-free answer, and rows without both are left out. With ``grpo`` a row is its prompt, and
    rewards get ``role``, ``language``, ``subset``, ``question``, ``references``, ``raw_reference`` and
    ``role_description``.

    Args:
        rows: Rows of the data set.
        ask: The messages that ask a row's question of its role, the system instruction first.
        trainer: As in `rolellm.training.recipe.TrainingRecipe`.
        first_only: With ``sft``, only each row's first reference.
    """
    texts: dict[str, str] = {}
    for row in rows:
        if isinstance(row, Conversation):
            yield row
            continue
        system, *turns = ask(row)
        # A role's system instruction is long and repeats: all its rows hold the same one.
        system["content"] = texts.setdefault(system["content"], system["content"])
        messages = (system, *turns)
        if trainer == "sft":
            references = row.references[:1] if first_only else row.references
            for index, reply in enumerate(references):
                yield Conversation(row.id, messages, {"completion": reply}, index, row.role)
        elif trainer == "grpo":
            columns = {name: getattr(row, name) for name in _REWARDED}
            columns["references"] = list(row.references)
            yield Conversation(row.id, messages, {}, role=row.role, columns=columns)
        elif row.raw_reference is not None and row.references and row.raw_reference != row.references[0]:
            chosen, rejected = row.references[0], row.raw_reference
            if trainer == "dpo":
                yield Conversation(row.id, messages, {"chosen": chosen, "rejected": rejected}, role=row.role)
                continue
            for reply, label in ((chosen, True), (rejected, False)):
                yield Conversation(row.id, messages, {"completion": reply}, role=row.role, columns={"label": label})


def check_positions(max_length: int, positions: int | None) -> None:
    """Check that a model has a position for every token of the longest example.

    Raises:
        ModelError: When it has fewer.
    """
    if positions is not None and max_length > positions:
        raise ModelError(f"the base model takes {positions} tokens, fewer than training.max_length ({max_length})")


def check_prompts(
    rows: Iterable[Row], ask: Ask, tokenizer: PreTrainedTokenizerBase, context: int | None, data: DataRecipe
) -> None:
    """Measure the prompts that the roles will get, before training: of a row, and of a talk with a card's role.

    Args:
        rows: Rows that are trained on.
        ask: The messages that ask a row's question of its role.
        tokenizer: The base's tokenizer.
        context: The most tokens that the base takes.
        data: Where the rows come from; a data set of one's own names what a card adds to a talk.

    Warns:
        RoleLLMWarning: When some leave too little room for a reply; names the roles.
    """
    if context is None:
        return
    by_length = sorted(rows, key=lambda row: len(row.question))
    longest = {row.role: row for row in by_length}
    own = find_own_manifest(data.data_dir) or {}
    talks = {role["role"]: role.get("talk") for role in own.get("roles", ())}
    long: dict[str, int] = {}
    for role, row in longest.items():
        prompts = [ask(row)]
        talk = talks.get(role)
        if talk:
            question = f"{row.question}\n\n{talk['after']}".strip()
            system = {"role": "system", "content": talk["system"]}
            prompts.append([system, {"role": "user", "content": question}])
        tokens = max(len(encode_prompt(tokenizer, prompt)) for prompt in prompts)
        if tokens > limit_prompt(context):
            long[role] = tokens
    if long:
        names = join_names(long, NAMED)
        most = max(long.values())
        warnings.warn(
            f"prompts of {names} have up to {most:,} tokens, and the base takes {context:,} with the reply: the tuned "
            "model will cut replies short in `rolellm generate`, and refuse to talk in `chat` and `test`. Use a base "
            "with a longer context (--base), or a shorter description or card",
            RoleLLMWarning,
            stacklevel=3,
        )


def load_script_profiles(data: DataRecipe) -> list[Profile]:
    """Load the profiles whose dialogue a recipe trains on: those of the roles in the rows of its split.

    Going by the rows keeps roles that the config holds out (role generalization) out of training.

    Args:
        data: ``config``, ``split``, ``data_dir``, ``roles`` and ``languages`` count; ``mix`` has no meaning here.

    Raises:
        SettingsError: When a role is not in the rows, the split is not there, ``mix`` is set, or no role is left.
        ReleaseNotFoundError: When there is no release, or it has no dialogue of these roles.
        DataError: At a row that is not as published.
    """
    from rolellm.data.rolebench.release import load_profiles

    if (data.mix.general, data.mix.role_specific) != (1, 1):
        raise RecipeError("data.mix: script dialogue is neither general nor role-specific; leave the key out")
    rows = select_rows(_read_split(data), replace(data, max_rows=None), seed=0)
    roles = dict.fromkeys(row.role for row in rows)
    return load_profiles(data.config, data.data_dir, roles=roles)


def make_script_conversations(
    profiles: Iterable[Profile],
    template: Mapping[Language, Template],
    max_rows: int | None = None,
    turns_before: int = SCRIPT_TURNS,
) -> list[Conversation]:
    """Make a conversation of each line of the role, in the order of the script; its id is ``script/ROLE/N``, N from 1.

    Args:
        profiles: The roles, as from `load_script_profiles`.
        template: The system instruction of each language, as in `DescriptionPrompts`.
        max_rows: Maximum lines in all.
        turns_before: Maximum turns that are shown before a line.
    """
    chats: list[Conversation] = []
    for profile in profiles:
        content = template[profile.language].fill(role=profile.role, description=profile.description)
        system = {"role": "system", "content": content}
        number = 0
        for _, turns in groupby(profile.turns, key=lambda turn: turn.scene):
            scene = list(turns)
            for index, turn in enumerate(scene):
                if not profile.owns(turn):
                    continue
                number += 1
                first = max(0, index - turns_before)
                before = _alternate_turns(profile, scene[first:index], opening=first == 0)
                row_id = f"script/{profile.role}/{number}"
                messages = (system, *before)
                chats.append(Conversation(row_id, messages, {"completion": turn.content}, role=profile.role))
    return chats[:max_rows]


def _alternate_turns(profile: Profile, turns: Sequence[Turn], *, opening: bool) -> Iterator[dict[str, str]]:
    """The turns before a line, user first and last; ``opening`` says that they begin where the scene does."""
    cue = (OPENING if opening else ONWARD)[profile.language]
    heard: list[str] = []
    for turn in turns:
        if not profile.owns(turn):
            heard.append(format_turn(turn, profile.language))
            continue
        yield {"role": "user", "content": "\n".join(heard) or cue}
        yield {"role": "assistant", "content": shorten_turn(turn.content)}
        heard, cue = [], ONWARD[profile.language]
    yield {"role": "user", "content": "\n".join(heard) or cue}
