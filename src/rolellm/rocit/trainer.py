"""The loop itself: TRL's `SFTTrainer` on forward passes that were settled beforehand, stopped when numbers end.

This module imports torch, transformers and trl at its head, because it subclasses them; import it inside functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback
from trl import SFTTrainer

from rolellm.core.errors import DivergedError, RoleLLMError
from rolellm.core.text import listed
from rolellm.rocit.packing.layout import Layout, summed_loss, trained_tokens

_NAMED = 10


class RocitTrainer(SFTTrainer):  # type: ignore[misc]  # transformers and trl ship no types
    """`SFTTrainer` whose forward passes come from a `Layout`, and which stops at the first loss that is not finite.

    The loss of an optimizer step is the mean negative log-likelihood of its trained tokens, over all passes and
    processes. What this class overrides is private to transformers and may be renamed there: whether each override had
    its effect is checked as the passes come, and before the weights are first updated.

    Raises:
        RoleLLMError: When one had none.
    """

    def __init__(
        self,
        model: Any,
        *args: Any,
        layout: Layout,
        held_out: Layout | None = None,
        measured: bool = True,
        **kwargs: Any,
    ) -> None:
        config = model.config.get_text_config()
        routed = getattr(config, "output_router_logits", None)
        super().__init__(model, *args, data_collator=layout, **kwargs)
        if routed is not None:
            # TRL switches it on, and a model saved so would weigh its routers in inference, too.
            config.output_router_logits = routed
        self._busy = 1
        self._layout = layout
        self._held_out = held_out
        self._trained = layout.plan.trained(layout.examples)
        self._read = layout.plan.read(layout.examples)
        self._tally = torch.zeros(3, device=self.args.device) if measured else None
        self._metrics_of_step: dict[str, float] = {}
        # Number and loss of each pass of the step.
        self._taken: list[tuple[int, float]] = []
        self._computed = torch.zeros(())
        self._first_step = True
        self.add_callback(_BeforeUpdate(self))
        # The loss is divided by the tokens of the whole step, so not by the number of passes as well.
        self.loss_is_scaled_for_ga = True
        if hasattr(self.model, "peft_config"):
            # TRL puts an adapter on 4 bits in bfloat16, where small updates are lost and peft does not load it again.
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        """One forward and backward pass, unless no process has a reply in it; its loss is remembered for the check."""
        number, plan, step = inputs["pass"], self._layout.plan, self.state.global_step
        turn = step * plan.passes + len(self._taken)
        if number != turn * plan.processes + self.accelerator.process_index:
            raise _without_effect("_get_train_sampler", "forward passes do not come in the planned order")
        if plan.idle(number) and not self.is_deepspeed_enabled:  # It counts passes itself.
            self._taken.append((number, 0.0))
            return torch.zeros((), device=self.args.device)
        first = number - len(self._taken) * plan.processes
        self._busy = sum(not plan.idle(first + turn * plan.processes) for turn in range(plan.passes))
        # Our own count: that of transformers knows rows with labels only.
        loss = super().training_step(model, inputs, int(self._trained[step + 1] - self._trained[step]))
        self._taken.append((number, float(loss)))
        # Only then, because a GPU has to be waited for.
        if self._first_step and not torch.allclose(loss, self._computed, equal_nan=True):
            raise _without_effect("loss_is_scaled_for_ga", "it divides the loss by the number of passes, too")
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The negative log-likelihood of a pass, as its part of the step's mean, and a share of its routers' loss."""
        # DDP takes the mean of the processes' gradients, and the count covers all of them.
        scale = self.accelerator.num_processes / num_items_in_batch
        router = None
        if self.aux_loss_enabled and trained_tokens(inputs):
            # As TRL has it: the mean over a step's passes, at the weight that the model's configuration gives.
            router = self.router_aux_loss_coef / (scale * self._busy)
        loss = summed_loss(model, inputs, flex=self._layout.flex, router=router, tally=self._tally) * scale
        self._computed = loss.detach()
        return loss

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        """The mean negative log-likelihood of the held-out tokens, with accuracy and entropy; always all of them."""
        layout, model = self._held_out, self.model_wrapped
        if layout is None:
            return {}
        sums = torch.zeros(4, device=self.args.device)
        was_training = model.training
        model.eval()
        with torch.no_grad(), self.compute_loss_context_manager():
            for number in range(self.accelerator.process_index, len(layout.plan), layout.plan.processes):
                if layout.plan.idle(number):
                    continue
                places = layout.plan[number].tolist()
                batch = {key: value.to(self.args.device) for key, value in layout.of(places).items()}
                sums[0] += summed_loss(model, batch, flex=self._layout.flex, tally=sums[1:])
        model.train(was_training)
        loss, *rest = self._summed(sums)
        found = {"loss": loss / rest[0]} | _means(rest)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a step with TRL's own metrics, which its `compute_loss` would have collected."""
        super().log({**logs, **self._metrics_of_step} if "loss" in logs else logs, start_time)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: TRL's would name neither the data nor the recipe."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The norm of a step's gradient; the loop asks after the step's last pass, before the weights take the step.

        Raises:
            DivergedError: On every process, when it or the loss of a pass is NaN or infinite on any.
        """
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        taken, self._taken = self._taken, []
        endless = [(number, loss) for number, loss in taken if not math.isfinite(loss)]
        measured = torch.zeros(3, device=self.args.device) if self._tally is None else self._tally
        count = torch.tensor([float(len(endless))], device=self.args.device)
        (found_endless, *sums) = self._summed(torch.cat([count, measured]))
        if self._tally is not None:
            self._metrics_of_step = _means(sums) | {"num_tokens": int(self._read[self.state.global_step + 1])}
            self._tally.zero_()
        anywhere = found_endless > 0
        # DeepSpeed may know no norm.
        if anywhere or not math.isfinite(norm or 0.0):
            suspects = endless if anywhere else taken
            rows = self._guilty(model, [number for number, _ in suspects])
            found = gather_object([([loss for _, loss in endless], rows)])
            values = [value for losses, _ in found for value in losses] or [float(norm)]
            raise self._diverged(
                "loss" if anywhere else "gradient", values[0], [row for _, ids in found for row in ids]
            )
        return norm

    def check_checked(self) -> None:
        """Refuse to update the weights in a step whose loss and gradient were not checked."""
        self._first_step = False
        if self._taken:
            raise _without_effect("_get_grad_norm", "nothing checks losses and gradients for NaN")

    def _summed(self, sums: torch.Tensor) -> list[float]:
        """Sums of this process, over all processes."""
        found: list[float] = self.accelerator.gather(sums).reshape(-1, len(sums)).sum(0).tolist()
        return found

    def _guilty(self, model: Any, numbers: Iterable[int]) -> list[str]:
        """The rows of some forward passes whose own loss or gradient is not finite; all if none can be told apart.

        The model's gradients are lost.
        """
        places = [place for number in numbers for place in self._layout.plan[number].tolist()]
        found = []
        # Under sharding a pass needs all processes.
        for place in places if not (self.is_fsdp_enabled or self.is_deepspeed_enabled) else ():
            alone = self.accelerator.unwrap_model(model)
            alone.zero_grad()
            batch = {key: value.to(self.args.device) for key, value in self._layout.of([place]).items()}
            with self.compute_loss_context_manager():
                loss = summed_loss(alone, batch, flex=self._layout.flex) / trained_tokens(batch)
            torch.autograd.backward(loss)
            gradients = [parameter.grad for parameter in alone.parameters() if parameter.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            if not (math.isfinite(float(loss.detach())) and math.isfinite(float(norm))):
                found.append(place)
        return [self._layout.examples[place].row_id for place in found or places]

    def _diverged(self, name: str, value: float, rows: Sequence[str]) -> DivergedError:
        took = "after" if self.is_deepspeed_enabled else "before"  # DeepSpeed steps at the end of the backward pass.
        return DivergedError(
            f"the {name} is {value} at step {self.state.global_step + 1}, on rows {listed(rows, _NAMED)}; training "
            f"stopped {took} the weights took the step, and checkpoints and metrics up to there are kept. Lower "
            f"training.learning_rate (it is {self.args.learning_rate:g}), set training.bf16: false, or look at these "
            "rows"
        )


class _BeforeUpdate(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    def __init__(self, trainer: RocitTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.check_checked()


def _means(sums: Sequence[float]) -> dict[str, float]:
    tokens, right, entropy = sums
    return {"mean_token_accuracy": right / tokens, "entropy": entropy / tokens}


def _without_effect(name: str, consequence: str) -> RoleLLMError:
    return RoleLLMError(
        f"transformers {version('transformers')} with trl {version('trl')} ignores {name}, so {consequence}. "
        'Training stopped; install the versions that rolellm is tested with: pip install "rolellm[train]"'
    )
