"""What a recipe trains on: rows of RoleBench, of a script or of another data set, as prompts and their replies."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import DataError, ModelError, RecipeError, RoleLLMWarning
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.records import Language, Profile, Row, Turn
from rolellm.core.text import join_names
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


# The columns of data sets that each trainer takes besides those of RoleBench, as TRL names them.
_ROLEBENCH = ("role", "question", "references")
_OPTIONS = ("tools", "chat_template_kwargs")
# What no trainer of ours passes on.
_REFUSED = ("functions", "image", "images", "video", "videos", "audio", "audios")
# What rewards get of a row of RoleBench.
_REWARDED = ("role", "language", "subset", "question", "references", "raw_reference", "role_description")
_COLUMNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "sft": (("prompt", "completion"), ("messages",)),
    "dpo": (("prompt", "chosen", "rejected"),),
    "kto": (("prompt", "completion", "label"),),
    "grpo": (("prompt",),),
}


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
        """What the chat template gets besides the turns."""
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
        """What the last user's turn asks."""
        return next((turn["content"] for turn in reversed(self.messages) if turn["role"] == "user"), "")

    @property
    def language(self) -> Language:
        """The language of the first reply; of the question where there is none."""
        return detect_language(next(iter(self.replies.values()), "") or self.question)

    def to_row(self) -> dict[str, Any]:
        """Give the same in TRL's conversational format."""
        replies = {name: [turn] for name, turn in self.turns.items()}
        return {"prompt": list(self.messages), **replies, **self.columns}


Replies = Sequence[Row] | Sequence[Conversation]
Ask = Callable[[Row], list[dict[str, str]]]


def load_replies(recipe: Recipe) -> Replies:
    """Load what the recipe's data section names."""
    if recipe.data.source == "dataset":
        raise RecipeError("data.source: dataset needs a data.path, or rolellm.train(recipe, train_dataset=...)")
    if recipe.data.source == "script":
        templates = DescriptionPrompts(recipe.prompt.system_template).templates
        return make_script_conversations(load_script_profiles(recipe.data), templates, recipe.data)
    return load_rows(recipe)


def select_base_rows(recipe: Recipe, replies: Replies) -> list[Row]:
    """The rows that a base is built from: those trained on and, where these have no plain answers, the sample's."""
    rows = [item for item in replies if isinstance(item, Row)]
    if recipe.base.build is not None and recipe.data.source == "script":
        rows = load_rows(recipe)
    if recipe.base.build is None or any(row.raw_reference for row in rows):
        return rows
    languages = {item.language for item in replies}
    sample = _read_split(DataRecipe(config=SAMPLE))
    return [*rows, *(replace(row, id=f"{SAMPLE}/{row.id}") for row in sample if row.language in languages)]


def collect_trained_on(recipe: Recipe, replies: Replies) -> TrainedOn:
    """The roles and instructions among what is trained on."""
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

    profiles = load_profiles(recipe.data.config, recipe.data.data_dir, roles=sorted({row.role for row in rows}))
    return RetrievalPrompts(profiles, count=prompt.retrieved, path=prompt.system_template)


def load_rows(recipe: Recipe) -> list[Row]:
    """The rows that a recipe trains on, from the dataset that it names.

    Raises:
        SettingsError: When the dataset has no such split, or the recipe leaves no row of it.
        ReleaseNotFoundError: When there is no release.
    """
    return select_rows(_read_split(recipe.data), recipe.data, recipe.training.seed)


def _read_split(data: DataRecipe) -> Iterator[Row]:
    """Read the rows of the split that a recipe names."""
    from rolellm.data.rolebench import load_rolebench

    return map(Row.from_columns, load_rolebench(data.config, data.split, data_dir=data.data_dir))


def read_dataset(dataset: Any, trainer: str = "sft") -> list[Row] | list[Conversation]:
    """Read a dataset: rows of RoleBench, or conversations in TRL's format for a trainer.

    Of RoleBench's columns, only ``role``, ``question`` and ``references`` are required. A plain ``prompt`` is a user's
    turn, and a plain reply the assistant's. Every assistant turn of ``messages`` is trained, each after the turns
    before it, unless its ``weight`` is 0. What else turns have, and the columns ``tools`` and ``chat_template_kwargs``,
    are the chat template's. ``role`` may name who speaks, and ``id`` the row.

    Args:
        dataset: A `datasets.Dataset`, or any iterable of dicts.
        trainer: As in `rolellm.training.recipe.TrainingRecipe`.

    Raises:
        DataError: When columns are missing (with those that it has), it has no rows, or a row has no reply or something
            that cannot be trained on.
    """
    items = [dict(item) for item in dataset]
    columns = sorted(getattr(dataset, "column_names", None) or set().union(*items))
    forms = (_ROLEBENCH, *_COLUMNS[trainer])
    form = next((form for form in forms if set(form) <= set(columns)), None)
    if form is None:
        raise DataError(_describe_missing(columns, forms, trainer))
    if not items:
        raise DataError("train_dataset has no rows")
    if form == _ROLEBENCH:
        return [_read_row(number, item) for number, item in enumerate(items)]
    empty = dict.fromkeys(columns)
    chats: list[Conversation] = []
    for number, item in enumerate(items):
        chats += _read_chats(number, empty | item, form, trainer)
    return chats


def _describe_missing(columns: Sequence[str], forms: Sequence[Sequence[str]], trainer: str) -> str:
    """Say what the form that the columns come closest to lacks, and which forms there are."""
    closest = max(forms, key=lambda form: len(set(form) & set(columns)))
    missing = ", ".join(name for name in closest if name not in columns)
    if not set(closest) & set(columns):
        missing = "columns to train on"
    there = ", ".join(columns) or "no columns"
    needed = "; or ".join(map(", ".join, forms))
    return f"train_dataset has no {missing}; it has {there}. training.trainer: {trainer} needs {needed}"


def _read_row(number: int, item: Mapping[str, Any]) -> Row:
    language = detect_language("".join([item["question"], *item["references"]]))
    filled = {"id": f"row/{number}", "subset": "general", "language": language}
    given = {key: value for key, value in item.items() if value is not None}
    return Row.from_columns(filled | given)


def _read_chats(number: int, item: Mapping[str, Any], form: Sequence[str], trainer: str) -> Iterator[Conversation]:
    row_id, role = str(item.get("id") or f"row/{number}"), item.get("role")
    columns = _read_options(row_id, item, trainer)
    prompt = _read_turns(row_id, item[form[0]], "user")
    if trainer == "sft":
        turns = list(prompt)
        for name in form[1:]:
            turns += _read_turns(row_id, item[name], "assistant")
        weights = [turn.pop("weight", turn["role"] == "assistant") for turn in turns]
        # Of messages, the first turn has none before it to answer.
        first = len(prompt) if len(form) > 1 else 1
        replies = [index for index, weight in enumerate(weights) if weight and index >= first]
        if not replies:
            raise DataError(f"{row_id}: no assistant turn after the prompt has a weight of 1, so none is trained")
        for index in replies:
            turn = turns[index]
            texts, extras = {"completion": turn["content"]}, {"completion": turn}
            yield Conversation(row_id, tuple(turns[:index]), texts, role=role, columns=columns, extras=extras)
        return
    texts, extras = {}, {}
    for name in form[1:]:
        if name == "label":
            continue
        turns = _read_turns(row_id, item[name], "assistant")
        if len(turns) != 1 or turns[0]["role"] != "assistant" or not turns[0].pop("weight", 1):
            raise DataError(f"{row_id}: {name} must be one reply, a text or one assistant message")
        texts[name], extras[name] = turns[0]["content"], turns[0]
    for turn in prompt:
        turn.pop("weight", None)
    if trainer == "grpo":
        columns = {name: value for name, value in item.items() if name != "prompt"}
    if trainer == "kto":
        columns["label"] = bool(item["label"])
    yield Conversation(row_id, tuple(prompt), texts, role=role, columns=columns, extras=extras)


def _read_options(row_id: str, item: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Read the columns that go to the chat template; those that no trainer can use are refused."""
    refused = (*_REFUSED, *_OPTIONS) if trainer == "grpo" else _REFUSED
    lost = [name for name in refused if item.get(name)]
    if lost:
        raise DataError(f"{row_id}: trainer {trainer} cannot use the column {', '.join(lost)}; remove it")
    options: dict[str, Any] = {}
    if "tools" in item:
        tools = _remove_missing(item["tools"] or [])
        # An empty list would make Llama's template write about tools.
        options["tools"] = _read_objects(row_id, "tools", tools) or None
    if "chat_template_kwargs" in item:
        options["chat_template_kwargs"] = _remove_missing(item["chat_template_kwargs"] or {})
        if not isinstance(options["chat_template_kwargs"], dict):
            raise DataError(f"{row_id}: chat_template_kwargs is not an object")
    return options


def _read_objects(row_id: str, name: str, value: Any) -> list[dict[str, Any]]:
    """Read a list of objects, or one written as JSON."""
    try:
        objects = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        objects = None
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise DataError(f"{row_id}: {name} is neither a list of objects nor its JSON")
    return objects


def _read_turns(row_id: str, value: Any, role: str) -> list[dict[str, Any]]:
    """Read messages, or a text as one message of a role."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [_read_turn(row_id, turn) for turn in value or ()]


def _read_turn(row_id: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Read a message, without what it leaves empty."""
    items = _remove_missing(value).items()
    turn = {name: item for name, item in items if item or name in ("content", "weight")}
    if "tool_calls" in turn:
        turn.setdefault("content", "")
        turn["tool_calls"] = _read_objects(row_id, "tool_calls", turn["tool_calls"])
    if not isinstance(turn.get("content"), str) or not isinstance(turn.get("role"), str):
        raise DataError(f"{row_id}: expected messages with a role and a text as content, found {turn!a:.80}")
    weights = (0, 1) if turn["role"] == "assistant" else (0,)
    if turn.get("weight", 0) not in weights:
        raise DataError(
            f"{row_id}: a weight of {turn['weight']!r:.20} on a turn of {turn['role']!r:.20}; an assistant turn takes "
            "1 (train it) or 0 (only read it), others 0"
        )
    return turn


def _remove_missing(value: Any) -> Any:
    """Remove what is None, which `datasets` writes where a row lacks a key that others have."""
    if isinstance(value, Mapping):
        return {name: _remove_missing(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return list(map(_remove_missing, value))
    return value


def split_held_out(replies: Replies, share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Training rows, and rows held out with all replies to their instructions, whatever the role.

    An instruction's place depends on its text and the seed alone.

    Args:
        replies: Rows or conversations.
        share: Of the instructions, to hold out; one at least.
        seed: For the draw.

    Raises:
        RecipeError: When there are fewer than two instructions.
    """
    names = [hash_instruction(item.question) for item in replies]
    shuffled = sorted(set(names), key=lambda name: _draw(name, seed))
    if len(shuffled) < 2:
        raise RecipeError("training.eval_strategy: with a single instruction, none can be held out; give eval_dataset")
    drawn = {name for name in shuffled if _draw(name, seed) < share}
    # One at least on either side.
    chosen = (drawn | {shuffled[0]}) - {shuffled[-1]}
    kept: list[Any] = []
    held_out: list[Any] = []
    for name, item in zip(names, replies, strict=True):
        (held_out if name in chosen else kept).append(item)
    return kept, held_out


def select_rows(rows: Iterable[Row], data: DataRecipe, seed: int) -> list[Row]:
    """The rows that a recipe trains on, in their order.

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
        is_chosen = row.role in (data.roles or roles) and row.language in (data.languages or (row.language,))
        if is_chosen and _draw(row.id, seed) < shares[row.subset]:
            chosen.append(row)
    if not chosen:
        raise RecipeError(f"the recipe's data section leaves none of {len(everything)} rows to train on")
    return chosen[: data.max_rows]


def _draw(row_id: str, seed: int) -> float:
    return int(hash_bytes(f"{seed}\0{row_id}".encode())[:14], 16) / 16**14


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
            else:
                yield Conversation(row.id, messages, {"completion": chosen}, role=row.role, columns={"label": True})
                yield Conversation(row.id, messages, {"completion": rejected}, role=row.role, columns={"label": False})


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
    longest = {row.role: row for row in sorted(rows, key=lambda row: len(row.question))}
    own = find_own_manifest(data.data_dir) or {}
    talks = {role["role"]: role["talk"] for role in own.get("roles", ()) if role.get("talk")}
    long: dict[str, int] = {}
    for role, row in longest.items():
        prompts = [ask(row)]
        if role in talks:
            talk = talks[role]
            question = f"{row.question}\n\n{talk['after']}".strip()
            prompts.append([{"role": "system", "content": talk["system"]}, {"role": "user", "content": question}])
        tokens = max(len(encode_prompt(tokenizer, prompt)) for prompt in prompts)
        if tokens > limit_prompt(context):
            long[role] = tokens
    if long:
        warnings.warn(
            f"prompts of {join_names(long, NAMED)} have up to {max(long.values()):,} tokens, and the base takes "
            f"{context:,} with the reply: the tuned model will cut replies short in `rolellm generate`, and refuse to "
            "talk in `chat` and `test`. Use a base with a longer context (--base), or a shorter description or card",
            RoleLLMWarning,
            stacklevel=3,
        )


def load_script_profiles(data: DataRecipe) -> list[Profile]:
    """The profiles whose dialogue a recipe trains on: those of the roles in the rows of its split.

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
    return load_profiles(data.config, data.data_dir, roles=dict.fromkeys(row.role for row in rows))


def make_script_conversations(
    profiles: Iterable[Profile], template: Mapping[Language, Template], data: DataRecipe
) -> list[Conversation]:
    """One conversation a line of the role, in the order of the script; ``row_id`` is ``script/ROLE/N``, N from 1.

    Args:
        profiles: The roles, as from `load_script_profiles`.
        template: The system instruction of each language, as in `DescriptionPrompts`.
        data: ``script_turns`` is the most turns that are shown before a line, ``max_rows`` the most lines in all.
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
                first = max(0, index - data.script_turns)
                before = _alternate_turns(profile, scene[first:index], opening=first == 0)
                row_id, reply = f"script/{profile.role}/{number}", {"completion": turn.content}
                chats.append(Conversation(row_id, (system, *before), reply, role=profile.role))
    return chats[: data.max_rows]


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
