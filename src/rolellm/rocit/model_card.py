"""The model card: front matter that the Hub reads, and prose that says only what the run and its scores say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from rolellm.core.errors import DataError
from rolellm.core.records import Language
from rolellm.core.sanitize import Markdown, markdown_code, markdown_environment, visible
from rolellm.rolebench.schema import REPO_ID, SAMPLE, get_config

# --- Scores as a model card shows them: read from what ``rolellm score --json`` printed, never without their


METRICS = ("CUS", "RAW", "SPE", "avg")


@dataclass(frozen=True, slots=True)
class CardScore:
    """The scores of one part of the data under one protocol.

    Attributes:
        protocol: ``rouge-score`` or ``paper``.
        config: The data set's config.
        split: Its split.
        metrics: ``mean``, ``ci95`` and ``n`` by metric; ``None`` where there were no rows.
        fingerprint: What the score depends on, with its ``hash``.
        contamination: What is known of rows that were trained on.
        unanswered: Rows without a prediction.
        warnings: What scoring had to say.
    """

    protocol: str
    config: str
    split: str
    metrics: dict[str, dict[str, Any] | None]
    fingerprint: dict[str, Any]
    contamination: dict[str, Any] | None
    unanswered: int
    warnings: tuple[str, ...]

    @property
    def where(self) -> str:
        """Config and split."""
        return f"{self.config}/{self.split}"

    @property
    def hash(self) -> str:
        """The hash of the fingerprint."""
        return str(self.fingerprint["hash"])

    @property
    def missing(self) -> list[str]:
        """Metrics that no row measures."""
        return [name for name in METRICS if self.metrics.get(name) is None]

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of them."""
        recipe = self.fingerprint
        tokenizers = ", ".join(sorted(set(recipe["tokenizer"].values())))
        notes = [f"{recipe['value']} of {recipe['reference_choice']}, tokenizer {tokenizers}"]
        notes += [_decoding(item.get("generation")) for item in recipe["predictions"]]
        if self.unanswered:
            treated = "count as 0" if recipe.get("missing") == "zero" else "are left out"
            notes.append(f"{self.unanswered} rows without an answer {treated}")
        if self.contamination is None:
            notes.append("whether its rows were trained on was not recorded")
        elif self.contamination.get("contaminated"):
            notes.append(f"{self.contamination['contaminated']} of {self.contamination['rows']} rows were trained on")
        # Not their text: some of them name files, which mean nothing elsewhere.
        if self.warnings:
            notes.append(f"scoring gave {len(self.warnings)} warning{'s' if len(self.warnings) > 1 else ''}")
        return list(dict.fromkeys(notes))

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Cells for a table: data, protocol, metric, mean, interval, rows."""
        where = markdown_code(self.where, cell=True)
        for name in METRICS:
            found = self.metrics.get(name)
            if found is None:
                yield (where, self.protocol, name, "–", "–", "0")
                continue
            low_high = found.get("ci95")
            interval = f"{low_high[0]:.4f} to {low_high[1]:.4f}" if low_high else "–"
            rows = f"{found['n']:,}" if "n" in found else "–"
            yield (where, self.protocol, name, f"{found['mean']:.4f}", interval, rows)

    def eval_results(self) -> list[Any]:
        """The same for the card's ``model-index``, as ``huggingface_hub.EvalResult``."""
        from huggingface_hub import EvalResult

        own = self.config == SAMPLE
        found = []
        for name in METRICS:
            metric = self.metrics.get(name)
            if metric is None:
                continue
            details: dict[str, Any] = {key: metric[key] for key in ("ci95", "n") if key in metric}
            found.append(
                EvalResult(
                    task_type="text-generation",
                    dataset_type="rolellm-sample" if own else REPO_ID,
                    dataset_name="the sample in rolellm" if own else "RoleBench",
                    dataset_config=self.config,
                    dataset_split=self.split,
                    dataset_args={"fingerprint": self.fingerprint["dataset"]["fingerprint"]},
                    metric_type="rouge",
                    metric_name=f"{name} (Rouge-L {self.fingerprint['value']}, protocol {self.protocol})",
                    metric_value=metric["mean"],
                    metric_args={**details, "fingerprint": self.hash},
                )
            )
        return found


def read_scores(path: Path) -> CardScore:
    """Read what ``rolellm score --json`` printed into a file.

    Raises:
        DataError: When it is something else; names the file.
    """
    try:
        value = _plain(json.loads(path.read_text(encoding="utf-8")))
        metrics = {name: _metric(value["metrics"].get(name)) for name in METRICS}
        fingerprint = value["fingerprint"]
        needed = [fingerprint[key] for key in ("hash", "value", "reference_choice")]
        if not all(isinstance(item, str) for item in [*needed, fingerprint["dataset"]["fingerprint"]]):
            raise TypeError("its fingerprint is incomplete")
        if not all(isinstance(item, dict) for item in fingerprint["predictions"]):
            raise TypeError("its fingerprint does not name the predictions")
        return CardScore(
            protocol=str(value["protocol"]),
            config=str(value["config"]),
            split=str(value["split"]),
            metrics=metrics,
            fingerprint={**fingerprint, "tokenizer": dict(fingerprint["tokenizer"])},
            contamination=value.get("contamination"),
            unanswered=int(value["unmatched"]["rows"]),
            warnings=tuple(value.get("warnings", ())),
        )
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"is not what `rolellm score --json` prints ({type(error).__name__}: {error})", path=path
        ) from error


def _plain(value: Any) -> Any:
    """The same with each text on one line, where nothing hides or steers a display: it goes into the card's YAML."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return " ".join(visible(value).split()) if isinstance(value, str) else value


def _decoding(generation: Any) -> str:
    """How answers were decoded, and by which model, as far as the file beside them says."""
    decoding = generation.get("decoding") if isinstance(generation, dict) else None
    if not isinstance(decoding, dict):
        return "how the answers were made was not recorded"
    settings = ", ".join(f"{key} {value}" for key, value in decoding.items())
    model = generation.get("adapter_hash") or generation.get("model_hash")
    prompt = generation.get("prompt")
    form = f", prompt form {prompt['form']}" if isinstance(prompt, dict) and "form" in prompt else ""
    return f"answers of the model with content hash {str(model)[:12]} by {settings}{form}"


def _metric(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    found: dict[str, Any] = {"mean": float(value["mean"])}
    if value.get("ci95") is not None:
        low, high = value["ci95"]
        found["ci95"] = [float(low), float(high)]
    return found | ({"n": int(value["n"])} if "n" in value else {})


# --- The model card: front matter that the Hub reads, and prose that says only what the run and its scores say


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
    text = resources.files("rolellm.rocit").joinpath("model_card.md.jinja").read_text(encoding="utf-8")
    template = markdown_environment().from_string(text)
    manifest = facts.manifest
    body = template.render(
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
        datasets=None if facts.manifest["data"]["config"] in (SAMPLE, "dataset") else [REPO_ID],
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
    # A JSON string is a Python string, but for characters beyond 16 bits; what cannot be seen is written as its escape.
    whole = json.dumps(text, ensure_ascii=False)
    return "".join(one if visible(one) == one else f"\\U{ord(one):08x}" for one in whole)


def _what(facts: CardFacts) -> Markdown:
    base = markdown_code(facts.base or facts.manifest["base"]["name"])
    if facts.form == "adapter":
        return Markdown(f"A LoRA adapter for {base}.")
    done = " with a LoRA adapter merged into it." if facts.form == "merged" else ", tuned in all its weights."
    return Markdown(base + done)


def _base(facts: CardFacts) -> str:
    base = facts.manifest["base"]
    if facts.base is not None:
        at = f" at {markdown_code(facts.base_revision, cell=True)}" if facts.base_revision else ""
        return Markdown(markdown_code(facts.base, cell=True) + at)
    if base["kind"].startswith("tiny-"):
        return "a tiny model, built from the training rows and warmed on role-free answers"
    return Markdown(f"{markdown_code(base['name'], cell=True)}, a folder that is not on the Hub")


def _method(method: Mapping[str, Any]) -> str:
    if method["name"] == "full":
        return "all weights"
    lora = method["lora"]
    targets = lora["target_modules"]
    on = targets if isinstance(targets, str) else ", ".join(targets)
    text = f"LoRA of rank {lora['r']}, alpha {lora['lora_alpha']:g}, dropout {lora['lora_dropout']:g}, on {on}"
    if method["name"] == "lora":
        return text
    bits = method["quantization"]
    double = ", doubly quantized" if bits["bnb_4bit_use_double_quant"] else ""
    kind, dtype = bits["bnb_4bit_quant_type"], bits["bnb_4bit_compute_dtype"]
    return f"{text}; QLoRA, on the base in 4 bits ({kind}{double}, computed in {dtype})"


def _data(manifest: Mapping[str, Any]) -> Markdown:
    data, seen = manifest["data"], manifest["trained_on"]
    of = "lines of scripts" if manifest["recipe"]["data"].get("source") == "script" else f"{data['rows']:,} rows"
    counts = f"roles: {len(seen['roles']):,}, instructions: {len(seen['instructions']):,}"
    if manifest["recipe"]["data"].get("source") == "dataset":
        return Markdown(f"a dataset of its own: {of}, {data['examples']:,} replies; {counts}")
    config, split = (markdown_code(data[name], cell=True) for name in ("config", "split"))
    return Markdown(f"RoleBench {config}, split {split}: {of}, {data['examples']:,} replies; {counts}")


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
            yield key, markdown_code(json.dumps(value, ensure_ascii=False), cell=True)


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
        yield Markdown("It was tuned on the small sample that comes with `rolellm`, not on the benchmark.")
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
