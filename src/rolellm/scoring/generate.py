"""Predictions: by a local model, batched, resumable, the same however often interrupted; or by models behind an API.

Locally, rows whose prompts begin alike follow each other, so that a role's beginning goes through the model once; they
are batched by length under a budget of tokens, and the batches depend only on the full list of rows. A batch is written
when it is done; a run that continues makes the same batches and answers the incomplete ones, so that interruptions
change nothing, in any precision. When the last batch is done, the file is rewritten in the order of the rows. Behind an
API every reply is journaled, so that a stopped run pays for nothing twice.
"""

from __future__ import annotations

import os
import shlex
import time
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from rolellm.core.errors import DataError, ModelError, RoleLLMWarning, SettingsError, require
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.folders import use_working_folder
from rolellm.core.jsonl import JsonlAppender, read_json, read_jsonl, write_jsonl
from rolellm.core.locks import lock_folder
from rolellm.core.progress import open_bar, track_progress
from rolellm.core.records import Row, Subset
from rolellm.core.result import Result
from rolellm.core.settings import Field, dump, read, suggest_keywords
from rolellm.core.text import format_count, join_names
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Finish, Model, Request, Sampling, accept_text, convert_turns
from rolellm.llm.scale import map_parts
from rolellm.llm.settings import describe_model
from rolellm.llm.vllm import AUTO, BUILTIN, VLLM, VLLMChat, find_vllm
from rolellm.models.find import ModelSource, find_manifests, find_model
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.encode import PromptEncoder
from rolellm.models.prompts.render import DescriptionPrompts, load_system_template
from rolellm.models.prompts.retrieval import RETRIEVED, RetrievalPrompts
from rolellm.scoring.contamination import Contamination, check_contamination
from rolellm.scoring.predictions import (
    check_settings,
    explain_interrupt,
    get_sidecar_path,
    read_finished_lines,
    read_sidecar,
)
from rolellm.scoring.rows import get_provenance, note_generation, read_dataset_rows
from rolellm.scoring.settings import GenerateSettings, ProfileKind
from rolellm.version import __version__

if TYPE_CHECKING:
    from rolellm.models.prefix_generation import BatchLimits

_NAMED = 10
#: The columns that rows must have to be asked.
_NEEDED = ("role", "question")
#: Makes a row's chat messages.
Ask = Callable[[Row], list[dict[str, str]]]
#: Row id to the turns that ask for its reply.
MessagesById = Mapping[str, list[dict[str, str]]]
#: The journal's folder, next to ``P.jsonl``.
_JOURNAL_SUFFIX = ".llm"


#: The places of rows that go through the model together, and their ``max_new_tokens``: one for all of them, so that no
#: row's limit depends on its neighbours.
RowBatch = tuple[tuple[int, ...], int]
# On a CPU, where larger batches are no faster (measured), and for Ray's workers, whose memory is not seen from here.
_ROWS = 64
_TOKENS = 16_384


def limit_replies(rows: Sequence[Row], lengths: Sequence[int], context: int | None, max_new_tokens: int) -> list[int]:
    """Limit each row's reply to what its prompt leaves of the context.

    Args:
        rows: The rows.
        lengths: Tokens of each row's prompt.
        context: The most tokens that the model takes; ``None`` for no limit.
        max_new_tokens: The most that a reply may have.

    Raises:
        ModelError: When prompts leave no room for a reply; names the rows.
    """
    limits = []
    full = []
    for row, length in zip(rows, lengths, strict=True):
        room = max_new_tokens if context is None else context - length
        limits.append(min(max_new_tokens, room))
        if room < 1:
            full.append((row, f"{length} tokens"))
    if full:
        raise ModelError(
            f"{len(full)} of {len(rows)} prompts leave no room for a reply in the model's context of {context} tokens: "
            f"{_name(full)}. Use a shorter --set system_template=… or a model with a longer context, or leave these "
            "rows out"
        )
    return limits


def plan_batches(
    lengths: Sequence[int],
    reply_limits: Sequence[int],
    limits: BatchLimits,
    groups: Sequence[tuple[int, Sequence[int]]] = (),
) -> list[RowBatch]:
    """Put rows into batches: those that share a beginning one after the other, each time the longest prompts first.

    A row shares a batch only with rows whose replies have the same limit.

    Args:
        lengths: Tokens of each row's prompt.
        reply_limits: Tokens of each row's reply, at most.
        limits: Of a batch.
        groups: As `rolellm.models.prefix_generation.group_prompts` gives them; without them nothing is shared.
    """
    from rolellm.models.prefix_generation import cut_batches

    shared = [0] * len(lengths)
    rank = [0] * len(lengths)
    for number, (length, indices) in enumerate(groups):
        for index in indices:
            shared[index] = length
            rank[index] = number

    def rank_row(index: int) -> tuple[int, int, int, int]:
        return reply_limits[index], rank[index], -lengths[index], index

    order = sorted(range(len(lengths)), key=rank_row)
    plan = []
    for limit, members in groupby(order, key=reply_limits.__getitem__):
        for batch in cut_batches(members, lengths, shared, rank, max_new_tokens=limit, limits=limits):
            plan.append((tuple(batch), limit))
    return plan


def choose_limits(model: LocalModel, settings: GenerateSettings, begun: Mapping[str, Any]) -> BatchLimits:
    """Choose how large batches are.

    Args:
        model: The model; its weights are loaded to see what memory they leave.
        settings: Their ``batch_size`` decides.
        begun: The sidecar of a file that is continued: it keeps its batches.
    """
    from rolellm.models.prefix_generation import BatchLimits

    if settings.batch_size is None and "batch_tokens" in begun:
        return BatchLimits(begun["batch_size"], begun["batch_tokens"])
    limits = BatchLimits(_ROWS, _TOKENS)
    if settings.ray is None:
        fitting = model.find_limits()
        if model.device == "cpu":
            limits = BatchLimits(min(_ROWS, fitting.rows), min(_TOKENS, fitting.tokens))
        else:
            limits = fitting
    if settings.batch_size is not None:
        limits = replace(limits, rows=settings.batch_size)
    return limits


def _name(noted: Sequence[tuple[Row, str]]) -> str:
    names = [f"{row.id} ({row.role}, {note})" for row, note in noted]
    return join_names(names, _NAMED)


def _check_vocabulary(model: LocalModel, rows: Sequence[Row], prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts with tokens that the model has no embedding for.

    Raises:
        ModelError: Names the rows.
    """
    outside = []
    for row, prompt in zip(rows, prompts, strict=True):
        highest = max(prompt)
        if highest >= model.vocabulary:
            outside.append((row, f"token {highest}"))
    if outside:
        raise ModelError(
            f"{len(outside)} of {len(rows)} prompts have tokens outside the model's vocabulary of {model.vocabulary}: "
            f"{_name(outside)}; does the tokenizer belong to this model?"
        )


def complete_settings(settings: GenerateSettings, source: ModelSource) -> GenerateSettings:
    """The settings with what a prompt says of the role: what they ask for, else what the model was tuned with.

    Args:
        settings: What the user asks for.
        source: The model; without a manifest that says how it was tuned, it is asked with the description.
    """
    tuned = _read_tuned_prompt(source)
    profile: ProfileKind = settings.profile or ("retrieval" if tuned else "description")
    retrieved = None
    if profile == "retrieval":
        retrieved = settings.retrieved or int(tuned.get("retrieved", RETRIEVED))
    return replace(settings, profile=profile, retrieved=retrieved)


def _read_tuned_prompt(source: ModelSource) -> Mapping[str, Any]:
    """The prompt section of the recipe that a model was tuned by, where it was tuned with retrieval."""
    for manifest in read_run_manifests(source):
        # Manifests from before there was a choice do not name it.
        prompt: Mapping[str, Any] = manifest.get("recipe", {}).get("prompt", {})
        return prompt if prompt.get("profile") == "retrieval" else {}
    return {}


def read_run_manifests(source: ModelSource) -> Iterator[dict[str, Any]]:
    """Read the manifests of the training runs that an adapter and its base come from, the adapter's first."""
    for name in filter(None, (source.adapter, source.base)):
        for path in find_manifests(name):
            # Many programs have a file of that name.
            with suppress(DataError):
                content = read_json(path)
                if content.get("kind") == "rocit":
                    yield content


def prepare_prompts(
    settings: GenerateSettings, rows: Iterable[Row], messages: MessagesById | None = None
) -> tuple[Ask, dict[str, Any]]:
    """Settle how rows are asked.

    Args:
        settings: ``profile`` (the description by default), ``retrieved``, ``system_template``, and where the scripts
            are: ``config`` and ``data_dir``.
        rows: The rows to ask; with retrieval, their roles' scripts are read.
        messages: Row id to the turns that ask for its reply; by default they are made of the row.

    Returns:
        What makes a row's chat messages, and what decides them, for the sidecar: ``template_hash`` by language, and
        with retrieval ``profile``, ``retrieved`` and ``profiles``, the hash of the dialogue files.

    Raises:
        SettingsError: For a template without the needed slots.
        ReleaseNotFoundError: With retrieval, when no role has a script.
        MissingExtraError: With retrieval, without ``bm25s``.

    Warns:
        MissingFilesWarning: With retrieval, for roles without a script: they are asked without any lines.
    """
    if messages is not None:
        return lambda row: messages[row.id], {"messages": hash_json([messages[row.id] for row in rows])}
    template = settings.system_template
    if settings.profile != "retrieval":
        # Both languages, whichever the rows are in, so that a run over more of the rows has the same settings.
        prompts = DescriptionPrompts(template)
        return prompts, {"template_hash": prompts.hashes}
    from rolellm.data.rolebench.release import hash_profiles, load_profiles

    retrieved = settings.retrieved or RETRIEVED
    profiles = load_profiles(settings.config, settings.data_dir, roles=(row.role for row in rows))
    prompts_with_lines = RetrievalPrompts(profiles, count=retrieved, path=template)
    record = {
        "template_hash": prompts_with_lines.hashes,
        "profile": settings.profile,
        "retrieved": retrieved,
        "profiles": hash_profiles(settings.config, settings.data_dir),
    }
    return prompts_with_lines, record


def check_model(settings: GenerateSettings) -> tuple[ModelSource, GenerateSettings]:
    """Refuse what can be refused before any data or weights are read.

    Args:
        settings: Which model, and how.

    Returns:
        Where the model comes from, and the settings as `complete_settings` completes them.

    Raises:
        ModelError: When the model is not there.
        SettingsError: When no model is named, or the system template is not there.
        MissingExtraError: Without torch or transformers.
    """
    if not settings.model:
        raise SettingsError("no model is named; give a folder, a Hub id or a training run, or a server (llm=…, --llm)")
    if settings.system_template is not None:
        load_system_template("en", settings.system_template)
    require("torch", "transformers", extra="train")
    find_vllm(settings.engine)
    source = find_model(settings.model, settings.adapter)
    return source, complete_settings(settings, source)


@suggest_keywords(GenerateSettings)
def generate(
    model: Any = None,
    dataset: Any = None,
    *,
    llm: Any = None,
    out: str | Path | None = None,
    roles: Sequence[str] = (),
    subset: Subset | None = None,
    limit: int | None = None,
    **decoding: Any,
) -> Any:
    """Answer the rows of a dataset.

    Ctrl-C keeps what is finished; the same call with the same ``out`` continues, and the result is the same.

    Args:
        model: A folder with a model, an adapter or a training run; a Hub id; or what `rolellm.train` returned. ``None``
            with ``llm``.
        dataset: A ``datasets.Dataset`` with the columns ``role`` and ``question``, and where present ``id``,
            ``language`` and ``role_description``; by default the split of RoleBench that ``config``, ``split`` (test)
            and ``data_dir`` name.
        llm: Ask these models over an API instead: a settings file, a dict, or `rolellm.LLM`. Every reply is kept in a
            journal next to the predictions, so none is paid for twice.
        out: The predictions file (JSON Lines), kept and continued; by default one in a new temporary folder.
        roles: Answer only these roles.
        subset: Answer only this subset.
        limit: Answer only N rows, drawn evenly from roles and subsets; a larger N keeps them.
        decoding: Fields of `rolellm.scoring.settings.GenerateSettings`, such as ``max_new_tokens``, ``temperature``
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
        RoleLLMWarning: When the model was trained on rows.
    """
    name = ""
    if model is not None:
        name = str(getattr(model, "model_dir", model))
    settings = read(GenerateSettings, {**get_provenance(dataset), **decoding, "model": name})
    if dataset is None:
        settings, dataset = load_asked_rows(settings)
    rows = read_dataset_rows(dataset, roles, subset, limit, needed=_NEEDED)
    file_name = "predictions.jsonl" if out is None else Path(out).name
    with use_working_folder("generate", None if out is None else Path(out).parent) as folder:
        path = folder / file_name
        with explain_interrupt(path, f"the same call with out={str(path)!r}"):
            answer_rows(rows, path, settings, llm)
    return _add_predictions(dataset, rows, path)


def load_asked_rows(settings: GenerateSettings) -> tuple[GenerateSettings, Any]:
    """Load the split of RoleBench that the settings name; complete what they say of it."""
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench
    from rolellm.data.rolebench.source import resolve_config

    config = resolve_config(settings.config, settings.data_dir)
    split = settings.split or "test"
    fingerprint = dataset_fingerprint(config, settings.data_dir)
    completed = replace(settings, config=config, split=split, dataset_fingerprint=fingerprint)
    return completed, load_rolebench(config, split, data_dir=settings.data_dir)


def _add_predictions(dataset: Any, rows: Sequence[Row], path: Path) -> Any:
    """Add the columns ``prediction`` and ``finish`` of a file to the rows of a dataset that were answered."""
    from datasets import Dataset, Value

    lines = read_finished_lines(path, rows)
    table = dataset if isinstance(dataset, Dataset) else Dataset.from_list(list(dataset))
    if len(rows) < len(table):
        indices = {row.id: index for index, row in enumerate(read_dataset_rows(table, needed=_NEEDED))}
        table = table.select([indices[row.id] for row in rows])
    for name in ("prediction", "finish"):
        if name in table.column_names:
            table = table.remove_columns(name)
        values = [lines.get(row.id, {}).get(name) for row in rows]
        table = table.add_column(name, values, feature=Value("string"))
    return note_generation(table, read_json(get_sidecar_path(path)))


@dataclass(frozen=True, slots=True, repr=False)
class GenerateResult(Result):
    """A file of answers.

    Attributes:
        out: The predictions file.
        rows: Number of predictions in it.
        generated: How many of them are new.
        stop: How many the model finished.
        length: How many were truncated at the token limit.
        empty: How many are empty.
        new_tokens: Tokens of the new ones.
        seconds: Its duration.
        capped: How many rows had less room than the token limit.
        contaminated: How many the model was trained on, though the config promises new ones; ``None`` where not known.
        settings: How they were made.
    """

    out: Path
    rows: int
    generated: int
    stop: int
    length: int
    empty: int
    new_tokens: int
    seconds: float
    capped: int = 0
    contaminated: int | None = None
    settings: Annotated[GenerateSettings, Field(exclude=True)] = field(kw_only=True)

    @property
    def tokens_per_second(self) -> float | None:
        """The rate of this run; ``None`` where nothing was generated."""
        if not self.generated or not self.seconds:
            return None
        return round(self.new_tokens / self.seconds, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and the rate as one JSON object."""
        return {**dump(self), "tokens_per_second": self.tokens_per_second}

    def notes(self) -> Sequence[str]:
        """Say how many rows had less room than the token limit."""
        if not self.capped:
            return ()
        limit = self.settings.max_new_tokens
        return (f"{self.capped} rows had less than {limit} tokens left in the model's context.",)

    def remarks(self) -> Sequence[str]:
        """Say how many predictions there are, and how they ended."""
        speed = ""
        if self.tokens_per_second:
            speed = f" ({self.tokens_per_second:,.0f} tokens/s)"
        counts = f"{format_count(self.rows, 'prediction')} in {self.out}, {self.generated} of them new{speed}"
        ends = f"{self.stop} complete, {self.length} truncated at the token limit, {self.empty} empty"
        return (f"{counts}: {ends}.",)

    @property
    def continues_with(self) -> Sequence[str]:
        """The line that scores them."""
        words = ["rolellm", "score", str(self.out), "--config", self.settings.config or ""]
        if self.settings.split not in (None, "test"):
            words += ["--split", str(self.settings.split)]
        if self.settings.data_dir is not None:
            words += ["--data-dir", str(self.settings.data_dir)]
        return (shlex.join(words),)


def answer_rows(
    rows: Sequence[Row],
    out: str | Path,
    settings: GenerateSettings,
    llm: Any = None,
    messages: MessagesById | None = None,
    chat: Model | None = None,
) -> GenerateResult:
    """Answer rows, and write one JSON object a row: ``id``, ``prediction`` and so on.

    Next to the file, ``P.jsonl.meta.json`` says how it was made. A file that is already there is completed if its
    settings are the same. On Ctrl-C (`KeyboardInterrupt`) every finished batch is in the file;
    `rolellm.scoring.predictions.explain_interrupt` turns that into a message with a resume line.

    Args:
        rows: The rows to answer.
        out: The predictions file.
        settings: Which model, and how.
        llm: As for `generate`.
        messages: As for `prepare_prompts`.
        chat: The model of the settings, whose vLLM is kept for others, too.

    Raises:
        ModelError: When the model cannot be loaded, or prompts leave no room for a reply: all named, before any work.
        SettingsError: When the file was begun with other settings, or a setting cannot be carried out.
        DataError: When there are no rows, ids repeat, or the file does not hold what it should; under
            ``settings.strict``, when the model was trained on rows (see `rolellm.scoring.contamination`).
        RunInUseError: When another process writes the file.
        StoppedShortError: With ``llm``, on Ctrl-C, at the budget or with a full disk; every reply is kept.
        EndpointError: When no endpoint answers.

    Warns:
        RoleLLMWarning: Without ``strict``, when the model was trained on rows.
        RoleLLMWarning: For requests that no model would answer.
    """
    out = Path(out)
    if out.is_dir():
        raise SettingsError(f"{out} is a directory; predictions go into a file, such as {out / 'predictions.jsonl'}")
    if not rows:
        raise DataError("there are no rows to answer")
    counts = Counter(row.id for row in rows)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise DataError(f"{len(repeated)} ids are on more than one row: {join_names(repeated, _NAMED)}")
    if llm is not None:
        if settings.adapter is not None or settings.engine not in (AUTO, BUILTIN):
            raise SettingsError("adapter and engine are for a model on this machine, not for a server or settings file")
        return _ask(rows, out, settings, LLM.of(llm), messages)
    settings = _settle_engine(settings, out)
    if find_vllm(settings.engine) is None:
        if isinstance(chat, VLLMChat):
            # The weights need its memory.
            chat.server.stop()
        return _generate_locally(rows, out, settings, messages)
    return _ask_vllm(rows, out, settings, messages, chat)


def _settle_engine(settings: GenerateSettings, out: Path) -> GenerateSettings:
    """Go on with the engine that a file was begun with, where none is named; Ray's workers have the built-in one."""
    if settings.engine != AUTO:
        return settings
    if settings.ray is not None:
        return replace(settings, engine=BUILTIN)
    recorded = None
    if not settings.overwrite:
        # What is wrong with it, `check_settings` says.
        with suppress(DataError):
            recorded = read_sidecar(out)
    if recorded is None:
        return settings
    return replace(settings, engine=recorded.get("engine", BUILTIN))


def _lock_predictions(out: Path) -> Any:
    return lock_folder(out.parent, f".{out.name}.lock")


def _generate_locally(
    rows: Sequence[Row], out: Path, settings: GenerateSettings, messages: MessagesById | None
) -> GenerateResult:
    source, settings = check_model(settings)
    contamination = check_contamination(
        rows, source, config=settings.config, split=settings.split, strict=settings.strict
    )
    ask, prompted = prepare_prompts(settings, rows, messages)
    model = LocalModel(settings.model, adapter=settings.adapter, dtype=settings.dtype)
    # It imports torch at its head.
    from rolellm.models.prefix_generation import group_prompts

    with _lock_predictions(out):
        meta = _build_local_meta(model, settings, prompted, contamination, out)
        done: dict[str, Any] = {}
        if not settings.overwrite:
            check_settings(out, meta)
            done = read_finished_lines(out, rows)
        encode = PromptEncoder(model.tokenizer)
        # Four bytes a token: lists of Python integers would take ten times the memory on a whole split.
        prompts = [array("i", encode(ask(row))) for row in track_progress(rows, "reading prompts", "rows")]
        _check_vocabulary(model, rows, prompts)
        groups = group_prompts(prompts)
        lengths = [len(prompt) for prompt in prompts]
        reply_limits = limit_replies(rows, lengths, model.context, settings.max_new_tokens)
        begun: dict[str, Any] = {}
        if done:
            begun = read_sidecar(out) or {}
        open_batches = []
        if any(row.id not in done for row in rows):
            limits = choose_limits(model, settings, begun)
            meta |= {"batch_size": limits.rows, "batch_tokens": limits.tokens}
            for batch in plan_batches(lengths, reply_limits, limits, groups):
                if any(rows[index].id not in done for index in batch[0]):
                    open_batches.append(batch)
        else:
            meta = {**begun, "contamination": meta["contamination"]}
        # Only now is the work certain to begin, so only now may earlier predictions go.
        if settings.overwrite:
            out.unlink(missing_ok=True)
        # Only now are the files of a model from the Hub here.
        meta |= {"base": model.source.base, "parameters": model.parameters}
        write_json(get_sidecar_path(out), meta)
        shared = {index: length for length, indices in groups for index in indices}

        def make_part(indices: Sequence[int], limit: int) -> _Part:
            batch = [(rows[index], prompts[index], shared[index]) for index in indices]
            return batch, replace(settings, max_new_tokens=limit)

        parts = starmap(make_part, open_batches)
        started = time.perf_counter()
        with open_bar("answering", len(rows), done=len(done), unit="rows") as bar:
            tokens = _append_answers(model, parts, settings, out, done, bar)
        seconds = time.perf_counter() - started
        finished = read_finished_lines(out, rows)
        write_jsonl(out, [finished[row.id] for row in rows])
    generated = len(rows) - len(done)
    result = _summarize(out, finished.values(), generated, tokens, seconds, settings)
    return _note_limits(result, reply_limits, contamination)


#: A row, its prompt, and the length of the beginning that it shares.
_Part = tuple[list[tuple[Row, "array[int]", int]], GenerateSettings]


def _append_answers(
    model: LocalModel,
    parts: Iterable[_Part],
    settings: GenerateSettings,
    out: Path,
    done: Container[str],
    bar: Any,
) -> int:
    """Answer rows part by part, and append what is new to the file; returns the tokens of it."""
    tokens = 0
    with JsonlAppender(out) as stream:
        for part_lines in map_parts(_generate_lines, model, parts, settings.ray, settings.workers):
            lines = [line for line in part_lines if line["id"] not in done]
            stream.append(lines)
            tokens += sum(line["new_tokens"] for line in lines)
            bar.update(len(lines))
    return tokens


def _generate_lines(model: LocalModel, part: _Part) -> list[dict[str, Any]]:
    batch, decoding = part
    rows, prompts, shared = zip(*batch, strict=True)
    replies = model.generate_batch(prompts, decoding, [row.id for row in rows], shared)
    lines = []
    for row, reply in zip(rows, replies, strict=True):
        lines.append(_build_line(row, reply.text, reply.finish, reply.prompt_tokens, reply.new_tokens))
    return lines


def _build_line(row: Row, text: str, finish: str, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    line: dict[str, Any] = {"id": row.id, "role": row.role, "question": row.question, "prediction": text}
    return {**line, "finish": finish, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}


def _build_meta(settings: GenerateSettings, prompted: dict[str, Any], out: Path) -> dict[str, Any]:
    """Build the part of the sidecar that every kind of model shares."""
    sources = {name: getattr(settings, name) for name in ("adapter", "config", "split", "dataset_fingerprint")}
    data_dir = settings.data_dir and os.path.relpath(settings.data_dir, out.parent)
    return sources | {
        "data_dir": data_dir,
        "contamination": None,
        "base": None,
        "parameters": None,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "prompt": prompted,
        "decoding": settings.describe(),
        "device": None,
        "batch_size": None,
        "batch_tokens": None,
        "versions": {"rolellm": __version__},
    }


def _build_local_meta(
    model: LocalModel,
    settings: GenerateSettings,
    prompted: dict[str, Any],
    contamination: Contamination | None,
    out: Path,
) -> dict[str, Any]:
    contaminated = None if contamination is None else contamination.to_sidecar()
    versions = {"rolellm": __version__, "torch": version("torch"), "transformers": version("transformers")}
    meta = _build_meta(settings, prompted, out)
    return meta | {
        "model": settings.model,
        **model.hashes,
        "contamination": contaminated,
        "prompt": {**model.prompt_form, **prompted},
        "dtype": model.dtype,
        "device": model.device,
        "versions": versions,
    }


def _summarize(
    out: Path,
    lines: Iterable[dict[str, Any]],
    generated: int,
    tokens: int,
    seconds: float,
    settings: GenerateSettings,
) -> GenerateResult:
    finish = Counter[str]()
    empty = 0
    for line in lines:
        finish[line.get("finish") or ""] += 1
        empty += not line["prediction"]
    return GenerateResult(
        out,
        rows=finish.total(),
        generated=generated,
        stop=finish["stop"],
        length=finish["length"],
        empty=empty,
        new_tokens=tokens,
        seconds=round(seconds, 3),
        settings=settings,
    )


def plan_row_requests(
    rows: Sequence[Row], settings: GenerateSettings, messages: MessagesById | None = None
) -> tuple[list[Request], dict[str, Any]]:
    """The requests that rows take of a model behind an API, and what decides their prompts."""
    ask, prompted = prepare_prompts(settings, rows, messages)
    sampling = Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_new_tokens,
        seed=settings.seed or None,
    )
    requests = [Request(convert_turns(ask(row)), sampling, tag=row.id) for row in rows]
    return requests, prompted


def _ask_vllm(
    rows: Sequence[Row],
    out: Path,
    settings: GenerateSettings,
    messages: MessagesById | None,
    chat: Model | None,
) -> GenerateResult:
    """Answer rows by a model on this machine that vLLM serves meanwhile, with all checks of the built-in engine."""
    if settings.ray is not None:
        raise SettingsError("ray and engine vllm exclude each other; use --engine builtin, or leave ray out")
    source, settings = check_model(settings)
    contamination = check_contamination(
        rows, source, config=settings.config, split=settings.split, strict=settings.strict
    )
    if not isinstance(chat, VLLMChat):
        llm = LLM(
            backend="local",
            model=settings.model,
            adapter=settings.adapter,
            dtype=settings.dtype,
            engine=settings.engine,
        )
        chat = cast(VLLMChat, llm.models[0])
    model = chat.model
    requests, prompted = plan_row_requests(rows, settings, messages)
    encode = PromptEncoder(model.tokenizer)
    prompts = []
    for request in track_progress(requests, "reading prompts", "rows"):
        turns = list(map(asdict, request.messages))
        prompts.append(encode(turns))
    _check_vocabulary(model, rows, prompts)
    lengths = list(map(len, prompts))
    reply_limits = limit_replies(rows, lengths, model.context, settings.max_new_tokens)
    meta = _build_local_meta(model, settings, prompted, contamination, out)
    meta |= {"engine": VLLM, "batch_size": None, "base": model.source.base, "parameters": model.parameters}
    earlier = chat.server.seconds
    result = _ask_rows(rows, requests, out, settings, LLM.of(chat), meta)
    # The speed is that of answering.
    seconds = result.seconds - (chat.server.seconds - earlier)
    result = replace(result, seconds=round(seconds, 3))
    return _note_limits(result, reply_limits, contamination)


def _note_limits(
    result: GenerateResult, reply_limits: Sequence[int], contamination: Contamination | None
) -> GenerateResult:
    capped = sum(limit < result.settings.max_new_tokens for limit in reply_limits)
    contaminated = None
    if contamination is not None:
        contaminated = contamination.to_dict()["contaminated"]
    return replace(result, capped=capped, contaminated=contaminated)


def _ask(
    rows: Sequence[Row], out: Path, settings: GenerateSettings, model: LLM, messages: MessagesById | None
) -> GenerateResult:
    requests, prompted = plan_row_requests(rows, settings, messages)
    meta = _build_meta(settings, prompted, out)
    meta["model"] = ", ".join(endpoint.name for endpoint in model.models)
    meta["adapter"] = None
    meta["endpoints"] = [describe_model(endpoint) for endpoint in model.models]
    return _ask_rows(rows, requests, out, settings, model, meta)


def _ask_rows(
    rows: Sequence[Row],
    requests: Sequence[Request],
    out: Path,
    settings: GenerateSettings,
    model: LLM,
    meta: dict[str, Any],
) -> GenerateResult:
    """Ask for all rows in a journal beside the file, and write the file when that is done."""
    from rolellm.llm.client import Client

    also: tuple[Finish, ...] = ("length",)
    started = time.perf_counter()
    with _lock_predictions(out):
        finished: set[Any] = set()
        if not settings.overwrite:
            check_settings(out, meta)
            if out.exists():
                finished = {line.get("id") for _, line in read_jsonl(out, bad=[])}
        folder = out.with_name(out.name + _JOURNAL_SUFFIX)
        with Client(folder, model.models, model.options) as client:
            outcomes = client.ask(requests, accept_text, label="answering", also=also)
        lines = []
        failed = []
        for row, outcome in zip(rows, outcomes, strict=True):
            if not isinstance(outcome, Answer):
                failed.append(outcome)
                continue
            reply = outcome.reply
            usage = reply.usage
            lines.append(_build_line(row, outcome.value, reply.finish, usage.prompt, usage.completion))
        write_json(get_sidecar_path(out), meta)
        write_jsonl(out, lines)
    if failed:
        first = failed[0]
        count = f"{len(failed)} of {len(rows)} rows have no prediction"
        text = f"{count}; the first ({first.request.tag}): {first.reason}"
        if not lines:
            raise DataError(text)
        warnings.warn(text, RoleLLMWarning, stacklevel=4)
    seconds = time.perf_counter() - started
    new_lines = [line for line in lines if line["id"] not in finished]
    tokens = sum(line["new_tokens"] for line in new_lines)
    return _summarize(out, lines, len(new_lines), tokens, seconds, settings)
