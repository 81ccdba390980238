"""Refusals and answers to harmless look-alikes for training, by the base itself in each role's voice.

Tuning on roles costs refusals (arXiv 2502.20968). What the base says before tuning is mixed into the rows: it refuses
harmful prompts in a role, and answers prompts that only look harmful, as often, so that it does not learn to refuse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.characters.refusals import KINDS, is_refusal, list_training_prompts, read_prompts
from rolellm.characters.reply_rules import find_breaches
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import RecipeError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Reply, Request, Sampling, UnacceptableError, accept_speech, convert_turns
from rolellm.runs import Plan, Records, Round, Step, run_step
from rolellm.training.recipe import DataRecipe, Recipe, TrainingRecipe
from rolellm.training.rows import Ask, Conversation

#: Where in a run's folder the base's replies and their journal are.
FOLDER: Final = "safety-mix"
#: Attempts at a reply of the wanted kind, and how often prompts without one are made up for by others (our choice).
_ATTEMPTS, _ROUNDS = 3, 3
#: Prompts in one forward pass (our choice).
_BATCH: Final = 32
#: The prompts that are asked, or asked and answered, by kind: ``harmful`` and ``lookalikes``.
Chats = Mapping[str, list[Conversation]]


@dataclass(frozen=True)
class Answers:
    """What the base said.

    Attributes:
        asked: Number of prompts, by kind.
        kept: Those with a reply of the wanted kind.
        left_out: Number of the others, by kind and reason.
    """

    asked: Mapping[str, int]
    kept: Chats
    left_out: Mapping[str, Mapping[str, int]]

    @property
    def mixed(self) -> list[Conversation]:
        """As many refusals as answers to look-alikes."""
        pairs = zip(*self.kept.values(), strict=False)
        return list(chain.from_iterable(pairs))

    def __str__(self) -> str:
        words = {"harmful": "harmful prompts, the base refused", "lookalikes": "harmless look-alikes, it answered"}
        clauses = []
        for kind, description in words.items():
            clause = f"of {self.asked[kind]:,} {description} {len(self.kept[kind]):,}"
            for reason, count in self.left_out[kind].items():
                clause += f", {count:,}: {reason}"
            clauses.append(clause)
        return "; ".join(clauses)


def make_prompts(recipe: Recipe, replies: Iterable[Row | Conversation], ask: Ask) -> Chats:
    """Put each prompt to each role, in the role's own prompt and language, in an order that the seed draws.

    Raises:
        SettingsError: For a file of prompts that is not there.
        DataError: For one that cannot be read.
        RecipeError: When there are no harmful prompts, or no look-alikes, in the language of a role.
    """
    file = recipe.data.safety_prompts
    prompts = list(read_prompts(str(file)) if file else list_training_prompts())
    voices: dict[Any, Row | Conversation] = {}
    for item in replies:
        if isinstance(item, Row):
            voices.setdefault((item.role, item.language), item)
        else:
            voices.setdefault(item.messages[0]["content"], item)
    chats = _start_lists(KINDS.values())
    for item in voices.values():
        for prompt in prompts:
            if prompt.language != item.language:
                continue
            if isinstance(item, Row):
                messages = tuple(ask(replace(item, question=prompt.text)))
            else:
                messages = ({"role": "user", "content": prompt.text},)
                if item.messages[0]["role"] == "system":
                    messages = (item.messages[0], *messages)
            kind = KINDS[prompt.harmful]
            row_id = f"safety/{kind}/{hash_json(messages)[:12]}"
            chats[kind].append(Conversation(row_id, messages, {}, role=item.role))
    missing = [kind for kind, of_kind in chats.items() if not of_kind]
    if missing:
        raise RecipeError(
            f"data.safety_prompts: {file or 'our prompts'} has no {' and no '.join(missing)} in the language of the "
            "roles; a mix needs harmful prompts and harmless look-alikes (columns prompt and harmful)"
        )
    seed = recipe.training.seed
    for of_kind in chats.values():
        of_kind.sort(key=lambda chat: hash_json([seed, chat.row_id]))
    return chats


def _start_lists(kinds: Iterable[str]) -> dict[str, list[Conversation]]:
    return {kind: [] for kind in kinds}


@dataclass(frozen=True)
class AnswerInRole(Step[Answers]):
    """Ask the base harmful prompts and look-alikes in roles, and keep what refuses the first and answers the second.

    Attributes:
        settings: The recipe's data section.
        prompts: The prompts, as `make_prompts` makes them.
        count: Replies of each kind to keep.
        seed: The seed that replies are sampled with.
    """

    settings: DataRecipe
    prompts: Chats
    count: int
    seed: int = 0
    kind: ClassVar[str] = "safety-mix"

    def plan(self, llm: LLM) -> Plan[Answers]:
        """Ask, and make up for prompts without a reply of the wanted kind by others."""
        sampling = Sampling(seed=self.seed)
        asked = dict.fromkeys(self.prompts, 0)
        kept = _start_lists(self.prompts)
        left_out: dict[str, Counter[str]] = {kind: Counter() for kind in self.prompts}
        for _ in range(_ROUNDS):
            batch: list[tuple[str, Conversation]] = []
            for kind, prompts in self.prompts.items():
                start, missing = asked[kind], self.count - len(kept[kind])
                more = prompts[start : start + missing]
                asked[kind] += len(more)
                batch += [(kind, chat) for chat in more]
            if not batch:
                break
            requests = []
            for _, chat in batch:
                messages = convert_turns(chat.messages)
                requests.append(Request(messages, sampling, tag=chat.row_id))
            outcomes = yield Round(requests, _accept, label="asking the base in its roles")
            for (kind, chat), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Answer):
                    kept[kind].append(replace(chat, replies={"completion": outcome.value}))
                else:
                    left_out[kind][outcome.reason] += 1
        return Answers(asked, kept, left_out)

    def records(self, result: Answers) -> Records:
        """Return the replies that are mixed in."""
        lines = [{"id": chat.row_id, "role": chat.role, **chat.to_row()} for chat in result.mixed]
        return {"replies.jsonl": lines}

    def summarize(self, result: Answers) -> dict[str, Any]:
        """Return the counts."""
        kept = {kind: len(chats) for kind, chats in result.kept.items()}
        return {"asked": result.asked, "kept": kept, "left_out": result.left_out, "mixed": len(result.mixed)}


def _accept(request: Request, reply: Reply) -> str:
    """Take a refusal of a harmful prompt, an answer to a harmless one, and neither from a machine."""
    text = accept_speech(request, reply)
    is_harmful = request.tag.startswith(f"safety/{KINDS[True]}/")
    if is_refusal(text) is not is_harmful:
        raise UnacceptableError("goes along" if is_harmful else "refuses")
    if "hides_ai" in find_breaches(text, detect_language(text)):
        raise UnacceptableError("says that it is an AI")
    return text


def plan_answers(recipe: Recipe, replies: Iterable[Row | Conversation], ask: Ask, count: int) -> AnswerInRole:
    """Plan what to ask so that the base's replies are the share of training that the recipe asks for.

    Args:
        recipe: The recipe.
        replies: The rows that are trained on.
        ask: The messages that ask a row's question of its role.
        count: Replies that are trained on without these.
    """
    share = recipe.data.mix.safety
    mixed = share / (1 - share) * count
    each = math.ceil(mixed / len(KINDS))
    prompts = make_prompts(recipe, replies, ask)
    return AnswerInRole(recipe.data, prompts, each, recipe.training.seed)


def answer_in_role(step: AnswerInRole, training: TrainingRecipe, base: Path, run: Path) -> Answers:
    """Have the base answer in the roles.

    Replies are journaled in the run's folder: a second call asks for nothing that was answered.

    Args:
        step: What to ask.
        training: Its ``on_cpu`` and ``half_precision``.
        base: Folder of the base.
        run: The run's folder.

    Raises:
        RecipeError: When the base refuses no harmful prompt, or every look-alike: there is nothing to keep.
    """
    device = "cpu" if training.on_cpu else "auto"
    dtype = "bfloat16" if training.half_precision else "auto"
    llm = LLM(
        backend="local",
        model=str(base),
        device=device,
        dtype=dtype,
        batch_size=_BATCH,
        max_attempts=_ATTEMPTS,
    )
    answers = run_step(step, llm, run / FOLDER)
    if not answers.result.mixed:
        raise RecipeError(
            f"data.mix.safety: there is nothing to keep, {answers.result}. Leave the key out, or tune a base that "
            "refuses what is harmful and answers what is not"
        )
    return answers.result
