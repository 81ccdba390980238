"""`rolellm eval --data`: the replies of one's own dialogues, asked for again and compared with what was said."""

import json
import random
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rolellm
from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.data.own_rows import DIALOGUES, load_own_rows
from rolellm.journeys.evaluation import SAID, EvalResult
from rolellm.models.local_model import LocalModel
from rolellm.models.training_record import MANIFEST, TrainedOn
from rolellm.scoring.losses import measure_losses
from rolellm.scoring.own_turns import load_own_turns
from rolellm.scoring.style import measure_difference

WORDS = {"endpoints": [{"backend": "scripted", "rules": "words"}]}
TALK = [
    ("user", "Who keeps the light?"),
    ("assistant", "I do, and my niece."),
    ("user", "Since when?"),
    ("assistant", "Since the great storm."),
]


def make_messages(number: int) -> list[dict[str, str]]:
    return [{"role": role, "content": f"{text} ({number})"} for role, text in TALK]


ROWS = [{"messages": make_messages(number), "role": "Ada"} for number in range(12)]
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("messages", ROWS[0]),
    ("prompt", {"prompt": make_messages(0)[:3], "completion": make_messages(0)[3]["content"]}),
    ("ShareGPT", {"conversations": [{"from": t["role"], "value": t["content"]} for t in make_messages(0)]}),
    ("Alpaca", {"instruction": f"{TALK[2][1]} (0)", "input": "", "output": f"{TALK[3][1]} (0)"}),
    ("RoleBench", {"role": "Ada", "question": f"{TALK[2][1]} (0)", "references": [f"{TALK[3][1]} (0)"]}),
]


@pytest.fixture(scope="module")
def result(base: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalResult:
    out = tmp_path_factory.mktemp("own")
    return rolellm.eval(f"tiny={base}", data=ROWS, judge=WORDS, out=out, max_new_tokens=4)


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in FORMS])
def test_every_form_gives_the_last_reply_with_what_asks_for_it(row: dict[str, Any]) -> None:
    own = load_own_turns([row])
    last = own.rows[-1]
    assert (last.question, last.references) == ("Since when? (0)", ("Since the great storm. (0)",))
    assert own.messages[last.id][-1] == {"role": "user", "content": "Since when? (0)"}


def test_a_later_reply_is_asked_for_after_the_real_ones(result: EvalResult) -> None:
    own = load_own_turns(ROWS)
    assert [len(own.messages[row.id]) for row in own.rows[:2]] == [1, 3]
    assert own.messages[own.rows[1].id][1]["content"] == "I do, and my niece. (0)"
    assert own.write_transcripts()[1].question.startswith("user: Who keeps the light? (0)\n\nassistant: I do")
    lines = (result.out / "answers" / "tiny.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row.id for row in own.rows]


def test_intervals_are_over_dialogues(result: EvalResult) -> None:
    cus = result.reports["tiny"].metrics["CUS"]
    loss = result.own["tiny"].loss
    assert (cus.n, cus.clusters, loss.clusters) == (24, 12, 12)
    assert json.loads((result.out / "eval.json").read_text(encoding="utf-8"))["data"] == "your rows"
    assert SAID in {model.name for model in result.judged.models}
    (wins,) = [model.measures()["win_rate"] for model in result.judged.models if model.name == "tiny"]
    assert wins.clusters == 12
    (table,) = result.tables()
    assert table.columns == ("Rouge-L", "loss per token", "win rate %")
    assert "by dialogue" in str(table) and "by question" not in str(table)


def test_the_loss_is_that_of_transformers(base: Path) -> None:
    own = load_own_turns(ROWS[:1])
    row = own.rows[1]
    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    local = LocalModel(str(base))
    prompt = local.encode(own.messages[row.id])
    reply = [*tokenizer(row.references[0], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    labels = torch.tensor([[-100] * len(prompt) + reply])
    expected = model(input_ids=torch.tensor([[*prompt, *reply]]), labels=labels).loss.item()
    measured = measure_losses(local, [row], own.messages).values
    assert (fmean(measured), len(measured)) == (pytest.approx(expected, rel=1e-5), len(reply))


def test_the_loss_decides_between_models_of_one_tokenizer(base: Path, tmp_path: Path) -> None:
    blank = shutil.copytree(base, tmp_path / "blank")
    model = AutoModelForCausalLM.from_pretrained(base)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(blank)
    result = rolellm.eval({"tiny": base, "blank": blank}, data=ROWS, out=tmp_path / "eval", max_new_tokens=1)
    gain = result.own["blank"].loss.mean - result.own["tiny"].loss.mean
    assert abs(gain) > 0.001
    winner, loser = ("tiny", "blank") if gain > 0 else ("blank", "tiny")
    assert result.findings[0] == f"{winner} is ahead of {loser} in likelihood of what was said."


def test_dialogues_that_a_model_was_trained_on_are_left_out(base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base, run)
    trained = load_own_turns(ROWS[:9]).rows
    manifest = {"kind": "rocit", "trained_on": TrainedOn.of(trained).to_dict()}
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    write_json(run / MANIFEST, manifest | {"recipe": {"data": {"path": str(tmp_path / "chats.jsonl")}}})
    # Without --data, the run's own rows.
    result = rolellm.eval(run, out=tmp_path / "eval", max_new_tokens=2)
    assert result.reports["run"].metrics["CUS"].n == 6
    assert "nearest training reply" in result.reports["run"].scale.markers
    with pytest.raises(DataError, match=r"9 of 9 dialogues were trained on .* Name other rows with --data"):
        rolellm.eval(run, data=ROWS[:9], out=tmp_path / "none")


def test_without_rows_a_run_is_asked_the_config_of_its_manifest(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "run")
    recipe = {"data": {"source": "rolebench", "config": "sample"}}
    manifest = {"kind": "rocit", "trained_on": TrainedOn().to_dict(), "recipe": recipe}
    write_json(tmp_path / "run" / MANIFEST, manifest)
    result = rolellm.eval(tmp_path / "run", out=tmp_path / "eval", max_new_tokens=2, limit=2)
    assert result.reports["run"].options.config == "sample"


def test_all_models_are_checked_before_the_first_answers(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^later: no model at 'missing"):
        rolellm.eval({"first": base, "later": "missing/x/y"}, data=ROWS, out=tmp_path)
    (tmp_path / "server.yaml").write_text("endpoints: [{backend: scripted, rules: unknown}]")
    with pytest.raises(SettingsError, match=r"^server: unknown rules"):
        rolellm.eval([base, tmp_path / "server.yaml"], data=ROWS, out=tmp_path)
    with pytest.raises(SettingsError, match="does not exist"):
        rolellm.eval(base, data=ROWS, judge=tmp_path / "no.yaml", out=tmp_path)
    assert not (tmp_path / "answers").exists()


@pytest.mark.parametrize(("voice", "low", "high"), [("Verily, {}, good sir.", 0.0, 0.7), ("Arr, {}!", 0.95, 1.0)])
def test_style_tells_another_voice_from_what_was_said_and_the_same_voice_not(
    voice: str, low: float, high: float
) -> None:
    draw = random.Random(0)
    topics = ["tides", "gulls", "ropes", "lamps", "salt", "stones", "storms", "boats", "coves", "nets"]
    rows, replies = [], []
    for number in range(80):
        said, answered = (" and ".join(draw.sample(topics, 3)) for _ in range(2))
        text = f"Verily, {said}, good sir."
        rows.append(Row(str(number), "Ada", "en", "general", f"{number}?", (text,), dialogue=f"talk {number // 2}"))
        replies.append(voice.format(answered))
    share = measure_difference(rows, replies)
    assert low <= share.mean <= high and share.clusters == 40
    assert measure_difference(rows[:20], replies[:20]) is None


def test_dialogues_with_tools_are_counted_and_left_out() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    tools = {"messages": [{"role": "user", "content": "a"}, call]}
    assert next(iter(load_own_rows([tools], DIALOGUES))).replies == (1,)
    own = load_own_turns([tools, *ROWS[:1]])
    assert len(own.rows) == 2 and own.notes == ("1 dialogue with tools or names left out, which are not evaluated",)


def test_a_limit_keeps_the_same_replies_as_a_larger_one_and_ids_are_unique() -> None:
    twice = [*ROWS, *({**row, "id": "same"} for row in ROWS)]
    whole = load_own_turns(twice)
    assert len({row.id for row in whole.rows}) == len(whole.rows) == 48
    few, more = (load_own_turns(ROWS, limit=limit).rows for limit in (3, 8))
    assert len(few) == 3 and set(few) < set(more) < set(load_own_turns(ROWS).rows)


def test_replies_after_turns_that_fill_the_context_are_counted_and_left_out(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = LocalModel(str(base)).context
    long = {"prompt": "why " * context, "completion": "So."}
    result = rolellm.eval({"tiny": base}, data=[long, FORMS[1][1]], out=tmp_path, max_new_tokens=2)
    assert result.reports["tiny"].metrics["CUS"].n == 1
    assert f"1 reply left out: the turns before fill tiny's context of {context:,} tokens" in capsys.readouterr().err
