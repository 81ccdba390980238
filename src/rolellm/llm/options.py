"""How a run asks: how often, for how much, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass

from rolellm.errors import RecipeError


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run.

    Attributes:
        max_attempts: The most calls for one request: after a fault, or after a reply that was not taken.
        budget: US dollars that the run folder may cost in all, earlier runs of it included; ``None`` sets no limit.
        retry_failed: Ask again what an earlier run of this folder gave up on after replies that were not taken.
        batch: Use the OpenAI Batch API, at half the price, where the first model has one.
        show_progress: Show a progress bar on work that takes over two seconds.
        max_wait: The longest pause that a server's Retry-After is granted, in seconds (our choice).
        batch_poll: Seconds between two looks at a batch (our choice).

    Raises:
        RecipeError: For a value out of range.
    """

    max_attempts: int = 5
    budget: float | None = None
    retry_failed: bool = False
    batch: bool = False
    show_progress: bool = True
    max_wait: float = 60.0
    batch_poll: float = 30.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise RecipeError(f"max_attempts is {self.max_attempts}; it has to be at least 1")
        if self.budget is not None and not 0 <= self.budget < float("inf"):
            raise RecipeError(f"the budget is {self.budget}; it has to be a number of US dollars, 0 or more")
