"""When a checkpoint is written besides the schedule, and when it counts.

This module imports transformers at its head, because it subclasses its callback; import it inside functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rolellm.rocit import checkpoints
from rolellm.rocit.recipe import OutputRecipe
from rolellm.rocit.stopping import StopRequest


class Sealer(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Seals each checkpoint once all processes have written their part, then lets old ones go; stops on request.

    Args:
        accelerator: That of the trainer.
        output: How many checkpoints stay.
        facts: As for `rolellm.rocit.checkpoints.seal`.
        request: Looked at after each step; what one process was asked, all do.
    """

    def __init__(self, accelerator: Any, output: OutputRecipe, facts: Mapping[str, Any], request: StopRequest) -> None:
        self._accelerator = accelerator
        self._output = output
        self._facts = facts
        self._request = request

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go by this run's schedule: the state of a checkpoint brings the one that it was written under."""
        state.save_steps = args.save_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the run here with a checkpoint, if any process was asked to."""
        if self._request.made:
            self._accelerator.set_trigger()
        if self._accelerator.check_trigger():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal the checkpoint that was just written."""
        self._accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            run = Path(args.output_dir)
            folder = run / f"checkpoint-{state.global_step}"
            # A pickle of our own settings, which the recipe holds; unpickling a stranger's runs code.
            (folder / "training_args.bin").unlink(missing_ok=True)
            checkpoints.seal(folder, state.global_step, self._facts)
            checkpoints.keep(run, self._output.keep_checkpoints)
        self._accelerator.wait_for_everyone()
