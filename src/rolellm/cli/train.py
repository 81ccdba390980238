"""``rolellm train``: tune a model on role data, from a recipe."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import build_resume_line, print_json, print_result
from rolellm.core.sanitize import make_visible

if TYPE_CHECKING:
    from rich.text import Text
    from transformers import PreTrainedTokenizerBase

    from rolellm.training.examples import Example
    from rolellm.training.recipe import Recipe
    from rolellm.training.train import TrainingRun


#: What a mix is made of, in words.
_MIXED: Final = {"harmful": "harmful prompts", "lookalikes": "harmless look-alikes"}


@with_options
def run_train(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument()],
    out: Path | None = None,
    base: Annotated[str | None, typer.Option(metavar="FOLDER|HUB_ID")] = None,
    data_dir: Path | None = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    preview: bool = False,
    limit: Annotated[int, typer.Option(min=1)] = 2,
    resume: bool = False,
    overwrite: bool = False,
    as_json: AsJson = False,
) -> None:
    """Tune a model on role data by a recipe.

    The same code as accelerate launch recipes/rocit.py --config RECIPE.

    Args:
        recipe: YAML file, or the name of a recipe that ships, such as smoke-cpu.
        out: The run's folder, in place of output.dir.
        base: Model to tune, in place of the recipe's base.
        data_dir: Local copy of the release, or a data set of `rolellm role release`, in place of data.data_dir.
        settings: Override one value; may be repeated.
        preview: Show each token, trained or not, and what a safety mix will ask the base; then exit.
        limit: With --preview: number of rows to show.
        resume: Continue the unfinished run in the folder.
        overwrite: Replace the run in the folder.
    """
    from rolellm.core.threads import wait_briefly
    from rolellm.training.recipe_files import load_recipe
    from rolellm.training.run_folder import explain_stop

    wait_briefly()
    # JSON text is YAML text, whatever the path holds.
    moved = [] if data_dir is None else [f"data.data_dir={json.dumps(str(data_dir), ensure_ascii=False)}"]
    chosen = load_recipe(recipe, [*(settings or []), *moved], base=base)
    folder = out or chosen.output.dir
    if preview:
        _print_preview(chosen, folder, limit, as_json)
        return
    again = build_resume_line(context, *(["--overwrite"] if overwrite else []))
    going_on = build_resume_line(context, *([] if resume else ["--resume"]))
    with explain_stop(folder, again=again, resume=going_on):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm.training.train import train

        run = train(chosen, out=folder, overwrite=overwrite, resume=resume)
    print_result(run, lambda run: _show(run, chosen), as_json)


def _show(run: TrainingRun, recipe: Recipe) -> None:
    typer.echo(
        f"{run.steps} steps on {run.examples} replies of {run.rows} rows: "
        f"loss {run.first_loss:.3f} → {run.last_loss:.3f} in {run.seconds:.0f} s\n{run.out}"
    )
    if run.url is not None:
        typer.echo(run.url)
    data = recipe.data
    where = [] if data.source == "dataset" else ["--config", data.config]
    where += [] if data.data_dir is None else ["--data-dir", str(data.data_dir)]
    typer.echo("Go on with:")
    push = ["push", str(run.out), "OWNER/NAME", "--license", "LICENSE"]
    for command in (["eval", str(run.out), *where], ["improve", str(run.out)], push):
        typer.echo(f"  {shlex.join(['rolellm', *command])}")


def _print_preview(recipe: Recipe, out: Path, count: int, as_json: bool) -> None:
    from rolellm.core.errors import RecipeError
    from rolellm.training.safety import plan_answers
    from rolellm.training.train import prepare, read_replies

    recipe, rows = read_replies(recipe)
    prepared = prepare(recipe, out, rows)
    if recipe.training.trainer != "sft":
        raise RecipeError(f"--preview shows training by trainer: sft, not {recipe.training.trainer}")
    examples = [example for example in prepared.examples if example.reference == 0][:count]
    mix: dict[str, Any] = {}
    if recipe.data.mix.safety:
        mix = plan_answers(recipe, prepared.replies, prepared.ask, len(prepared.examples)).preview()
    if as_json:
        safety = {"safety": mix} if mix else {}
        print_json({"examples": [describe_example(example, prepared.tokenizer) for example in examples], **safety})
        return
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(format_rich(examples, prepared.tokenizer))
    else:
        for line in format_plain(examples, prepared.tokenizer):
            typer.echo(line)
    for line in format_mix(mix):
        typer.echo(line)


def list_tokens(example: Example, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The tokens of an example, in order: ``id``, ``text``, and whether the loss falls on it (``trained``).

    The parts of a character cut over several tokens read as U+FFFD, as the tokenizer decodes them.
    """
    read = len(example.prompt_ids)
    return [
        {"id": token, "text": str(tokenizer.decode([token])), "trained": index >= read}
        for index, token in enumerate(example.input_ids)
    ]


def describe_example(example: Example, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """An example as one JSON object: ``row_id``, ``reference``, the two texts, and ``tokens``."""
    return {
        "row_id": example.row_id,
        "reference": example.reference,
        "prompt": tokenizer.decode(list(example.prompt_ids)),
        "trained_text": tokenizer.decode(list(example.reply_ids)),
        "tokens": list_tokens(example, tokenizer),
    }


def format_plain(examples: Iterable[Example], tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Plain text for pipes: a heading an example, then a line a token (``+`` trained or ``.`` not, id, text)."""
    for example in examples:
        yield _format_heading(example)
        for token in list_tokens(example, tokenizer):
            yield f"{'+' if token['trained'] else '.'} {token['id']:>7} {token['text']!r}"


def format_rich(examples: Iterable[Example], tokenizer: PreTrainedTokenizerBase) -> Text:
    """The same for people: running text, trained tokens in bold green, the others dim, tokens told apart by shade."""
    from rich.text import Text

    out = Text()
    for example in examples:
        out.append(_format_heading(example) + "\n", style="bold")
        # Pieces of one character mean something only together, so runs are decoded whole where a token alone is torn.
        for torn, run in groupby(
            enumerate(list_tokens(example, tokenizer)), key=lambda item: "\ufffd" in item[1]["text"]
        ):
            group = list(run)
            parts = [[token for _, token in group]] if torn else [[token] for _, token in group]
            for offset, part in enumerate(parts):
                text = str(tokenizer.decode([token["id"] for token in part]))
                shade = "underline" if (group[0][0] + offset) % 2 else ""
                out.append(text, style=f"{'bold green' if part[0]['trained'] else 'dim'} {shade}".strip())
        out.append("\n\n")
    return out


def format_mix(mix: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say what will be asked of the base for ``data.mix.safety``: how many prompts, and one of each kind in full."""
    if mix:
        counts = " and ".join(f"{asked['prompts']:,} {_MIXED[kind]}" for kind, asked in mix.items())
        yield (
            f"data.mix.safety: before training, the base will be asked {counts} in the roles, and others in place of "
            "those whose reply cannot be kept. The first of each:"
        )
    for kind, asked in mix.items():
        yield from (f"{kind}, {turn['role']}: {make_visible(turn['content'])}" for turn in asked["first"])


def _format_heading(example: Example) -> str:
    trained, read = len(example.reply_ids), len(example.prompt_ids)
    return f"row {example.row_id}, reference {example.reference}: {read} tokens read, {trained} trained"
