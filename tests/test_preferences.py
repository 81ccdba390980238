"""Pairs for DPO: what each source prefers, what is left out, and that length tells nothing of what is kept."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.folder import import_card
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.judging import records
from rolellm.judging.records import DatasetName, Judgement, read_run
from rolellm.llm.model import assistant
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.training_record import hash_instruction
from rolellm.playing.player import RolePlayer
from rolellm.preferences import REASONS, HeldOut, ReplyPair, pair_judged, pair_plain, pair_roles, prefer, select_pairs
from rolellm.training.rows import read_own_rows

from .commands import Command
from .judge_runs import make_comparison, make_rows, write_run

AHOY = "Aye, matey, a cod is what ye want, by my old beard!"
BUSY, HERRING = "Ask somebody else, I am busy.", "That is a herring, and a very small one at that."
PLAIN = "I think that a cod would be a very good choice there."


def make_row(role: str = "Ahab", question: str = "Name a fish.", **values: Any) -> Row:
    return Row(f"{role}/1", role, "en", "general", question, **({"references": ()} | values))


def make_pair(
    chosen: str = AHOY, rejected: str = PLAIN, number: Any = 0, source: str = "role", **values: Any
) -> ReplyPair:
    prompt = ({"role": "system", "content": "You are Ahab."}, {"role": "user", "content": f"Name fish {number}."})
    return ReplyPair(source, f"row/{number}", "Ahab", "en", prompt, chosen, rejected, **values)


def test_a_styled_reply_is_preferred_to_the_plain_answer_nearest_in_length() -> None:
    row = make_row(references=(f"{AHOY} {AHOY}", "Cod.", AHOY), raw_reference=PLAIN)
    (pair,) = pair_plain([row, make_row(references=(AHOY,)), make_row(references=(), raw_reference=PLAIN)])
    assert (pair.chosen, pair.rejected, pair.role) == (AHOY, PLAIN, "Ahab")
    assert [message["role"] for message in pair.prompt] == ["system", "user"]


def test_an_own_reply_is_preferred_to_another_role_s_to_the_same_question() -> None:
    rows = [make_row("Ahab", references=(AHOY,)), make_row("Ishmael", "name a  FISH.", references=(PLAIN,))]
    rows.append(make_row("Starbuck", "Name a bird.", references=(PLAIN,)))
    pairs = {pair.role: (pair.chosen, pair.rejected) for pair in pair_roles(rows)}
    assert pairs == {"Ahab": (AHOY, PLAIN), "Ishmael": (PLAIN, AHOY)}


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        pytest.param(make_pair(chosen=" \n"), "blank", id="blank"),
        pytest.param(make_pair(number=7), "held_out", id="held-out-instruction"),
        pytest.param(
            make_pair(number="7.\n\nBe brief", after="Be brief."), "held_out", id="held-out-with-what-a-card-adds"
        ),
        pytest.param(replace(make_pair(), role="queequeg "), "held_out", id="held-out-role-in-another-spelling"),
        pytest.param(make_pair(rejected=AHOY.replace(",", "").upper()), "near_equal", id="same-words"),
        pytest.param(make_pair(chosen="As an AI language model, I cannot name any fish."), "out_of_character", id="ai"),
        pytest.param(make_pair(chosen="Cod, aye."), "short", id="short"),
        pytest.param(replace(make_pair(chosen="Cod, aye."), source="swipes"), "", id="a-short-swipe-is-kept"),
        pytest.param(make_pair(), "", id="kept"),
    ],
)
def test_what_teaches_nothing_or_the_wrong_thing_is_left_out(pair: ReplyPair, reason: str) -> None:
    held_out = HeldOut(("test",), frozenset({"queequeg"}), frozenset({hash_instruction("name fish  7.")}))
    result = select_pairs([pair], held_out, balance=False)
    assert result.dropped[pair.source] == ({reason: 1} if reason else {})
    assert len(result.pairs) == (not reason)


def test_repeated_pairs_count_once_and_contradictions_not_at_all() -> None:
    pairs = [make_pair(), replace(make_pair(chosen=AHOY.upper()), id="again"), make_pair(number=1)]
    pairs.append(replace(pairs[2], chosen=PLAIN, rejected=AHOY, source="judge"))
    result = select_pairs(pairs, HeldOut(), balance=False)
    assert [pair.id for pair in result.pairs] == ["row/0"]
    assert result.dropped == {"role": {"repeated": 1, "contradicted": 1}, "judge": {"contradicted": 1}}


WORDS = st.lists(st.sampled_from(["gull", "cod", "storm", "rope", "mast", "deck", "salt"]), min_size=6, max_size=40)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=40))
def test_lengths_are_even_and_every_pair_is_accounted_for(texts: list[Any]) -> None:
    pairs = [make_pair("aye " + " ".join(one), "nay " + " ".join(other), n) for n, (one, other) in enumerate(texts)]
    result = select_pairs(pairs, HeldOut())
    ratios = [pair.log_ratio for pair in result.pairs if abs(pair.log_ratio) > 0.05]
    assert sum(ratio > 0 for ratio in ratios) == sum(ratio < 0 for ratio in ratios)
    counts = result.dropped.get("role", {})
    assert set(counts) <= set(REASONS) and sum(counts.values()) + len(result.pairs) == len(pairs)
    # The order of what comes in changes nothing.
    turned = select_pairs(pairs[::-1], HeldOut()).pairs
    assert {pair.id for pair in turned} == {pair.id for pair in result.pairs}


def judge_pair(row: str, order: tuple[str, str], ranks: tuple[float, float] | None, **values: Any) -> Judgement:
    return Judgement(row, values.pop("judge", "j"), "pairwise", order, ranks, **values)


def test_a_judge_counts_where_both_orders_agree(tmp_path: Path) -> None:
    model, base = "quill-7b", "harbour-gpt"
    agreed, turned = ((model, base), (1, 2)), ((base, model), (2, 1))
    position_wins = ((base, model), (1, 2))
    judgements = [
        *(judge_pair("row-000", *verdict) for verdict in (agreed, turned)),
        *(judge_pair("row-001", *verdict) for verdict in (agreed, position_wins)),
        judge_pair("row-002", *agreed),  # one order only
        *(judge_pair("row-003", *verdict) for verdict in (agreed, turned)),
        judge_pair("row-003", *position_wins, judge="k"),  # another judge says otherwise
        judge_pair("row-004", ("nullmodel", base), (2, 1)),  # a canary
        judge_pair("row-004", (base, "nullmodel"), (1, 2)),
        judge_pair("row-005", (base, model), (1.5, 1.5)),
        judge_pair("row-005", (model, base), None, unscored="no verdict"),
    ]
    run = read_run(write_run(tmp_path / "run", make_comparison(make_rows()), judgements))
    (pair,) = pair_judged(run)
    assert (pair.id, pair.role, pair.source) == ("run/row-000", "Ada Fenn", "judge")
    assert (pair.chosen[:9], pair.rejected[:9]) == ("Answer 0 ", "Answer 2 ")
    assert "counts everything" in pair.prompt[0]["content"]


def read_pairs(run: Path) -> list[dict[str, Any]]:
    return [line for _, line in read_jsonl(run / "pairs.jsonl")]


def write_chat(path: Path, name: str = "Ahab") -> Path:
    def say(text: str, *swipes: str, user: bool = False, place: int = 0, system: bool = False) -> dict[str, Any]:
        line = {"name": "Tom" if user else name, "is_user": user, "is_system": system, "mes": text}
        return line | ({"swipes": list(swipes), "swipe_id": place} if swipes else {})

    talk = [
        {"user_name": "Tom", "character_name": name, "chat_metadata": {}},
        say("Ahoy there, stranger!", "Ahoy there, stranger!", "Go away."),
        say("What is that fish?", user=True),
        say(AHOY, PLAIN, AHOY, BUSY, PLAIN, place=1),
        say("/hide 3", system=True),
        say("And that one?", user=True),
        say("Edited by hand.", HERRING),
        say("Thanks.", user=True),
        say("The last word.", "The last word.", "Not chosen yet."),
    ]
    write_jsonl(path, talk)
    return path


def test_swipes_prefer_the_reply_that_the_user_went_on_with(tmp_path: Path, command: Command) -> None:
    chat = write_chat(tmp_path / "Ahab - 2026.jsonl")
    card = write_ahab(tmp_path / "ahab.json")
    summary = command("prefer", chat, card, "--set", "balance=false", "--out", tmp_path / "run", "--json").result
    lines = read_pairs(tmp_path / "run")
    replies = [(line["chosen"][0]["content"], line["rejected"][0]["content"]) for line in lines]
    assert replies == [(AHOY, PLAIN), (AHOY, BUSY), ("Edited by hand.", HERRING)]
    roles = [message["role"] for message in lines[2]["prompt"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert summary["sources"]["swipes"]["pairs"] == 3
    assert "nothing was held out" in command("prefer", chat, "--out", tmp_path / "other").err


def write_ahab(path: Path) -> Path:
    lore = {"keys": ["gull"], "enabled": True, "insertion_order": 0, "extensions": {}}
    entries = [lore | {"content": "Ahab's leg is of ivory.", "constant": True}, lore | {"content": "Gulls mean land."}]
    data: dict[str, Any] = {"name": "Ahab", "description": "You hunt a white whale.", "first_mes": ""}
    data |= {"mes_example": "", "character_book": {"entries": entries, "extensions": {}}}
    data["post_history_instructions"] = "Answer briefly."
    path.write_text(json.dumps({"spec": "chara_card_v2", "spec_version": "2.0", "data": data}), encoding="utf-8")
    return path


def test_swipes_are_the_cards_under_another_name_and_prompted_as_in_play(tmp_path: Path, command: Command) -> None:
    chat, card = write_chat(tmp_path / "chat.jsonl", "Empty"), write_ahab(tmp_path / "ahab.json")
    refused = command("prefer", chat, card, "--out", tmp_path / "run")
    assert refused.code == 2 and "no reply by Ahab; its replies are by Empty." in refused.err
    folder = import_card(card, tmp_path / "empty", role="Empty")
    words = ("prefer", chat, folder, "--set", "balance=false", "--out", tmp_path / "run", "--json")
    assert command(*words).result["sources"]["swipes"]["dropped"] == {"no_message_before": 1, "no_message_after": 1}
    lines = read_pairs(tmp_path / "run")
    assert {line["role"] for line in lines} == {"Empty"} and len(lines) == 3
    chat_with_role = RolePlayer(ScriptedModel(lambda _: AHOY, rules_hash=""), folder).chat()
    chat_with_role.talk.add(assistant("Ahoy there, stranger!"))
    chat_with_role.say("What is that fish?")
    assert chat_with_role.prompt is not None
    assert lines[0]["prompt"] == [asdict(message) for message in chat_with_role.prompt.messages]
    system_turn = lines[0]["prompt"][0]["content"]
    assert "white whale" in system_turn and "ivory" in system_turn and "Gulls" not in system_turn
    assert lines[0]["prompt"][-1]["content"].endswith("Answer briefly.")


def test_retries_in_talks_with_a_character_are_pairs(tmp_path: Path, command: Command) -> None:
    folder = import_card(write_ahab(tmp_path / "ahab.json"), tmp_path / "ahab")
    long = f"{PLAIN} {PLAIN}"
    replies = iter([long, AHOY, "So be it."])
    player = RolePlayer(ScriptedModel(lambda _: next(replies), rules_hash=""), folder)
    chat = player.chat(folder / "talks" / "1.jsonl", me="Kai", persona="{{user}} is a cook.")
    chat.say("Name a fish.")
    chat.retry()
    prompt = chat.prompt
    chat.say("Thanks.")
    with (folder / "talks" / "1.jsonl").open("a") as stream:
        stream.write('{"name": "Kai", "me')
    shown = command("prefer", folder, "--out", tmp_path / "balanced")
    assert "as many chosen replies have to be longer" in shown.err
    shown = command("prefer", folder, "--set", "balance=false", "--out", tmp_path / "run", "--json")
    assert shown.result["sources"]["swipes"]["dropped"]["broken_line"] == 1
    ((_, line),) = read_jsonl(tmp_path / "run" / "pairs.jsonl")
    assert (line["chosen"][0]["content"], line["rejected"][0]["content"]) == (AHOY, long)
    assert line["prompt"] == [asdict(message) for message in prompt.messages] and "Kai is a cook" in str(line["prompt"])


def test_the_sample_gives_pairs_that_training_reads_and_no_test_question(tmp_path: Path, command: Command) -> None:
    shown = command("prefer", "--config", "sample", "--out", tmp_path / "run", "--json")
    summary = shown.result
    # Its replies are longer than the plain answers, nearly all of them.
    assert summary["sources"]["plain"]["length_unbalanced"]["chosen_longer"] > 0.9
    assert abs(summary["length"]["chosen_longer"] - 0.5) < 0.03 and abs(summary["length"]["log_ratio"]) < 0.01
    lines = read_pairs(tmp_path / "run")
    tests = {hash_instruction(question) for question in load_rolebench("sample")["test"]["question"]}
    assert not tests & {hash_instruction(line["prompt"][-1]["content"]) for line in lines}
    chats: Any = read_own_rows(tmp_path / "run" / "pairs.jsonl", "dpo")
    assert len(chats) == summary["pairs"] > 50
    assert {chat.role for chat in chats} == {line["role"] for line in lines}
    all_pairs = prefer(config="sample", balance=False)
    assert all_pairs.summary["pairs"] > summary["pairs"]


def test_answers_to_a_test_split_are_held_out(tmp_path: Path) -> None:
    rows = [Row.from_columns(columns) for columns in load_rolebench("sample")["test"]][:1]
    comparison = make_comparison(rows, {"a": "model", "b": "baseline"}, lambda number, row: (AHOY, PLAIN)[number])
    both = [judge_pair(rows[0].id, ("a", "b"), (1, 2)), judge_pair(rows[0].id, ("b", "a"), (2, 1))]
    dataset = {"config": "sample", "split": "test", "fingerprint": None}
    assert set(dataset) == set(DatasetName.__dataclass_fields__)
    records.write_run(tmp_path / "run", comparison, both, dataset=dataset)
    run = prefer(tmp_path / "run", balance=False)
    assert (run.summary["pairs"], run.summary["sources"]["judge"]["dropped"]) == (0, {"held_out": 1})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["nowhere"], "nowhere: nothing to prefer; give the folder of a judging run", id="not-there"),
        pytest.param([], "--config is missing", id="nothing"),
        pytest.param(["notes.jsonl"], "notes.jsonl: nothing to prefer", id="another-file"),
        pytest.param(["same.jsonl"], "message before 1, no other swipe 3)", id="no-other-swipe"),
    ],
)
def test_what_is_no_source_is_refused_in_words(
    words: list[str], message: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "notes.jsonl", [{"note": "buy fish"}])
    header = {"user_name": "Tom", "chat_metadata": {}}
    message_line = {"name": "Tom", "is_user": True, "mes": "Name a fish."}
    swiped = [{"name": "Ahab", "mes": AHOY, "swipes": [AHOY] * count} for count in (2, 1, 0)]
    turns = [line for reply in swiped for line in (message_line, reply)]
    write_jsonl(tmp_path / "same.jsonl", [header, {"name": "Ahab", "mes": "Ahoy!"}, *turns, message_line])
    shown = command("prefer", *words, "--out", "run")
    assert (shown.code, message in shown.err) == (2, True), shown.err


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
def test_the_release_in_chinese_gives_balanced_pairs_of_roles(tmp_path: Path, real_release: Path) -> None:
    summary = prefer(config="instruction-generalization-zh", data_dir=real_release, out=tmp_path / "run").summary
    assert summary["pairs"] > 2000 and summary["roles"] == 5
    assert abs(summary["length"]["log_ratio"]) < 0.01 and abs(summary["length"]["chosen_longer"] - 0.5) < 0.02
    assert summary["sources"]["role"]["dropped"]["held_out"] > 3000
