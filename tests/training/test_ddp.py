"""Two processes on a CPU over gloo train as one does: the same steps, the same losses, and one run folder."""

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolellm.core.errors import SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.training.recipe import Recipe
from rolellm.training.schedule import EMPTY, schedule_replies
from rolellm.training.train import prepare, train

from ..forking import Forked, Forking, script
from .runs import make_recipe, read_lines, read_object

Started = list[Forked]
Launch = Callable[..., Started]

pytestmark = pytest.mark.slow

STEPS = 8
# Without dropout, whose draws are each process's own; in the order of the epoch, which does not know of processes.
TRAINING = {
    "max_steps": STEPS,
    "learning_rate": 1e-2,
    "replies_per_step": 8,
    "max_length": 512,
    "use_cpu": True,
    "threads": 1,
    "group_by_length": False,
}
LORA = {"name": "lora", "lora": {"r": 4, "lora_dropout": 0.0}}


@pytest.fixture
def recipe_of(base: Path, tmp_path: Path) -> Callable[..., Recipe]:
    """A recipe that is in a file, too."""

    def make(method: Any = LORA, base: Path = base, training: Any = None, **sections: Any) -> Recipe:
        options = TRAINING | (training or {})
        recipe = make_recipe(tmp_path, base={"path": str(base)}, method=method, training=options, **sections)
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.to_dict()), encoding="utf-8")
        return recipe

    return make


@pytest.fixture
def launch(root: Path, tmp_path: Path, warm: Forking) -> Iterator[Launch]:
    """Starts the script in two processes, by accelerate's launcher or without; what it leaves running is ended."""
    started: Started = []

    def start(*words: str, launcher: bool = False, patch: str = "", **env: str) -> Started:
        given: list[Any] = ["--config", "recipe.yaml", *words]
        if launcher:
            config = root / "recipes" / "accelerate" / "cpu-ddp.yaml"
            given = ["--config_file", config, root / "recipes" / "rocit.py", *given]
            processes = [warm.start(given, tmp_path, code="from accelerate.commands.launch import main; main()")]
        else:
            code = patch + script(root / "recipes" / "rocit.py")
            processes = [warm.start(given, tmp_path, code=code, env=rank | env) for rank in ranks()]
        started.extend(processes)
        return processes

    yield start
    kill_all(started)


def ranks() -> list[dict[str, str]]:
    """What a launcher tells each of two processes, as far as torch and accelerate ask."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]


# Accelerate shards on GPUs only, and on a CPU falls back to DDP without a word.
SHARD_ON_CPU = """
from accelerate import PartialState, accelerator
from torch.distributed.tensor import DTensor

start, shard = PartialState.__init__, accelerator.fsdp2_prepare_model

def start_as_on_gpus(self, *args, **kwargs):
    start(self, *args, **kwargs)
    if self.distributed_type == "MULTI_CPU":
        self.distributed_type = accelerator.DistributedType.MULTI_GPU

def shard_and_tell(self, model):
    parts = [weight for weight in shard(self, model).parameters() if isinstance(weight, DTensor)]
    whole = sum(weight.numel() for weight in parts)
    own = sum(weight.to_local().numel() for weight in parts)
    print(f"holds {own / whole:.2f} of {len(parts)} weights as one of {self.num_processes}")
    return model

PartialState.__init__, accelerator.fsdp2_prepare_model = start_as_on_gpus, shard_and_tell
"""


@pytest.mark.parametrize(
    ("method", "file"), [({"name": "full"}, "model.safetensors"), (LORA, "adapter_model.safetensors")]
)
def test_two_processes_that_share_the_weights_take_the_steps_of_one(
    method: Any, file: str, recipe_of: Callable[..., Recipe], launch: Launch, root: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(method)
    config = yaml.safe_load((root / "recipes" / "accelerate" / "fsdp2.yaml").read_text(encoding="utf-8"))
    sharding = {key.upper(): str(value) for key, value in config["fsdp_config"].items()}
    printed = finished(launch(patch=SHARD_ON_CPU, ACCELERATE_USE_FSDP="true", **sharding))
    assert printed.count("holds 0.50 of ") == printed.count("as one of 2") == 2
    alone = train(recipe, out=tmp_path / "alone")
    check_equal(recipe.output.dir / file, alone.out / file)


# DeepSpeed would compile an operation for processes that share memory, for minutes.
ZERO_ON_CPU = """
import sys
import deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
"""


def test_two_processes_under_zero_3_take_the_steps_of_one(
    recipe_of: Callable[..., Recipe], launch: Launch, root: Path, tmp_path: Path
) -> None:
    pytest.importorskip("deepspeed")
    recipe = recipe_of({"name": "full"})
    path = root / "recipes" / "accelerate" / "deepspeed-zero3.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))["deepspeed_config"]
    names = {name: f"ACCELERATE_DEEPSPEED_{name.upper()}" for name in settings}
    names |= {name: f"ACCELERATE_{name.upper()}" for name in settings if name.startswith("gradient_")}
    env = {names[name]: str(value).lower() for name, value in settings.items()}
    finished(launch(patch=ZERO_ON_CPU, ACCELERATE_USE_DEEPSPEED="true", **env))
    alone = train(recipe, out=tmp_path / "alone")
    check_equal(recipe.output.dir / "model.safetensors", alone.out / "model.safetensors")


def check_equal(file: Path, expected_file: Path) -> None:
    """Check that weights are those of another file up to rounding, each of them there once."""
    expected, weights = load_file(expected_file), load_file(file)
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        difference = torch.linalg.norm(weights[name] - weight)
        assert difference <= 1e-6 * torch.linalg.norm(weight), name


def running(processes: Started) -> bool:
    return all(process.poll() is None for process in processes)


def kill_all(processes: Started) -> None:
    """Kill them and what a launcher started; that would live on by itself."""
    left = [process for process in processes if process.poll() is None]
    for process in left:
        for one in psutil.Process(process.pid).children(recursive=True):
            one.kill()
        process.send_signal(signal.SIGKILL)
    for process in left:
        process.wait()


def ended(processes: Started) -> tuple[set[int], str, str]:
    """Exit codes, and what they printed."""
    done = [process.wait() for process in processes]
    return {one.returncode for one in done}, "".join(one.stdout for one in done), "".join(one.stderr for one in done)


def finished(processes: Started) -> str:
    """What they printed; they have to end well."""
    codes, out, err = ended(processes)
    assert codes == {0}, err
    return out


@pytest.mark.parametrize(
    ("shared_prefix", "method"),
    [pytest.param(True, LORA, id="lora-shared"), pytest.param(False, {"name": "full"}, id="full-rows")],
)
def test_two_processes_take_the_steps_of_one(
    shared_prefix: bool, method: dict[str, Any], recipe_of: Callable[..., Recipe], launch: Launch, tmp_path: Path
) -> None:
    recipe = recipe_of(method, training={"shared_prefix": shared_prefix})
    processes = launch()
    alone = train(recipe, out=tmp_path / "alone")

    run = recipe.output.dir
    assert json.loads(finished(processes))["steps"] == STEPS, "one process prints, one object"
    assert read_object(run)["processes"] == 2
    assert read_object(alone.out)["processes"] == 1
    examples = prepare(recipe, run).examples
    # Of the short last step one process has nothing, and does not keep the other waiting.
    assert EMPTY in schedule_replies(examples, recipe.training).order
    assert [line["step"] for line in read_lines(run)] == list(range(1, STEPS + 1))
    for key in ("loss", "grad_norm", "learning_rate"):
        expected = [line[key] for line in read_lines(alone.out)]
        assert [line[key] for line in read_lines(run)] == pytest.approx(expected, rel=1e-5)


def test_two_processes_prefer_as_one_does(recipe_of: Callable[..., Recipe], launch: Launch, tmp_path: Path) -> None:
    """The loss of ``sft`` is a mean over the tokens of both; the short last step is made even by repeated pairs."""
    losses = {"trainer": "dpo", "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}
    recipe = recipe_of(training={**losses, "max_steps": 3, "warmup_steps": 0})
    finished(launch())
    alone = train(recipe, out=tmp_path / "alone")
    for key in ("loss", "grad_norm"):
        expected, actual = ([line[key] for line in read_lines(run)] for run in (alone.out, recipe.output.dir))
        assert actual[:2] == pytest.approx(expected[:2], rel=1e-5)


def test_two_processes_that_were_killed_go_on_as_two_and_not_as_one(
    recipe_of: Callable[..., Recipe], launch: Launch, tmp_path: Path
) -> None:
    recipe = recipe_of(training={"max_steps": 60, "save_steps": 4})
    run = recipe.output.dir
    processes = launch()
    until = time.monotonic() + 200
    while not (run / "metrics.jsonl").is_file() or len(lines := read_lines(run)) < 11:
        assert running(processes) and time.monotonic() < until
        time.sleep(0.002)
    kill_all(processes)
    with pytest.raises(SettingsError, match=r"differs in processes \(2, now 1\), so going on"):
        train(recipe, resume=True)
    finished(launch("--resume"))
    assert read_object(run)["processes"] == 2
    assert [line["step"] for line in read_lines(run)] == list(range(1, 61))
    # The steps between the checkpoint and the kill were taken twice, with the same outcome to the last bit.
    numbers = [(line["loss"], line["grad_norm"]) for line in read_lines(run)]
    assert numbers[: len(lines)] == [(line["loss"], line["grad_norm"]) for line in lines]
    for folder in run.glob("checkpoint-*"):
        assert {path.name for path in folder.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}


def test_asked_to_stop_both_do_at_one_step(recipe_of: Callable[..., Recipe], launch: Launch) -> None:
    """As a cluster asks: it signals the launcher, which passes it on."""
    run = recipe_of(training={"max_steps": 2000, "save_steps": 1000}).output.dir
    (launcher,) = processes = launch(launcher=True)
    while not (run / "metrics.jsonl").is_file() or len(read_lines(run)) < 3:
        assert running(processes)
        time.sleep(0.01)
    launcher.send_signal(signal.SIGTERM)
    codes, _, err = ended(processes)
    assert codes != {0}
    done = len(read_lines(run))
    assert [path.name for path in run.glob("checkpoint-*")] == [f"checkpoint-{done}"]
    assert (run / f"checkpoint-{done}" / "checkpoint.json").is_file()
    assert f"stopped: step {done} is the last checkpoint in {run}" in err


def test_a_loss_that_ends_in_one_process_stops_both_with_the_row_named(
    recipe_of: Callable[..., Recipe], launch: Launch, base: Path, tmp_path: Path
) -> None:
    """Whoever has no bad row would else wait for the other for ever."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    # Tied, the head would give the broken token to all rows.
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer("é", add_special_tokens=False)["input_ids"]] = torch.nan
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "broken")
    rows = [{"id": str(n), "prompt": f"Why, {n}{'é' * (n == 17)}?", "completion": "Aye."} for n in range(40)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    training = {"shared_prefix": False, "replies_per_pass": 2, "max_steps": -1}
    recipe_of(base=tmp_path / "broken", data={"path": "rows.jsonl"}, training=training)
    codes, _, err = ended(launch())
    assert codes == {1}
    messages = [line for line in err.splitlines() if line.startswith("error: the loss is nan")]
    assert len(messages) == 2, err
    at = len(read_lines(tmp_path / "run")) + 1
    assert at > 1
    assert all(f"at step {at}, on rows 17; training stopped before the weights" in message for message in messages)


# --- processes on unlike cards


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
