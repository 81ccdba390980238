"""The plan of a run: every reply once an epoch, whole steps, no pack over its budget, equal shares, the same again."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.rocit.packing.examples import Example, Examples
from rolellm.rocit.packing.plan import Plan, plan
from rolellm.rocit.packing.tree import pack
from rolellm.rocit.recipe import TrainingRecipe

from .trees import example_lists, role_rows

MANY = Examples.of(role_rows(8, 10, 5))
LAYOUTS = pytest.mark.parametrize("packed", [True, False], ids=["trees", "rows"])

recipes = st.builds(
    TrainingRecipe,
    per_device_train_batch_size=st.integers(1, 4),
    gradient_accumulation_steps=st.integers(1, 3),
    shared_prefix=st.booleans(),
    group_by_length=st.booleans(),
    # The longest of the random examples has 10 tokens, and a recipe's budget takes the longest.
    pack_tokens=st.integers(10, 40),
    roles_per_step=st.integers(1, 5),
    num_train_epochs=st.sampled_from([1.0, 2.0, 2.5]),
    seed=st.integers(0, 5),
)
settled = settings(deadline=None)


def recipe(**changes: Any) -> TrainingRecipe:
    return TrainingRecipe(
        **(
            {
                "num_train_epochs": 1.0,
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
                "pack_tokens": 100,
            }
            | changes
        )
    )


def steps_of(made: Plan) -> list[list[list[list[int]]]]:
    """Places of examples, as [step][pass][process][reply]."""
    numbers = np.arange(len(made)).reshape(made.steps, made.passes, made.processes).tolist()
    return [[[made[number].tolist() for number in ranks] for ranks in passes] for passes in numbers]


def replies_of(step: list[list[list[int]]]) -> list[int]:
    return [place for ranks in step for chosen in ranks for place in chosen]


@settled
@given(made=example_lists(), training=recipes, processes=st.integers(1, 4))
def test_every_example_comes_once_an_epoch_in_steps_of_the_recipe_s_size(
    made: list[Example], training: TrainingRecipe, processes: int
) -> None:
    settled_plan = plan(Examples.of(made), training, processes)
    size = training.per_device_train_batch_size * training.gradient_accumulation_steps * processes
    per_epoch = math.ceil(len(made) / size)
    assert settled_plan.steps_per_epoch == per_epoch
    assert settled_plan.steps == math.ceil(per_epoch * training.num_train_epochs)
    steps = [replies_of(step) for step in steps_of(settled_plan)]
    assert len(steps) == settled_plan.steps
    for number, replies in enumerate(steps):
        left = len(made) - size * (number % per_epoch)
        assert len(replies) == min(size, left)
    for start in range(0, len(steps), per_epoch):
        epoch = sorted(place for replies in steps[start : start + per_epoch] for place in replies)
        if len(steps) - start >= per_epoch:
            assert epoch == list(range(len(made)))
        else:
            assert len(set(epoch)) == len(epoch)


@settled
@given(made=example_lists(), training=recipes, processes=st.integers(1, 4))
def test_no_pack_is_over_budget_and_no_batch_over_its_size(
    made: list[Example], training: TrainingRecipe, processes: int
) -> None:
    held = Examples.of(made)
    settled_plan = plan(held, training, processes)
    for number in range(len(settled_plan)):
        if training.shared_prefix:
            assert len(pack(held, settled_plan[number].tolist()).ids) <= training.pack_tokens
        else:
            assert len(settled_plan[number]) <= training.per_device_train_batch_size


@settled
@given(made=example_lists(), training=recipes, processes=st.integers(1, 4))
def test_forward_passes_are_no_more_than_needed_and_the_last_have_them(
    made: list[Example], training: TrainingRecipe, processes: int
) -> None:
    settled_plan = plan(Examples.of(made), training, processes)
    used = [[bool(chosen) for ranks in step for chosen in ranks] for step in steps_of(settled_plan)]
    for step in used:
        assert step == sorted(step)
    for number in range(len(settled_plan)):
        first = number - number % processes
        together = [settled_plan[other] for other in range(first, first + processes)]
        assert settled_plan.idle(number) == (not any(map(len, together)))
    assert max(math.ceil(sum(step) / processes) for step in used) == settled_plan.passes


@LAYOUTS
def test_the_same_recipe_makes_the_same_plan_and_another_seed_or_epoch_another(packed: bool) -> None:
    first = plan(MANY, recipe(shared_prefix=packed, num_train_epochs=2.0, seed=1))
    again = plan(MANY, recipe(shared_prefix=packed, num_train_epochs=2.0, seed=1))
    other = plan(MANY, recipe(shared_prefix=packed, num_train_epochs=2.0, seed=2))
    assert first.hash == again.hash
    assert (first.order.tolist(), first.bounds.tolist()) == (again.order.tolist(), again.bounds.tolist())
    assert first.hash != other.hash
    assert first.order.tolist() != other.order.tolist()
    epochs = first.order.reshape(2, len(MANY)).tolist()
    assert epochs[0] != epochs[1]
    # As many again, and in no order of theirs: neither the rows' own nor one role after the other.
    assert epochs[0] != sorted(epochs[0])


@LAYOUTS
def test_a_shorter_run_is_the_beginning_of_a_longer_one(packed: bool) -> None:
    whole = plan(MANY, recipe(shared_prefix=packed, num_train_epochs=3.0))
    for steps in (1, 7, whole.steps_per_epoch, whole.steps_per_epoch + 1):
        part = plan(MANY, recipe(shared_prefix=packed, num_train_epochs=3.0, max_steps=steps))
        assert part.steps == steps
        assert [replies_of(step) for step in steps_of(part)] == [replies_of(step) for step in steps_of(whole)[:steps]]


@pytest.mark.parametrize(
    ("choice", "steps"),
    [
        pytest.param({"num_train_epochs": 0.1}, 5, id="tenth-of-50-steps"),
        pytest.param({"num_train_epochs": 0.7}, 35, id="seven-tenths-is-not-36-by-rounding"),
        pytest.param({"num_train_epochs": 1.01}, 51, id="a-begun-step-is-made"),
        pytest.param({"num_train_epochs": 1e-9}, 1, id="next-to-nothing"),
        pytest.param({"num_train_epochs": 1e-9, "max_steps": 3}, 3, id="max-steps-over-epochs"),
        pytest.param({"max_steps": 120}, 120, id="max-steps-beyond-the-epochs"),
    ],
)
@LAYOUTS
def test_how_many_steps(choice: dict[str, Any], steps: int, packed: bool) -> None:
    made = plan(MANY, recipe(shared_prefix=packed, **choice))
    assert (made.steps_per_epoch, made.steps, len(made)) == (50, steps, steps * made.passes)


@LAYOUTS
def test_fewer_replies_than_processes_leave_some_with_nothing(packed: bool) -> None:
    made = Examples.of(role_rows(1, 1, 3))
    (step,) = steps_of(
        plan(
            made,
            recipe(shared_prefix=packed, per_device_train_batch_size=1, gradient_accumulation_steps=1),
            processes=8,
        )
    )
    assert len(step) == 1
    assert sorted(len(chosen) for chosen in step[0]) == [0, 0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("budget", [60, 100, 300])
def test_the_passes_of_a_step_are_about_equal_in_tokens(processes: int, budget: int) -> None:
    """None is longer than the mean of the step's share of passes and two examples: cuts are greedy at a common limit.

    One role, so that what a pack is counted as is what it has.
    """
    chance = np.random.default_rng(0)
    made = [
        Example(item.row_id, item.prompt_ids, item.reply_ids * int(chance.integers(1, 5)), item.reference)
        for item in role_rows(1, 40, 5, lengths=(20, 2, 2))
    ]
    held = Examples.of(made)
    longest = int(held.lengths.max())
    settled_plan = plan(held, recipe(pack_tokens=budget, per_device_train_batch_size=16, roles_per_step=1), processes)
    for step in steps_of(settled_plan):
        tokens = [len(pack(held, chosen).ids) for ranks in step for chosen in ranks if chosen]
        share = math.ceil(len(tokens) / processes) * processes
        assert max(tokens) <= sum(tokens) / share + 2 * longest


def test_processes_have_equal_shares_of_rows_of_natural_sizes() -> None:
    chance = np.random.default_rng(0)
    made = [
        Example(item.row_id, item.prompt_ids, item.reply_ids * int(chance.integers(1, 20)), item.reference, item.family)
        for item in role_rows(20, 40, 5, lengths=(225, 40, 4))
    ]
    held = Examples.of(made)
    settled_plan = plan(
        held, recipe(pack_tokens=2048, per_device_train_batch_size=64, gradient_accumulation_steps=1), processes=4
    )
    shares = np.asarray(
        [
            [sum(len(pack(held, ranks[process]).ids) for ranks in step) for process in range(4)]
            for step in steps_of(settled_plan)[:-1]
        ]
    )
    assert (shares.max(axis=1) / shares.mean(axis=1)).mean() < 1.1


@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 5, 7, 16, 100])
def test_a_step_mixes_as_many_roles_as_it_is_told_to(wanted: int) -> None:
    # So many roles that two groups of one role seldom meet in a step; 16 replies, which 3, 5 and 7 do not divide.
    held = Examples.of(role_rows(400, 5, 4))
    training = recipe(
        per_device_train_batch_size=16, gradient_accumulation_steps=1, roles_per_step=wanted, pack_tokens=4096
    )
    steps = [replies_of(step) for step in steps_of(plan(held, training))]
    roles = np.mean([len(set(held.families[held.prompt_of[replies]].tolist())) for replies in steps])
    least = min(wanted, 16)
    # A step begins and ends within a group, and the last group of a role is a short one.
    assert 0.95 * least <= roles <= 16 / (16 // least) + 2


def test_replies_of_one_prompt_and_prompts_of_one_role_stay_together() -> None:
    training = recipe(per_device_train_batch_size=40, gradient_accumulation_steps=1, roles_per_step=2, pack_tokens=4096)
    settled_plan = plan(MANY, training)
    packed = sum(len(pack(MANY, settled_plan[number].tolist()).ids) for number in range(len(settled_plan)))
    # Groups of 20 replies to 4 questions of one role: 20 + 4 x 4 + 20 x 4 tokens.
    assert packed / len(MANY) == pytest.approx(116 / 20, rel=0.1)
    assert int(MANY.lengths.sum()) / len(MANY) == 28


@pytest.mark.parametrize("processes", [1, 2, 3])
@LAYOUTS
def test_each_process_gets_its_own_passes_from_accelerate(packed: bool, processes: int) -> None:
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    made = plan(MANY, recipe(shared_prefix=packed, num_train_epochs=1.5), processes)
    stream = BatchSampler(SequentialSampler(range(len(made))), batch_size=1, drop_last=False)
    shards = [[number for (number,) in BatchSamplerShard(stream, processes, rank)] for rank in range(processes)]
    assert all(len(shard) == made.steps * made.passes for shard in shards)
    for place, step in enumerate(steps_of(made)):
        for rank, shard in enumerate(shards):
            own = shard[place * made.passes : (place + 1) * made.passes]
            assert [made[number].tolist() for number in own] == [ranks[rank] for ranks in step]


def test_rows_of_like_length_are_batched_together_where_the_recipe_says_so() -> None:
    chance = np.random.default_rng(0)
    made = Examples.of(
        [Example(str(number), (1,) * int(chance.integers(1, 200)), (2,), 0, "") for number in range(400)]
    )

    def padding(grouped: bool) -> float:
        settled_plan = plan(made, recipe(shared_prefix=False, group_by_length=grouped, per_device_train_batch_size=8))
        batches = [made.lengths[settled_plan[number]] for number in range(len(settled_plan))]
        return sum(len(batch) * batch.max() for batch in batches) / int(made.lengths.sum())

    assert padding(True) < 1.1 < 1.5 < padding(False)
