"""Each public function has the keywords of its command: the same names, defaults and settings classes."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import rolellm
from rolellm.cli.app import _Commands, app
from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.core.settings import list_keys
from rolellm.data.hub import PushOptions
from rolellm.journeys.evaluation import EvalSettings
from rolellm.journeys.improving import ImproveSettings
from rolellm.journeys.making import MakeSettings
from rolellm.judging.settings import JudgingSettings
from rolellm.llm.model import assistant, user
from rolellm.making.settings import BuildSettings, InstructSettings, RespondSettings, SplitRule
from rolellm.playing.settings import PlaySettings, TalkSettings
from rolellm.reporting.settings import ReportOptions
from rolellm.scoring.settings import GenerateSettings, ScoreOptions

CHARACTER = rolellm.Character
#: What every command has, and what a model is named and called by: in Python, `rolellm.LLM` has it.
SHARED = {"as_json", "overrides", "dry_run", "llm", "model", "engine", "api_key_env", "retry_failed", "budget"}
#: By command: its functions, their settings, and the options that Python has in another way.
PAIRS: dict[str, tuple[Sequence[Callable[..., Any]], Any, set[str]]] = {
    "judge": ([rolellm.judge, rolellm.certify], JudgingSettings, {"certify"}),
    "score": ([rolellm.score, rolellm.style], ScoreOptions, {"style"}),
    "generate": ([rolellm.generate], GenerateSettings, set()),
    "eval": ([rolellm.eval], EvalSettings, set()),
    "improve": ([rolellm.improve], ImproveSettings, set()),
    "make": ([rolellm.make], MakeSettings, set()),
    "push": ([rolellm.push], PushOptions, set()),
    "report": ([rolellm.report], ReportOptions, set()),
    "check tests": ([rolellm.check], None, {"init"}),
    # --data is train_dataset; --set is a recipe's dict, and keywords of its section `training`.
    "train": ([rolellm.train], None, {"data", "settings", "preview", "limit"}),
    "role parse": ([CHARACTER.from_script], None, set()),
    "role build": ([CHARACTER.from_script, CHARACTER.build], BuildSettings, {"script"}),
    "role card": ([CHARACTER.from_card, CHARACTER.to_card], None, {"out"}),
    "role release": ([CHARACTER.to_dataset, CHARACTER.save], SplitRule, {"out"}),
    "instruct": ([CHARACTER.instruct], InstructSettings, set()),
    "respond": ([CHARACTER.respond], RespondSettings, set()),
    # A page is the command's, and a talk is saved by `Chat.save`.
    "chat": (
        [rolellm.RolePlayer],
        PlaySettings,
        {"web", "against", "votes", "port", "share", "resume", *list_keys(TalkSettings)},
    ),
}


def find_command(name: str) -> Any:
    command: Any = _Commands(name="rolellm", callback=app.registered_callback.callback)
    for word in name.split():
        command = command.get_command(None, word)
    return command


@pytest.mark.parametrize("name", PAIRS)
def test_keywords_are_the_options(name: str) -> None:
    functions, settings, exempt = PAIRS[name]
    keywords = {} if settings is None else {key.rpartition(".")[2]: None for key in list_keys(settings)}
    for function in functions:
        keywords |= inspect.signature(function).parameters
    command = find_command(name)
    options = {item.name: item for item in command.params if item.param_type_name == "option"}
    advanced = getattr(command.callback, "advanced", {})
    assert {*options, *advanced} - SHARED - exempt <= keywords.keys()
    for key, option in options.items():
        if key in SHARED | exempt:
            continue
        # An option that may be repeated is named after one of its values, its keyword after all of them.
        flag = option.opts[0].removeprefix("--").replace("-", "_")
        assert flag == key or (option.multiple and f"{flag.replace('alias', 'aliase')}s" == key), (flag, key)
        default = getattr(keywords[key], "default", inspect.Parameter.empty)
        # Without a folder, Python has a temporary one.
        if key != "out" and default is not inspect.Parameter.empty:
            assert option.default == default or (not option.default and not default)


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda: rolellm.judge({"a": ["x"]}, llm={}, canary=False), "unknown keyword canary; did you mean canaries"),
        (lambda: rolellm.style(confg="sample"), "unknown keyword confg; did you mean config"),
        (lambda: rolellm.LLM(base_url="http://localhost:1/v1", modle="m"), "unknown keyword modle; did you mean model"),
        (lambda: CHARACTER.from_script("x.txt", role="a", format="ply"), "did you mean play"),
        (lambda: rolellm.train("smok-cpu"), "no recipe at smok-cpu; did you mean smoke-cpu"),
        (lambda: rolellm.score(["a"], protocol="papr"), "did you mean paper"),
        (lambda: rolellm.judge({"a": ["x"]}, llm="http://localhost:1/v1"), r"rolellm\.LLM\(base_url='http"),
    ],
)
def test_errors_name_the_nearest_keyword_recipe_or_value(call: Callable[[], Any], near: str) -> None:
    with pytest.raises(SettingsError, match=near):
        call()


def test_what_a_notebook_shows_says_what_it_is() -> None:
    llm = rolellm.LLM(base_url="http://localhost:1/v1", model="m")
    player = rolellm.RolePlayer(llm, "Queen of Hearts")
    assert repr(player).startswith("<RolePlayer Queen of Hearts: localhost:1/m; ")
    talk = player.chat()
    talk.talk.add(user("Who\nare you?"), assistant("The Queen."))
    lines = ["<Chat with Queen of Hearts: 2 turns>", "You: Who are you?", "Queen of Hearts: The Queen."]
    assert repr(talk).splitlines() == lines


def test_every_result_shows_its_sentences_and_not_its_fields() -> None:
    shown = {cls for cls in Result.__subclasses__() if "__repr__" in vars(cls)}
    assert {cls.__name__ for cls in shown} <= {"Run", "Character"}
    assert len(Result.__subclasses__()) > 20
