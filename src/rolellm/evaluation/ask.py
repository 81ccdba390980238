"""Predictions from models behind an API; every reply is journaled, so that a stopped run pays for nothing twice."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rolellm.core.errors import DataError, SettingsError, StoppedShortError
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Row
from rolellm.evaluation.generate import ProfileForm, asking, check_answerable
from rolellm.evaluation.resume import only_writer, reconcile, write_sidecar
from rolellm.evaluation.settings import GenerateSettings
from rolellm.llm.client import Client
from rolellm.llm.model import Answer, Finish, Message, Model, Request, RunOptions, Sampling
from rolellm.prompts.retrieval import RETRIEVED
from rolellm.version import __version__

#: The journal's folder, next to ``P.jsonl``.
JOURNAL_SUFFIX = ".llm"


class UnansweredWarning(UserWarning):
    """Requests that no model would answer: their rows have no prediction."""


def ask_rows(rows: Sequence[Row], out: Path, llm: Any, settings: GenerateSettings) -> None:
    """Answer rows with the models of ``llm``, and write the same lines as for a local model.

    Raises:
        SettingsError: For an ``llm`` that is neither a settings file, a dict nor an object with models, or a file that
            was begun with other settings.
        StoppedShortError: On Ctrl-C, at the budget or with a full disk; every reply is kept.
        EndpointError: When no endpoint answers.
    """
    models, options = models_of(llm)
    check_answerable(rows, out)
    form = ProfileForm(settings.profile or "description", settings.retrieved or RETRIEVED)
    asked = asking(form, rows, config=settings.config, data_dir=settings.data_dir, template=settings.system_template)
    meta = {
        "model": ", ".join(model.name for model in models),
        "adapter": None,
        "endpoints": [dict(model.identity) for model in models],
        "config": settings.config,
        "split": settings.split,
        "dataset_fingerprint": settings.dataset_fingerprint,
        "contamination": None,
        "prompt": asked.record,
        "decoding": settings.decoding.describe(),
        "device": None,
        "batch_size": None,
        "versions": {"rolellm": __version__},
    }
    sampling = Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_new_tokens,
        seed=settings.seed or None,
    )
    requests = [
        Request(
            tuple(Message(cast(Any, one["role"]), one["content"]) for one in asked.messages(row)), sampling, tag=row.id
        )
        for row in rows
    ]
    cut: tuple[Finish, ...] = ("length",)
    with only_writer(out):
        meta = meta if settings.overwrite else reconcile(out, meta)
        with Client(out.with_name(out.name + JOURNAL_SUFFIX), models, options) as client:
            try:
                outcomes = client.ask(requests, label="answering", also=cut)
            except StoppedShortError as error:
                message = str(error).removesuffix(f"\nResume with: {error.resume}")
                raise StoppedShortError(message, resume=f"rolellm.generate(…, out={str(out)!r})") from error
        write_sidecar(out, meta)
        write_jsonl(
            out, (_line(row, found) for row, found in zip(rows, outcomes, strict=True) if isinstance(found, Answer))
        )
    failed = [found for found in outcomes if not isinstance(found, Answer)]
    if failed:
        first = failed[0]
        text = f"{len(failed)} of {len(rows)} rows have no prediction; the first ({first.request.tag}): {first.reason}"
        if len(failed) == len(rows):
            raise DataError(text)
        warnings.warn(text, UnansweredWarning, stacklevel=3)


def _line(row: Row, answer: Answer[str]) -> dict[str, Any]:
    return {
        "id": row.id,
        "role": row.role,
        "question": row.question,
        "prediction": answer.value,
        "finish": answer.reply.finish,
        "prompt_tokens": answer.reply.usage.prompt,
        "new_tokens": answer.reply.usage.completion,
    }


def models_of(llm: Any) -> tuple[list[Model], RunOptions]:
    """The models to ask, and how often and for how much.

    Args:
        llm: A settings file, a dict of its keys, an object with ``models`` and ``options`` (`rolellm.LLM`), a model, or
            a list of models.

    Raises:
        SettingsError: For anything else, and for settings that cannot be carried out.
    """
    if hasattr(llm, "models"):
        return list(llm.models), getattr(llm, "options", None) or RunOptions()
    if isinstance(llm, Model):
        return [llm], RunOptions()
    if isinstance(llm, list | tuple) and llm and all(isinstance(one, Model) for one in llm):
        return list(llm), RunOptions()
    if isinstance(llm, str | Path | Mapping):
        from rolellm.llm.settings import load_models, load_settings

        if isinstance(llm, Mapping):
            raise SettingsError("llm as a dict needs rolellm.LLM")
        known = load_settings(llm)
        return load_models(known), RunOptions(max_attempts=known.max_attempts, budget=known.budget)
    raise SettingsError(
        f"llm must be a settings file, a dict or rolellm.LLM(base_url=…, model=…), found {type(llm).__name__}"
    )
