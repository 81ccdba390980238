"""What a run may cost: the most that a call can cost is in the journal before it goes out, and counts from then on."""

from __future__ import annotations

from collections.abc import Iterable

from rolellm.core.errors import SettingsError
from rolellm.llm.model import Model, Request, Usage
from rolellm.llm.tokens import most_prompt_tokens


def check_prices(models: Iterable[Model]) -> None:
    """Check that a budget can be kept.

    Raises:
        SettingsError: For a model that has no price, and is not on this machine.
    """
    unpriced = [model.name for model in models if not (model.price or getattr(model, "free", False))]
    if unpriced:
        raise SettingsError(
            f"a budget needs prices, and there is none for {', '.join(unpriced)}; give its `price` in the settings "
            "file (docs/endpoints.md), or leave the budget out"
        )


def worst_cost(model: Model, request: Request) -> float:
    """The most that a call can cost, in US dollars: no text has more tokens than bytes."""
    if not model.price:
        return 0.0
    return model.price.worst.cost(Usage(most_prompt_tokens(request), request.sampling.max_tokens))
