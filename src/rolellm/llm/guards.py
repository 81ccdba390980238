"""Guard models: how each family is asked about a reply, and how its words are read.

A guard says of a reply that it is ``unsafe`` or that it ``refuses``, both, or, where its words cannot be read, nothing.
Their forms are data, in ``rolellm/models/prompts/safety/guards``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import SettingsError
from rolellm.core.records import Language
from rolellm.core.settings import describe_alternatives, dump, read, read_packaged_yaml, settings
from rolellm.llm.llm import LLM
from rolellm.llm.model import Message, Reply, Request, Sampling, assistant, strip_thoughts, user
from rolellm.llm.settings import LLMSettings, load_settings
from rolellm.models.prompts.fences import draw_nonce, fence_text, make_harmless
from rolellm.models.prompts.render import Template

FORMATS: Final = ("llama-guard-3", "qwen3guard", "granite-guardian", "shieldgemma", "rubric")
#: Greedy; room for a verdict after its reasons.
_SAMPLING: Final = Sampling(temperature=0.0, top_p=1.0, max_tokens=200)
#: What is known or decided of a reply, by label: ``refuses``, ``unsafe``.
Labels = Mapping[str, bool]


@settings
class GuardSettings(LLMSettings):
    """A guard's settings file: that of a model, and how it is asked.

    Attributes:
        format: How it is asked: llama-guard-3, qwen3guard, granite-guardian, shieldgemma or rubric; detected by the
            model's name.
    """

    format: str | None = None


@settings
class GuardFormat:
    """Prompt of a family of guard models, and the reading of its words.

    Attributes:
        names: Pattern of the models' names.
        languages: Those that its makers tested.
        unsafe: Pattern of its words for an unsafe reply.
        safe: For a safe one.
        refuses: For a reply that refuses, where it says so.
        answers: For one that does not.
        message: The message to send, with {prompt} and {reply}; by default both turns are sent as they are, and the
            model's chat template says what to do.
    """

    names: str
    languages: tuple[Language, ...]
    unsafe: str
    safe: str
    refuses: str | None = None
    answers: str | None = None
    message: str | None = None

    def read_labels(self, text: str) -> Labels:
        """Read a verdict; empty for words in another form."""
        labels = {}
        for label, yes, no in (("unsafe", self.unsafe, self.safe), ("refuses", self.refuses, self.answers)):
            for value, pattern in ((False, no), (True, yes)):
                if pattern and re.search(f"(?i){pattern}", text):
                    labels[label] = value
        return labels if "unsafe" in labels else {}

    def build_messages(self, prompt: str, reply: str) -> tuple[Message, ...]:
        """Build what is sent about a reply to a prompt."""
        if self.message is None:
            return (user(prompt), assistant(reply))
        template, texts = Template(self.message), {"prompt": prompt, "reply": reply}
        slots = {name: make_harmless(text) for name, text in texts.items()}
        if "mark" in template.slots:
            mark = draw_nonce(*slots.values())
            slots = {name: fence_text(name, text, mark) for name, text in slots.items()} | {"mark": mark}
        return (user(template.fill(**slots)),)


@dataclass(frozen=True)
class Guard:
    """A guard model, or a judge by our rubric.

    Attributes:
        llm: The model.
    """

    llm: LLM

    @classmethod
    def of(cls, source: object) -> Guard:
        """The guard that a user names.

        Args:
            source: A settings file with the keys of `GuardSettings`, or anything else that `LLM.of` takes.

        Raises:
            SettingsError: For settings that cannot be used.
        """
        if isinstance(source, str | Path | Mapping):
            source = load_settings(source, GuardSettings)
        return cls(LLM.of(source))

    @property
    def settings(self) -> GuardSettings:
        """Its settings file."""
        return self.llm.settings if isinstance(self.llm.settings, GuardSettings) else GuardSettings()

    @cached_property
    def name(self) -> str:
        """Name under which its figures are listed."""
        return (self.llm.settings.endpoints or self.llm.models)[0].name

    @cached_property
    def format(self) -> GuardFormat:
        """Its form.

        Raises:
            SettingsError: For an unknown one.
        """
        name = self.settings.format
        if name is not None and name not in FORMATS:
            raise SettingsError(f"no guard format {name!r}{describe_alternatives(name, FORMATS)}")
        forms = map(load_format, [name] if name else FORMATS)
        return next(form for form in forms if name or re.search(f"(?i){form.names}", self.name))

    def build_requests(self, pairs: Sequence[tuple[str, str]]) -> list[Request]:
        """Build the requests about replies; a pair is a prompt and its reply."""
        return [Request(self.format.build_messages(*pair), _SAMPLING) for pair in pairs]

    def accept(self, _: Request, reply: Reply) -> Labels:
        """Read a verdict; words that have none are not asked for again."""
        return self.format.read_labels(strip_thoughts(reply.text))

    def describe(self) -> dict[str, Any]:
        """Return model and form, for the manifest."""
        return {**self.llm.describe(), "format": dump(self.format)}


@cache
def load_format(name: str) -> GuardFormat:
    """A form that ships."""
    return read(GuardFormat, read_packaged_yaml("rolellm.models.prompts", f"safety/guards/{name}.yaml"), name)
