"""Judges as data: a folder each, with prompts in both languages, output schema, parser and decoding settings.

::

    JUDGE/
      judge.yaml                       name, version, parser, decoding
      schema.json                      what a reply has to follow; not for the parser odds
      en.system.txt, en.user.txt       prompts with slots, see `rolellm.models.prompts.render`
      zh.system.txt, zh.user.txt

Those that ship are in ``rolellm/judging/judges``; ``--judge FOLDER`` takes another. The hash over all files goes
with every result, so two results under one name and version can still be told apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import Field, dump, parse_yaml, read, settings
from rolellm.judging.records import Design
from rolellm.llm.model import Sampling, Schema
from rolellm.models.prompts.render import Template

#: Those that judge where none is named.
DEFAULT_JUDGES = ("role-list", "role-pair")
_LANGUAGES: tuple[Language, ...] = ("en", "zh")
#: The prompts of each language, with the slots that they must have.
_SLOTS = {
    "system": frozenset[str](),
    "user": frozenset({"mark", "character", "question", "reference", "answers", "letters"}),
}
#: Tokens whose log probabilities are asked for; the most that OpenAI's API gives.
LIKELIEST = 20


@settings
class JudgeSettings:
    """The settings of ``judge.yaml``.

    Attributes:
        name: Name of the judge in results.
        version: Raised whenever one of the judge's files changes.
        parser: ranking: a list of {answer, reason, rank}; better: {reason, better}; odds: a letter, with its odds.
        temperature: Sampling temperature; 0 is greedy.
        max_tokens: Maximum tokens per reply.
        max_tokens_per_answer: Additional tokens for each answer to be judged.
    """

    name: str
    version: int = Field(ge=1)
    parser: Literal["ranking", "better", "odds"]
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(500, ge=1)
    max_tokens_per_answer: int = Field(0, ge=0)


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge, but for the model that it asks.

    Attributes:
        settings: Name, version, parser, decoding.
        prompts: Language to system and user template.
        schema: What a reply has to follow; ``None`` for a letter.
        hash: SHA-256 over all its files, in hex.
    """

    settings: JudgeSettings
    prompts: Mapping[Language, tuple[Template, Template]]
    schema: Schema | None
    hash: str

    @property
    def design(self) -> Design:
        """The way it compares answers."""
        return "listwise" if self.settings.parser == "ranking" else "pairwise"

    def sampling(self, answers: int) -> Sampling:
        """Return how a verdict on a number of answers is sampled."""
        settings = self.settings
        max_tokens = settings.max_tokens + settings.max_tokens_per_answer * answers
        top_logprobs = LIKELIEST if settings.parser == "odds" else 0
        return Sampling(temperature=settings.temperature, top_p=1.0, max_tokens=max_tokens, top_logprobs=top_logprobs)

    def to_dict(self) -> dict[str, Any]:
        """Return what a result says of it."""
        decoding = dump(self.settings)
        del decoding["parser"]
        named = {name: decoding.pop(name) for name in ("name", "version")}
        return {**named, "design": self.design, "hash": self.hash, "decoding": decoding}


def list_shipped_judges() -> list[str]:
    """List the names of the judges that ship."""
    return sorted(item.name for item in _get_judges_folder().iterdir() if item.joinpath("judge.yaml").is_file())


def load_judges(names: Sequence[str | Path] = DEFAULT_JUDGES) -> list[Judge]:
    """Load judges, at most one of each design.

    Args:
        names: Names of judges that ship, or folders.

    Raises:
        SettingsError: For an unknown judge, a folder that is not a judge, or two judges of one design.
    """
    judges = [load_judge(name) for name in names]
    for design in ("listwise", "pairwise"):
        same = [judge.settings.name for judge in judges if judge.design == design]
        if len(same) > 1:
            raise SettingsError(f"{' and '.join(same)} are both {design}; name one judge of each design in a run")
    if not judges:
        raise SettingsError(f"no judge is named; those that ship are {', '.join(list_shipped_judges())}")
    return judges


def load_judge(name: str | Path) -> Judge:
    """Load one.

    Args:
        name: The name of a judge that ships, or a folder.

    Raises:
        SettingsError: When there is none, or a file of it is missing or wrong; names the file.
    """
    shipped = list_shipped_judges()
    folder: Traversable = Path(name)
    if str(name) in shipped:
        folder = _get_judges_folder().joinpath(str(name))
    file = folder.joinpath("judge.yaml")
    if not file.is_file():
        alternatives = f"{', '.join(shipped)}, or a folder with a judge.yaml"
        raise SettingsError(f"no judge {str(name)!r}: expected one of {alternatives}")
    texts = {"judge.yaml": _read(folder, "judge.yaml")}
    settings = read(JudgeSettings, parse_yaml(texts["judge.yaml"], str(file)), str(file))
    schema = None
    if settings.parser != "odds":
        texts["schema.json"] = _read(folder, "schema.json")
        schema = _parse_schema(texts["schema.json"], settings, str(folder.joinpath("schema.json")))
    prompts = {}
    for language in _LANGUAGES:
        templates = []
        for part, slots in _SLOTS.items():
            file_name = f"{language}.{part}.txt"
            texts[file_name] = _read(folder, file_name)
            templates.append(_parse_prompt(texts[file_name], str(folder.joinpath(file_name)), slots))
        prompts[language] = (templates[0], templates[1])
    return Judge(settings, prompts, schema, hash_json(texts))


def _get_judges_folder() -> Traversable:
    return resources.files("rolellm.judging.judges")


def _read(folder: Traversable, name: str) -> str:
    file = folder.joinpath(name)
    try:
        return file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: cannot be read ({error})") from error


def _parse_prompt(text: str, name: str, slots: frozenset[str]) -> Template:
    template = Template(text, name)
    if template.slots != slots:
        odd = ", ".join(f"{{{slot}}}" for slot in sorted(template.slots ^ slots))
        expected = ", ".join(f"{{{slot}}}" for slot in sorted(slots)) or "none"
        raise SettingsError(f"{name}: its slots have to be {expected}; wrong or missing: {odd}")
    return template


def _parse_schema(text: str, settings: JudgeSettings, name: str) -> Schema:
    from rolellm.llm.json_reply import make_strict

    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise SettingsError("expected a JSON schema, an object")
        has_ranking = "ranking" in value.get("properties", ())
        if has_ranking != (settings.parser == "ranking"):
            raise SettingsError(f"another parser's, not that of {settings.parser}")
        return make_strict(Schema(settings.parser, value))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{name}: not a valid schema: {error}") from error
