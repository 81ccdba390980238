"""``rolellm scene``: several characters in one scene, and CoSER's benchmark."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import get_scripted_models, stop_if_dry
from rolellm.cli.options import with_options
from rolellm.cli.output import RETRY, say
from rolellm.cli.play import PageOptions, make_played_llm
from rolellm.core.errors import EndpointError, ModelError, SettingsError, StoppedShortError, require
from rolellm.core.result import Result
from rolellm.core.settings import Advanced, dump
from rolellm.llm.dispatcher import STOP_REQUEST
from rolellm.llm.llm import LLM, CallOptions, EngineOptions
from rolellm.playing.settings import PlaySettings
from rolellm.runs import Run, Step

if TYPE_CHECKING:
    from rolellm.scenes.scene import Scene
    from rolellm.scenes.visibility import SceneTurn


@with_options
def run_scene(
    model_options: EngineOptions,
    call_options: CallOptions,
    settings: PlaySettings,
    page: PageOptions,
    file: Annotated[str, typer.Argument(metavar="SCENE.yaml")] = "",
    cast: list[str] | None = None,
    director: Advanced[Path | None] = None,
    judge: Path | None = None,
    prompts: Advanced[Path | None] = None,
    format: Literal["scene", "coser"] = "scene",
    limit: Advanced[Annotated[int | None, typer.Option(min=1)]] = None,
    out: Path = Path("scene"),
    me: str | None = None,
    rescore: list[Path] | None = None,
    canary: Advanced[Literal["parrots", "swapped"] | None] = None,
) -> Result:
    """Play a scene whose characters know only what they witnessed.

    With --format coser, CoSER's benchmark of acting.

    Args:
        file: The scene (docs/scenes.md), or with --format coser a test set of CoSER.
        cast: NAME=MODEL: the model or adapter of one character; repeatable. All others share the main model.
        director: YAML settings of the model that tells the environment and chooses the next speaker.
        judge: YAML settings of the judge: of CoSER's dimensions, or of two replies to each prompt, for rolellm prefer.
        prompts: YAML file with prompts of your own, such as CoSER's.
        format: The form of the file.
        limit: With --format coser: play only the first N rows.
        out: Folder of the run; the same command continues one that stopped.
        me: The character whose lines you type.
        rescore: Compute CoSER's scores from a file that its evaluation or this command wrote, instead of playing; with
            two, compare these evaluations of the same scenes, by two casts or two judges.
        canary: With --format coser: a cast that must score badly: parrots, who repeat the last line, or characters with
            swapped profiles.
    """
    if rescore:
        from rolellm.scenes.coser import compare_scores
        from rolellm.scenes.coser import rescore as compute_scores

        first, *others = rescore
        if len(others) > 1:
            raise SettingsError(f"{len(rescore)} evaluations; give --rescore once, or twice to compare two")
        return compare_scores(first, *others) if others else compute_scores(first)
    if not file:
        raise SettingsError("no scene; name its file, or a test set with --format coser")

    from rolellm.preferences import judge_branches, prepare_branch_judging
    from rolellm.scenes.play import JudgedPlay, PlayScenes, play_scene
    from rolellm.scenes.scene import read_scene

    models: dict[str, Any] = {"cast": _read_cast(cast or ()), "director": _read_llm(director), "prompts": prompts}
    if format == "coser":
        if me is not None or page.web:
            raise SettingsError("--me and --web are for a scene of your own; leave them or --format coser out")
        actors = make_played_llm(model_options, call_options)
        return _run_coser(file, actors, settings, models, judge, limit, canary, out)
    if canary is not None or limit is not None:
        raise SettingsError("canary and limit need --format coser")
    scene = read_scene(file)
    if me is not None:
        scene.character(me)
    llm = None
    if model_options.is_named:
        llm = make_played_llm(model_options, call_options)
    elif models["cast"] and {me, *models["cast"]}.issuperset(scene.names):
        llm = next(iter(models["cast"].values())).limit(call_options)
    judge_llm = _read_llm(judge)
    has_branches = judge_llm is not None
    if llm is not None:
        branched = [name for name in scene.names if has_branches and name != me]
        played = PlayScenes([scene], settings, **models, branched=branched)
        step: Step[Any] = played
        if judge_llm is not None:
            step = JudgedPlay(played, judge_llm, lambda result: prepare_branch_judging(result.branches, out))
        stop_if_dry(step, llm)
    play = partial(play_scene, scene, llm, **models, me=me, branches=has_branches, out=out, **dump(settings))
    if page.web:
        run = _play_on_page(play, scene, me, page)
    else:
        terminal = _Terminal()
        if me is not None:
            say(f"{scene.introduce(me)}\n", err=True)
        run = play(show=terminal.show, read_line=terminal.read_line)
    if judge_llm is None:
        return run
    judge_branches(run.folder, judge_llm)
    return run.continue_with(shlex.join(["rolellm", "prefer", str(run.folder), "--out", "pairs"]))


def _play_on_page(play: Callable[..., Run[Any]], scene: Scene, me: str | None, options: PageOptions) -> Run[Any]:
    """Play a scene on a page, which stays until somebody asks to stop."""
    from rolellm.cli.label import open_page, prepare_gradio

    prepare_gradio()

    from rolellm.reporting.labelling.serve import wait_for_stop
    from rolellm.reporting.labelling.stage import ScenePage

    page = ScenePage(scene, me)
    with open_page(page.build(), port=options.port):
        try:
            run = play(show=page.add, read_line=page.read_line)
        except (EndpointError, ModelError, StoppedShortError) as error:
            if STOP_REQUEST not in str(error):
                page.end(f"Stopped: {error}")
                wait_for_stop()
            raise
        (played,) = run.result.scenes
        if played.is_whole:
            page.end("The scene has ended.")
        else:
            page.end(f"The scene ended early: {played.ended}. The same command with --set {RETRY} asks again.")
        wait_for_stop()
    return run


def _run_coser(
    file: str,
    llm: LLM,
    settings: PlaySettings,
    models: dict[str, Any],
    judge: Path | None,
    limit: int | None,
    canary: str | None,
    out: Path,
) -> Run[Any]:
    from rolellm.llm.scripted import ScriptedModel
    from rolellm.runs import run_step
    from rolellm.scenes.coser import read_coser_rows, repeat_last_line, swap_profiles
    from rolellm.scenes.critique import CritiqueScenes
    from rolellm.scenes.play import JudgedPlay, PlayScenes

    rows = read_coser_rows(file)[:limit]
    scenes = [row.to_scene() for row in rows]
    if canary == "parrots":
        parrots = LLM.of(ScriptedModel(repeat_last_line, rules_hash="parrots", name="parrots"))
        names = {name for scene in scenes for name in scene.names}
        models["cast"] = dict.fromkeys(names, parrots)
    elif canary == "swapped":
        scenes = [swap_profiles(scene) for scene in scenes]
    step = PlayScenes(scenes, settings, is_strict=True, **models)
    prompts = models["prompts"]
    if judge is None:
        stop_if_dry(step, llm)
        return run_step(step, llm, out / "scenes")
    # Nobody plays for hours to learn that a package is missing.
    require("nltk", extra="scenes")
    judge_llm = LLM.of(judge, get_scripted_models())
    stop_if_dry(JudgedPlay(step, judge_llm, lambda result: CritiqueScenes(rows, result.scenes, prompts)), llm)
    run = run_step(step, llm, out / "scenes")
    certificate = _describe_certificate(judge_llm, out)
    critique = CritiqueScenes(rows, run.result.scenes, prompts, certificate)
    judged = run_step(critique, judge_llm, out / "critique")
    evaluation = str(judged.folder / "evaluation.json")
    return judged.continue_with(shlex.join(["rolellm", "scene", "--rescore", evaluation, "--json"]))


def _describe_certificate(judge: LLM, out: Path) -> str:
    """Say what the judge's certificate says, which is of another task than to list flaws."""
    from rolellm.judging.certificate import find_certificate
    from rolellm.judging.result import JudgedBy
    from rolellm.judging.run import name_judges

    (name,) = name_judges(judge.models, each=False)
    judged_by = JudgedBy(name, model=[dict(model.identity) for model in judge.models])
    certificate = find_certificate(judged_by, (out.absolute().parent, Path()), None)
    line = replace(judged_by, certificate=certificate).describe_certificate()
    return f"{line}. A certificate examines choices between two replies, not lists of flaws."


def _read_cast(members: Iterable[str]) -> dict[str, LLM]:
    """Read the models of the cast.

    Raises:
        SettingsError: For a member that is not NAME=MODEL, and one named twice.
    """
    cast: dict[str, LLM] = {}
    for member in members:
        name, separator, model = member.partition("=")
        if not separator or not name or not model:
            raise SettingsError(f"--cast {member}: write NAME=MODEL, such as Ada=runs/ada")
        if name in cast:
            raise SettingsError(f"--cast names {name} twice; give each character one model")
        source = Path(model)
        is_settings = source.suffix in (".yaml", ".yml") and source.is_file()
        cast[name] = LLM.of(source, get_scripted_models()) if is_settings else LLM.resolve(model)
    return cast


def _read_llm(path: Path | None) -> LLM | None:
    return None if path is None else LLM.of(path, get_scripted_models())


class _Terminal:
    """Shows turns, but not again what was just typed."""

    def __init__(self) -> None:
        self._typed = ""

    def read_line(self, prompt: str) -> str:
        self._typed = input(prompt)
        return self._typed

    def show(self, turn: SceneTurn) -> None:
        if turn.text != self._typed:
            speaker = f"{turn.speaker}: " if turn.speaker else ""
            say(f"{speaker}{turn.text}\n", err=True)
