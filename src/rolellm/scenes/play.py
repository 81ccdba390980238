"""Plays scenes: who speaks next, what that character has witnessed, its reply; until the scene ends.

Each character is asked with its own prompt: the role's system instruction, what it is told of the scene, and the talk
as it witnessed it (`visibility`). Several scenes go on side by side. Replies are in the run's journal, so a scene that
stopped goes on where it was, and nothing is paid for twice.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, NamedTuple

from rolellm.characters.roles import Part, find_part
from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.core.folders import use_working_folder
from rolellm.core.interrupts import handle_signals
from rolellm.core.records import Language, Profile
from rolellm.core.result import Result
from rolellm.core.settings import describe_alternatives, dump, read, suggest_keywords
from rolellm.core.table import Table
from rolellm.core.text import fold, format_count, make_safe_name
from rolellm.llm.dispatcher import STOP_REQUEST, StopAskingError
from rolellm.llm.llm import LLM
from rolellm.llm.model import (
    Accept,
    Answer,
    Failure,
    Finish,
    Message,
    Outcome,
    Request,
    Sampling,
    Usage,
    accept_speech,
    system,
    user,
)
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.render import load_template
from rolellm.playing.player import RolePlayer
from rolellm.playing.settings import PlaySettings
from rolellm.playing.thoughts import strip_inner_thoughts
from rolellm.runs import Plan, Records, Round, Run, Step, run_step
from rolellm.scenes.names import SPOKE_FOR, keep_own_lines
from rolellm.scenes.prompts import load_scene_prompts
from rolellm.scenes.scene import ENVIRONMENT, Scene, SceneCharacter, read_scene
from rolellm.scenes.speakers import END, choose_in_turn, choose_named, list_candidates, read_speaker
from rolellm.scenes.visibility import (
    REPETITION,
    Lapse,
    SceneTurn,
    build_chronicle,
    build_talk,
    find_lapses,
    is_repetition,
    tell_changes,
)

SCENES = "scenes.jsonl"
DIALOGUES = "dialogues.jsonl"
BRANCHES = "branches.jsonl"
TRANSCRIPT = "transcript.jsonl"
#: A reply that was cut off, or that a server's filter refused, is a turn like others.
_ALSO: Final[tuple[Finish, ...]] = ("length", "refused")
#: A name needs few tokens; reasoning before it needs some.
_SPEAKER_TOKENS: Final = 200
#: What a dry run's turns are made of: words of a token.
_WORDS: Final = ("word ", "and ", "the ", "light ")


@dataclass(frozen=True, slots=True)
class PlayedScene:
    """A scene as it was played.

    Attributes:
        title: The scene's name.
        turns: In order, the opening lines first.
        opening: Number of opening lines.
        ended: Why it ended: ``turns``, ``model``, or what went wrong.
        prompt_tokens: Tokens of the characters' prompts, by the models' own count.
        cached_tokens: Those that a server had from earlier prompts.
        lapses: Turns in which a character knew what it had not witnessed.
        dialogues: The scene as each character that a model played witnessed it, as rows to train on.
    """

    title: str
    turns: tuple[SceneTurn, ...]
    opening: int
    ended: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    lapses: tuple[Lapse, ...] = ()
    dialogues: tuple[dict[str, Any], ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if the scene came to its end."""
        return self.ended in ("turns", "model")

    def to_text(self) -> str:
        """Return the transcript as it came, thoughts included."""
        return "\n\n".join(f"{turn.speaker}: {turn.text}" for turn in self.turns)


@dataclass(frozen=True, slots=True)
class _Call:
    """A request of a scene, and who is to answer it: a character, the environment, or nobody for the next speaker."""

    name: str
    request: Request
    accept: Accept[str]


class _Asked(NamedTuple):
    """The models that answer calls, and where in the run's folder they keep their journal."""

    llm: LLM | None
    folder: str


Playing = Generator[_Call, Outcome[str], PlayedScene]


@dataclass(frozen=True, slots=True, repr=False)
class ScenesResult(Result):
    """Result of a run.

    Attributes:
        scenes: As they were played.
        branches: The prompts of turns that were drawn twice, with both replies.
    """

    scenes: tuple[PlayedScene, ...]
    branches: tuple[dict[str, Any], ...] = ()

    @property
    def turns(self) -> int:
        """Number of turns that a model said."""
        return sum(len(scene.turns) - scene.opening for scene in self.scenes)

    def tables(self) -> tuple[Table, ...]:
        """Build the table of characters: turns, and how many spoke for another, repeated one, or knew too much."""
        rows: list[list[Any]] = []
        for scene in self.scenes:
            played = scene.turns[scene.opening :]
            for name in dict.fromkeys(turn.speaker for turn in played):
                own_turns = [turn for turn in played if turn.speaker == name]
                spoke_for = sum(SPOKE_FOR in turn.note for turn in own_turns)
                repeated = sum(REPETITION in turn.note for turn in own_turns)
                knew = sum(lapse.name == name for lapse in scene.lapses)
                rows.append([f"{scene.title}: {name}", len(own_turns), repeated, spoke_for, knew])
        if not rows:
            return ()
        heads = ("Character", "Turns", "Repeated", "Spoke for another", "Knew what it had not witnessed")
        return (Table.from_rows("Characters", heads, rows),)

    def remarks(self) -> list[str]:
        """Return the number of turns and scenes, and how many tokens of prompts a server had already."""
        remarks = [f"{format_count(self.turns, 'turn')} in {format_count(len(self.scenes), 'scene')}."]
        cached = sum(scene.cached_tokens for scene in self.scenes)
        if cached:
            tokens = sum(scene.prompt_tokens for scene in self.scenes)
            remarks.append(f"Prompts of {tokens:,} tokens, of which the server computed {tokens - cached:,}.")
        return remarks

    def notes(self) -> list[str]:
        """Return which scenes ended early, and what was odd about turns."""
        notes = [f"note: {scene.title} ended early: {scene.ended}" for scene in self.scenes if not scene.is_whole]
        for scene in self.scenes:
            odd = [turn for turn in scene.turns if turn.note]
            if odd:
                first = odd[0]
                notes.append(
                    f"note: {scene.title}: {format_count(len(odd), 'turn')} with a remark; the first, turn "
                    f"{first.turn} of {first.speaker}: {first.note}"
                )
        return notes


@dataclass(frozen=True)
class PlayScenes(Step[ScenesResult]):
    """Play scenes.

    Attributes:
        scenes: The scenes.
        settings: How the roles are played.
        cast: Models of their own, by the character's name; all others are played by the run's model.
        director: The model that tells the environment and chooses the speakers; by default the run's.
        prompts: A YAML file with prompts of the user's own.
        is_strict: Whether CoSER's protocol is kept to the letter: what a character says for others stays, and where no
            speaker is named, chance decides.
        branched: The characters whose turns are drawn twice; the scene goes on from the first.
        me: The character whom a person plays, whose lines stay as they were typed.
        on_turn: Called with each scene and turn as it is played.
    """

    scenes: Sequence[Scene]
    settings: PlaySettings
    cast: Mapping[str, LLM] = field(default_factory=dict)
    director: LLM | None = None
    prompts: str | Path | None = None
    is_strict: bool = False
    branched: Collection[str] = ()
    me: str | None = None
    on_turn: Callable[[Scene, SceneTurn], object] | None = None
    kind: ClassVar[str] = "scene"

    def plan(self, llm: LLM) -> Plan[ScenesResult]:
        """Ask turn by turn, in all scenes at once.

        Raises:
            SettingsError: For no scene, a name in the cast that no scene has, or an unknown role.
        """
        if not self.scenes:
            raise SettingsError("no scene to play; give at least one")
        names = {name for scene in self.scenes for name in scene.names}
        for name in self.cast:
            if name not in names:
                raise SettingsError(f"the cast names {name}, who is in no scene{describe_alternatives(name, names)}")
        # A server is asked for the length of its context once.
        players: dict[int, RolePlayer] = {}
        stages = [_Stage(self, number, scene, llm, players) for number, scene in enumerate(self.scenes)]
        played = yield from self._play_together(stages)
        branches = yield from self._draw_branches(stages)
        return ScenesResult(tuple(played), tuple(branches))

    def _play_together(self, stages: Sequence[_Stage]) -> Plan[list[PlayedScene]]:
        played: dict[int, PlayedScene] = {}
        calls: dict[int, _Call] = {}
        plays = [stage.play() for stage in stages]

        def advance(number: int, outcome: Outcome[str] | None) -> None:
            play = plays[number]
            try:
                calls[number] = next(play) if outcome is None else play.send(outcome)
            except StopIteration as end:
                calls.pop(number, None)
                played[number] = end.value

        for number in range(len(plays)):
            advance(number, None)
        while calls:
            outcomes = yield from self._ask_together(calls)
            for number, outcome in outcomes.items():
                advance(number, outcome)
        return [played[number] for number in range(len(plays))]

    def _draw_branches(self, stages: Sequence[_Stage]) -> Plan[list[dict[str, Any]]]:
        """Draw a second reply to the very prompt that the character answered."""
        turns = [turn for stage in stages for turn in stage.branching]
        calls = {}
        for number, (call, _, _) in enumerate(turns):
            request = replace(call.request, repeat=1)
            calls[number] = replace(call, request=request)
        outcomes = yield from self._ask_together(calls)
        branches = []
        for number, (call, scene, text) in enumerate(turns):
            outcome = outcomes[number]
            if isinstance(outcome, Failure) or outcome.reply.finish != "stop":
                continue
            second, _ = keep_own_lines(outcome.value, call.name, scene.names)
            branch = {"id": call.request.tag, "role": call.name, "language": scene.language}
            prompt = [asdict(message) for message in call.request.messages]
            branches.append({**branch, "prompt": prompt, "replies": [text, second]})
        return branches

    def _ask_together(self, calls: Mapping[int, _Call]) -> Plan[dict[int, Outcome[str]]]:
        groups: dict[_Asked, list[int]] = {}
        for number, call in calls.items():
            groups.setdefault(self._find_models(call), []).append(number)
        answers: dict[int, Outcome[str]] = {}
        for asked, numbers in groups.items():
            outcomes = yield self._make_round(asked, [calls[number] for number in numbers])
            answers.update(zip(numbers, outcomes, strict=True))
        return answers

    def _find_models(self, call: _Call) -> _Asked:
        if call.name in self.cast:
            return _Asked(self.cast[call.name], f"cast/{make_safe_name(call.name)}")
        if call.name in ("", ENVIRONMENT) and self.director is not None:
            return _Asked(self.director, "director")
        return _Asked(None, "")

    def _make_round(self, asked: _Asked, calls: Sequence[_Call]) -> Round[str]:
        accepts = {call.request.tag: call.accept for call in calls}
        names = {call.name or "who speaks next" for call in calls}
        return Round(
            [call.request for call in calls],
            lambda request, reply: accepts[request.tag](request, reply),
            names.pop() if len(names) == 1 else "",
            also=_ALSO,
            stand_in=_make_stand_in,
            llm=asked.llm,
            folder=asked.folder,
        )

    def records(self, result: ScenesResult) -> Records:
        """Return the scenes, one a line, what each character witnessed as rows to train on, and turns drawn twice."""
        scenes = [asdict(replace(scene, dialogues=())) for scene in result.scenes]
        dialogues = [dialogue for scene in result.scenes for dialogue in scene.dialogues]
        records: dict[str, Any] = {SCENES: scenes, DIALOGUES: dialogues}
        if self.branched:
            records[BRANCHES] = result.branches
        return records

    def summarize(self, result: ScenesResult) -> dict[str, Any]:
        """Count scenes and turns; say which scenes ended early, and why."""
        ended = {scene.title: scene.ended for scene in result.scenes if not scene.is_whole}
        return {"scenes": len(result.scenes), "turns": result.turns, "ended_early": ended}

    def describe(self, result: ScenesResult) -> dict[str, Any]:
        """Return the hash of the prompts, and which are the user's own."""
        languages = sorted({scene.language for scene in self.scenes})
        prompts = {language: load_scene_prompts(language, self.prompts) for language in languages}
        own = sorted({name for each in prompts.values() for name in each.own})
        return {
            "prompts": {language: each.hash for language, each in prompts.items()},
            "own_prompts": own,
            "cast": {name: llm.describe() for name, llm in self.cast.items()},
            "director": self.director and self.director.describe(),
        }


@dataclass(frozen=True)
class JudgedPlay(Step[None]):
    """Scenes to play and to judge, to estimate both.

    Attributes:
        play: The scenes.
        judge: The model that judges.
        prepare_judging: Makes the judging of what was played.
        settings: Nothing to set.
    """

    play: PlayScenes
    judge: LLM
    prepare_judging: Callable[[ScenesResult], Step[Any]]
    settings: Any = None
    kind: ClassVar[str] = "scene"

    def plan(self, llm: LLM) -> Plan[None]:
        """Play, and ask the judge."""
        result = yield from self.play.plan(llm)
        judging = self.prepare_judging(result)
        verdicts = next(judging.plan(self.judge))
        yield replace(verdicts, llm=self.judge, stand_in=None)


def _find_role(character: SceneCharacter, language: Language) -> Part:
    if not character.card:
        return Part(Profile(character.name, language, description=character.description))
    try:
        return find_part(character.card)
    except (DataError, SettingsError) as error:
        raise SettingsError(f"the card of {character.name}: {error}") from error


class _Stage:
    """A scene, and who plays it.

    Args:
        step: The run.
        number: Which of its scenes this is, from 0.
        scene: The scene.
        llm: The model of those without one of their own.
        players: A player of each model so far, by the model's `id`.
    """

    def __init__(self, step: PlayScenes, number: int, scene: Scene, llm: LLM, players: dict[int, RolePlayer]) -> None:
        self._scene = scene
        #: Calls to draw again, with their scene and what it went on with.
        self.branching: list[tuple[_Call, Scene, str]] = []
        self._number = number
        self._step = step
        self._prompts = load_scene_prompts(scene.language, step.prompts)
        self._players: dict[str, RolePlayer] = {}
        for character in scene.characters:
            model = step.cast.get(character.name, llm)
            role = _find_role(character, scene.language)
            if id(model) not in players:
                players[id(model)] = RolePlayer(model, role, **dump(step.settings))
                _ = players[id(model)].context
            self._players[character.name] = players[id(model)].with_role(role)

    def play(self) -> Playing:
        """Play the scene to its end."""
        scene = self._scene
        turns: list[SceneTurn] = []
        usage = Usage()
        for name, text in scene.opening_lines:
            self._add(turns, name, text)
        opening = len(turns)
        speaker: str | None = scene.first or None
        note = ""
        if speaker is None:
            speaker, note = yield from self._choose(turns)
        ended = "turns"
        while speaker is not None and speaker != END and len(turns) < scene.turns:
            try:
                call = self._ask(turns, speaker)
            except ModelError as error:
                ended = str(error)
                break
            outcome = yield call
            if isinstance(outcome, Failure):
                ended = f"no turn of {speaker}: {outcome.reason}"
                break
            text, remark, second_usage = yield from self._mend(call, outcome.value, turns)
            usage += outcome.reply.usage + second_usage
            if speaker in self._step.branched and outcome.reply.finish == "stop":
                self.branching.append((call, scene, text))
            self._add(turns, speaker, text, "; ".join(filter(None, (note, remark))))
            if len(turns) < scene.turns:
                speaker, note = yield from self._choose(turns)
        if speaker is None:
            ended = note
        elif speaker == END:
            ended = "model"
        return PlayedScene(
            title=scene.title,
            turns=tuple(turns),
            opening=opening,
            ended=ended,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            lapses=tuple(find_lapses(scene, turns)),
            dialogues=tuple(self._list_dialogues(turns[opening:], turns)),
        )

    def _list_dialogues(self, played: Sequence[SceneTurn], turns: Sequence[SceneTurn]) -> Iterator[dict[str, Any]]:
        """List what each character that a model played saw and said, up to its last turn."""
        speakers = {turn.speaker for turn in played}
        for name, player in self._players.items():
            if name not in speakers:
                continue
            last = max(turn.turn for turn in turns if turn.speaker == name)
            talk = build_talk(self._scene, turns[:last], name)[:-1]
            first, *_ = player.prompt([user("…")], more=self._tell(name)).messages
            messages = [asdict(message) for message in (first, *talk)]
            yield {"scene": self._scene.title, "role": name, "messages": messages}

    def _add(self, turns: list[SceneTurn], speaker: str, text: str, note: str = "") -> None:
        number = len(turns) + 1
        turn = SceneTurn(number, speaker, text, tuple(self._scene.list_present(number)), note)
        turns.append(turn)
        if self._step.on_turn is not None:
            self._step.on_turn(self._scene, turn)

    def _ask(self, turns: Sequence[SceneTurn], speaker: str) -> _Call:
        scene = self._scene
        if speaker == ENVIRONMENT:
            names = ", ".join(scene.names)
            text = self._prompts.environment.fill(setting=scene.setting, topic=scene.topic, names=names)
            request = self._request(text, turns, self._step.settings.sampling, "environment")
            return _Call(speaker, request, accept_speech)
        player = self._players[speaker]
        prompt = player.prompt(build_talk(scene, turns, speaker), more=self._tell(speaker))
        request = replace(player.request(prompt), tag=self._tag(turns, speaker))
        return _Call(speaker, request, accept_speech)

    def _mend(
        self, call: _Call, text: str, turns: Sequence[SceneTurn]
    ) -> Generator[_Call, Outcome[str], tuple[str, str, Usage]]:
        """Keep the speaker's own lines, and ask once more for what was said before; a person's turn stays as it is.

        Returns:
            The turn's text, what was odd about it, and the tokens of asking again.
        """
        names = self._scene.names
        if call.name == self._step.me:
            return text, "", Usage()
        own_text, remark = keep_own_lines(text, call.name, names)
        if self._step.is_strict:
            return text, remark, Usage()
        if call.name == ENVIRONMENT or not is_repetition(own_text, turns):
            return own_text, remark, Usage()
        # The turn itself is not shown, or it would be copied.
        words = load_template(self._scene.language, "scene_again").fill(name=call.name)
        *earlier, last = call.request.messages
        messages = (*earlier, replace(last, content=f"{last.content}\n\n{words}"))
        outcome = yield replace(call, request=replace(call.request, messages=messages))
        usage = Usage()
        if isinstance(outcome, Answer):
            usage = outcome.reply.usage
            new_text, new_remark = keep_own_lines(outcome.value, call.name, names)
            is_echo = fold(words).strip("().（）。") in fold(new_text)
            if strip_inner_thoughts(new_text) and not is_echo and not is_repetition(new_text, turns):
                return new_text, new_remark, usage
        return own_text, "; ".join(filter(None, (remark, REPETITION))), usage

    def _tell(self, name: str) -> str:
        """Tell a character of the scene: what everybody knows, whom it meets, and what it wants."""
        scene = self._scene
        return self._prompts.character.fill(
            role=name,
            setting=scene.setting,
            topic=scene.topic,
            others=scene.describe_others(name),
            motivation=scene.character(name).motivation,
        )

    def _request(self, text: str, turns: Sequence[SceneTurn], sampling: Sampling, task: str) -> Request:
        chronicle = build_chronicle(turns) or load_template(self._scene.language, "scene_begin").fill()
        messages: tuple[Message, ...] = (system(text), user(chronicle))
        return Request(messages, sampling, tag=self._tag(turns, task))

    def _tag(self, turns: Sequence[SceneTurn], task: str) -> str:
        return f"{self._scene.title or self._number}/{self._number}/{len(turns) + 1}/{task}"

    def _choose(self, turns: Sequence[SceneTurn]) -> Generator[_Call, Outcome[str], tuple[str | None, str]]:
        """Choose who is next; returns the name, or `END`, or nobody where it fails, and what is odd about it."""
        scene = self._scene
        candidates = list_candidates(scene, turns)
        may_end = len(turns) >= scene.min_turns
        if scene.speakers == "in turn":
            return choose_in_turn(scene, turns), ""
        if scene.speakers == "named":
            return choose_named(scene, turns), ""
        if len(candidates) == 1 and not may_end:
            return candidates[0], ""
        text = self._prompts.speaker.fill(setting=scene.setting, topic=scene.topic, names=", ".join(candidates))
        sampling = Sampling(temperature=0.0, max_tokens=_SPEAKER_TOKENS)
        request = self._request(text, turns, sampling, "speaker")
        request = replace(request, repair=load_template(scene.language, "repair").text)
        outcome = yield _Call("", request, read_speaker(candidates, may_end=may_end))
        if isinstance(outcome, Failure):
            return None, f"no choice of the next speaker: {outcome.reason}"
        if outcome.value:
            return outcome.value, ""
        if self._step.is_strict:
            seed = hashlib.sha256(build_chronicle(turns).encode("utf-8")).hexdigest()
            return Random(seed).choice(candidates), "the next speaker was drawn: the model named nobody"
        return choose_in_turn(scene, turns), "the next one in turn: the model that chooses named nobody"


@suggest_keywords(PlaySettings)
def play_scene(
    scene: Scene | str | Path,
    llm: Any = None,
    *,
    cast: Mapping[str, Any] | None = None,
    director: Any = None,
    prompts: str | Path | None = None,
    me: str | None = None,
    branches: bool = False,
    show: Callable[[SceneTurn], object] | None = None,
    read_line: Callable[[str], str] = input,
    out: str | Path | None = None,
    **options: Any,
) -> Run[ScenesResult]:
    """Play a scene, in which each character sees only what it witnesses.

    Args:
        scene: The scene, or its file.
        llm: Who plays the characters: a folder, a Hub id, YAML settings of a model, or an `LLM`.
        cast: Models of their own, by the character's name, named likewise.
        director: The model that tells the environment and chooses the speakers; by default `llm`.
        prompts: A YAML file with prompts of your own, see `rolellm.scenes.prompts.OwnPrompts`.
        me: The character whose lines you type.
        branches: Draw each turn of a model twice, for `rolellm.preferences.judge_branches`.
        show: Called with each turn as it is played, and with who comes and leaves as a turn without a speaker; with
            `me`, with what this character sees of it.
        read_line: Called for each line of yours with a prompt; by default reads it from the terminal.
        out: The run's folder, with ``transcript.jsonl`` as it goes; the same call goes on with a scene that stopped.
        options: Fields of `rolellm.playing.settings.PlaySettings`, such as ``temperature``.

    Raises:
        SettingsError: For a scene that cannot be read, and a character without a model.
        StoppedShortError: At the budget or on Ctrl-C; what was played is kept.
    """
    if not isinstance(scene, Scene):
        scene = read_scene(scene)
    models = {name: LLM.resolve(model) for name, model in (cast or {}).items()}
    if me is not None:
        scene.character(me)

        def read_turn(prompt: str) -> str:
            transcript.tell_changes(scene.list_present(transcript.turns + 1))
            return read_line(prompt)

        person = LLM.of(ScriptedModel(partial(_read_line, me, read_turn), rules_hash="a person", name=me))
        person.options = replace(person.options, show_progress=False)
        models[me] = person
    if llm is None:
        without = [name for name in scene.names if name not in models]
        if without:
            raise SettingsError(f"{without[0]} has no model; give one for all, or name its own in the cast")
        llm = next(iter(models.values()))
    with use_working_folder(PlayScenes.kind, out) as folder:
        transcript = _Transcript(folder, scene, me, show)
        step = PlayScenes(
            [scene],
            read(PlaySettings, options),
            cast=models,
            director=None if director is None else LLM.resolve(director),
            prompts=prompts,
            branched=[name for name in scene.names if branches and name != me],
            me=me,
            on_turn=transcript.add,
        )
        run = run_step(step, LLM.resolve(llm), folder)
        line = ["rolellm", "train", "adapter", "--base", "BASE", "--data", str(folder / DIALOGUES)]
        return run.continue_with(shlex.join(line))


class _Transcript:
    """Writes the turns of a scene to a file as they come, and shows them."""

    def __init__(self, folder: Path, scene: Scene, me: str | None, show: Callable[[SceneTurn], object] | None) -> None:
        self._path = folder / TRANSCRIPT
        earlier = scene.title
        # There may be none yet, or half a line.
        with suppress(OSError, ValueError, LookupError), self._path.open(encoding="utf-8") as stream:
            earlier = json.loads(stream.readline())["scene"]
        if earlier != scene.title:
            raise SettingsError(f"{folder} holds the scene {earlier}; name another folder for this one (--out)")
        self._scene = scene
        self._me = me
        self._show = show
        self._present: Sequence[str] = ()
        self.turns = 0

    def add(self, scene: Scene, turn: SceneTurn) -> None:
        # The first turn begins the file anew: those of an earlier run come again from its journal.
        with self._path.open("w" if turn.turn == 1 else "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"scene": scene.title, **asdict(turn)}, ensure_ascii=False) + "\n")
        self.turns = turn.turn
        if self._show is None or self._me not in (None, *turn.present):
            return
        self.tell_changes(turn.present)
        if self._me not in (None, turn.speaker):
            turn = replace(turn, text=strip_inner_thoughts(turn.text))
        if turn.text:
            self._show(turn)

    def tell_changes(self, present: Sequence[str]) -> None:
        """Show who came and left since the last turn that was shown."""
        if self._show is not None:
            for text in tell_changes(self._scene, self._present, present, self._me):
                self._show(SceneTurn(self.turns, "", text, tuple(present)))
        self._present = present


def _read_line(me: str, read_line: Callable[[str], str], _: Request) -> str:
    """Read a person's turn.

    Raises:
        StopAskingError: On Ctrl-C and at the end of the input.
    """
    text = ""
    try:
        with handle_signals(signal.default_int_handler):
            while not text.strip():
                text = read_line(f"{me}> ")
    except (EOFError, KeyboardInterrupt) as error:
        raise StopAskingError(STOP_REQUEST) from error
    return text


def _make_stand_in(request: Request) -> str:
    """Make a turn for a dry run, unlike all others: half of what is allowed; who speaks is nobody's choice."""
    if request.tag.endswith("/speaker"):
        return ""
    draw = Random(f"{request.tag} {request.repeat}")
    return "".join(draw.choices(_WORDS, k=request.sampling.max_tokens // 2))
