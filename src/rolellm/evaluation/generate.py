"""Predictions from a local model: batched, resumable, and the same however often they were interrupted.

Rows are put into batches by the length of their prompts, longest first, and the batches depend on the full list of rows
alone. A batch is written when it is done; a run that goes on makes the same batches and answers those that are not
complete, so that interruptions change nothing, in any precision. When the last one is done the file is rewritten in the
order of the rows.
"""

from __future__ import annotations

import json
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, ModelError, SettingsError, require
from rolellm.core.jsonl import JsonlAppender
from rolellm.core.records import Language, Row
from rolellm.core.settings import read
from rolellm.core.text import listed
from rolellm.evaluation.contamination import Contamination, check_rows
from rolellm.evaluation.resume import (
    finished_lines,
    only_writer,
    put_in_order,
    reconcile,
    renew_sidecar,
    sidecar_path,
    stopped_short,
    write_sidecar,
)
from rolellm.evaluation.rows import provenance, rows_of, with_generation
from rolellm.evaluation.settings import GenerateSettings, ProfileKind
from rolellm.models.find import ModelSource, find_model, manifest_paths
from rolellm.models.local_model import Completion, LocalModel
from rolellm.prompts.encode import PromptEncoder
from rolellm.prompts.render import prompt_messages, system_template
from rolellm.prompts.retrieval import RETRIEVED, RetrievalPrompts
from rolellm.runtime.folders import temporary_folder
from rolellm.runtime.progress import Progress
from rolellm.version import __version__

# --- The prompts of rows: encoded, checked against the model, and put into batches


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that go through the model together.

    Attributes:
        rows: Their places in the list of rows.
        max_new_tokens: The same for all of them, so that no row's limit depends on its neighbours.
    """

    rows: tuple[int, ...]
    max_new_tokens: int


def plan_batches(
    rows: Sequence[Row], lengths: Sequence[int], context: int | None, *, max_new_tokens: int, batch_size: int
) -> list[Batch]:
    """Put rows into batches, longest prompts first, so that running out of memory shows at once.

    A row whose prompt leaves less than ``max_new_tokens`` in the context gets what is left, and shares a batch only
    with rows that get the same.

    Args:
        rows: The rows.
        lengths: Tokens of each row's prompt.
        context: The most tokens that the model takes; ``None`` for no limit.
        max_new_tokens: The most that a reply may have.
        batch_size: The most rows in one batch.

    Raises:
        ModelError: When prompts leave no room for a reply; names the rows.
    """
    room = [max_new_tokens if context is None else min(max_new_tokens, context - length) for length in lengths]
    full = [place for place in range(len(rows)) if room[place] < 1]
    if full:
        raise ModelError(
            f"{len(full)} of {len(rows)} prompts leave no room for a reply in the model's context of {context} tokens: "
            + _name([(rows[place], f"{lengths[place]} tokens") for place in full])
            + ". Use a shorter --system-template or a model with a longer context, or leave these rows out"
        )
    # The longest have the least room, so rows with the same room stand together.
    order = sorted(range(len(rows)), key=lambda place: (-lengths[place], place))
    return [
        Batch(tuple(group[start : start + batch_size]), limit)
        for limit, places in groupby(order, key=lambda place: room[place])
        for group in [list(places)]
        for start in range(0, len(group), batch_size)
    ]


def _name(noted: Sequence[tuple[Row, str]]) -> str:
    return listed([f"{row.id} ({row.role}, {note})" for row, note in noted], _NAMED)


def encode_prompts(
    model: LocalModel,
    rows: Sequence[Row],
    messages: Callable[[Row], list[dict[str, str]]],
    advance: Callable[[int], None],
) -> list[Sequence[int]]:
    """The token ids of each row's prompt.

    Args:
        model: For its tokenizer and text form.
        rows: The rows to ask.
        messages: Makes a row's chat messages.
        advance: Called with 1 after each row.
    """
    encode = PromptEncoder(model.tokenizer)
    prompts: list[Sequence[int]] = []
    for row in rows:
        # Four bytes a token: lists of Python integers would take ten times the memory on a whole split.
        prompts.append(array("i", encode(messages(row))))
        advance(1)
    return prompts


def check_vocabulary(model: LocalModel, rows: Sequence[Row], prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts with tokens that the model has no embedding for.

    Raises:
        ModelError: Names the rows.
    """
    known = model.vocabulary
    outside = [(row, f"token {max(prompt)}") for row, prompt in zip(rows, prompts, strict=True) if max(prompt) >= known]
    if outside:
        raise ModelError(
            f"{len(outside)} of {len(rows)} prompts hold tokens that the model does not know (it has {known}): "
            f"{_name(outside)}. Is the tokenizer that of this model?"
        )


# --- What a prompt says of the role: its description, or lines of its script; as asked for, else as the model was


@dataclass(frozen=True, slots=True)
class ProfileForm:
    """What a prompt says of the role.

    Attributes:
        kind: ``description``, or ``retrieval``: exchanges of its script that BM25 finds for the question.
        retrieved: With ``retrieval``, the most exchanges.
    """

    kind: ProfileKind = "description"
    retrieved: int = RETRIEVED


@dataclass(frozen=True, slots=True)
class Asking:
    """How rows are asked.

    Attributes:
        messages: Makes a row's chat messages.
        record: What decides them, for the sidecar: ``template_hash`` by language, and with retrieval ``profile``,
            ``retrieved`` and ``profiles``, the hash of the dialogue files.
    """

    messages: Callable[[Row], list[dict[str, str]]]
    record: dict[str, Any]


def choose_form(source: ModelSource, kind: ProfileKind | None = None, retrieved: int | None = None) -> ProfileForm:
    """The form to ask a model in.

    Args:
        source: The model; where ``kind`` is not given, its manifest decides, and without one it is the description.
        kind: What the user asks for.
        retrieved: The same; by default what the model was tuned with, else as many as in the paper.

    Raises:
        SettingsError: When ``retrieved`` is given and there is nothing to retrieve.
    """
    tuned = _tuned_form(source)
    chosen = kind or tuned.kind
    if chosen == "description" and retrieved is not None:
        raise SettingsError("a number of retrieved exchanges goes with --profile retrieval only")
    return ProfileForm(chosen, tuned.retrieved if retrieved is None else retrieved)


def _tuned_form(source: ModelSource) -> ProfileForm:
    for name in (source.adapter, source.base):
        for path in manifest_paths(name) if name is not None else ():
            form = _read_form(path)
            if form is not None:
                return form
    return ProfileForm()


def _read_form(path: Path) -> ProfileForm | None:
    """The form in a manifest of ours; ``None`` for any other file."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("kind") != "rocit":
        return None
    recipe = content.get("recipe")
    prompt = recipe.get("prompt") if isinstance(recipe, dict) else None
    # Manifests from before there was a choice do not name it.
    if not isinstance(prompt, dict) or prompt.get("profile") != "retrieval":
        return ProfileForm()
    return ProfileForm("retrieval", int(prompt.get("retrieved", RETRIEVED)))


def asking(
    form: ProfileForm,
    rows: Iterable[Row],
    *,
    config: str | None = None,
    data_dir: str | Path | None = None,
    template: Path | None = None,
) -> Asking:
    """Settle how rows are asked.

    Args:
        form: What a prompt says of the role.
        rows: The rows to ask; with retrieval, their roles' scripts are read.
        config: The data set's config, in whose languages scripts are looked for.
        data_dir: Where the release is.
        template: A system instruction of the user's own; with retrieval it needs the slot ``{examples}``.

    Raises:
        SettingsError: For a template that will not do.
        ReleaseNotFoundError: With retrieval, when no role has a script.
        MissingExtraError: With retrieval, without ``bm25s``.

    Warns:
        MissingFilesWarning: With retrieval, for roles without a script: they are asked without any lines.
    """
    if form.kind == "description":
        # Both languages, whichever the rows are in, so that a run over more of the rows has the same settings.
        languages: tuple[Language, ...] = ("en", "zh")
        hashes = {language: system_template(language, template).hash for language in languages}
        own = None if template is None else system_template("en", template)
        return Asking(partial(prompt_messages, template=own), {"template_hash": hashes})
    from rolellm.rolebench.profiles import load_profiles, profiles_fingerprint

    profiles = load_profiles(config, data_dir, roles=(row.role for row in rows))
    messages = RetrievalPrompts(profiles, count=form.retrieved, path=template)
    record = {
        "template_hash": messages.hashes,
        "profile": form.kind,
        "retrieved": form.retrieved,
        "profiles": profiles_fingerprint(config, data_dir),
    }
    return Asking(messages, record)


# --- Predictions from a local model: batched, resumable, and the same however often they were interrupted


_NAMED = 10


def check(settings: GenerateSettings) -> ModelSource:
    """Refuse what can be refused before any data or weights are read.

    Args:
        settings: Which model, and how.

    Returns:
        Where the model comes from.

    Raises:
        ModelError: When the model is not there.
        SettingsError: When no model is named, the system template is not there, or settings contradict each other.
        MissingExtraError: Without torch or transformers.
    """
    if not settings.model:
        raise SettingsError("no model is named; pass a folder, a Hub id or a training run, or llm=… to ask a server")
    if settings.system_template is not None:
        system_template("en", settings.system_template)
    require("torch", "transformers", extra="train")
    source = find_model(settings.model, settings.adapter)
    choose_form(source, settings.profile, settings.retrieved)
    return source


@dataclass(frozen=True, slots=True)
class GenerateSummary:
    """What a run did.

    Attributes:
        out: The predictions file.
        rows: Rows asked for, all of them answered.
        generated: Rows answered by this run; the others were there already.
        stop: Replies that the model ended itself.
        length: Replies cut off at their limit.
        empty: Replies without any text.
        capped: Rows whose prompt leaves less than ``max_new_tokens`` in the model's context.
        new_tokens: Tokens generated by this run.
        seconds: Time that this run spent in generating.
        contaminated: Rows that the model was trained on, though the config promises new ones; ``None`` where that is
            not known.
    """

    out: Path
    rows: int
    generated: int
    stop: int
    length: int
    empty: int
    capped: int
    new_tokens: int
    seconds: float
    contaminated: int | None

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, with ``tokens_per_second``; that is null when nothing was generated."""
        rate = round(self.new_tokens / self.seconds, 1) if self.generated else None
        return {**asdict(self), "out": str(self.out), "seconds": round(self.seconds, 3), "tokens_per_second": rate}


def generate(model: Any, dataset: Any, *, llm: Any = None, out: str | Path | None = None, **decoding: Any) -> Any:
    """Answer the rows of a dataset.

    Ctrl-C keeps what is finished; the same call with the same ``out`` continues, and the result is the same.

    Args:
        model: A folder with a model, an adapter or a training run; a Hub id; or what `rolellm.train` returned. ``None``
            with ``llm``.
        dataset: A ``datasets.Dataset`` with the columns ``role`` and ``question``, and where present ``id``,
            ``language`` and ``role_description``.
        llm: Ask these models over an API instead: a settings file, a dict, or `rolellm.LLM`. Every reply is kept in a
            journal next to the predictions, so none is paid for twice.
        out: The predictions file (JSON Lines), kept and continued; by default one in a new temporary folder.
        decoding: Fields of `rolellm.evaluation.settings.GenerateSettings`, such as ``max_new_tokens``, ``temperature``
            or ``batch_size``.

    Returns:
        A ``datasets.Dataset``: the rows' columns plus ``prediction`` and ``finish`` (``stop``, or ``length`` where the
        reply was cut off at its limit; both are null for a request that a server would not answer).

    Raises:
        SettingsError: For an unknown option or value, or a dataset without the needed columns.
        ModelError: When the model cannot be loaded, or a prompt leaves no room for a reply.
        DataError: Under ``strict``, when the model was trained on rows.
        StoppedShortError: On Ctrl-C; says what is kept and how to continue.

    Warns:
        ContaminationWarning: When the model was trained on rows.
    """
    rows = rows_of(dataset, needed=("role", "question"))
    name = "" if model is None else str(getattr(model, "model_dir", model))
    settings = read(GenerateSettings, {**provenance(dataset), **decoding, "model": name})
    path = temporary_folder("generate") / "predictions.jsonl" if out is None else Path(out)
    with stopped_short(path, f"rolellm.generate(…, out={str(path)!r})"):
        if llm is None:
            answer_rows(rows, path, settings)
        else:
            from rolellm.evaluation.ask import ask_rows

            ask_rows(rows, path, llm, settings)
    return _answered(dataset, rows, path)


def _answered(dataset: Any, rows: Sequence[Row], path: Path) -> Any:
    """The dataset with the columns ``prediction`` and ``finish`` of a file."""
    from datasets import Dataset, Value

    lines = finished_lines(path, rows)
    table = dataset if isinstance(dataset, Dataset) else Dataset.from_list(list(dataset))
    for name in ("prediction", "finish"):
        if name in table.column_names:
            table = table.remove_columns(name)
        table = table.add_column(name, [lines.get(row.id, {}).get(name) for row in rows], feature=Value("string"))
    return with_generation(table, json.loads(sidecar_path(path).read_bytes()))


def answer_rows(
    rows: Sequence[Row], out: str | Path, settings: GenerateSettings, *, progress: bool = True
) -> GenerateSummary:
    """Answer rows with a local model, and write one JSON object a row: ``id``, ``prediction`` and so on.

    Beside the file, ``P.jsonl.meta.json`` says how it was made. A file that is already there is completed if its
    settings are the same. On Ctrl-C (`KeyboardInterrupt`) every finished batch is in the file;
    `rolellm.evaluation.resume.stopped_short` turns that into a message with a resume line.

    Args:
        rows: The rows to answer.
        out: The predictions file.
        settings: Which model, and how.
        progress: Show progress on standard error.

    Returns:
        What was done.

    Raises:
        ModelError: When the model cannot be loaded, or prompts leave no room for a reply: all named, before any work.
        SettingsError: When the file was begun with other settings, or a setting cannot be carried out.
        DataError: When there are no rows, ids repeat, or the file does not hold what it should; under
            ``settings.strict``, when the model was trained on rows (see `rolellm.evaluation.contamination`).

    Warns:
        ContaminationWarning: Without it, in the same case.
    """
    out = Path(out)
    source = check(settings)
    check_answerable(rows, out)
    known = check_rows(rows, source, config=settings.config, split=settings.split, strict=settings.strict)
    form = choose_form(source, settings.profile, settings.retrieved)
    asked = asking(form, rows, config=settings.config, data_dir=settings.data_dir, template=settings.system_template)
    model = LocalModel(settings.model, adapter=settings.adapter, device=settings.device, dtype=settings.dtype)
    with only_writer(out):
        meta = _describe(model, settings, known, asked.record)
        done: Collection[str] = ()
        if not settings.overwrite:
            meta = reconcile(out, meta)
            done = finished_lines(out, rows).keys()
        with Progress("reading prompts", len(rows), unit="rows", show=progress) as bar:
            prompts = encode_prompts(model, rows, asked.messages, bar.advance)
        check_vocabulary(model, rows, prompts)
        plan = plan_batches(
            rows,
            [len(prompt) for prompt in prompts],
            model.context,
            max_new_tokens=settings.decoding.max_new_tokens,
            batch_size=settings.batch_size,
        )
        work = [batch for batch in plan if any(rows[place].id not in done for place in batch.rows)]
        if work:
            model.load()
            check_vocabulary(model, rows, prompts)
            # Only now is the work certain to begin, so only now may earlier predictions go.
            if settings.overwrite:
                out.unlink(missing_ok=True)
            write_sidecar(out, meta)
        else:
            renew_sidecar(out, contamination=meta["contamination"])
        started = time.perf_counter()
        tokens = 0
        answering = Progress("answering", len(rows), done=len(done), unit="rows", show=progress)
        with answering as bar, JsonlAppender(out) as stream:
            for batch in work:
                replies = _answer(model, batch, rows, prompts, settings)
                lines = [_line(rows[place], reply) for place, reply in replies if rows[place].id not in done]
                stream.append(lines)
                tokens += sum(line["new_tokens"] for line in lines)
                bar.advance(len(lines))
        seconds = time.perf_counter() - started
        lines = put_in_order(out, rows)
    capped = sum(len(batch.rows) for batch in plan if batch.max_new_tokens < settings.decoding.max_new_tokens)
    summary = _summary(out, lines, len(rows) - len(done), capped, (tokens, seconds))
    return summary if known is None else replace(summary, contaminated=known.to_dict()["contaminated"])


def check_answerable(rows: Sequence[Row], out: Path) -> None:
    """Refuse rows that cannot be told apart in a file, and a directory in the file's place.

    Raises:
        DataError: When there are no rows, or ids repeat.
        SettingsError: When ``out`` is a directory.
    """
    if out.is_dir():
        raise SettingsError(f"{out} is a directory; predictions go into a file, such as {out / 'predictions.jsonl'}")
    if not rows:
        raise DataError("there are no rows to answer")
    repeated = [name for name, count in Counter(row.id for row in rows).items() if count > 1]
    if repeated:
        raise DataError(f"{len(repeated)} ids are on more than one row: {listed(repeated, _NAMED)}")


def _answer(
    model: LocalModel,
    batch: Batch,
    rows: Sequence[Row],
    prompts: Sequence[Sequence[int]],
    settings: GenerateSettings,
) -> list[tuple[int, Completion]]:
    import torch

    decoding = replace(settings.decoding, max_new_tokens=batch.max_new_tokens)
    try:
        replies = model.generate_batch(
            [prompts[place] for place in batch.rows], decoding, [rows[place].id for place in batch.rows]
        )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"out of memory in a batch of {len(batch.rows)} rows; what is finished is kept. "
            f"Run the same again with --batch-size {max(1, settings.batch_size // 2)}"
        ) from error
    return list(zip(batch.rows, replies, strict=True))


def _line(row: Row, reply: Completion) -> dict[str, Any]:
    return {
        "id": row.id,
        "role": row.role,
        "question": row.question,
        "prediction": reply.text,
        "finish": reply.finish,
        "prompt_tokens": reply.prompt_tokens,
        "new_tokens": reply.new_tokens,
    }


def _describe(
    model: LocalModel, settings: GenerateSettings, known: Contamination | None, asked: Mapping[str, Any]
) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "model": settings.model,
        "adapter": settings.adapter,
        **model.hashes,
        "config": settings.config,
        "split": settings.split,
        "dataset_fingerprint": settings.dataset_fingerprint,
        "contamination": None if known is None else known.sidecar_entry(),
        "prompt": {**model.prompt_form, **asked},
        "decoding": settings.decoding.describe(),
        "dtype": model.dtype,
        "device": model.device,
        "batch_size": settings.batch_size,
        "versions": {"rolellm": __version__, "torch": version("torch"), "transformers": version("transformers")},
    }


def _summary(
    out: Path, lines: Sequence[dict[str, Any]], generated: int, capped: int, work: tuple[int, float]
) -> GenerateSummary:
    finish = Counter(line.get("finish") for line in lines)
    return GenerateSummary(
        out=out,
        rows=len(lines),
        generated=generated,
        stop=finish["stop"],
        length=finish["length"],
        empty=sum(not line["prediction"] for line in lines),
        capped=capped,
        new_tokens=work[0],
        seconds=work[1],
        contaminated=None,
    )
