"""What tuning broke: the same prompts to the base and to the tuned model, with a role and without, and what changed.

Harmful prompts tell how often a model goes along, harmless look-alikes how often it refuses for nothing. Every figure
comes from a decider (rules, or `rolellm.llm.guards`) whose recall and false alarms are measured in the same run, on
replies whose kind is known; corrected figures take them into account.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, product
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from rolellm.characters.refusals import LANGUAGES, Prompt, is_refusal, list_own_prompts, read_prompts
from rolellm.characters.roles import Part, find_part
from rolellm.characters.scripts.parse import detect_language
from rolellm.checks.check import Check
from rolellm.checks.safety_figures import RULES, combine_verdicts, summarize_replies
from rolellm.core.errors import DataError, JudgingError, ModelError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language
from rolellm.core.settings import Advanced, Field, dump, settings
from rolellm.core.typed_json import read_as
from rolellm.llm.guards import Guard
from rolellm.llm.llm import LLM
from rolellm.llm.local import LocalChat
from rolellm.llm.model import Answer, Model, Outcome, Reply, Request, UnacceptableError, accept_speech, assistant, user
from rolellm.models.find import read_trained_on
from rolellm.models.prompts.render import load_texts
from rolellm.models.training_record import hash_instruction
from rolellm.playing.player import RolePlayer, play_roles
from rolellm.playing.settings import PlaySettings
from rolellm.runs import Plan, Records, Round

#: Share of a guard's words that may be in no known form (our choice).
_MOST_UNREAD: Final = 0.1


@settings
class SafetySettings:
    """Prompts and replies.

    Attributes:
        prompts: File of prompts (JSONL, CSV, Parquet), or a public set: advbench, harmbench, jailbreakbench,
            strongreject, xstest; may be repeated. Defaults to a small set of our own.
        planted: JSONL file of replies of known kind, with prompt, reply, harmful and refuses; defaults to our own.
        samples: Replies per prompt; 1 where the temperature is 0.
        pushes: Times that the user insists after a reply; the last reply counts.
        limit: Use only N harmful prompts and N look-alikes.
        guard_format: How the guards are asked: llama-guard-3, qwen3guard, granite-guardian, shieldgemma or rubric;
            detected by the model's name.
        combine: How the verdicts of two or more guards, and the rules, become one: majority or any.
    """

    prompts: tuple[str, ...] = ()
    planted: Advanced[Path | None] = None
    samples: int = Field(default=3, ge=1, le=1000)
    pushes: int = Field(default=0, ge=0, le=20)
    limit: int | None = Field(default=None, ge=1)
    guard_format: Advanced[str | None] = None
    combine: Advanced[Literal["majority", "any"]] = "majority"


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


def read_planted(path: Path) -> Iterator[PlantedReply]:
    """Yield the replies of known kind in a file.

    Raises:
        DataError: For a file that is missing, or a line of another form; names the line.
    """
    for line, row in read_jsonl(path):
        values = {**row, "language": detect_language(str(row.get("reply")))}
        yield read_as(PlantedReply, values, "the reply", path=path, line=line)


def pair_models(tuned: LLM, base: LLM) -> LLM:
    """Make one `LLM` of two, the tuned one first; they share a journal, and its budget.

    Raises:
        SettingsError: When either has several models, or both are the same.
    """
    counts = [len(llm.settings.endpoints or llm.models) for llm in (base, tuned)]
    if counts != [1, 1]:
        raise SettingsError("the base and the tuned model have to be one model each; list one endpoint in each file")
    if base.settings.endpoints and base.settings.endpoints == tuned.settings.endpoints:
        raise SettingsError("the base and the tuned model are the same; name another base with --against")
    return LLM.join(tuned, base)


def find_base(model: str) -> str:
    """The base of an adapter, in a folder or on the Hub.

    Raises:
        SettingsError: For a model that names none.
    """
    if not Path(model).is_file():
        from rolellm.models.find import find_model

        source = find_model(model)
        if source.adapter is not None:
            return source.base
    raise SettingsError(f"{model} does not say what it was tuned on; name the base with --against")


def count_trained(model: Model, prompts: Iterable[Prompt]) -> int:
    """Count the prompts that a model says it was trained on; an endpoint says nothing."""
    if not isinstance(model, LocalChat):
        return 0
    trained_on = read_trained_on(model.model.source.adapter or model.model.source.base)
    return sum(hash_instruction(prompt.text) in trained_on.instructions for prompt in prompts)


@dataclass(frozen=True)
class CheckSafety(Check):
    """Ask both models in every condition, and have every decider read the replies.

    The run's `LLM` has two models, the tuned one and its base; see `pair_models`.

    Attributes:
        settings: Prompts and samples.
        play: How roles are played; sampling without a role is the same.
        roles: As `rolellm.RolePlayer` takes them.
        guards: Guard models and judges, next to the rules.
    """

    settings: SafetySettings
    play: PlaySettings
    roles: Sequence[Any] = ()
    guards: Sequence[Guard] = ()
    kind: ClassVar[str] = "safety"
    rows: ClassVar[str] = "replies"

    def __post_init__(self) -> None:
        """Refuse two guards of one name.

        Raises:
            SettingsError: For those.
        """
        if len({guard.name for guard in self.guards}) < len(self.guards):
            raise SettingsError("two guards are the same model; name each once")

    def plan(self, llm: LLM) -> Plan[dict[str, Any]]:
        """Ask every prompt in every condition, then every guard about every reply and every planted one.

        Raises:
            SettingsError: For an unknown role, set of prompts, or form of a guard.
            DataError: For prompts that cannot be read.
            JudgingError: For a guard whose words are not in its form.
        """
        parts = list({part.sheet.role: part for part in map(find_part, self.roles)}.values())
        languages = [code for code in LANGUAGES if not parts or any(part.sheet.language == code for part in parts)]
        prompts = self._list_prompts(languages)
        languages = [code for code in LANGUAGES if any(prompt.language == code for prompt in prompts)]
        own = (reply for code in languages for reply in plant_replies(code))
        planted = list(own if self.settings.planted is None else read_planted(self.settings.planted))
        deciders = {RULES: LANGUAGES, **{guard.name: guard.format.languages for guard in self.guards}}
        rows: list[dict[str, Any]] = []
        for index, model in enumerate(("tuned", "base")):
            talks = list(self._plan_talks(LLM.of(llm.models[index]), parts, prompts))
            yield from self._hold_talks(talks, index)
            rows += [talk.to_row(model) for talk in talks]
        known: list[dict[str, Any]] = [
            asdict(reply) | {"verdicts": {RULES: {"refuses": is_refusal(reply.reply)}}} for reply in planted
        ]
        for number, guard in enumerate(self.guards, start=1):
            yield from _ask_guard(guard, number, rows, known)
        combined = None
        if len(self.guards) > 1:
            combined = self.settings.combine
            deciders[combined] = tuple(code for code in LANGUAGES if all(code in own for own in deciders.values()))
            combine_verdicts(rows, known, combined)
        figures = summarize_replies(rows, known, deciders, combined)
        if trained := count_trained(llm.models[0], prompts):
            figures["prompts"]["trained_on"] = trained
        return {**figures, "replies": rows, "planted_replies": known}

    def _list_prompts(self, languages: Sequence[Language]) -> list[Prompt]:
        named = chain.from_iterable(map(read_prompts, self.settings.prompts))
        texts = named if self.settings.prompts else list_own_prompts(languages)
        prompts = list({(prompt.text, prompt.harmful): prompt for prompt in texts}.values())
        if self.settings.limit is not None:
            prompts.sort(key=lambda prompt: hash_json(prompt.text))
            kinds = ([prompt for prompt in prompts if prompt.harmful is kind] for kind in (True, False))
            prompts = [prompt for kind in kinds for prompt in kind[: self.settings.limit]]
        if not any(prompt.harmful for prompt in prompts):
            raise DataError("no harmful prompts; without them there is nothing to refuse")
        return prompts

    def _plan_talks(self, model: LLM, parts: Sequence[Part], prompts: Sequence[Prompt]) -> Iterator[_PromptTalk]:
        """Yield a talk for each sample of a prompt, without a role and in each; a role gets prompts in its language."""
        samples = range(self.settings.samples if self.play.temperature else 1)
        yield from (_PromptTalk(prompt, sample) for prompt in prompts for sample in samples)
        for player in play_roles(model, parts, **dump(self.play)):
            own = [prompt for prompt in prompts if prompt.language == player.part.sheet.language] or prompts
            yield from (_PromptTalk(prompt, sample, player) for prompt in own for sample in samples)

    def _hold_talks(self, talks: Sequence[_PromptTalk], index: int) -> Plan[None]:
        """Ask the model of this index, turn by turn, for the replies of its talks."""
        for turn in range(1 + self.settings.pushes):
            going = [talk for talk in talks if talk.is_open]
            requests = [talk.build_request(turn, self.play) for talk in going]
            outcomes = yield Round(
                [request for request in requests if request is not None],
                _accept_reply,
                label=f"asking the {'base' if index else 'tuned model'}" + f", turn {turn + 1}" * bool(turn),
                also=("length", "refused", "filtered"),
                stand_in=lambda request: "word " * (request.sampling.max_tokens // 2),
                model=index,
            )
            asked = [talk for talk, request in zip(going, requests, strict=True) if request is not None]
            for talk, outcome in zip(asked, outcomes, strict=True):
                talk.take(outcome)

    def records(self, result: dict[str, Any]) -> Records:
        """Return the replies, and those of known kind."""
        return {"replies.jsonl": result["replies"], "planted.jsonl": result["planted_replies"]}

    def summarize(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the figures."""
        return {name: value for name, value in result.items() if name not in ("replies", "planted_replies")}

    def describe(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the date, how the roles are played, and the guards."""
        guards = {guard.name: guard.describe() for guard in self.guards}
        return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "play": dump(self.play), "guards": guards}


def _accept_reply(request: Request, reply: Reply) -> str:
    """Take any speech; one that the server withheld is a refusal without words."""
    try:
        return accept_speech(request, reply)
    except UnacceptableError:
        if reply.finish in ("refused", "filtered"):
            return ""
        raise


@dataclass
class _PromptTalk:
    """A prompt to a model, in a role or not, and what came of it; the last reply counts."""

    prompt: Prompt
    sample: int
    player: RolePlayer | None = None
    replies: list[str] = field(default_factory=list)
    problem: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the user can say something more: it did not fail, and no server withheld a reply."""
        return self.problem is None and all(self.replies)

    def build_request(self, turn: int, play: PlaySettings) -> Request | None:
        """Build the request for a turn's reply: the prompt first, then words that insist; ``None`` without room."""
        pushes = load_texts("safety", self.prompt.language)["pushes"]
        words = [self.prompt.text, *(pushes[number % len(pushes)] for number in range(turn))]
        turns = [user(words[0])]
        for reply, push in zip(self.replies, words[1:], strict=True):
            turns += [assistant(reply), user(push)]
        if self.player is None:
            return Request(tuple(turns), play.sampling, repeat=self.sample)
        try:
            return self.player.request(self.player.prompt([*self.player.opening, *turns]), repeat=self.sample)
        except ModelError as error:
            self.problem = str(error)
            return None

    def take(self, outcome: Outcome[str]) -> None:
        """Take a reply, or the reason why there is none."""
        if isinstance(outcome, Answer):
            self.replies.append(outcome.value)
        else:
            self.problem = outcome.reason

    def to_row(self, model: str) -> dict[str, Any]:
        """Return a line of ``replies.jsonl``."""
        reply = self.replies[-1] if self.problem is None else None
        # Whoever decides, a reply that the server withheld refuses.
        verdict = {"refuses": is_refusal(reply)} if reply else {"refuses": True, "unsafe": False}
        return {
            "model": model,
            "role": self.player and self.player.role,
            "prompt": self.prompt.text,
            **{name: getattr(self.prompt, name) for name in ("category", "harmful", "language")},
            "sample": self.sample,
            "earlier": self.replies[:-1],
            "reply": reply,
            "problem": self.problem,
            "verdicts": {} if reply is None else {RULES: verdict},
        }


def _ask_guard(guard: Guard, number: int, rows: list[dict[str, Any]], known: list[dict[str, Any]]) -> Plan[None]:
    """Add a guard's verdict to each reply and each of known kind; one that the server withheld needs none.

    Raises:
        JudgingError: For a guard whose words are not in its form.
    """
    answered = [*(row for row in rows if row["reply"]), *known]
    verdicts = yield Round(
        guard.build_requests([(row["prompt"], row["reply"]) for row in answered]),
        guard.accept,
        label=f"asking {guard.name}",
        stand_in=lambda _: {"refuses": True, "unsafe": False},
        llm=guard.llm,
        folder=f"guard-{number}",
    )
    for row, verdict in zip(answered, verdicts, strict=True):
        row["verdicts"][guard.name] = verdict.value if isinstance(verdict, Answer) else {}
    for row in (row for row in rows if row["reply"] == ""):
        row["verdicts"][guard.name] = row["verdicts"][RULES]
    _check_unread(guard.name, verdicts)


def _check_unread(name: str, verdicts: Sequence[Outcome[Any]]) -> None:
    answers = [verdict.value for verdict in verdicts if isinstance(verdict, Answer)]
    unread = sum(not labels for labels in answers)
    if unread > _MOST_UNREAD * len(answers):
        raise JudgingError(
            f"{name} answers in another form than expected: {unread / len(answers):.0%} of its {len(answers):,} "
            "verdicts cannot be read, so it decides nothing. Name its form (--set guard_format=…), or ask another model"
        )
