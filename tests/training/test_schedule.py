"""The order of a run: every reply once an epoch, whole steps, replies that begin alike together, the same again."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.training.examples import Example
from rolellm.training.recipe import TrainingRecipe
from rolellm.training.schedule import EMPTY, Schedule, schedule_replies

from .examples import example_lists, role_rows

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
