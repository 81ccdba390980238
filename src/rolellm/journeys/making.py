"""``rolellm make``: from a card, a script or a character's folder to a tuned and measured character, in one folder.

The folder is the character's own. Each stage's files are those of its command: ``attribution/``, ``build/``,
``instruct/`` and ``respond/`` with their journals, ``data/`` (as ``rolellm role release``), ``adapter/`` (as
``rolellm train``; in it ``safety/``, as ``rolellm check safety``), ``checks/`` and ``eval/``. ``make.yaml`` holds all
choices, ``make.json`` what was made.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from rolellm.characters.cards.card import load_card
from rolellm.characters.cards.convert import read_as_character
from rolellm.characters.folder import PROFILE, import_card, is_card, write_character
from rolellm.characters.roles import find_part
from rolellm.characters.scripts.parse import clean_names, read_script, select_role
from rolellm.checks.character_tests import ENDING, TestsResult, write_first_file
from rolellm.checks.safety import CheckSafety, SafetyResult, SafetySettings, pair_models, read_safety
from rolellm.core.errors import ModelError, ScriptError, SettingsError, require
from rolellm.core.files import open_atomic, write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.folders import name_call
from rolellm.core.jsonl import read_json
from rolellm.core.locks import lock_folder
from rolellm.core.records import Profile
from rolellm.core.result import Result
from rolellm.core.settings import Advanced, Field, dump, read, read_file, settings, suggest_keywords
from rolellm.core.table import Table
from rolellm.core.text import format_count, make_safe_name
from rolellm.data.rolebench import load_rolebench
from rolellm.exporting.export import Format
from rolellm.llm.estimate import Estimate, format_dollars
from rolellm.llm.guards import Guard
from rolellm.llm.llm import LLM, CallOptions
from rolellm.llm.tokens import TokenCounter
from rolellm.making.attribution import Attribute
from rolellm.making.character import Character
from rolellm.making.instruct.run import Instruct
from rolellm.making.profile.build import BuildProfile
from rolellm.making.profile.portrait import MOST_BYTES
from rolellm.making.release import gather, write_release
from rolellm.making.respond import Respond, read_instructions
from rolellm.making.scripted import load_llm
from rolellm.making.settings import InstructSettings, RespondSettings
from rolellm.measures import check
from rolellm.models.find import locate_model
from rolellm.models.prompts.render import load_system_template
from rolellm.playing.settings import PlaySettings
from rolellm.reporting.blocks import lay_out_safety, lay_out_tests, name_safety_models
from rolellm.reporting.page import write_page
from rolellm.runs import MANIFEST, Run, estimate_step, run_step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rolellm.journeys.evaluation import EvalResult
    from rolellm.training.recipe import Recipe

CHOICES: Final = "make.yaml"
_STATE: Final = "make.json"
_COMMENT: Final = "# Change a value and run `rolellm make` on this folder again: what depends on it is made anew.\n"
#: One question for this many tokens of the source, within these bounds: 10,000 tokens get the paper's 400.
_TOKENS_A_QUESTION: Final = 25
_FEWEST, _MOST = 10, 400
#: Tokens beside the character's prompt: a reply of 200, as `rolellm generate` makes it, and a question.
_ROOM: Final = 256
_RECIPE: Final = "adapter"
#: Stages that keep a journal, in the order in which they are paid for.
_PAID: Final = ("attribution", "build", "instruct", "respond", "adapter/safety")
#: What ``make.json`` keeps of an earlier call: which stages this command made, and of what.
_KEPT_STATE: Final = ("read", "released", "trained", "exported")
TUNED: Final = "tuned"
PROMPTED: Final = "prompt only"


@settings
class MakeSettings:
    """Character.

    Attributes:
        role: The role's name in a script; a card has its own.
        alias: Another name of the role in a script; may be repeated.
        questions: Questions to make, before filters; by default as many as the source has material for.
        instructions: General instructions to answer in the role's voice.
        replies: Replies per instruction; the last is held out.
        base: Model to tune, a folder or a Hub id; without it, the data set is the end.
        recipe: How to tune it.
        guard: Settings file of a guard model, to check what tuning did to refusals and unsafe replies.
        export: Write the tuned model for another program, too, as `rolellm export --to` does.
    """

    role: str | None = None
    alias: Advanced[tuple[str, ...]] = ()
    questions: int | None = Field(default=None, ge=1)
    instructions: Advanced[int] = Field(default=100, ge=2, le=100)
    replies: Advanced[int] = Field(default=6, ge=2)
    base: str | None = None
    recipe: Advanced[str] = _RECIPE
    guard: Path | None = None
    export: Format | None = None


@dataclass(frozen=True, slots=True, repr=False)
class MakeResult(Result):
    """A character that was made.

    Attributes:
        folder: The character's folder.
        role: Its name.
        stages: Each stage's outcome in words, in order.
        findings: The adapter against the base with the same prompt, in sentences; empty without a base.
        continues_with: The command lines to go on with.
        page: The report, where there is a base.
    """

    folder: Path
    role: str
    stages: Mapping[str, str]
    findings: tuple[str, ...] = ()
    continues_with: tuple[str, ...] = ()
    page: Path | None = None
    measured: EvalResult | None = field(default=None, compare=False)

    @property
    def adapter(self) -> Path | None:
        """The tuned adapter's folder."""
        if self.page is None:
            return None
        return self.folder / "adapter"

    @property
    def data(self) -> Path | None:
        """The data set's folder, for ``load_rolebench(data_dir=…)``."""
        if "data" in self.stages:
            return self.folder / "data"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object; ``make.json`` has it, too."""
        report = None if self.page is None else str(self.page)
        return {
            "out": str(self.folder),
            "role": self.role,
            "stages": dict(self.stages),
            "findings": list(self.findings),
            "following": list(self.continues_with),
            "report": report,
        }

    def tables(self) -> tuple[Table]:
        """Build the table of the stages."""
        rows = self.stages.items()
        table = Table.from_rows(self.role, ("stage", "outcome"), rows)
        return (replace(table, left=("outcome",)),)

    def remarks(self) -> Sequence[str]:
        """Return the findings."""
        return self.findings


@dataclass(frozen=True, slots=True, repr=False)
class MakeEstimate(Result):
    """The cost of each stage of `make`; no model was asked.

    Attributes:
        role: Who would be made.
        stages: The estimate of each stage, and of all together.
    """

    role: str
    stages: Mapping[str, Estimate]

    def tables(self) -> tuple[Table]:
        """Build the table of the stages."""
        rows = []
        for stage, estimate in self.stages.items():
            expected = estimate.expected
            tokens = expected.tokens
            cost = format_dollars(expected.cost)
            rows.append((stage, expected.calls, tokens.prompt, tokens.completion, cost))
        heads = ("stage", "calls", "prompt tokens", "reply tokens", "US dollars")
        return (Table.from_rows(f"To make {self.role}; no model was asked", heads, rows),)


@suggest_keywords(MakeSettings)
def make(
    source: str | Path, llm: Any = None, out: str | Path | None = None, *, budget: float | None = None, **options: Any
) -> MakeResult:
    """Make a character of a source, as far as the models at hand go; the same call continues after any stop.

    Its profile (a card's own description is kept), questions and answers, replies to general instructions with their
    plain answers, and a data set with a held-out part; with a base, an adapter, its checks, and how it does on the
    held-out part against the same base with the same prompt.

    Args:
        source: A card; a script, novel or chat with ``role=``; a character's folder; or a folder that this made before,
            whose choices are then the defaults.
        llm: The model that makes the data: a settings file, a dict, or `rolellm.LLM`. By default the base; without
            either, the source is only read.
        out: The folder; by default named after the source, in the current one.
        budget: US dollars that all stages may cost together; needs prices.
        options: Any field of `MakeSettings`.

    Raises:
        SettingsError: For a source that is not there, a script without a role, or a folder with something else.
        ModelError: When the base cannot be loaded, or has too little room for this character; before anything is asked.
        StoppedShortError: On Ctrl-C, at the budget or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
    """
    journey = _Journey.start(source, llm, out, budget, options)
    folder = journey.folder
    try:
        with lock_folder(folder), name_call(folder):
            return journey.run()
    finally:
        if folder.is_dir() and {path.name for path in folder.iterdir()} <= {".lock"}:
            shutil.rmtree(folder)


def estimate_make(source: str | Path, llm: Any = None, out: str | Path | None = None, **options: Any) -> MakeEstimate:
    """Estimate what each stage of `make` would take; no model is asked, and no folder made.

    Args:
        source: As for `make`.
        llm: As for `make`.
        out: As for `make`.
        options: Any field of `MakeSettings`.
    """
    return _Journey.start(source, llm, out, None, options).estimate()


@dataclass(slots=True)
class _Journey:
    """One call: where, from what, with which choices, and what is known from earlier calls."""

    folder: Path
    source: Path
    llm: LLM | None
    chosen: MakeSettings
    choices: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(
        cls, source: str | Path, llm: Any, out: str | Path | None, budget: float | None, options: Mapping[str, Any]
    ) -> _Journey:
        """Settle the choices: those given, over those of the folder's ``make.yaml``."""
        origin = Path(source)
        if not origin.exists():
            raise SettingsError(f"{origin} does not exist; give a card, a script, or a character's folder")
        folder = Path(make_safe_name(options.get("role") or origin.stem))
        if out:
            folder = Path(out)
        elif origin.is_dir():
            folder = origin
        if folder.is_file():
            raise SettingsError(f"{folder} is a file; name a folder for the character (--out)")
        file = folder / CHOICES
        earlier: dict[str, Any] = {}
        if file.is_file():
            earlier = read_file(file)
            earlier_origin = folder / str(earlier.pop("source", ""))
            if origin.resolve() == folder.resolve():
                origin = earlier_origin
            earlier_llm = earlier.pop("llm", None)
            if llm is None and earlier_llm:
                llm = folder / earlier_llm
            if earlier.get("guard"):
                earlier["guard"] = str(folder / earlier["guard"])
        changed = {name: value for name, value in options.items() if value not in (None, ())}
        source_name = str(file) if earlier else ""
        chosen = read(MakeSettings, earlier | changed, source_name)
        llm_file = None
        if isinstance(llm, str | Path):
            llm_file = llm
        if llm is None and chosen.base is not None:
            llm = {"endpoints": [{"backend": "local", "model": chosen.base}]}
        model = None
        if llm is not None:
            model = copy.copy(load_llm(llm))
            if budget is not None:
                model.options = replace(model.options, budget=budget)
        choices = {"source": None, "llm": None, **dump(chosen)}
        paths = {"source": origin, "llm": llm_file, "guard": chosen.guard}
        for name, path in paths.items():
            choices[name] = None if path is None else os.path.relpath(path, folder)
        journey = cls(folder, origin, model, chosen, choices)
        state_file = folder / _STATE
        if state_file.is_file():
            state = read_json(state_file)
            journey.state = {name: state[name] for name in _KEPT_STATE if name in state}
        return journey

    def run(self) -> MakeResult:
        """Go through the stages; each takes from its folder what is there already."""
        tokenizer = self._load_base_tokenizer()
        if self.chosen.export is not None and tokenizer is None:
            raise SettingsError("--export needs a tuned model; name its base (--base)")
        self._check_free("released", "data")
        if tokenizer is not None:
            self._check_free("trained", "adapter", "checks", "eval")
            self._check_free("exported", "export")
        character = self._read()
        choices = yaml.safe_dump(self.choices, allow_unicode=True, sort_keys=False)
        with open_atomic(self.folder / CHOICES) as stream:
            stream.write(_COMMENT + choices)
        if self.llm is None:
            self.stages["data"] = "not made: no model is named that could make it (--llm, or --base)"
            return self._finish(character)
        character = self._describe(character)
        if tokenizer is not None:
            self._check_room(tokenizer, character)
        self._ask(character)
        self._remember(released=True)
        data = self.folder / "data"
        released = write_release([gather(self.folder)], data, overwrite=True)
        splits = load_rolebench(data_dir=data)
        counts = [f"{len(rows)} {name}" for name, rows in splits.items()]
        self.stages["data"] = ", ".join(counts)
        if tokenizer is None:
            return self._finish(character)
        recipe = self._load_recipe(tokenizer)
        return self._tune(character, recipe, released.configs[0])

    def _describe(self, character: Character) -> Character:
        """Build the character's profile, unless it has one."""
        if "build" not in character.made:
            try:
                character = character.build(self._share_budget("build"))
            except ScriptError as error:
                raise SettingsError(
                    f"{self.source} says nothing of {character.role}: no description, and no line of its own; write a "
                    f"`description` into {self.folder / PROFILE}, in the second person, and run this again"
                ) from error
        is_own = character.made["build"]["settings"]["description"] == "given"
        description = "its description kept" if is_own else "described"
        catchphrases = format_count(len(character.catchphrases), "catchphrase")
        self.stages["profile"] = f"{description}; {catchphrases}"
        return character

    def _ask(self, character: Profile) -> None:
        """Make its questions and its replies."""
        questions = self._plan_questions(character)
        instructed = run_step(questions, self._share_budget("instruct"), self.folder / "instruct")
        counts = instructed.summary["counts"]
        self.stages["questions"] = f"{counts['kept']} kept of {counts['candidates']}"
        replies = self._plan_replies(character)
        responded = run_step(replies, self._share_budget("respond"), self.folder / "respond")
        summary = responded.summary
        outcome = f"{summary['replies']:,} to {summary['instructions']} instructions"
        if responded.failed:
            outcome += f", {responded.failed} missing"
        self.stages["replies"] = outcome

    def _check_free(self, stage: str, *names: str) -> None:
        """Refuse to replace what was not made by this command, such as an adapter that a person trained."""
        for name in names:
            path = self.folder / name
            if path.exists() and stage not in self.state:
                raise SettingsError(f"{path} was not made by this command; move it away, or name another --out")

    def _load_base_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Load what tells whether the base can be tuned, before anything is asked; the weights come later."""
        if self.chosen.base is None:
            return None
        require("torch", "transformers", "trl", "peft", "accelerate", extra="train")
        from rolellm.models.load import fetch, open_tokenizer

        base = Path(locate_model(self.chosen.base))
        if not base.is_dir():
            base = fetch(self.chosen.base, None, weights=False)
        return open_tokenizer(base)

    def _read(self) -> Character:
        """Read the source, unless the folder holds what was read of it before; what a person changed there is kept."""
        chosen = self.chosen
        folder = self.folder
        content = "a folder"
        if self.source.is_file():
            content = hash_file(self.source)
        key = hash_json([content, chosen.role, list(chosen.alias)])
        earlier = None
        if (folder / PROFILE).is_file():
            earlier = Character.load(folder)
            is_folder = self.source.resolve() == folder.resolve()
            if is_folder or self.state.get("read") == key:
                self.stages["read"] = f"{folder}, as it is"
                return earlier
            if "read" not in self.state:
                raise SettingsError(
                    f"{folder} holds {earlier.role} already; to go on with it, name the folder as the source"
                )
        character = self._open()
        if earlier is not None and earlier.role != character.role:
            raise SettingsError(f"{folder} holds {earlier.role}, not {character.role}; name another folder with --out")
        if is_card(self.source):
            import_card(self.source, folder, role=chosen.role, overwrite=earlier is not None)
        else:
            write_character(character, folder)
        self._remember(read=key)
        counts = f"{len(character.turns):,} turns, {len(character.lore)} lore entries"
        self.stages["read"] = f"{self.source.name}: {counts}"
        return Character.load(folder)

    def _open(self) -> Profile:
        chosen = self.chosen
        if self.source.is_dir() and not (self.source / PROFILE).is_file():
            raise SettingsError(f"{self.source} holds no character; of several scripts or chats, make one file")
        if self.source.is_dir():
            return Character.load(self.source)
        if is_card(self.source):
            card = load_card(self.source)
            return read_as_character(card, role=chosen.role, file=self.source.name).character
        if chosen.role is None:
            speakers = ", ".join(read_script(self.source).list_speakers())
            problem = f"{self.source} is not a card; of a script or a chat, say who to make (--role NAME)"
            raise SettingsError(f"{problem}; it names {speakers or 'no speaker'}")
        reader = None
        if self.llm and self._read_novel():
            reader = self._share_budget("attribution")
        out = self.folder / "attribution"
        return Character.from_script(self.source, role=chosen.role, aliases=chosen.alias, llm=reader, out=out)

    def _read_novel(self) -> Attribute | None:
        """Plan who speaks, where the source is a novel; other scripts name their speakers."""
        role = self.chosen.role
        if role is None or not self.source.is_file() or is_card(self.source):
            return None
        names = clean_names(role, self.chosen.alias)
        reading = read_script(self.source, names)
        if reading.format == "novel":
            return Attribute(reading, names)
        return None

    def _plan_questions(self, character: Profile) -> Instruct:
        count = self.chosen.questions or size_questions(character)
        return Instruct(character, InstructSettings(per_role=count, per_request=min(count, 10)))

    def _plan_replies(self, character: Profile) -> Respond:
        file = resources.files("rolellm.making").joinpath("general", f"{character.language}.jsonl")
        with resources.as_file(file) as path:
            instructions = read_instructions(path, character, self.chosen.instructions)
        return Respond(character, instructions, RespondSettings(replies=self.chosen.replies))

    def _share_budget(self, stage: str) -> LLM:
        """Return the model with what the other stages left of the budget."""
        assert self.llm is not None
        llm = copy.copy(self.llm)
        llm.options = replace(llm.options, budget=self._find_budget(stage))
        return llm

    def _find_budget(self, stage: str) -> float | None:
        """Subtract from the budget what the other stages cost; ``None`` for no limit."""
        budget = self.llm.options.budget if self.llm else None
        if budget is None:
            return None
        for name in _PAID:
            if name != stage:
                budget -= _read_cost(self.folder / name)
        return max(budget, 0.0)

    def _check_room(self, tokenizer: PreTrainedTokenizerBase, character: Profile) -> None:
        """Refuse a base whose context the character alone fills."""
        from rolellm.training.bases import find_context, read_base_config

        recipe = self._load_recipe(tokenizer)
        context = find_context(recipe, read_base_config(recipe))
        part = find_part(self.folder)
        prompt = part.system_turn(load_system_template(character.language))
        tokens = len(tokenizer.encode(prompt))
        if context is not None and tokens + _ROOM > context:
            raise ModelError(
                f"{self.chosen.base} takes {context:,} tokens, and {character.role}'s prompt alone has {tokens:,}; "
                "shorten the description, or name a base with a longer context"
            )

    def _load_recipe(self, tokenizer: PreTrainedTokenizerBase) -> Recipe:
        from rolellm.training.recipe_files import load_recipe

        data = json.dumps(str(self.folder / "data"))
        overrides = [f"data.data_dir={data}"]
        if self.chosen.recipe == _RECIPE and not tokenizer.chat_template:
            overrides.append("prompt.form=rolellama")
        return load_recipe(self.chosen.recipe, overrides, base=self.chosen.base)

    def _tune(self, character: Character, recipe: Recipe, config: str) -> MakeResult:
        """Tune the adapter, test it, and compare it with the base under the same prompt."""
        from rolellm.journeys.evaluation import evaluate

        adapter = self._train_adapter(recipe, config)
        checked = self._check_character(character, adapter)
        systems = {TUNED: adapter, PROMPTED: self.chosen.base}
        data = self.folder / "data"
        measured = evaluate(systems, out=self.folder / "eval", config=config, data_dir=data)
        safety = self._check_safety(adapter)
        findings = [*measured.content.findings, checked.remarks()[0]]
        blocks = [lay_out_tests(checked)]
        if safety is not None:
            findings += safety.result.remarks()
            blocks.append(lay_out_safety(read_safety(safety), name_safety_models(safety)))
        page = replace(
            measured.content,
            title=f"{character.role}, tuned and measured",
            summary=f"Made of {self.source.name}: the adapter, and its base with the same prompt, on new questions.",
            findings=findings,
            blocks=blocks,
            recipe=recipe.to_dict(),
        )
        write_page(self.folder / "report.html", page)
        self._export()
        return self._finish(character, tuple(page.sentences), measured)

    def _train_adapter(self, recipe: Recipe, config: str) -> Path:
        """Train the adapter, unless it is there for this recipe and data; what was measured of another one goes."""
        from rolellm.data.rolebench import dataset_fingerprint
        from rolellm.training.train import train

        adapter = self.folder / "adapter"
        fingerprint = dataset_fingerprint(config, self.folder / "data")
        key = hash_json([recipe.hash, fingerprint])
        if self.state.get("trained") != key:
            for stage in ("adapter", "checks", "eval"):
                shutil.rmtree(self.folder / stage, ignore_errors=True)
            self._remember(trained=key)
        if not (adapter / MANIFEST).is_file():
            train(recipe, out=adapter, resume=(adapter / "recipe.json").is_file())
        counts = read_json(adapter / MANIFEST)["data"]
        self.stages["adapter"] = f"{counts['examples']:,} replies of {counts['rows']:,} rows"
        return adapter

    def _check_character(self, character: Character, adapter: Path) -> TestsResult:
        """Test the adapter as the character, by the tests in its folder or by first ones."""
        tests = self.folder / f"{make_safe_name(character.role)}{ENDING}"
        if not tests.is_file():
            write_first_file(str(self.folder), self.folder)
        model = LLM(backend="local", model=str(adapter))
        checked = check(tests, model, out=self.folder / "checks").result
        # A flaky test is among those that passed or failed.
        counts = [f"{count} {verdict}" for verdict, count in checked.counts.items() if verdict != "flaky"]
        self.stages["checks"] = ", ".join(counts)
        return checked

    def _check_safety(self, adapter: Path) -> Run[SafetyResult] | None:
        """Check what tuning did to refusals, where a guard is named; the files are those of the command."""
        if self.chosen.guard is None:
            return None
        models = pair_models(LLM.resolve(adapter), LLM.resolve(self.chosen.base))
        limits = CallOptions(budget=self._find_budget("adapter/safety"))
        run = run_step(self._plan_safety(self.folder), models.limit(limits), adapter / "safety")
        prompts = run.result.prompts
        kinds = f"{prompts.harmful} harmful prompts and {prompts.lookalikes} look-alikes"
        self.stages["safety"] = f"{run.result.asked:,} replies to {kinds}"
        return run

    def _export(self) -> None:
        """Write the adapter for another program, where one is named, unless it is there."""
        to = self.chosen.export
        if to is None:
            return
        from rolellm.exporting.export import export

        key = hash_json([self.state["trained"], to])
        exported = self.state.get("exported") or {}
        out = self.folder / "export"
        if exported.get("key") != key or not out.is_dir():
            shutil.rmtree(out, ignore_errors=True)
            self._remember(exported={})
            written = export(self.folder, to, out)
            exported = {"key": key, "outcome": written.check.sentence, "lines": list(written.continues_with)}
            self._remember(exported=exported)
        self.stages["export"] = exported["outcome"]

    def _plan_safety(self, role: Any) -> CheckSafety:
        """Plan one reply to each of our prompts, with the role and without; the command takes more."""
        guard = Guard.of(self.chosen.guard)
        return CheckSafety(SafetySettings(samples=1), PlaySettings(), [role], guard)

    def _finish(
        self, character: Character, findings: tuple[str, ...] = (), measured: EvalResult | None = None
    ) -> MakeResult:
        """Leave ``make.json``, and say how to go on."""
        adapter = str(self.folder / "adapter")
        model = adapter if measured else self.chosen.base or "MODEL"
        commands: list[tuple[str, ...]] = [(name, str(self.folder), "--model", model) for name in ("chat", "serve")]
        page = None
        if measured is not None:
            page = self.folder / "report.html"
            repository = f"OWNER/{make_safe_name(character.role)}"
            commands.append(("push", adapter, repository, "--license", "LICENSE"))
        elif self.llm is not None:
            commands.insert(0, ("make", str(self.folder), "--base", "MODEL"))
        following = tuple(shlex.join(("rolellm", *command)) for command in commands)
        if self.chosen.export is not None:
            following += tuple(self.state["exported"]["lines"])
        result = MakeResult(self.folder, character.role, self.stages, findings, following, page, measured)
        self._remember(**result.to_dict())
        return result

    def _remember(self, **values: Any) -> None:
        self.state |= values
        write_json(self.folder / _STATE, self.state)

    def estimate(self) -> MakeEstimate:
        """Estimate each paid stage, with stand-ins for what the stage before would make."""
        llm = self.llm
        if llm is None:
            raise SettingsError("there is nothing to estimate: no model is named (--llm, or --base)")
        self._load_base_tokenizer()
        stages: dict[str, Estimate] = {}
        if (self.folder / PROFILE).is_file():
            character: Profile = Character.load(self.folder)
        else:
            attribution = self._read_novel()
            if attribution:
                stages["attribution"] = estimate_step(attribution, llm)
                # Opening a novel would ask who speaks; the most that the role can say is all that is said.
                role, *_ = attribution.names
                turns = [replace(turn, speaker=role) for turn in attribution.reading.found]
                parsed = select_role(attribution.names, replace(attribution.reading, found=turns))
                character = Profile(role, parsed.hints.language, parsed.turns)
            else:
                character = self._open()
        if "build" not in character.made:
            stages["profile"] = estimate_step(BuildProfile(character), llm)
            character = replace(character, description=character.description or "a" * MOST_BYTES)
        stages["questions"] = estimate_step(self._plan_questions(character), llm)
        stages["replies"] = estimate_step(self._plan_replies(character), llm)
        if self.chosen.guard is not None and self.chosen.base is not None:
            # A stand-in for the adapter, which costs as little as any model of this machine.
            adapter = load_llm({"endpoints": [{"backend": "scripted", "rules": "quotes"}]})
            models = pair_models(adapter, LLM.resolve(self.chosen.base))
            stages["safety"] = estimate_step(self._plan_safety(character), models)
        first, *others = stages.values()
        stages["together"] = sum(others, first)
        return MakeEstimate(character.role, stages)


def size_questions(character: Profile) -> int:
    """Return how many questions a source has material for: one for 25 tokens, 10 to the paper's 400.

    A card of 240 characters gets 10, a script of 10,000 tokens 400.
    """
    own = [turn.content for turn in character.turns if character.owns(turn)]
    lore = [entry.content for entry in character.lore]
    described = [character.full_description or "", character.background or ""]
    text = "\n".join([*described, *lore, *own])
    tokens = TokenCounter().count(text)
    return max(_FEWEST, min(_MOST, tokens // _TOKENS_A_QUESTION))


def _read_cost(run: Path) -> float:
    file = run / MANIFEST
    if not file.is_file():
        return 0.0
    spent = read_json(file).get("spent") or {}
    return float(spent.get("cost") or 0.0)
