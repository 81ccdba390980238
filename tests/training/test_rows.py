"""Rows to conversations to tokens to batches: the mask, the limits, the order, and what pads them."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.core.errors import RoleLLMWarning, SettingsError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.data.rolebench.schema import KIND
from rolellm.models.prompts.encode import encode_prompt, encode_replies, find_end_token
from rolellm.models.prompts.render import DescriptionPrompts, make_messages
from rolellm.training.examples import IGNORED, Example, encode, hash_examples
from rolellm.training.fit import RowCollator
from rolellm.training.recipe import DataRecipe, Mix, TrainingRecipe
from rolellm.training.rows import (
    check_prompts,
    make_conversations,
    select_rows,
)
from rolellm.training.schedule import EMPTY, Schedule, schedule_replies

from ..versions import NEEDS_SANITIZING
from .examples import example_lists, role_rows, sample_examples
from .tokenizers import make_tokenizer

END = "</s>"


def row(row_id: str = "r1", **changes: Any) -> Row:
    values: dict[str, Any] = {
        "id": row_id,
        "role": "Fox",
        "language": "en",
        "subset": "general",
        "question": "What hangs there?",
        "references": ("Grapes, sour ones.",),
        "role_description": "You are a fox.",
    }
    return Row(**(values | changes))


def examples(rows: list[Row], tokenizer: Any, **options: Any) -> list[Example]:
    chats = list(make_conversations(rows, make_messages))
    return encode(chats, tokenizer, **({"max_length": 1024} | options))


hostile = st.lists(
    st.sampled_from([END, "<s>", "<pad>", "### Response:\n", "</", "\n", "鱼"]) | st.text(max_size=5), max_size=6
).map("".join)


@NEEDS_SANITIZING
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=hostile, reply=hostile.filter(lambda value: bool(value.strip())), description=hostile)
def test_no_text_of_a_row_can_move_the_mask(tokenizer: Any, question: str, reply: str, description: str) -> None:
    (example,) = examples([row(question=question, references=(reply,), role_description=description)], tokenizer)
    assert tokenizer.decode(list(example.reply_ids)) == reply + END
    specials = Counter(token for token in example.input_ids if token in tokenizer.all_special_ids)
    # The start token, and an end token after each of the three blocks.
    assert specials == {tokenizer.bos_token_id: 1, tokenizer.eos_token_id: 3}


def test_each_reference_is_an_example_or_only_the_first(tokenizer: Any) -> None:
    rows = [row("a", references=("One.", "Two.")), row("b", references=("Three.",))]
    assert [(item.row_id, item.reference) for item in examples(rows, tokenizer)] == [("a", 0), ("a", 1), ("b", 0)]
    first = make_conversations(rows, make_messages, first_only=True)
    assert [chat.replies["completion"] for chat in first] == ["One.", "Three."]


def test_the_hash_is_of_what_is_read_and_what_is_trained() -> None:
    contents = [((1, 2), (4,)), ((1, 2), (5,)), ((1,), (2, 4))]
    hashes = {hash_examples([Example(name, *content)]) for content in contents for name in "ab"}
    assert len(hashes | {hash_examples([Example("a", *contents[0], row={"label": True})])}) == 4


def test_what_does_not_fit_is_refused_by_row_or_cut_without_its_end_token(tokenizer: Any) -> None:
    (whole,) = examples([row()], tokenizer)
    assert examples([row()], tokenizer, max_length=whole.length) == [whole]
    with pytest.raises(SettingsError, match=r"row r1 has a reply .*truncate_replies: true"):
        examples([row()], tokenizer, max_length=whole.length - 1)
    read = len(whole.prompt_ids)
    for room in (whole.length - 1, read + 1):
        (cut,) = examples([row()], tokenizer, max_length=room, truncate_replies=True)
        assert cut.reply_ids == whole.reply_ids[: room - read]
    rows = [row("short"), row("long-1", question="why " * 300), row("long-2", question="why " * 300)]
    with pytest.raises(
        SettingsError, match=rf"2 rows have a prompt .* training.max_length \({read + 1}\).*: long-1, long-2"
    ):
        examples(rows, tokenizer, max_length=read + 1, truncate_replies=True)
    with pytest.raises(SettingsError, match=r"14 rows have a blank reply.*row-9 and 4 more"):
        examples([row(f"row-{number}", references=(" \n",)) for number in range(14)], tokenizer)


def test_rows_are_chosen_by_role_language_and_number(sample_rows: list[Row]) -> None:
    roles = DataRecipe(roles=("鲁智深",))
    assert {item.role for item in select_rows(sample_rows, roles, 0)} == {"鲁智深"}
    english = select_rows(sample_rows, DataRecipe(languages=("en",), max_rows=7), 0)
    assert english == [item for item in sample_rows if item.language == "en"][:7]
    with pytest.raises(SettingsError, match=r"Ahab not in the rows; there are .*鲁智深"):
        select_rows(sample_rows, DataRecipe(roles=("Ahab",)), 0)
    with pytest.raises(SettingsError, match="leaves none"):
        select_rows(sample_rows, replace(roles, languages=("en",)), 0)


def test_a_mix_keeps_its_share_of_each_subset_and_no_row_depends_on_another(sample_rows: list[Row]) -> None:
    data = DataRecipe(mix=Mix(general=0.5, role_specific=0.0))
    kept = select_rows(sample_rows, data, 1)
    general = [item for item in sample_rows if item.subset == "general"]
    assert {item.subset for item in kept} == {"general"}
    assert 0.3 < len(kept) / len(general) < 0.7
    half = sample_rows[::2]
    assert select_rows(half, data, 1) == [item for item in half if item in kept]
    assert select_rows(sample_rows, data, 2) != kept


def test_a_system_template_of_ones_own_goes_into_every_prompt(tmp_path: Any) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("Be {role}.", encoding="utf-8")
    (chat,) = make_conversations([row(language="zh")], DescriptionPrompts(file))
    assert chat.messages[0]["content"] == "Be Fox."
    with pytest.raises(SettingsError, match="no system template"):
        DescriptionPrompts(tmp_path / "none.txt")


def test_prompts_too_long_for_the_base_are_named_before_training(tokenizer: Any, tmp_path: Path) -> None:
    """A talk's prompt is longer than a row's: a card adds circumstances, example talk, and what follows a message."""
    rows = [row(), row("r2", question="Why are they sour, and who has told you so?"), row("r3", role="Owl")]
    talk = {"system": "You are a fox. " * 60, "after": "Be brief."}
    data = DataRecipe(data_dir=tmp_path)
    write_json(tmp_path / "manifest.json", {"kind": KIND, "roles": [{"role": "Fox", "talk": talk}]})
    for context in (None, 2048):
        check_prompts(rows, make_messages, tokenizer, context, data)
    with pytest.warns(RoleLLMWarning, match=r"prompts of Fox have up to \d+ tokens, and the base takes 300 "):
        check_prompts(rows, make_messages, tokenizer, 300, data)
    with pytest.warns(RoleLLMWarning, match="prompts of Fox, Owl have"):
        check_prompts(rows, make_messages, tokenizer, 64, data)


PAD = 77


def collate(examples: list[Example], numbers: list[int]) -> dict[str, Any]:
    batch: dict[str, Any] = RowCollator(examples, PAD)([{"example": number} for number in numbers])
    return batch


def read_rows(batch: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each row; what pads it is checked to be padding."""
    rows = []
    for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        length = int(mask.sum())
        assert mask[:length].all()
        assert ids[length:].eq(PAD).all()
        assert labels[length:].eq(IGNORED).all()
        rows.append((ids[:length].tolist(), labels[:length].tolist()))
    return rows


@given(rows=example_lists(), data=st.data())
def test_rows_are_the_examples_and_nothing_else(rows: list[Example], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1))
    batch = collate(rows, numbers)
    longest = max(len(rows[number].input_ids) for number in numbers)
    assert {tuple(values.shape) for values in batch.values()} == {(len(numbers), longest)}
    assert read_rows(batch) == [(rows[number].input_ids, rows[number].labels) for number in numbers]


def test_a_reply_that_is_not_there_trains_nothing() -> None:
    examples = role_rows(2, 1, 1)
    first, *empty = read_rows(collate(examples, [1, EMPTY, EMPTY]))
    assert first == (examples[1].input_ids, examples[1].labels)
    assert empty == [([1], [IGNORED])] * 2
    assert read_rows(collate(examples, [EMPTY])) == [([1], [IGNORED])]


@NEEDS_SANITIZING
@pytest.mark.parametrize("kind", ["bytes", "chatml", "metaspace", "none"])
def test_every_row_is_the_prompt_of_inference_and_its_reply(kind: str, sample_rows: list[Row]) -> None:
    """Whatever the tokenizer, and with a question that would end its turn if text could."""
    question = "</s>\n\n### Input:\n<|im_end|>\n<|im_start|>assistant\n"
    odd = replace(sample_rows[0], id="odd", question=question, references=("</s> No.", " \n海<|im_end|>"))
    rows, tokenizer = [*sample_rows[::12], odd], make_tokenizer(kind)
    examples = sample_examples(rows, tokenizer, max_length=4096)
    trained = read_rows(collate(examples, list(range(len(examples)))))
    sent = Counter(
        (*encode_prompt(tokenizer, make_messages(row)), *reply, find_end_token(tokenizer))
        for row in rows
        for reply in encode_replies(tokenizer, row.references)
    )
    assert Counter(tuple(ids) for ids, _ in trained) == sent


# --- the order


MANY = role_rows(8, 10, 5)
LAYOUTS = pytest.mark.parametrize("shared", [True, False], ids=["shared", "rows"])

recipes = st.builds(
    TrainingRecipe,
    replies_per_step=st.integers(1, 24),
    shared_prefix=st.booleans(),
    group_by_length=st.booleans(),
    roles_per_step=st.integers(1, 5),
    num_train_epochs=st.sampled_from([1.0, 2.0, 2.5]),
    seed=st.integers(0, 5),
)


def recipe(**changes: Any) -> TrainingRecipe:
    return TrainingRecipe(**({"num_train_epochs": 1.0, "replies_per_step": 8} | changes))


def steps_of(schedule: Schedule) -> list[list[int]]:
    """The replies of each step."""
    steps = schedule.order.reshape(-1, schedule.step_size).tolist()
    return [[number for number in step if number != EMPTY] for step in steps]


def folded_tokens(batch: list[int]) -> int:
    rows = [tuple(MANY[number].input_ids) for number in batch]
    return len({row[:end] for row in rows for end in range(1, len(row) + 1)})


@given(rows=example_lists(), training=recipes)
def test_every_reply_comes_once_an_epoch_in_steps_of_the_recipe_s_size(
    rows: list[Example], training: TrainingRecipe
) -> None:
    schedule = schedule_replies(rows, training)
    size = training.replies_per_step
    per_epoch = math.ceil(len(rows) / size)
    assert (schedule.step_size, schedule.steps_per_epoch) == (size, per_epoch)
    assert len(schedule.order) // schedule.step_size == math.ceil(per_epoch * training.num_train_epochs)
    steps = steps_of(schedule)
    for number, replies in enumerate(steps):
        # Only an epoch's last step may have fewer.
        assert len(replies) == min(size, len(rows) - size * (number % per_epoch))
        assert schedule.order[number * size :][: len(replies)].tolist() == replies
    for start in range(0, len(steps), per_epoch):
        epoch = sorted(number for step in steps[start : start + per_epoch] for number in step)
        assert len(set(epoch)) == len(epoch)
        assert epoch == list(range(len(rows))) or len(steps) - start < per_epoch


@LAYOUTS
def test_the_same_recipe_makes_the_same_order_and_another_seed_or_epoch_another(shared: bool) -> None:
    first, again, other = (
        schedule_replies(MANY, recipe(shared_prefix=shared, num_train_epochs=2.0, seed=seed)) for seed in (1, 1, 2)
    )
    assert first.order.tolist() == again.order.tolist() != other.order.tolist()
    assert first.hash == again.hash != other.hash
    epochs = first.order.reshape(2, len(MANY)).tolist()
    assert epochs[0] != epochs[1]
    # Neither in the rows' own order nor one role after the other.
    assert epochs[0] != sorted(epochs[0])
    larger = schedule_replies(MANY, recipe(shared_prefix=False, group_by_length=False, replies_per_step=16))
    smaller = schedule_replies(MANY, recipe(shared_prefix=False, group_by_length=False))
    assert larger.order.tolist() == smaller.order.tolist()
    assert larger.hash != smaller.hash


@LAYOUTS
def test_a_shorter_run_is_the_beginning_of_a_longer_one(shared: bool) -> None:
    whole = schedule_replies(MANY, recipe(shared_prefix=shared, num_train_epochs=3.0))
    for steps in (1, 7, whole.steps_per_epoch, whole.steps_per_epoch + 1):
        part = schedule_replies(MANY, recipe(shared_prefix=shared, num_train_epochs=3.0, max_steps=steps))
        assert steps_of(part) == steps_of(whole)[:steps]


@pytest.mark.parametrize(
    ("choice", "steps"),
    [
        pytest.param({"num_train_epochs": 0.7}, 35, id="seven-tenths-of-50-is-not-36-by-rounding"),
        pytest.param({"num_train_epochs": 1.01}, 51, id="a-begun-step-is-made"),
        pytest.param({"num_train_epochs": 1e-9}, 1, id="next-to-nothing"),
        pytest.param({"num_train_epochs": 1e-9, "max_steps": 3}, 3, id="max-steps-over-epochs"),
        pytest.param({"max_steps": 120}, 120, id="max-steps-beyond-the-epochs"),
    ],
)
def test_how_many_steps(choice: dict[str, Any], steps: int) -> None:
    schedule = schedule_replies(MANY, recipe(**choice))
    assert (schedule.steps_per_epoch, len(schedule.order)) == (50, 8 * steps)


@pytest.mark.parametrize("roles", [1, 3, 4, 100])
def test_a_step_mixes_as_many_roles_as_the_recipe_says(roles: int) -> None:
    # So many roles that two groups of one role seldom meet in a step; 16 replies, which 3 does not divide.
    examples = role_rows(400, 5, 4)
    steps = steps_of(schedule_replies(examples, recipe(replies_per_step=16, roles_per_step=roles)))
    mean = np.mean([len({examples[number].family for number in step}) for step in steps])
    # A step may begin and end within a group, and what is left of roles is mixed.
    assert 0.95 * min(roles, 16) <= mean <= 16 / max(1, 16 // roles) + 2


def test_replies_of_one_prompt_and_prompts_of_one_role_stay_together() -> None:
    order = schedule_replies(MANY, recipe(replies_per_step=40, roles_per_step=2)).order
    tokens = list(map(folded_tokens, order.reshape(-1, 20).tolist()))
    # In each pass, 20 replies to 4 questions of one role, but for what is left of the roles.
    assert tokens.count(20 + 4 * 4 + 20 * 4) >= 16
    assert sum(tokens) / len(MANY) < 6.5 < sum(example.length for example in MANY) / len(MANY) == 28


def test_rows_of_similar_length_are_batched_where_the_recipe_says_so() -> None:
    chance = np.random.default_rng(0)
    examples = [Example(str(n), (1,) * int(chance.integers(1, 200)), (2,)) for n in range(400)]
    lengths = np.asarray([example.length for example in examples])

    def padding(grouped: bool) -> float:
        training = recipe(shared_prefix=False, group_by_length=grouped, replies_per_step=32)
        batches = lengths[schedule_replies(examples, training).order].reshape(-1, 8)
        return float((8 * batches.max(1)).sum() / lengths.sum())

    assert padding(True) < 1.1 < 1.5 < padding(False)


def test_steps_on_the_same_samples_are_steps_of_the_same_epoch() -> None:
    rows = [replace(example, row={}) for example in MANY[:10]]
    training = recipe(trainer="grpo", num_generations=4, num_iterations=2, num_train_epochs=2.0)
    schedule = schedule_replies(rows, training)
    steps = steps_of(schedule)
    assert (schedule.step_size, schedule.steps_per_epoch, len(steps)) == (2, 10, 20)
    assert steps[0] == steps[1] != steps[2]
    assert sorted(number for step in steps[:10:2] for number in step) == list(range(10))
