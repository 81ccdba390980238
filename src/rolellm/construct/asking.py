"""The models that a stage asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolellm.core.errors import SettingsError
from rolellm.llm.model import Model, RunOptions
from rolellm.llm.settings import LLMSettings, described, load_models, load_settings
from rolellm.llm.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class Asking:
    """The models to ask; none for a stage that asks nothing."""

    models: Sequence[Model] = ()
    options: RunOptions | None = None
    counter: TokenCounter = field(default_factory=TokenCounter)
    settings: LLMSettings | None = None

    def describe(self) -> Any:
        """The models, for manifests."""
        return self.settings.describe() if self.settings else [described(model) for model in self.models]


def asking_of(llm: Any) -> Asking:
    """The models that a user named.

    Args:
        llm: A settings file (docs/endpoints.md), a model or several, or an object with `models`, `options`,
            `counter` and `settings`; ``None`` where no model is needed.

    Raises:
        SettingsError: For anything else, and for a settings file that cannot be used.
    """
    if llm is None or isinstance(llm, Asking):
        return llm or Asking()
    if isinstance(llm, str | Path):
        from rolellm.construct.scripted import scripted_model

        known = load_settings(llm)
        options = RunOptions(max_attempts=known.max_attempts, budget=known.budget)
        return Asking(load_models(known, {"quotes": scripted_model}), options, TokenCounter(known.tokenizer), known)
    if hasattr(llm, "models"):
        return Asking(llm.models, llm.options, llm.counter, llm.settings)
    models = list(llm) if isinstance(llm, Sequence) else [llm]
    if not models or not all(hasattr(model, "call") for model in models):
        raise SettingsError(f"llm: expected a settings file, rolellm.LLM(…) or a model, found {type(llm).__name__}")
    return Asking(models)
