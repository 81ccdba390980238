"""The model card: front matter that the Hub reads, and prose that says only what the run and its scores say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasPath, Field

from rolellm.core.errors import DataError
from rolellm.core.jsonl import read_json
from rolellm.core.records import Language
from rolellm.core.sanitize import Markdown, make_markdown_environment, make_visible
from rolellm.core.settings import iterate_leaves
from rolellm.core.typed_json import map_texts, read_as
from rolellm.data.rolebench.schema import ANONYMOUS, CONFIGS, REPO_ID, SAMPLE, get_config
from rolellm.models.prompts.encode import find_end_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

METRICS = ("CUS", "RAW", "SPE", "avg")
Form = Literal["adapter", "merged", "full"]
_Ends = Annotated[list[float], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, and as what it is published.

    Attributes:
        folder: The run's folder.
        manifest: Its manifest.
        form: An adapter, one merged into its base, or a model tuned in all its weights.
        base: The base on the Hub; ``None`` if it is not there.
        base_revision: The base's commit, if known.
        safety: The manifest of its safety check, if there was one.
    """

    folder: Path
    manifest: Mapping[str, Any]
    form: Form
    base: str | None
    base_revision: str | None
    safety: Mapping[str, Any] | None = None

    @property
    def on_rolebench(self) -> bool:
        """True if it was trained on rows of RoleBench, not of the sample, a release of one's own or another dataset."""
        data = self.manifest["data"]
        return not data.get("own") and data["config"] not in (SAMPLE, SAMPLE + ANONYMOUS, "dataset")

    @property
    def languages(self) -> list[Language]:
        """The languages of the training rows, as far as the recipe says."""
        data = self.manifest["recipe"]["data"]
        return list(data.get("languages") or get_config(data["config"]).languages)


@dataclass(frozen=True, slots=True)
class Metric:
    """The mean of a metric, with its intervals and the number of rows where they were recorded."""

    mean: float
    ci95: _Ends | None = None
    ci95_new_roles: _Ends | None = None
    n: int | None = None


def _at(*keys: str) -> Any:
    """A value that JSON holds in sections."""
    return Field(validation_alias=AliasPath(*keys))


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores that ``rolellm score --json`` printed about one part of the data, as far as the card needs it.

    Attributes:
        hash: That of all that the scores depend on.
        data_hash: That of the rows that were scored.
        own: True for rows of a release of one's own.
        unmatched: Number of rows without a prediction.
    """

    protocol: str
    config: str
    split: str
    metrics: dict[str, Metric | None]
    hash: Annotated[str, _at("fingerprint", "hash")]
    value: Annotated[str, _at("fingerprint", "value")]
    reference_choice: Annotated[str, _at("fingerprint", "reference_choice")]
    data_hash: Annotated[str, _at("fingerprint", "dataset", "fingerprint")]
    tokenizer: Annotated[dict[str, str], _at("fingerprint", "tokenizer")]
    predictions: Annotated[list[dict[str, Any]], _at("fingerprint", "predictions")]
    unmatched: Annotated[int, _at("unmatched", "rows")]
    own: Annotated[bool, _at("fingerprint", "dataset", "own")] = False
    unanswered: Annotated[str | None, _at("fingerprint", "missing")] = None
    contamination: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def measured(self) -> Iterator[tuple[str, Metric]]:
        """Metrics by name, in the order of tables."""
        return ((name, metric) for name in METRICS if (metric := self.metrics.get(name)) is not None)

    @property
    def missing(self) -> list[str]:
        """Metrics that no row measures."""
        return [name for name in METRICS if self.metrics.get(name) is None]

    @property
    def notes(self) -> list[str]:
        """Notes for a reader who compares the scores with others."""
        tokenizers = ", ".join(sorted(set(self.tokenizer.values())))
        notes = [f"{self.value} of {self.reference_choice}, tokenizer {tokenizers}"]
        notes += [_describe_decoding(item.get("generation")) for item in self.predictions]
        if self.unmatched:
            treated = "count as 0" if self.unanswered == "zero" else "are left out"
            notes.append(f"{self.unmatched} rows without an answer {treated}")
        if self.contamination is None:
            notes.append("whether its rows were trained on was not recorded")
        elif self.contamination.get("contaminated"):
            notes.append(f"{self.contamination['contaminated']} of {self.contamination['rows']} rows were trained on")
        # Not their text: some of them name files, which mean nothing elsewhere.
        if self.warnings:
            notes.append(f"scoring gave {len(self.warnings)} warning{'s' if len(self.warnings) > 1 else ''}")
        return list(dict.fromkeys(notes))

    def to_eval_results(self) -> Iterator[Any]:
        """The scores for the card's ``model-index``, as ``huggingface_hub.EvalResult``."""
        from huggingface_hub import EvalResult

        sample = self.config in (SAMPLE, SAMPLE + ANONYMOUS)
        for name, metric in () if self.own else self.measured:
            details = {"ci95": metric.ci95, "ci95_new_roles": metric.ci95_new_roles, "n": metric.n}
            yield EvalResult(
                task_type="text-generation",
                dataset_type="rolellm-sample" if sample else REPO_ID,
                dataset_name="the sample in rolellm" if sample else "RoleBench",
                dataset_config=self.config,
                dataset_split=self.split,
                dataset_args={"fingerprint": self.data_hash},
                metric_type="rouge",
                metric_name=f"{name} (Rouge-L {self.value}, protocol {self.protocol})",
                metric_value=metric.mean,
                metric_args={key: value for key, value in details.items() if value} | {"fingerprint": self.hash},
            )

    def to_hub_results(self) -> Iterator[Any]:
        """The scores for ``.eval_results`` of a model's repository, as ``huggingface_hub.EvalResultEntry``.

        None for the sample, fame-free twins, and configs and releases of others: the dataset on the Hub lacks them.
        """
        from huggingface_hub import EvalResultEntry

        is_on_hub = self.config in {*CONFIGS} - {SAMPLE} and not get_config(self.config).anonymous and not self.own
        notes = f"protocol {self.protocol}, split {self.split}; {'; '.join(self.notes)}"
        for name, metric in self.measured if is_on_hub else ():
            task = f"{self.config}_{name.lower()}"
            yield EvalResultEntry(dataset_id=REPO_ID, task_id=task, value=metric.mean, notes=notes)


def read_scores(path: Path) -> Scores:
    """Read what ``rolellm score --json`` printed into a file.

    Raises:
        DataError: When it is something else; names the file.
    """
    try:
        return read_as(Scores, map_texts(read_json(path), _flatten), "it")
    except DataError as error:
        raise DataError(f"is not what `rolellm score --json` prints: {error}", path=path) from error


def render_model_card(
    run: FinishedRun,
    repo: str,
    license_id: str,
    tokenizer: PreTrainedTokenizerBase,
    systems: Mapping[Language, str],
    scores: Sequence[Scores],
) -> str:
    """The card's text: YAML front matter, then Markdown.

    Args:
        run: The run, with its manifest as it is published.
        repo: ``OWNER/NAME``.
        license_id: The license that the model is published under.
        tokenizer: The tokenizer as it is published.
        systems: The system instruction's template, by language, as far as it is at hand.
        scores: What was measured.
    """
    environment = make_markdown_environment()
    environment.filters["quoted"] = _quote
    template = environment.from_string(
        resources.files("rolellm.training").joinpath("model_card.md.jinja").read_text(encoding="utf-8")
    )
    turns = [{"role": "system", "content": "{system instruction}"}, {"role": "user", "content": "{question}"}]
    end = find_end_token(tokenizer)
    language = next(iter(systems), run.languages[0])
    body = template.render(
        run=run,
        manifest=run.manifest,
        tiny=str(run.manifest["base"]["kind"]).startswith("tiny-"),
        repo=repo,
        license_id=license_id,
        prompt=str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)),
        end=end,
        end_token=str(tokenizer.convert_ids_to_tokens(end)),
        systems=systems,
        language=language,
        system=systems.get(language, "{role}\n{description}"),
        role=next(iter(run.manifest["trained_on"]["roles"]), "Sherlock Holmes"),
        recipe=dict(_list_recipe_rows(run.manifest["recipe"])),
        metrics=METRICS,
        scores=scores,
    )
    return f"---\n{_render_front_matter(run, repo, license_id, scores)}\n---\n\n{body}"


def _render_front_matter(run: FinishedRun, repo: str, license_id: str, scores: Sequence[Scores]) -> str:
    from huggingface_hub import ModelCardData

    method, adapter = run.manifest["method"], run.form == "adapter"
    results = [result for score in scores for result in score.to_eval_results()]
    data = ModelCardData(
        language=[str(language) for language in run.languages],
        license=license_id,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=run.base,
        datasets=[REPO_ID] if run.on_rolebench else None,
        tags=["rolellm", "role-playing", *([] if method == "full" else [method])],
        model_name=repo.partition("/")[2] if results else None,
        eval_results=results or None,
        base_model_relation=None if run.base is None else "adapter" if adapter else "finetune",
    )
    return str(data.to_yaml(line_break="\n"))


def _list_recipe_rows(recipe: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The recipe's values by dotted key, without those that this run had no use for."""
    unused = {
        "method.lora.": recipe["method"]["name"] == "full",
        "method.quantization.": recipe["method"]["name"] != "qlora",
        "base.tiny.": recipe["base"].get("build") is None,
        "base.warm.": recipe["base"].get("build") is None,
    }
    left_out = tuple(section for section, no in unused.items() if no)
    for key, value in iterate_leaves(recipe):
        if value is not None and not key.startswith(left_out):
            yield key, json.dumps(value, ensure_ascii=False)


def _quote(text: str) -> Markdown:
    """A text as a string of Python; what cannot be seen is written as its escape."""
    return Markdown(repr(text))


def _flatten(text: str) -> str:
    """A text on one line, where nothing hides or steers a display: it goes into the card's YAML."""
    return " ".join(make_visible(text).split())


def _describe_decoding(generation: Any) -> str:
    """Describe how answers were decoded, and by which model, as far as the file next to them says."""
    decoding = generation.get("decoding") if isinstance(generation, dict) else None
    if not isinstance(decoding, dict):
        return "how the answers were made was not recorded"
    settings = ", ".join(f"{key} {value}" for key, value in decoding.items())
    model = generation.get("adapter_hash") or generation.get("model_hash")
    prompt = generation.get("prompt")
    form = f", prompt form {prompt['form']}" if isinstance(prompt, dict) and "form" in prompt else ""
    return f"answers of the model with content hash {str(model)[:12]} by {settings}{form}"
