"""The model card: front matter that the Hub reads, and prose that says only what the run and its scores say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from rolellm.records import Language
from rolellm.rocit.model_scores import CardScore
from rolellm.rolebench.schema import REPO_ID, SAMPLE, get_config

Form = Literal["adapter", "merged", "full"]

_QUESTIONS: dict[Language, str] = {"en": "What do you see from your window?", "zh": "你从窗口看到了什么？"}
_FILLED: dict[Language, str] = {
    "en": "You are … (who the role is, in the second person, with its catchphrases)",
    "zh": "你是……（角色是谁，用第二人称，附上口头禅）",
}
_SNIPPET = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

name = {name}
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype="auto"){comment}

system = (
{system}
)
{filled}messages = [
    {{"role": "system", "content": system}},
    {{"role": "user", "content": {question}}},
]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
answer = model.generate(**inputs, max_new_tokens=200, eos_token_id={end})
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a model card tells.

    Attributes:
        repo: Where it is published, ``OWNER/NAME``.
        form: An adapter, one merged into its base, or a model tuned in all its weights.
        base: The base on the Hub; ``None`` where it is not there.
        base_revision: Its commit, where it is known.
        licence: What the model is published under.
        manifest: The manifest as it is published.
        prompt: A prompt as the chat template writes it, with slots for the texts.
        end: The token that ends a reply: its text and its id.
        systems: The system instruction's template, by language, as far as it is at hand.
        scores: What was measured.
    """

    repo: str
    form: Form
    base: str | None
    base_revision: str | None
    licence: str
    manifest: Mapping[str, Any]
    prompt: str
    end: tuple[str, int]
    systems: Mapping[Language, str]
    scores: tuple[CardScore, ...]

    @property
    def method(self) -> str:
        """``full``, ``lora`` or ``qlora``."""
        return str(self.manifest["method"])


def languages_of(manifest: Mapping[str, Any]) -> list[Language]:
    """What the training rows are written in, as far as the recipe says."""
    data = manifest["recipe"]["data"]
    return list(data.get("languages") or get_config(data["config"]).languages)


def render_model_card(facts: CardFacts) -> str:
    """The card's text: YAML front matter, then Markdown."""
    from jinja2 import Environment, StrictUndefined

    text = resources.files("rolellm.rocit").joinpath("model_card.md.jinja").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    manifest = facts.manifest
    body = environment.from_string(text).render(
        name=facts.repo.partition("/")[2],
        what=_what(facts),
        base=_base(facts),
        method=_method(manifest["recipe"]["method"]),
        data=_data(manifest),
        manifest=manifest,
        versions=manifest["versions"],
        snippet=snippet(facts),
        prompt=facts.prompt,
        end_token=facts.end[0],
        systems=facts.systems,
        slots="; examples are lines of the role's script" if manifest["prompt"].get("profile") == "retrieval" else "",
        steps=f"{manifest['result']['steps']:,}",
        examples=f"{manifest['data']['examples']:,}",
        tokens_trained=f"{manifest['data']['tokens_trained']:,}",
        recipe=dict(_recipe_rows(manifest["recipe"])),
        scores=facts.scores,
        score_rows=[row for score in facts.scores for row in score.rows()],
        limits=list(_limits(facts)),
        licence=facts.licence,
    )
    return f"---\n{front_matter(facts)}\n---\n\n{body}"


def front_matter(facts: CardFacts) -> str:
    """The card's YAML, with the scores as a ``model-index``."""
    from huggingface_hub import ModelCardData

    relation = "adapter" if facts.form == "adapter" else "finetune"
    results = [result for score in facts.scores for result in score.eval_results()]
    data = ModelCardData(
        language=[str(language) for language in languages_of(facts.manifest)],
        license=facts.licence,
        library_name="peft" if facts.form == "adapter" else "transformers",
        pipeline_tag="text-generation",
        base_model=facts.base,
        datasets=None if facts.manifest["recipe"]["data"]["config"] == SAMPLE else [REPO_ID],
        tags=["rolellm", "role-playing", *([] if facts.method == "full" else [facts.method])],
        model_name=facts.repo.partition("/")[2] if results else None,
        eval_results=results or None,
        base_model_relation=None if facts.base is None else relation,
    )
    return str(data.to_yaml(line_break="\n"))


def snippet(facts: CardFacts) -> str:
    """Python that loads the model with stock ``transformers`` (and ``peft``) and asks it something."""
    language = next(iter(facts.systems), languages_of(facts.manifest)[0])
    role = next(iter(facts.manifest["trained_on"]["roles"]), "Sherlock Holmes")
    system = facts.systems.get(language, "{role}\n{description}")
    lines = (f"    {_quoted(line)}" for line in system.splitlines(keepends=True))
    values = {"{role}": role, "{description}": _FILLED[language], "{examples}": "…"}
    filled = (
        f"system = system.replace({_quoted(slot)}, {_quoted(value)})\n"
        for slot, value in values.items()
        if slot in system
    )
    return _SNIPPET.format(
        name=_quoted(facts.repo),
        comment="  # needs peft, and fetches the base" if facts.form == "adapter" else "",
        system="\n".join(lines),
        filled="".join(filled),
        question=_quoted(_QUESTIONS[language]),
        end=facts.end[1],
    )


def _quoted(text: str) -> str:
    # A JSON string is a Python string.
    return json.dumps(text, ensure_ascii=False)


def _what(facts: CardFacts) -> str:
    base = f"`{facts.base or facts.manifest['base']['name']}`"
    if facts.form == "adapter":
        return f"A LoRA adapter for {base}."
    return (
        f"{base} with a LoRA adapter merged into it."
        if facts.form == "merged"
        else f"{base}, tuned in all its weights."
    )


def _base(facts: CardFacts) -> str:
    base = facts.manifest["base"]
    if facts.base is not None:
        return f"`{facts.base}`" + (f" at `{facts.base_revision}`" if facts.base_revision else "")
    if base["kind"].startswith("tiny-"):
        return "a tiny model, built from the training rows and warmed on role-free answers"
    return f"`{base['name']}`, a folder that is not on the Hub"


def _method(method: Mapping[str, Any]) -> str:
    if method["name"] == "full":
        return "all weights"
    lora = method["lora"]
    on = ", ".join(lora["targets"])
    text = f"LoRA of rank {lora['r']}, alpha {lora['alpha']:g}, dropout {lora['dropout']:g}, on {on}"
    if method["name"] == "lora":
        return text
    bits = method["quantization"]
    double = ", doubly quantised" if bits["double"] else ""
    return f"{text}; QLoRA, on the base in 4 bits ({bits['type']}{double}, computed in {bits['compute']})"


def _data(manifest: Mapping[str, Any]) -> str:
    data, seen = manifest["data"], manifest["trained_on"]
    of = "lines of scripts" if manifest["recipe"]["data"].get("source") == "script" else f"{data['rows']:,} rows"
    counts = f"roles: {len(seen['roles']):,}, instructions: {len(seen['instructions']):,}"
    return f"RoleBench `{data['config']}`, split `{data['split']}`: {of}, {data['examples']:,} replies; {counts}"


def _recipe_rows(recipe: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The recipe's values by dotted key, without those that this run had no use for."""
    unused = {
        "method.lora": recipe["method"]["name"] == "full",
        "method.quantization": recipe["method"]["name"] != "qlora",
        "base.tiny": recipe["base"].get("build") is None,
        "base.warm": recipe["base"].get("build") is None,
    }
    for key, value in _leaves(recipe):
        if value is not None and not any(key.startswith(f"{prefix}.") for prefix, no in unused.items() if no):
            yield key, f"`{json.dumps(value, ensure_ascii=False)}`"


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _limits(facts: CardFacts) -> Iterator[str]:
    if str(facts.manifest["base"]["kind"]).startswith("tiny-"):
        yield "Its base is a tiny model, made to try the method in minutes: its answers are of no use."
    if facts.manifest["data"]["config"] == SAMPLE:
        yield "It was tuned on the small sample that comes with `rolellm`, not on the benchmark."
    for score in facts.scores:
        if score.missing:
            yield f"On {score.where}, no row measures {', '.join(score.missing)}."
    if facts.scores:
        yield "Rouge-L counts common words; no judge and no person has rated the answers."
    if facts.method == "qlora":
        what = (
            "Merged into the base in full precision" if facts.form == "merged" else "On the base in another precision"
        )
        yield f"The adapter was trained on the base in 4 bits. {what}, its answers may differ from those in training."
    yield "It was tuned to stay in character: it may say what is false, and may not say that it is a model."
    yield "Truth, safety and bias of its answers were not measured."
