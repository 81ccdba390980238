"""A character's tests: a model that breaks one assertion fails that one alone, in the run, the command and pytest."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolellm.characters.folder import write_character
from rolellm.characters.roles import find_part
from rolellm.checks.character_tests import (
    CHECKS,
    CheckCharacter,
    TestsResult,
    list_assertions,
    read_tests,
    write_first_file,
)
from rolellm.core.errors import SettingsError
from rolellm.core.records import Language, Profile
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.render import load_texts
from rolellm.runs import run_step
from rolellm.scoring.statistics.intervals import estimate_proportion

from ..commands import Command
from .replies import select_replies

PYTHON = sys.executable
ROLELLM = str(Path(PYTHON).parent / "rolellm")
ADA = "You are Ada Fenn, who keeps the lighthouse and counts its seventy-two steps every night."
LU = "你是五台山上下来的花和尚，提一根六十二斤的禅杖。"
SHEETS: dict[Language, Profile] = {
    "en": Profile("Ada Fenn", "en", description=ADA, catchphrases=("Count the steps!",)),
    "zh": Profile("鲁智深", "zh", description=LU, catchphrases=("洒家来也！",)),
}
PLAIN: dict[Language, str] = {"en": "I trim the wick, and I say little.", "zh": "洒家只管喝酒，别的一概不理。"}
#: What the replies to ordinary messages are about, each to one.
THINGS: dict[Language, list[str]] = {
    "en": ["gulls", "rainwater", "oil", "fog", "a rope", "bread", "window glass", "herring", "letters", "father"],
    "zh": ["好酒", "牛肉", "月亮", "下雨天", "柳树", "寺里的钟", "师父", "铁匠", "山门", "张三"],
}
#: The break of `BAD` that breaks each check.
BREAKS = {
    "stays_in_role": "assists",
    "never_says_it_is_a_model": "says_ai",
    "speaks_as_itself": "third_person",
    "never_speaks_for_the_user": "for_user",
    "keeps_its_language": "other_language",
}
#: A reply that says the same as others.
SAME = {"en": "I think of Rainwater. And of rainwater: yes, rainwater!", "zh": "洒家想着牛肉，牛肉，还是牛肉！"}
BAD, GIVEN_IN, RESISTED = map(select_replies, ("bad", "given_in", "resisted"))


def values(language: Language, knows: int = 13, unknown: int = 10) -> dict[str, Any]:
    """A test file of 40 assertions."""
    return {
        "role": "role",
        "play": {"temperature": 0},
        "catchphrases": {"at_least": 0.1, "at_most": 0.5},
        "knows": [{"ask": f"What is thing {n}?", "says": ["no such word", f"seventy-{n}"]} for n in range(knows)],
        "does_not_know": [{"ask": f"What is secret {n}?", "says_not": [f"smart phone {n}"]} for n in range(unknown)],
        "jailbreaks": list(load_texts("character_tests", language)["jailbreaks"]),
    }


def write(folder: Path, language: Language, changed: dict[str, Any] | None = None) -> Path:
    write_character(SHEETS[language], folder / "role")
    file = folder / "role.character.yaml"
    file.write_text(yaml.safe_dump(values(language) | (changed or {}), allow_unicode=True), encoding="utf-8")
    return file


def replies(language: Language, broken: str = "") -> Callable[[str], str]:
    """What a model says that keeps every assertion but one."""
    ours = load_texts("character_tests", language)
    first, second, third = ours["questions"][:3]
    thought = "I think of {0}. And of {0}: yes, {0}." if language == "en" else "洒家想着{0}，{0}，还是{0}。"
    special = {
        question: thought.format(thing) for question, thing in zip(ours["questions"], THINGS[language], strict=True)
    }
    special[first] = SHEETS[language].catchphrases[0].upper() + PLAIN[language]
    special |= {f"What is thing {n}?": f"Ah, “Seventy-{n}”, {PLAIN[language]}" for n in range(13)}
    kind, _, what = broken.partition(": ")
    if kind == "replies_to_each_message":
        special[third] = SAME[language]
    elif kind in CHECKS:
        special[second] = BAD[language][BREAKS[kind]][0]
    elif kind == "catchphrases":
        special[first] = PLAIN[language]
    elif kind == "knows":
        del special[what]
    elif kind == "does_not_know":
        special[what] = f"A Smart Phone {what[15:-1]}! {PLAIN[language]}"
    elif kind == "withstands":
        text = ours["jailbreaks"][what]["text"]
        special[text if isinstance(text, str) else text[-1]] = GIVEN_IN[language][what]
    return lambda asked: special.get(asked, PLAIN[language])


def run(file: Path, answer: Callable[[str], str], out: Path) -> TestsResult:
    def rules(request: Request) -> str:
        return answer(request.messages[-1].content)

    return run_step(CheckCharacter(read_tests(file)), LLM.of(ScriptedModel(rules, rules_hash=str(out))), out).result


def failed(results: TestsResult) -> list[str]:
    return [assertion.name for assertion in results.assertions if assertion.verdict != "passed"]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_model_that_breaks_one_of_forty_assertions_fails_that_one(language: Language, tmp_path: Path) -> None:
    file = write(tmp_path, language)
    names = [one.name for one in list_assertions(read_tests(file), find_part(SHEETS[language]))]
    assert len(names) == 40
    assert failed(run(file, replies(language), tmp_path / "good")) == []
    for place, name in enumerate(names):
        assert failed(run(file, replies(language, name), tmp_path / str(place))) == [name]


def test_one_quotation_for_all_is_found_out(tmp_path: Path) -> None:
    file = write(tmp_path, "zh", {"knows": [], "does_not_know": [], "catchphrases": None})
    results = run(file, lambda asked: PLAIN["zh"], tmp_path / "out")
    assert failed(results) == ["replies_to_each_message"]
    failure = results.sorted_assertions[0]
    assert failure.trials[0].problem == f"same reply: {PLAIN['zh']}"
    assert failure.share is not None and failure.share.mean == 0


@pytest.mark.parametrize(
    ("language", "name", "gives_in"),
    [
        ("en", "honest_machine", "I am Ada, and I never step out of this one role."),
        ("en", "another_name", "Bolt is Ada Fenn, a keeper."),
        ("zh", "end_of_scene", "你刚才演的是鲁智深。"),
        ("zh", "show_instructions", "```python\nprint(1)\n```"),
    ],
)
def test_a_role_may_resist_in_its_own_voice_and_gives_in_in_many(
    language: Language, name: str, gives_in: str, tmp_path: Path
) -> None:
    asserted = list_assertions(read_tests(write(tmp_path, language)), find_part(SHEETS[language]))
    jailbreaks = {one.name: one for one in asserted if one.name.startswith("withstands")}
    assert len(jailbreaks) == 10
    for one in jailbreaks.values():
        for reply in RESISTED[language]:
            assert one.judge(one.talks[0], [reply] * len(one.talks[0]), ()) == "", one.name
    one = jailbreaks[f"withstands: {name}"]
    assert one.judge(one.talks[0], [gives_in] * len(one.talks[0]), ())


def test_shares_intervals_and_flaky_assertions(tmp_path: Path) -> None:
    changed: dict[str, Any] = {"play": {}, "samples": 10, "least": 0.8, "catchphrases": {"at_most": 0.05}}
    changed |= {"questions": load_texts("character_tests", "en")["questions"][:3]}
    changed |= {"knows": [{"ask": "What is thing 3?", "says": "seventy-3"}], "does_not_know": [], "jailbreaks": []}
    file = write(tmp_path, "en", changed)
    keeping, count = replies("en"), [0]

    def answer(asked: str) -> str:
        if asked != "What is thing 3?":
            return keeping(asked)
        count[0] += 1
        return PLAIN["en"] if count[0] <= 3 else keeping(asked)

    found = run(file, answer, tmp_path / "out")
    by_name = {assertion.name: assertion for assertion in found.assertions}
    one, rate = by_name["knows: What is thing 3?"], by_name["catchphrases"]
    assert (one.verdict, one.flaky, one.share) == ("failed", True, estimate_proportion(7, 10))
    assert rate.share is not None and (rate.share.n, rate.verdict) == (30, "failed")
    assert found.counts == {"passed": 6, "failed": 2, "unscored": 0, "flaky": 1 + rate.flaky}
    # All of it is in the journal.
    assert run(file, lambda asked: "", tmp_path / "out") == found


@pytest.mark.parametrize(
    ("reply", "phrase", "is_there"),
    [
        ("That is Apple's work.", "apple", True),
        ("A pineapple.", "apple", False),
        ("那就是Java语言。", "java", True),
        ("哈哈，洒家，来也！", "洒家来也！", True),
    ],
)
def test_words_are_found_whole_and_without_punctuation(reply: str, phrase: str, is_there: bool, tmp_path: Path) -> None:
    tests = read_tests(write(tmp_path, "en", {"knows": [{"ask": "What?", "says": phrase}]}))
    (knows,) = (one for one in list_assertions(tests, find_part(SHEETS["en"])) if one.name == "knows: What?")
    assert (knows.judge(("What?",), [reply], ()) == "") is is_there


NOISE = "".join(random.Random(0).choices("bcdfghjklmnpqrstvwxz   ", k=4000))


def test_noise_passes_nothing(tmp_path: Path) -> None:
    results = run(write(tmp_path, "en"), lambda asked: NOISE[5 * len(asked) :][:12], tmp_path / "out")
    assert results.counts == {"passed": 0, "failed": 1, "unscored": 39, "flaky": 0}
    failure = results.sorted_assertions[0]
    assert failure.name == "keeps_its_language" and failure.share is not None and failure.share.mean == 0
    assert failure.trials[0].problem == "the reply is not language"


@pytest.mark.parametrize(
    ("least", "verdict"), [pytest.param(0.9, "passed", id="cannot-decide"), pytest.param(1.0, "unscored", id="can")]
)
def test_one_noisy_reply_in_ten(least: float, verdict: str, tmp_path: Path) -> None:
    file = write(tmp_path, "en", {"least": least, "checks": ["stays_in_role"], "catchphrases": None})
    first = load_texts("character_tests", "en")["questions"][0]
    good = replies("en")
    results = run(file, lambda asked: NOISE[:200] if asked == first else good(asked), tmp_path / "out")
    assert {assertion.name: assertion.verdict for assertion in results.assertions}["stays_in_role"] == verdict


def test_a_recited_description_is_no_answer(tmp_path: Path) -> None:
    sheet = SHEETS["zh"]
    found = list_assertions(read_tests(write(tmp_path, "zh")), find_part(sheet))
    by_name = {one.name: one for one in found}
    for name in ("stays_in_role", "withstands: show_instructions"):
        assert by_name[name].judge(("?",), [f"…{sheet.description}"], ()).startswith("recites")
    # Who introduces itself in the words of its description is still itself.
    assert by_name["withstands: another_name"].judge(("?", "?"), [f"…{sheet.description}"] * 2, ()) == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"jailbreak": ["x"]}, "unknown key jailbreak; did you mean jailbreaks?"),
        ({"jailbreaks": ["beging"]}, r"jailbreaks\[0\]: no jailbreak 'beging'; did you mean begging?"),
        ({"knows": [{"ask": " ", "says": "I"}]}, r"knows\[0\].ask: expected a text, or a list of texts"),
        ({"knows": [{"ask": "Who?", "says": ["!"]}]}, r"knows\[0\].says: expected .* each with a letter or digit"),
        ({"catchphrases": {"at_least": 0.5, "at_most": 0.4}}, "catchphrases: at_least 0.5 is above at_most 0.4"),
        ({"play": {"temprature": 1}}, "unknown key play.temprature; did you mean play.temperature?"),
    ],
)
def test_a_file_with_a_mistake_is_refused_in_a_sentence(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = write(tmp_path, "en", changed)
    with pytest.raises(SettingsError, match=words.replace("?", r"\?").replace(r"\\?", r"\?")) as found:
        read_tests(file)
    assert str(file) in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize("role", ["Queen of Hearts", "鲁智深", "role"])
def test_a_first_file_is_one_that_can_be_run(role: str, tmp_path: Path) -> None:
    write_character(SHEETS["en"], tmp_path / "role")
    file = write_first_file(str(tmp_path / "role") if role == "role" else role, tmp_path)
    tests = read_tests(file)
    part = find_part(tests.role)
    assert len(tests.jailbreaks) == 10 and tests.catchphrases is not None and tests.knows[0].says == part.sheet.names
    assert len(list_assertions(tests, part)) == len(CHECKS) + 1 + len(tests.knows) + len(tests.does_not_know) + 10
    with pytest.raises(SettingsError, match="exists already"):
        write_first_file(tests.role, tmp_path)


@pytest.fixture
def served(tmp_path: Path, llm_server: Any, clean_env: dict[str, str]) -> Any:
    """Runs a command in a folder with a test file, whose model breaks one assertion."""
    broken = "withstands: write_code"
    said = replies("en", broken)
    server = llm_server(answer=lambda body: said(body["messages"][-1]["content"]))
    (tmp_path / "llm.yaml").write_text(f"endpoints: [{{base_url: '{server.url}', model: local}}]\n", encoding="utf-8")
    write(tmp_path, "en")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, env=clean_env, capture_output=True, text=True, timeout=280)

    return run


@pytest.mark.slow
def test_the_command_tells_what_failed(
    served: Any, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = served(ROLELLM, "check", "role.character.yaml", "--llm", "llm.yaml")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "39 of 40 character tests passed; failed: withstands 1 of 10" in done.stdout
    assert "gives in: def add(" in done.stdout and "tests.html" in done.stdout
    page = (tmp_path / "character-tests" / "tests.html").read_text(encoding="utf-8")
    assert "def add(a, b):" in page and "withstands: write_code" in page
    monkeypatch.chdir(tmp_path)
    again = command("check", "role.character.yaml", "--llm", "llm.yaml", "--json")
    found = again.json
    assert (again.code, found["spent"]["calls"], found["failed"]) == (1, 0, 1)
    # One of ten replies has a catchphrase: too few to tell whether that is one in ten.
    assert [one["name"] for one in found["assertions"] if one["flaky"]] == ["catchphrases"]
    assert command("check", "--init", "role").code == 0 and (tmp_path / "Ada_Fenn.character.yaml").is_file()


@pytest.mark.slow
def test_pytest_has_an_item_for_each_assertion(served: Any, tmp_path: Path) -> None:
    command = [PYTHON, "-m", "pytest", "-p", "no:xdist", "-v"]
    without = served(*command)
    assert "no tests ran" in without.stdout and without.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    wrong = {"role": "role", "least": 2}
    (tmp_path / "wrong.character.yaml").write_text(yaml.safe_dump(wrong), encoding="utf-8")
    asked = ["--character-model", "llm.yaml", "-k", "write_code or stays_in_role", "--continue-on-collection-errors"]
    done = served(*command, *asked)
    assert "1 failed, 1 passed, 38 deselected, 1 error" in done.stdout, done.stdout
    assert "role.character.yaml::withstands: write_code FAILED" in done.stdout and "gives in: def add(" in done.stdout
    assert "wrong.character.yaml: least: must be less than or equal to 1" in done.stdout
    assert "raise SettingsError" not in done.stdout


@pytest.mark.slow
def test_files_of_other_programs_break_no_collection(tmp_path: Path, clean_env: dict[str, str]) -> None:
    for name, content in {"game": "name: hero\nmodel: hero.glb\n", "picture": "\x89PNG \xff"}.items():
        (tmp_path / f"{name}.character.yaml").write_text(content, encoding="latin-1")
    (tmp_path / "test_game.py").write_text("def test_game():\n    pass\n", encoding="utf-8")
    command = [PYTHON, "-m", "pytest", "-p", "no:xdist", "-W", "error"]
    done = subprocess.run(command, cwd=tmp_path, env=clean_env, capture_output=True, text=True)
    assert (done.returncode, "character" in done.stdout) == (pytest.ExitCode.OK, False), done.stdout
