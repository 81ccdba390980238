"""Who decides about a reply: rules for refusals, guard models and judges, each measured on replies whose kind is known.

A decider says of a reply that it ``refuses``, that it is ``unsafe``, both, or, where its words cannot be read, nothing.
Forms of guards and patterns of refusals are data, in ``rolellm/models/prompts/safety``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any, Final

from rolellm.core.errors import SettingsError
from rolellm.core.records import Language
from rolellm.core.settings import describe_alternatives, dump, read, read_packaged_yaml, settings
from rolellm.llm.llm import LLM
from rolellm.llm.model import Message, Reply, Request, Sampling, assistant, strip_thoughts, user
from rolellm.models.prompts.fences import draw_nonce, fence_text, make_harmless
from rolellm.models.prompts.render import Template, load_texts

RULES: Final = "rules"
FORMATS: Final = ("llama-guard-3", "qwen3guard", "granite-guardian", "shieldgemma", "rubric")
#: Greedy; room for a verdict after its reasons (our choice).
_SAMPLING: Final = Sampling(temperature=0.0, top_p=1.0, max_tokens=200)
_SHOWN: Final = 4000
#: What is known or decided of a reply, by label: ``refuses``, ``unsafe``.
Labels = Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class PlantedReply:
    """A reply whose kind is known.

    Attributes:
        prompt: What it replies to.
        reply: The reply.
        harmful: Whether the prompt is harmful.
        refuses: Whether the reply refuses; one that does not is unsafe where the prompt is harmful.
        language: The language.
    """

    prompt: str
    reply: str
    harmful: bool
    refuses: bool
    language: Language

    @property
    def labels(self) -> Labels:
        """What a decider should say."""
        return {"refuses": self.refuses, "unsafe": self.harmful and not self.refuses}


def plant_replies(language: Language) -> Iterator[PlantedReply]:
    """Yield our replies of known kind: refusals and empty compliance to harmful prompts, answers to look-alikes."""
    texts = load_texts("safety", language)
    harmful = [text for category in texts["prompts"].values() for text in category["harmful"]]
    bodies = [" ".join(parts) for parts in product(texts["openings"], texts["bodies"])]
    for replies, refuses in ((texts["refusals"], True), (bodies, False)):
        for prompt, reply in zip(harmful, replies, strict=True):
            yield PlantedReply(prompt, reply, True, refuses, language)
    for category in texts["prompts"].values():
        for prompt, reply in category["lookalikes"]:
            yield PlantedReply(prompt, reply, False, False, language)


@settings
class GuardFormat:
    """How a family of guard models is asked, and how its words are read.

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
        """Build what is sent about a reply."""
        if self.message is None:
            return user(prompt), assistant(reply)
        template = Template(self.message)
        slots = {"prompt": make_harmless(prompt, _SHOWN).text, "reply": make_harmless(reply, _SHOWN).text}
        if "mark" in template.slots:
            mark = draw_nonce(*slots.values())
            slots = {name: fence_text(name, text, mark) for name, text in slots.items()} | {"mark": mark}
        return (user(template.fill(**slots)),)


@dataclass(frozen=True)
class Guard:
    """A guard model, or a judge by our rubric.

    Attributes:
        llm: The model.
        format_name: One of `FORMATS`; by default the one that the model's name goes with, else ``rubric``.
    """

    llm: LLM
    format_name: str | None = None

    @cached_property
    def name(self) -> str:
        """What its figures are listed under."""
        return (self.llm.settings.endpoints or self.llm.models)[0].name

    @cached_property
    def format(self) -> GuardFormat:
        """Its form.

        Raises:
            SettingsError: For an unknown one.
        """
        if self.format_name is not None and self.format_name not in FORMATS:
            raise SettingsError(
                f"no guard format {self.format_name!r}{describe_alternatives(self.format_name, FORMATS)}"
            )
        forms = map(load_format, [self.format_name] if self.format_name else FORMATS)
        return next(form for form in forms if self.format_name or re.search(f"(?i){form.names}", self.name))

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
