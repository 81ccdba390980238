"""Processes on unlike cards agree on how a step goes through the model, and none waits for another that ran out."""

from pathlib import Path

import pytest

from ..forking import Forking
from .test_ddp import finished, ranks

pytestmark = pytest.mark.slow

# The second process runs out of memory for a pass of more than 60 tokens.
TRIAL = """
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from rolellm.training.examples import Example
from rolellm.training.fit import Fit, build_trainer, join_processes
from rolellm.training.passes import choose_plan
from rolellm.training.recipe import MethodRecipe, TrainingRecipe
from rolellm.training.schedule import schedule_replies

training = TrainingRecipe(use_cpu=True, threads=1, replies_per_step=16)
job = Fit(training=training, method=MethodRecipe(), folder=Path("run"), label="test")
rank = join_processes(training).process_index
examples = [Example(str(row), (5, 6, 7 + row), (9 + row,) * 10, 0, "role") for row in range(32)]

def run_out(layer, inputs):
    if rank and inputs[0].shape[1] > 60:
        raise torch.OutOfMemoryError("device out of memory")

model = AutoModelForCausalLM.from_pretrained(BASE)
model.model.layers[-1].register_forward_pre_hook(run_out)
schedule = schedule_replies(examples, training)
trainer = build_trainer(model, AutoTokenizer.from_pretrained(BASE), examples, schedule, job)
trainer.plan.replies_per_pass = trainer.plan.share
trainer.plan.may_checkpoint = False
choose_plan(trainer)
print(trainer.plan)
"""


def test_all_take_what_fits_the_smallest(warm: Forking, base: Path, tmp_path: Path) -> None:
    code = f"BASE = {str(base)!r}\n{TRIAL}"
    processes = [warm.start([], tmp_path, code=code, env=rank) for rank in ranks()]
    # Each has half of the step, eight replies of eleven tokens that are its own.
    assert finished(processes) == "4 replies a pass, 2 passes a step\n" * 2
