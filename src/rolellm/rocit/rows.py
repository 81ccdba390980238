"""Row → conversation → tokens and mask, as two steps; what cannot be trained on is refused by row id, never dropped.

The loss falls on the reply and its end token only (facts on RoCIT: the role lives in the system instruction, which is
read and not learned to be written).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import DataError, ModelError, RecipeError
from rolellm.core.records import Language, Profile, Row, Turn
from rolellm.core.text import listed
from rolellm.models.training_record import Seen, instruction_hash
from rolellm.prompts.encode import PromptEncoder, encode_replies, end_token_id
from rolellm.prompts.render import ONWARD, OPENING, Template, prompt_messages, script_line, shorten, system_template
from rolellm.rocit.packing.examples import Example, Examples
from rolellm.rocit.recipe import DataRecipe, Mix, PromptRecipe, Recipe
from rolellm.runtime.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAMED = 10
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Conversation:
    """One reply to one prompt, as text.

    Attributes:
        row_id: The row it comes from.
        messages: The turns that ask for the reply.
        reply: What the model is to say, to the letter.
        reference: Which of the row's references the reply is, counted from 0.
        role: Who speaks, where the data says so.
    """

    row_id: str
    messages: tuple[dict[str, str], ...]
    reply: str
    reference: int = 0
    role: str | None = None


Replies = Sequence[Row] | Sequence[Conversation]
Ask = Callable[[Row], list[dict[str, str]]]


def named(recipe: Recipe) -> Replies:
    """What the recipe's data section names."""
    if recipe.data.source == "dataset":
        raise RecipeError("data.source: dataset is for rolellm.train(recipe, train_dataset=...)")
    if recipe.data.source == "script":
        return script_conversations(script_profiles(recipe.data), templates(recipe.prompt), recipe.data)
    return load_rows(recipe)


def for_base(recipe: Recipe, replies: Replies) -> list[Row]:
    """The rows that a base is built from: those trained on or, where they have no plain answers, the recipe's."""
    rows = [item for item in replies if isinstance(item, Row)]
    if recipe.base.build is None or recipe.data.source == "rolebench" or any(row.raw_reference for row in rows):
        return rows
    return load_rows(recipe)


def seen(recipe: Recipe, replies: Replies) -> Seen:
    """The roles and instructions among what is trained on."""
    rows = [item for item in replies if isinstance(item, Row)]
    chats = [item for item in replies if isinstance(item, Conversation)]
    # The lines before a line of a script are not an instruction.
    asked = chats if recipe.data.source != "script" else []
    roles = frozenset(chat.role for chat in chats if chat.role is not None)
    return Seen.of(rows) | Seen(roles, frozenset(instruction_hash(instruction(chat)) for chat in asked))


def asking(recipe: Recipe, rows: Sequence[Row]) -> tuple[Ask, dict[str, str]]:
    """What turns a row into its messages, and the hashes of the templates that it uses."""
    if recipe.prompt.profile == "description":
        template = templates(recipe.prompt)
        hashes: dict[str, str] = {language: one.hash for language, one in template.items()}
        return lambda row: prompt_messages(row, template[row.language]), hashes
    from rolellm.prompts.retrieval import RetrievalPrompts
    from rolellm.rolebench.profiles import load_profiles

    profiles = load_profiles(recipe.data.config, recipe.data.data_dir, roles=sorted({row.role for row in rows}))
    prompts = RetrievalPrompts(profiles, count=recipe.prompt.retrieved, path=recipe.prompt.system_template)
    return prompts, prompts.hashes


def load_rows(recipe: Recipe) -> list[Row]:
    """The rows that a recipe trains on, from the dataset that it names.

    Raises:
        RecipeError: When the dataset has no such split, or the recipe leaves no row of it.
        ReleaseNotFoundError: When there is no release.
    """
    rows = (Row.from_columns(columns) for columns in load_split(recipe.data))
    return select_rows(rows, recipe.data, recipe.training.seed)


def load_split(data: DataRecipe) -> Any:
    """The split that a recipe names, as a `datasets.Dataset`.

    Raises:
        RecipeError: When the data set has no such split; names those that it has.
        ReleaseNotFoundError: When the release is not there.
    """
    from rolellm.rolebench import load_rolebench

    splits = load_rolebench(data.config, data_dir=data.data_dir)
    if data.split not in splits:
        raise RecipeError(f"data.split: {data.config} has no split {data.split!r}; it has {', '.join(splits)}")
    return splits[data.split]


def dataset_rows(dataset: Any) -> list[Row] | list[Conversation]:
    """The rows of a dataset: rows of RoleBench, or conversations of TRL's ``prompt``/``completion`` or ``messages``.

    Of RoleBench's columns, only ``role``, ``question`` and ``references`` are required. A plain ``prompt`` is a user's
    turn. Every assistant turn of ``messages`` is trained, each after the turns before it; ``role`` may name who speaks.

    Args:
        dataset: A `datasets.Dataset`, or any iterable of dicts.

    Raises:
        DataError: When columns are missing (with those that it has), it has no rows, or a row has no reply.
    """
    items = [dict(item) for item in dataset]
    has = sorted(getattr(dataset, "column_names", None) or (items[0] if items else ()))
    forms = (("role", "question", "references"), ("prompt", "completion"), ("messages",))
    form = next((form for form in forms if set(form) <= set(has)), None)
    if form is None:
        started = max(forms, key=lambda form: len(set(form) & set(has)))
        lacks = [name for name in started if name not in has] if set(started) & set(has) else []
        needed = f"misses {', '.join(lacks)}; it" if lacks else "misses the columns to train on; it"
        raise DataError(
            f"train_dataset {needed} has {', '.join(has) or 'no columns'}. It needs role, question and references; or "
            "prompt and completion; or messages"
        )
    if not items:
        raise DataError("train_dataset has no rows")
    if form == forms[0]:
        return [_row(number, item) for number, item in enumerate(items)]
    return [chat for number, item in enumerate(items) for chat in _chats(number, item, form)]


def _row(number: int, item: Mapping[str, Any]) -> Row:
    text = f"{item['question']}{''.join(item['references'])}"
    filled = {"id": f"row/{number}", "subset": "general", "language": "zh" if _is_chinese(text) else "en"}
    return Row.from_columns(filled | {key: value for key, value in item.items() if value is not None})


def _is_chinese(text: str) -> bool:
    return 2 * sum("\u4e00" <= character <= "\u9fff" for character in text) > len(text)


def _chats(number: int, item: Mapping[str, Any], form: Sequence[str]) -> Iterator[Conversation]:
    row_id = str(item.get("id") or f"row/{number}")
    turns = [turn for name in form for turn in _turns(item[name], "assistant" if name == "completion" else "user")]
    odd = next((turn for turn in turns if not isinstance(turn.get("content"), str)), None)
    if odd is not None:
        raise DataError(f"{row_id}: expected messages with a role and a text as content, found {odd!a:.80}")
    first = len(_turns(item["prompt"], "user")) if "completion" in form else 1
    messages = [{"role": str(turn["role"]), "content": str(turn["content"])} for turn in turns]
    replies = [place for place, turn in enumerate(messages) if turn["role"] == "assistant" and place >= first]
    if not replies:
        raise DataError(f"{row_id}: no assistant turn after the prompt, so there is nothing to train on")
    for place in replies:
        yield Conversation(row_id, tuple(messages[:place]), messages[place]["content"], role=item.get("role"))


def _turns(value: Any, role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": value}] if isinstance(value, str) else [dict(turn) for turn in value or ()]


def languages_of(items: Iterable[Row] | Iterable[Conversation]) -> tuple[Language, ...]:
    """The languages of rows or conversations, sorted."""
    found = {item.language if isinstance(item, Row) else "zh" if _is_chinese(item.reply) else "en" for item in items}
    return tuple(sorted(found))


def split_off(replies: Replies, share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Training rows, and rows held out with all replies to their instructions, whatever the role.

    An instruction's place depends on its text and the seed alone.

    Args:
        replies: Rows or conversations.
        share: Of the instructions, to hold out; one at least.
        seed: For the draw.

    Raises:
        RecipeError: When there are fewer than two instructions.
    """
    names = [instruction_hash(instruction(item)) for item in replies]
    drawn = sorted(set(names), key=lambda name: _draw(name, seed))
    if len(drawn) < 2:
        raise RecipeError("training.eval_strategy: with a single instruction, none can be held out; give eval_dataset")
    held = set(drawn[: max(1, sum(_draw(name, seed) < share for name in drawn))]) - {drawn[-1]}
    pairs = list(zip(names, replies, strict=True))
    return [item for name, item in pairs if name not in held], [item for name, item in pairs if name in held]


def instruction(item: Row | Conversation) -> str:
    """What a row or a conversation asks."""
    if isinstance(item, Row):
        return item.question
    return next((turn["content"] for turn in reversed(item.messages) if turn["role"] == "user"), "")


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
    _check_roles(data, {row.role for row in everything})
    shares = {"general": data.mix.general, "role_specific": data.mix.role_specific}
    chosen = [
        row
        for row in everything
        if (data.roles is None or row.role in data.roles)
        and (data.languages is None or row.language in data.languages)
        and _draw(row.id, seed) < shares[row.subset]
    ][: data.max_rows]
    if not chosen:
        raise RecipeError(f"the recipe's data section leaves none of {len(everything)} rows to train on")
    return chosen


def _check_roles(data: DataRecipe, known: Iterable[str]) -> None:
    if strange := sorted(set(data.roles or ()) - set(known)):
        raise RecipeError(f"data.roles: {', '.join(strange)} not in the rows; there are {', '.join(sorted(known))}")


def _draw(row_id: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}\0{row_id}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def templates(prompt: PromptRecipe) -> dict[Language, Template]:
    """The system instruction of each language under a recipe, each file read once.

    Raises:
        RecipeError: When the recipe's template is not there or has no slot for the role.
    """
    return {"en": system_template("en", prompt.system_template), "zh": system_template("zh", prompt.system_template)}


def conversations(rows: Iterable[Row], ask: Ask, *, first_only: bool = False) -> Iterator[Conversation]:
    """One conversation a (row, reference), in order.

    Args:
        rows: Rows of the data set.
        ask: The messages that ask a row's question of its role, the system instruction first.
        first_only: Only each row's first reference.
    """
    texts: dict[str, str] = {}
    for row in rows:
        system, *turns = ask(row)
        # A role's system instruction is long and repeats: all its rows hold the same one.
        system["content"] = texts.setdefault(system["content"], system["content"])
        messages = (system, *turns)
        for index, reply in enumerate(row.references[: 1 if first_only else None]):
            yield Conversation(row.id, messages, reply, index)


def encode(
    chats: Sequence[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    truncate_replies: bool = False,
) -> Examples:
    """Turn conversations into tokens, or refuse them all together.

    Args:
        chats: What to encode.
        tokenizer: The base model's tokenizer, with the chat template that inference will use.
        max_length: Tokens of prompt and reply together.
        truncate_replies: Cut a reply that does not fit, end token included, instead of refusing it: a cut reply must
            not teach the model to stop there.

    Returns:
        One example a conversation, in order.

    Raises:
        RecipeError: When a prompt alone fills ``max_length``, a reply is blank, or a reply does not fit and may not be
            cut; names the rows of each kind.
    """
    problems: dict[str, list[str]] = {}
    limit = f"training.max_length ({max_length})"

    def examples() -> Iterator[Example]:
        end, encode_prompt = end_token_id(tokenizer), PromptEncoder(tokenizer)
        messages: tuple[dict[str, str], ...] = ()
        prompt: tuple[int, ...] = ()
        for chat, tokens in _with_replies(chats, tokenizer):
            # A row's replies follow each other: its prompt is encoded once.
            if chat.messages != messages or not prompt:
                messages, prompt = chat.messages, tuple(encode_prompt(chat.messages))
            room, reply = max_length - len(prompt), (*tokens, end)
            if not chat.reply.strip():
                problem = "a blank reply, so not one token to train on"
            elif room < 1:
                problem = f"a prompt that alone fills {limit}; raise it or leave the rows out"
            elif len(reply) > room and not truncate_replies:
                problem = f"a reply that does not fit {limit}; raise it, or set training.truncate_replies: true"
            else:
                yield Example(chat.row_id, prompt, reply[:room], chat.reference, messages[0]["content"])
                continue
            problems.setdefault(problem, []).append(chat.row_id)

    made = Examples.of(examples())
    if problems:
        raise RecipeError("; ".join(_refusal(problem, ids) for problem, ids in sorted(problems.items())))
    return made


def _with_replies(
    chats: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[Conversation, list[int]]]:
    """Each conversation with the tokens of its reply; a few thousand are tokenized together, for speed."""
    with Progress("tokenizing", len(chats), unit="replies") as bar:
        for start in range(0, len(chats), _BLOCK):
            block = chats[start : start + _BLOCK]
            yield from zip(block, encode_replies(tokenizer, [chat.reply for chat in block]), strict=True)
            bar.advance(len(block))


def _refusal(problem: str, row_ids: Sequence[str]) -> str:
    count, named = len(set(row_ids)), listed(row_ids, _NAMED)
    return f"{count} rows have {problem}: {named}" if count > 1 else f"row {named} has {problem}"


def check_positions(max_length: int, positions: int | None) -> None:
    """Check that a model has a position for every token of the longest example.

    Raises:
        ModelError: When it has fewer.
    """
    if positions is not None and max_length > positions:
        raise ModelError(f"the base model takes {positions} tokens, fewer than training.max_length ({max_length})")


def script_profiles(data: DataRecipe) -> list[Profile]:
    """The profiles whose dialogue a recipe trains on: those of the roles in the rows of its split.

    Going by the rows keeps roles that the config holds out (role generalization) out of training.

    Args:
        data: ``config``, ``split``, ``data_dir``, ``roles`` and ``languages`` count; ``mix`` has no meaning here.

    Raises:
        RecipeError: When a role is not in the rows, the split is not there, ``mix`` is set, or no role is left.
        ReleaseNotFoundError: When there is no release, or it has no dialogue of these roles.
        ReleaseFormatError: At a row that is not as published.
    """
    from rolellm.rolebench.profiles import load_profiles

    if data.mix != Mix():
        raise RecipeError("data.mix: script dialogue is neither general nor role-specific; leave the key out")
    rows = load_split(data)
    languages = dict(zip(rows["role"], rows["language"], strict=True))
    _check_roles(data, languages)
    roles = [
        role
        for role, language in languages.items()
        if (data.roles is None or role in data.roles) and (data.languages is None or language in data.languages)
    ]
    if not roles:
        raise RecipeError(f"the recipe's data section leaves none of {len(languages)} roles to train on")
    return load_profiles(data.config, data.data_dir, roles=roles)


def script_conversations(
    profiles: Iterable[Profile], template: Mapping[Language, Template], data: DataRecipe
) -> list[Conversation]:
    """One conversation a line of the role, in the order of the script; ``row_id`` is ``script/ROLE/N``, N from 1.

    Args:
        profiles: The roles, as from `script_profiles`.
        template: The system instruction of each language, as from `rolellm.rocit.rows.templates`.
        data: ``script_turns`` is the most turns that are shown before a line, ``max_rows`` the most lines in all.
    """
    chats: list[Conversation] = []
    for profile in profiles:
        content = template[profile.language].fill(role=profile.role, description=profile.description)
        system = {"role": "system", "content": content}
        number = 0
        for _, group in groupby(profile.turns, key=lambda turn: turn.scene):
            scene = list(group)
            for place, line in enumerate(scene):
                if not profile.owns(line):
                    continue
                number += 1
                first = max(0, place - data.script_turns)
                before = _alternating(profile, scene[first:place], opening=first == 0)
                row_id = f"script/{profile.role}/{number}"
                chats.append(Conversation(row_id, (system, *before), line.content, role=profile.role))
    return chats[: data.max_rows]


def _alternating(profile: Profile, turns: Sequence[Turn], *, opening: bool) -> Iterator[dict[str, str]]:
    """The turns before a line, user first and last; ``opening`` says that they begin where the scene does."""
    cue = (OPENING if opening else ONWARD)[profile.language]
    heard: list[str] = []
    for turn in turns:
        if not profile.owns(turn):
            heard.append(script_line(turn, profile.language))
            continue
        yield {"role": "user", "content": "\n".join(heard) or cue}
        yield {"role": "assistant", "content": shorten(turn.content)}
        heard, cue = [], ONWARD[profile.language]
    yield {"role": "user", "content": "\n".join(heard) or cue}
