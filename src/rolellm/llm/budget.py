"""What a run may cost: the most that a call can cost is set aside before it goes out."""

from __future__ import annotations

from rolellm.core.errors import SettingsError
from rolellm.llm.model import Model, Request
from rolellm.llm.tokens import most_prompt_tokens

# What sums of many small amounts may be off by.
_DUST = 1e-12


class Budget:
    """Keeps what was spent and what calls in flight may yet cost below a limit.

    Args:
        limit: US dollars; ``None`` for no limit.
        spent: What earlier runs spent, calls of unknown end counted in full.
        models: All that may be asked.

    Attributes:
        spent: US dollars so far.
        reserved: US dollars set aside for calls in flight.

    Raises:
        SettingsError: For a limit together with a model that has no price, and is not on this machine.
    """

    def __init__(self, limit: float | None, spent: float, models: list[Model]) -> None:
        unpriced = [
            model.name
            for model in models
            if not (model.price.prompt or model.price.completion or getattr(model, "free", False))
        ]
        if limit is not None and unpriced:
            raise SettingsError(
                f"a budget needs prices, and there is none for {', '.join(unpriced)}; give its `price` in the settings "
                "file (docs/endpoints.md), or leave the budget out"
            )
        self.limit = limit
        self.spent = spent
        self.reserved = 0.0

    def worst(self, model: Model, request: Request) -> float:
        """The most that a call can cost, in US dollars: no text has more tokens than bytes."""
        price = model.price
        if not (price.prompt or price.completion):
            return 0.0
        prompt = most_prompt_tokens(request)
        dearest = max(price.prompt, price.cached or 0.0)
        return (prompt * dearest + request.sampling.max_tokens * price.completion) / 1e6

    @property
    def reached(self) -> str:
        """That it is reached, in words."""
        return f"another call might go beyond the budget of {self.limit or 0:g} US dollars ({self.spent:.2g} spent)"

    def reserve(self, amount: float) -> bool:
        """Set an amount aside; whether there was room for it."""
        if self.limit is not None and self.spent + self.reserved + amount > self.limit + _DUST:
            return False
        self.reserved += amount
        return True

    def set_aside_again(self, amount: float) -> None:
        """Have a call that an earlier run sent, and whose end may yet come, count as in flight instead of as spent."""
        self.spent -= amount
        self.reserved += amount

    def settle(self, reserved: float, cost: float) -> None:
        """Give back what was set aside for a call, and count what it cost."""
        self.reserved = max(self.reserved - reserved, 0.0)
        self.spent += cost
