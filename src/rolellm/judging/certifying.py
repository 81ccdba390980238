"""Examine a judge model: ask it what the answer is known of, and make its certificate.

It is asked who says a line (PersonaEval, arXiv 2508.10014, on our data), and to compare a role's own reply with planted
losers and with the same reply padded, in both orders, in words and by odds; some pairs are asked twice. Where people
have ranked answers of a judging run, the judge compares these, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.folders import use_working_folder
from rolellm.core.records import Row
from rolellm.core.settings import dump, read, read_packaged_yaml
from rolellm.core.text import format_count
from rolellm.judging.certificate import (
    CERTIFICATE,
    HOW,
    KIND,
    Certificate,
    CertificateTest,
    Form,
    decide_verdict,
    describe_tests,
    grade,
)
from rolellm.judging.judge_models import Judge, load_judge
from rolellm.judging.overlap_judge import make_words_judge
from rolellm.judging.people.agreement import AgreementMeasures, build_judge_rater, build_person_rater, combine_raters
from rolellm.judging.people.labels import RankingLabel, list_annotators, list_labelled_systems, read_labels
from rolellm.judging.records import Comparison, DatasetName, Judgement, JudgeRun, System, read_run
from rolellm.judging.requests import LETTERS, WORDS, JudgeReply, VerdictRequest, accept_verdicts, plan_verdicts
from rolellm.judging.run import CUT, build_requests, load_judged_rows, make_judgement, name_judges
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import LEAST_LOSSES
from rolellm.judging.systems import OTHER_ROLE, make_canaries, plant_losers
from rolellm.judging.verdicts import RowClusters, sort_verdicts
from rolellm.llm.json_reply import accept_json, make_object_schema
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Failure, Outcome, Request, Sampling, user
from rolellm.models.prompts.fences import draw_nonce, fence_text, make_harmless
from rolellm.models.prompts.render import load_template
from rolellm.runs import Plan, Records, Round, Step, run_step
from rolellm.scoring.statistics.intervals import read_interval

DEFAULT_FORMS: Final = ("role-pair", "role-odds")
#: Rows of each test (our choice): a loser that wins 30 % of 40 is shown to lose, one that wins 35 % is not.
DEFAULT_ROWS: Final = 40
#: The systems of a certificate's pairs; `OWN` is the baseline.
OWN: Final = "own reply"
PLAIN, DAMAGED, PADDED = "canary: plain answer", "canary: damaged reply", "canary: padded reply"
_WHOLE: Final = (OTHER_ROLE, PLAIN, PADDED)
_CHOICES: Final = 4
_SPEAKER: Final = make_object_schema("speaker", speaker={"type": "string", "enum": list(LETTERS[:_CHOICES])})
_STRANGERS: Mapping[str, dict[str, str]] = read_packaged_yaml("rolellm.judging", "strangers.yaml")
#: Settings of judging that an examination has; the others must be as by default.
_USED: Final = ("judges", "sample", "roles", "subset", "data_dir", "shown", "seed", "budget")


class SpeakerItem(NamedTuple):
    """A reply and four roles, one of which gave it; ``answer`` is its letter."""

    row: Row
    reply: str
    roles: tuple[tuple[str, str], ...]
    answer: str

    def build_request(self, limit: int) -> Request:
        """Build the request for the speaker's letter."""
        texts = {
            **{
                f"character {letter}": f"{name}\n{text}"
                for letter, (name, text) in zip(LETTERS, self.roles, strict=False)
            },
            "question": self.row.question,
            "reply": self.reply,
        }
        shown = {name: make_harmless(text, limit).text for name, text in texts.items()}
        mark = draw_nonce(*shown.values())
        fences = {name: fence_text(name, text, mark) for name, text in shown.items()}
        text = load_template(self.row.language, "speaker").fill(
            mark=mark,
            characters="\n\n".join(fence for name, fence in fences.items() if name.startswith("character")),
            question=fences["question"],
            reply=fences["reply"],
            letters=WORDS[self.row.language]["joined"].join(LETTERS[:_CHOICES]),
        )
        sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=500)
        repair = WORDS[self.row.language]["repair"]
        return Request(
            (user(text),), sampling, schema=_SPEAKER, tag=f"speaker/{self.row.id}", repair=repair, quotes=False
        )


def make_speaker_items(rows: Sequence[Row], replies: Mapping[str, str], size: int, seed: int) -> list[SpeakerItem]:
    """Make the questions of who speaks, drawn by content; the right letter is each of the four equally often.

    The other three are roles of the same language with a description, ours where the rows have too few. A row is left
    out where the question or the reply names one of the four.

    Args:
        rows: All rows.
        replies: Row id to the role's own reply.
        size: Maximum number of items.
        seed: Random seed.
    """
    roles: dict[str, dict[str, str]] = {language: {} for language in _STRANGERS}
    for row in rows:
        roles[row.language].setdefault(row.role, row.role_description or WORDS[row.language]["no_description"])
    items: list[SpeakerItem] = []
    for row in sorted(rows, key=lambda row: hash_json(["speaker", seed, row.id])):
        released = roles[row.language]
        described = _STRANGERS[row.language] | released
        drawn = sorted(described.keys() - {row.role}, key=lambda name: hash_json([seed, row.id, name]))
        chosen = sorted(drawn, key=lambda name: name not in released)[: _CHOICES - 1]
        rivals = [(name, described[name]) for name in drawn if name in chosen]
        own, text = (row.role, roles[row.language][row.role]), f"{row.question} {replies.get(row.id, '')}".casefold()
        if row.id not in replies or any(_names(name, text) for name, _ in (own, *rivals)):
            continue
        index = len(items) % _CHOICES
        items.append(SpeakerItem(row, replies[row.id], (*rivals[:index], own, *rivals[index:]), LETTERS[index]))
        if len(items) == size:
            break
    return items


def _names(name: str, text: str) -> bool:
    words = [name, *(word for word in name.split() if len(word) > 3)]
    return any(word.casefold() in text for word in words)


def make_known_pairs(rows: Sequence[Row], size: int, seed: int, limit: int) -> Comparison:
    """Compare roles' own replies with replies that should lose, and with the same reply padded.

    The own reply is the released RoleGPT's or, for a general row, the first reference: what a judge is shown as the
    reference is never among the answers, but for the plain answer, which has no style.

    Args:
        rows: All rows of the split.
        size: Rows to draw.
        seed: Random seed.
        limit: Own replies over half as many characters are left out, so that nothing is cut.
    """
    replies = get_own_replies(rows)
    able = [row for row in rows if 0 < len(replies.get(row.id, "")) <= limit // 2]
    drawn = {row.id for row in sorted(able, key=lambda row: hash_json(["certificate", seed, row.id]))[:size]}
    selected = [row for row in able if row.id in drawn]
    own = {row.id: replies[row.id] for row in selected}
    canaries = {system.name: texts for system, texts in make_canaries(selected)}
    filler = next(iter(canaries))
    answers = {
        OWN: own,
        OTHER_ROLE: plant_losers(rows, replies, selected, size),
        PLAIN: {row.id: row.raw_reference for row in selected if row.raw_reference and row.raw_reference.strip()},
        DAMAGED: {row.id: text for row in selected if (text := _damage(row, own[row.id])) != own[row.id]},
        **canaries,
        PADDED: {row.id: f"{own[row.id]}\n\n{canaries[filler][row.id]}" for row in selected},
    }
    systems = [System(name, "baseline" if name == OWN else "canary") for name in answers]
    return Comparison(selected, systems, answers)


def get_own_replies(rows: Sequence[Row]) -> dict[str, str]:
    """Map each row to the role's own reply, where there is one that is not shown to a judge as the reference."""
    replies = {row.id: row.rolegpt or next(iter(row.references if row.subset == "general" else ()), "") for row in rows}
    return {row: text.strip() for row, text in replies.items() if text.strip()}


def _damage(row: Row, text: str) -> str:
    """Shuffle the words of a text, or its pairs of characters in Chinese."""
    joiner, units = (
        (" ", text.split()) if row.language == "en" else ("", [text[at : at + 2] for at in range(0, len(text), 2)])
    )
    random.Random(row.id).shuffle(units)
    return joiner.join(units)


@dataclass(frozen=True, slots=True)
class AskedPair:
    """A pair that the judge was asked about.

    Attributes:
        comparison: Where its rows and answers are.
        ask: The verdict to request.
        form: How it is asked.
        again: Whether it is asked for the second time.
        labelled: Whether people ranked its answers.
        judgement: The verdict, once it is there.
        reply: The judge's words.
    """

    comparison: Comparison
    ask: VerdictRequest
    form: Form
    again: bool = False
    labelled: bool = False
    judgement: Judgement | None = None
    reply: str | None = None

    def build_request(self, limit: int) -> Request:
        """Build the request; the second one is a new sample."""
        (request, _), *_ = build_requests(self.comparison, [self.ask], limit)
        return replace(request, repeat=int(self.again))

    def record(self, outcome: Outcome[JudgeReply]) -> AskedPair:
        """Return it with its verdict."""
        judgement, _ = make_judgement(self.comparison.rows[self.ask.row].id, self.form, self.ask, outcome)
        return replace(self, judgement=judgement, reply=get_text(outcome))


class Examination(NamedTuple):
    """A certificate, and what it is made of: the questions of who speaks, as JSON objects, and all pairs."""

    certificate: Certificate
    speakers: list[dict[str, Any]]
    pairs: Sequence[AskedPair]


@dataclass(frozen=True)
class Certifying(Step[Examination]):
    """The examination of a judge model.

    Attributes:
        rows: Rows of one split with replies of roles.
        settings: ``judges`` (one of words, one of odds; by default both), ``sample``, ``seed``, ``shown``.
        data: The dataset of the rows, as far as it is named.
        labelled: A judging run whose answers people have ranked, or the votes of `rolellm chat --web`.

    Raises:
        SettingsError: Where there are no replies to ask about, a judge ranks lists, or nobody has labelled the run.
    """

    rows: Sequence[Row]
    settings: JudgingSettings
    data: DatasetName = field(default_factory=DatasetName)
    labelled: JudgeRun | None = None
    forms: dict[Form, Judge] = field(init=False)
    speakers: list[SpeakerItem] = field(init=False)
    comparison: Comparison = field(init=False)
    labels: Mapping[str, Sequence[RankingLabel]] = field(init=False)
    kind: ClassVar[str] = KIND

    def __post_init__(self) -> None:
        settings, size = self.settings, self.settings.sample or DEFAULT_ROWS
        forms: dict[Form, Judge] = {}
        for judge in map(load_judge, settings.judges or DEFAULT_FORMS):
            form: Form = "odds" if judge.settings.parser == "odds" else "words"
            if judge.design != "pairwise" or form in forms:
                raise SettingsError(
                    f"--judge {judge.settings.name}: a certificate takes a judge of pairs, and one by odds"
                )
            forms[form] = judge
        pairs = make_known_pairs(self.rows, size, settings.seed, settings.shown)
        if not pairs.rows:
            raise SettingsError("these rows have no replies of roles to examine a judge with; try --config sample")
        labels: dict[str, Sequence[RankingLabel]] = {}
        if self.labelled is not None:
            names = list_annotators(self.labelled.folder, RankingLabel)
            labels = {name: list(read_labels(self.labelled, name, RankingLabel).values()) for name in names}
            if not any(label.ranks for items in labels.values() for label in items):
                raise SettingsError(
                    f"nobody has ranked answers of {self.labelled.folder} yet; begin with `rolellm label`"
                )
        # One request each, and enough of them to fail by.
        replies, lines = get_own_replies(self.rows), max(size, LEAST_LOSSES)
        speakers = make_speaker_items(self.rows, replies, lines, settings.seed)
        for name, value in (("forms", forms), ("comparison", pairs), ("speakers", speakers), ("labels", labels)):
            object.__setattr__(self, name, value)

    def plan(self, llm: LLM) -> Plan[Examination]:
        """Ask who speaks, then for the verdicts in each form."""
        names = {str(model.identity.get("model", model.name)) for model in llm.models}
        if len(names) > 1:
            raise SettingsError(f"examine one judge model at a time; the settings name {', '.join(sorted(names))}")
        speakers = yield Round(
            [item.build_request(self.settings.shown) for item in self.speakers],
            accept_json(_SPEAKER, lambda value: str(value["speaker"])),
            "Naming speakers",
            stand_in=lambda _: "A",
        )
        verdicts: list[AskedPair] = []
        for form, judge in self.forms.items():
            pairs = list(self._list_pairs(form, judge))
            requests = [pair.build_request(self.settings.shown) for pair in pairs]
            accept = accept_verdicts({judge.settings.parser: judge})
            outcomes: list[Outcome[JudgeReply]] = []
            # One request tells whether a server has log probabilities.
            for part in (requests[:1], requests[1:]) if form == "odds" else (requests,):
                if not (part is not requests and outcomes and isinstance(outcomes[0], Failure)):
                    outcomes += yield Round(part, accept, f"Judging {HOW[form]}", CUT, stand_in=_stand_in)
            verdicts += [pair.record(outcome) for pair, outcome in zip(pairs, outcomes, strict=False)]
        return self._certify(llm, speakers, verdicts)

    def _list_pairs(self, form: Form, judge: Judge) -> Iterator[AskedPair]:
        """Every pair in both orders; those with another role's reply are asked again, then those that people ranked."""
        settings = replace(self.settings, name_probe=0)
        for ask in plan_verdicts(self.comparison, [judge], settings):
            for again in (False, True) if OTHER_ROLE in ask.order else (False,):
                yield AskedPair(self.comparison, ask, form, again)
        if self.labelled is not None:
            comparison = self._select_ranked(self.labelled.comparison)
            for ask in plan_verdicts(comparison, [judge], settings):
                yield AskedPair(comparison, ask, form, labelled=True)

    def _select_ranked(self, whole: Comparison) -> Comparison:
        """Select what people ranked; votes of a chat have no baseline, so the first system is theirs."""
        ranked = {label.row for labels in self.labels.values() for label in labels if label.ranks}
        names = list_labelled_systems(whole)
        systems = [system for system in whole.systems if system.name in names]
        if whole.baseline is None:
            systems[0] = replace(systems[0], kind="baseline")
        rows = [row for row in whole.rows if row.id in ranked]
        return Comparison(rows, systems, {name: whole.answers[name] for name in names})

    def _certify(self, llm: LLM, speakers: Sequence[Outcome[str]], verdicts: Sequence[AskedPair]) -> Examination:
        judge = name_judges(llm.models, each=False)[0]
        said = [outcome.value if isinstance(outcome, Answer) else None for outcome in speakers]
        right = [(item.row.id, float(letter == item.answer)) for item, letter in zip(self.speakers, said, strict=True)]
        tests = [grade("speaker", RowClusters([item.row for item in self.speakers]).estimate(right))]
        for form in self.forms:
            form_pairs = [pair for pair in verdicts if pair.form == form and not pair.labelled]
            # Without log probabilities, only the first was asked for.
            tests += grade_known_pairs(self.comparison, form, form_pairs) if len(form_pairs) > 1 else []
            if self.labelled is not None and len(form_pairs) > 1:
                ranked = [pair.judgement for pair in verdicts if pair.form == form and pair.labelled and pair.judgement]
                tests.append(self._grade_agreement(self.labelled, form, ranked))
        verdict = decide_verdict(tests)
        source = f"{self.data.config or 'own rows'}, {format_count(len(self.comparison.rows), 'row')}"
        sentence, line = describe_tests(judge, verdict, tests, source)
        models = tuple(dict(model.identity) for model in llm.models)
        certificate = Certificate(
            judge,
            verdict,
            sentence,
            line,
            tuple(tests),
            models,
            hash_json(sorted(map(hash_json, models))),
            {form: prompt.to_dict() for form, prompt in self.forms.items()},
            self.data.config,
            self.data.split,
            len(self.comparison.rows),
            {"run": self.labelled.folder.name, "annotators": sorted(self.labels)} if self.labelled else None,
        )
        items = [
            {"row": item.row.id, "role": item.row.role, "choices": [name for name, _ in item.roles]}
            | {"answer": item.answer, "speaker": letter, "reply": get_text(outcome)}
            for item, letter, outcome in zip(self.speakers, said, speakers, strict=True)
        ]
        return Examination(certificate, items, verdicts)

    def _grade_agreement(self, run: JudgeRun, form: Form, judgements: Sequence[Judgement]) -> CertificateTest:
        comparison = self._select_ranked(run.comparison)
        baseline, names = comparison.baseline, list(comparison.answers)
        people = [build_person_rater(name, labels, baseline) for name, labels in self.labels.items()]
        person = combine_raters(people, "people") if len(people) > 1 else people[0]
        rater = build_judge_rater(form, sort_verdicts(judgements, baseline), names)
        signs, person_signs = rater.verdicts["baseline"], person.verdicts["baseline"]
        # Kappa is 0 by definition where one of them always says the same.
        varies = all(
            len({signs_of[key] for key in signs.keys() & person_signs.keys()}) > 1 for signs_of in (signs, person_signs)
        )
        compared = AgreementMeasures(comparison.rows).compare(rater, person)["baseline"] if varies else None
        return grade("kappa with people", compared and read_interval(compared["kappa"]), form=form)

    def records(self, result: Examination) -> Records:
        """Return the certificate, and every question with its reply."""
        pairs = (
            {**asdict(pair.judgement), "again": pair.again, "reply": pair.reply}
            for pair in result.pairs
            if pair.judgement
        )
        return {CERTIFICATE: result.certificate.to_dict(), "speakers.jsonl": result.speakers, "verdicts.jsonl": pairs}

    def summarize(self, result: Examination) -> dict[str, Any]:
        """Return the verdict and the sentence."""
        return {
            "judge": result.certificate.judge,
            "verdict": result.certificate.verdict,
            "sentence": result.certificate.sentence,
        }

    def describe(self, result: Examination) -> dict[str, Any]:
        """Return the dataset and the endpoint's fingerprint."""
        return {"dataset": asdict(self.data), "fingerprint": result.certificate.fingerprint}


def _stand_in(_: Request) -> JudgeReply:
    return JudgeReply(None, ())


def get_text(outcome: Outcome[Any]) -> str | None:
    """Return the reply, or why there is none."""
    if isinstance(outcome, Answer):
        return outcome.reply.text
    return f"{outcome.kind}: {outcome.reason}" + (f" ({outcome.reply.text})" if outcome.reply else "")


def grade_known_pairs(comparison: Comparison, form: Form, pairs: Sequence[AskedPair]) -> list[CertificateTest]:
    """Grade the verdicts of one form on pairs whose right order is known."""
    clusters = RowClusters(comparison.rows)
    judgements = [pair.judgement for pair in pairs if pair.judgement and not pair.again]
    verdicts = sort_verdicts(judgements, OWN, comparison.canaries).pairs
    wins = {
        name: clusters.estimate((pair.row, pair.mean) for pair in verdicts if pair.system == name)
        for name in comparison.canaries
    }
    losers = [name for name in comparison.answers if name not in (OWN, PADDED)]
    # A null model is told from an answer in any order; replies of others show what the order does.
    flips = [(pair.row, float(not pair.agrees)) for pair in verdicts if pair.system in _WHOLE]
    again = {(pair.ask.row, pair.ask.order): pair.judgement for pair in pairs if pair.again}
    repeated = [
        (pair.judgement.row, float(pair.judgement.ranks == second.ranks))
        for pair in pairs
        if not pair.again and pair.judgement and pair.judgement.ranks
        if (second := again.get((pair.ask.row, pair.ask.order))) and second.ranks
    ]
    unscored = [(each.row, float(each.ranks is None)) for each in judgements]
    return [
        *(grade("loser wins", wins[name], name.removeprefix("canary: "), form) for name in losers),
        grade("longer wins", wins[PADDED], "padded reply", form),
        grade("order flips", clusters.estimate(flips), form=form),
        grade("same again", clusters.estimate(repeated), form=form),
        grade("no verdict", clusters.estimate(unscored), form=form),
    ]


def certify(
    llm: Any,
    dataset: Any = "sample",
    *,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Certificate:
    """Examine a judge model before its win rates are believed.

    A later `judge` shows the verdict next to its win rates if the certificate's folder lies beside the run's folder, or
    in the current directory.

    Args:
        llm: The model: a settings file, a dict of the same keys, a `Model`, or `rolellm.LLM`.
        dataset: Rows with replies of roles: ``"CONFIG"`` or ``"CONFIG/SPLIT"`` of RoleBench, or a `datasets.Dataset`.
        labels: Folder of a judging run whose answers people have ranked, or of the votes of `rolellm chat --web`.
        out: The certificate's folder; by default a new temporary one.
        settings: ``judges`` (by default role-pair and role-odds), ``sample`` (rows of each test, by default 40),
            ``seed``, ``roles``, ``subset``, ``data_dir``, ``shown`` and ``budget`` of `JudgingSettings`.

    Raises:
        SettingsError: For several models, other settings, and rows without replies of roles.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
    """
    chosen = read(JudgingSettings, settings)
    examined = LLM.of(llm, {"words": make_words_judge}).with_budget(chosen.budget)
    step = prepare_certifying(dataset, labels, chosen)
    with use_working_folder(KIND, out) as folder:
        return replace(run_step(step, examined, folder).result.certificate, folder=folder)


def prepare_certifying(dataset: Any, labels: str | Path | None, settings: JudgingSettings) -> Certifying:
    """Load what a judge is examined with.

    Raises:
        SettingsError: For settings that a certificate has no use for, as `Certifying`.
    """
    defaults = dump(read(JudgingSettings, {}))
    unused = [name for name, value in dump(settings).items() if name not in _USED and value != defaults[name]]
    if unused:
        raise SettingsError(f"{', '.join(unused)}: a certificate has no such setting; it has {', '.join(_USED)}")
    data, rows = load_judged_rows({}, dataset, settings)
    return Certifying(rows, settings, data, None if labels is None else read_run(labels))
