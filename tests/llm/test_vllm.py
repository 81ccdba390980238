"""`--engine vllm`: a process that is started, asked by tokens, and gone with the run, however that ends."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolellm
from rolellm.characters.roles import find_part
from rolellm.core.errors import ModelError, SettingsError, StoppedShortError
from rolellm.llm.client import FAILED, Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Request, RunOptions, Sampling, system, user
from rolellm.llm.vllm import LOG, find_vllm
from rolellm.models.find import locate_model
from rolellm.models.local_model import LocalModel

OPTIONS = RunOptions(show_progress=False, max_attempts=2)
ROWS = [{"role": "Fox", "question": f"Why, {number}?", "references": ["I see no grapes."]} for number in range(2)]


def make_requests(count: int, **sampling: Any) -> list[Request]:
    chosen = Sampling(**({"temperature": 0.0, "max_tokens": 20} | sampling))
    return [Request((system("You are a fox."), user(f"Why, {number}?")), chosen) for number in range(count)]


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., str]:
    """Makes an executable of `vllm_stand_in.py`, and gives the engine's setting with its flags."""
    script = Path(__file__).with_name("vllm_stand_in.py").read_text()
    path = tmp_path / "other env" / "vllm"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return lambda *flags: shlex.join([str(path), "--pids", str(tmp_path / "pids"), *map(str, flags)])


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    return make_adapter(tiny_model, tmp_path / "adapter")


def make_adapter(base: Path, folder: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    from rolellm.models.load import load_whole, open_tokenizer

    config = LoraConfig(r=12, lora_alpha=24, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(load_whole(base), config)
    model.save_pretrained(folder)
    open_tokenizer(base).save_pretrained(folder)
    return folder


def read_bodies(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / LOG).read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def are_gone(path: Path) -> bool:
    """Whether the processes of a file end within seconds; one that waits for its parent to notice counts as ended."""
    pids = path.read_text().split()
    for _ in range(100):
        states = [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in pids if Path(f"/proc/{pid}").exists()]
        if set(states) <= {"Z"}:
            return True
        time.sleep(0.1)
    return False


def ask(llm: LLM, folder: Path, requests: list[Request]) -> list[Any]:
    with Client(folder, llm.models, OPTIONS) as client:
        return client.ask(requests)


def test_base_and_adapter_are_asked_by_the_tokens_of_the_local_engine(
    stand_in: Callable[..., str], tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    entries = [{"backend": "local", "model": str(name), "engine": stand_in()} for name in (adapter, tiny_model)]
    llm = LLM.of({"endpoints": entries})
    local = LocalModel(str(tiny_model), device="cpu")
    requests = make_requests(2)
    prompts = [local.encode([{"role": m.role, "content": m.content} for m in one.messages]) for one in requests]
    with Client(tmp_path / "run", llm.models, OPTIONS) as client:
        names = []
        for model in llm.models:
            client.models = [model]
            outcomes = client.ask(requests)
            assert all(isinstance(outcome, Answer) for outcome in outcomes)
            ends = [local.tokenizer.decode(prompt[-4:], skip_special_tokens=True).strip() for prompt in prompts]
            assert [outcome.value for outcome in outcomes] == ends
            names.append(read_bodies(tmp_path / "run")[-1]["model"])
        client.models = llm.models
    bodies = read_bodies(tmp_path / "run")
    assert sorted(body["prompt"] for body in bodies) == sorted(prompts * 2)
    assert names == ["adapter-0", "base"] and bodies[0]["stop_token_ids"] == local.stops
    assert are_gone(tmp_path / "pids")


def test_a_server_that_dies_loses_no_answer(stand_in: Callable[..., str], tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    llm = LLM(backend="local", model=str(tiny_model), engine=stand_in("--die-after", 3))
    llm.models[0].concurrency = 1  # type: ignore[misc]  # so that none is in flight beside the fourth
    with pytest.raises(
        StoppedShortError, match=r"vLLM ended .*\(RuntimeError: the card is on fire\).*vllm\.log.*3 replies are kept"
    ):
        ask(llm, folder, make_requests(6))
    assert are_gone(tmp_path / "pids") and not (folder / FAILED).exists()
    again = LLM(backend="local", model=str(tiny_model), engine=stand_in())
    assert all(isinstance(outcome, Answer) for outcome in ask(again, folder, make_requests(6)))
    assert len(read_bodies(folder)) == 3


def test_an_adapter_that_vllm_refuses_is_merged(
    stand_in: Callable[..., str], adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM(backend="local", model=str(adapter), engine=stand_in("--refuse-lora"))
    # The second server is another one.
    for name in ("run", "again"):
        (outcome,) = ask(llm, tmp_path / name, make_requests(1))
        assert isinstance(outcome, Answer) and read_bodies(tmp_path / name)[0]["model"] == "base"
        assert "--lora-modules" not in (tmp_path / name / LOG).read_text()
    said = capsys.readouterr().err
    assert "(ValueError: FoxForCausalLM does not support LoRA yet.);" in said
    assert re.search(r"(?s)adapter merged into its base .*\nvLLM answers after \d+ seconds\n$", said)


@pytest.mark.parametrize(
    ("flags", "others", "starts"),
    [
        pytest.param((), ["sample"], 2, id="another base last"),
        pytest.param(("--refuse-lora",), [], 3, id="adapters are refused"),
    ],
)
def test_systems_of_one_command_share_a_server(
    stand_in: Callable[..., str],
    tiny_model: Path,
    adapter: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    others: list[str],
    starts: int,
) -> None:
    systems = [str(adapter), str(tiny_model), *others]
    for _ in range(2):
        result = rolellm.eval(systems, data=ROWS, engine=stand_in(*flags), out=tmp_path / "out", max_new_tokens=4)
        assert all(report.metrics["CUS"].n == len(ROWS) for report in result.reports.values())
    said = capsys.readouterr().err
    assert said.count("starting vLLM") == starts and said.count("vLLM answers") == 2
    assert are_gone(tmp_path / "pids")


def test_a_port_that_was_taken_meanwhile_is_not_the_end(
    stand_in: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    llm = LLM(backend="local", model=str(tiny_model), engine=stand_in("--busy-once", tmp_path / "busy"))
    assert isinstance(ask(llm, tmp_path / "run", make_requests(1))[0], Answer)
    broken = LLM(backend="local", model=str(tiny_model), engine=stand_in("--no-such-flag"))
    with pytest.raises(
        ModelError, match=r"exit code 2 \(error: unrecognized arguments: --no-such-flag\).*--engine '.*other env/vllm"
    ):
        ask(broken, tmp_path / "broken", make_requests(1))


def test_a_card_that_others_use_is_shared(
    stand_in: Callable[..., str], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM(backend="local", model=str(tiny_model), engine=stand_in("--has-free", 0.5))
    assert isinstance(ask(llm, tmp_path / "run", make_requests(1))[0], Answer)
    assert "vLLM starts again, with 49% of its memory" in capsys.readouterr().err
    full = LLM(backend="local", model=str(tiny_model), engine=stand_in("--has-free", 0.02))
    with pytest.raises(ModelError, match=r"Free memory on device cuda:0 \(0\.4/20\.0 GiB\) on startup is less"):
        ask(full, tmp_path / "full", make_requests(1))


def test_auto_is_vllm_where_it_is_found_with_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = tmp_path / "driver" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\necho H200")
    driver.chmod(0o755)
    for name, value in (("PATH", str(driver.parent)), ("CUDA_VISIBLE_DEVICES", "0"), ("VLLM", "vllm")):
        monkeypatch.setenv(name, value)
    assert find_vllm("auto") is find_vllm("auto") is None
    assert capsys.readouterr().err.count("answers are several times faster on a GPU") == 1
    path = tmp_path / "python" / "vllm"
    path.parent.mkdir()
    path.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(path.with_name("python")))
    assert find_vllm("auto") == [str(path)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_vllm("auto") is None


def test_it_ends_with_a_process_that_is_killed(stand_in: Callable[..., str], tmp_path: Path) -> None:
    work = (
        "import sys, time\nfrom pathlib import Path\nfrom rolellm.llm.vllm import run_process\n"
        "with run_process(sys.argv[1:], Path('log')):\n    print(flush=True); time.sleep(600)"
    )
    command = [*shlex.split(stand_in()), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen([sys.executable, "-c", work, *command], cwd=tmp_path, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    assert are_gone(tmp_path / "pids")


@pytest.mark.parametrize(
    ("engine", "variable", "result"),
    [
        pytest.param("builtin", "vllm", None, id="built in"),
        pytest.param("auto", "vllm", None, id="auto without a GPU"),
        pytest.param("vllm", None, "needs a GPU, and there is none; use --engine builtin", id="no GPU"),
        pytest.param("vllm", "here/vllm --flag", ["here/vllm", "--flag"], id="the variable names one for a CPU"),
        pytest.param("./here/vllm -tp 2", None, ["here/vllm", "-tp", "2"], id="a path with flags"),
        pytest.param("my/env", None, ["my/env/bin/vllm"], id="the folder of an environment"),
        pytest.param("vllm '", None, "No closing quotation", id="an open quote"),
        pytest.param("gone/vllm", None, r"no such program; .*pip install vllm\) and name that: --engine", id="missing"),
        pytest.param("", None, "no such program", id="empty"),
    ],
)
def test_where_vllm_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, variable: str | None, result: Any
) -> None:
    executable = tmp_path / "here" / "vllm"
    (tmp_path / "vllm").mkdir()
    for path in (executable, tmp_path / "my" / "env" / "bin" / "vllm"):
        path.parent.mkdir(parents=True)
        path.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(executable.parent))
    monkeypatch.delenv("VLLM", raising=False)
    if variable:
        monkeypatch.setenv("VLLM", variable)
    if isinstance(result, str):
        with pytest.raises(SettingsError, match=result):
            find_vllm(engine)
    else:
        assert find_vllm(engine) == result


def test_several_bases_and_ray_are_refused(stand_in: Callable[..., str], tiny_model: Path) -> None:
    entries = [{"backend": "local", "model": name, "engine": stand_in()} for name in (str(tiny_model), "sample")]
    with pytest.raises(SettingsError, match="one base with its adapters, and these models have several bases"):
        _ = LLM.of({"endpoints": entries}).models
    with pytest.raises(SettingsError, match="ray and engine: vllm exclude each other"):
        LLM.of({"endpoints": entries[:1], "ray": "local"})


def test_an_adapter_that_does_not_fit_the_server_is_refused_in_words(
    stand_in: Callable[..., str], tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    from starlette.testclient import TestClient

    from rolellm.playing.local_server import run_vllm
    from rolellm.playing.server import build_application, play_all

    others = make_adapter(Path(locate_model("sample")), tmp_path / "others")
    with run_vllm(shlex.split(stand_in()), str(tiny_model), {}) as (llm, served, base):
        app = build_application(play_all(llm, [find_part("queen of hearts")]), key="k", served=served, base=base)
        with TestClient(app, headers={"Authorization": "Bearer k"}) as client:
            for path, problem in (
                (others, ".* was tuned on"),
                (adapter, "vLLM refused the adapter: LoRA is not enabled. Start it with .* --max-lora-rank RANK'$"),
            ):
                answer = client.post("/v1/roles", json={"role": "鲁智深", "adapter": str(path)})
                assert answer.status_code == 400
                assert re.match(problem, answer.json()["error"]["message"])
    assert are_gone(tmp_path / "pids")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> str:
    if "VLLM" not in os.environ:
        pytest.skip("needs a vLLM whose executable $VLLM names")
    for name, value in (("KVCACHE_SPACE", "1"), ("OMP_THREADS_BIND", "nobind")):
        monkeypatch.setenv(f"VLLM_CPU_{name}", value)
    monkeypatch.delenv("OMP_NUM_THREADS")
    return "vllm --enforce-eager"


@pytest.mark.slow
def test_the_real_one_starts_once_for_two_adapters_and_their_base(
    real: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = locate_model("sample")
    first, second = (str(make_adapter(Path(base), tmp_path / name)) for name in ("first", "second"))
    answers = []
    for engine in (real, "builtin"):
        out = tmp_path / engine.split()[0]
        rolellm.eval([first, second, base], data=ROWS, engine=engine, out=out, max_new_tokens=40)
        answers.append([path.read_bytes() for path in sorted(out.glob("answers/*.jsonl"))])
    assert answers[0] == answers[1] and len(set(answers[0])) == 3
    assert capsys.readouterr().err.count("starting vLLM") == 1


@pytest.mark.slow
def test_the_real_one_answers_as_the_builtin_engine_does(real: str, tmp_path: Path) -> None:
    base = locate_model("sample")
    tuned = make_adapter(Path(base), tmp_path / "adapter")
    requests = [*make_requests(4, max_tokens=40), *make_requests(1, max_tokens=1, top_logprobs=5)]
    replies: dict[str, list[Any]] = {}
    for engine in (real, "builtin"):
        entries = [{"backend": "local", "model": name, "engine": engine} for name in (base, str(tuned))]
        llm = LLM.of({"endpoints": entries})
        with Client(tmp_path / engine, llm.models, OPTIONS) as client:
            outcomes = []
            for model in llm.models:
                client.models = [model]
                outcomes += client.ask(requests, also=("length",))
            client.models = llm.models
        replies[engine] = [(outcome.value, outcome.reply.finish, outcome.reply.usage) for outcome in outcomes]
        ranks = outcomes[-1].reply.raw["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        replies[engine].append([(item["token"], round(item["logprob"], 3)) for item in ranks])
    real, builtin = replies.values()
    assert real == builtin
    assert real[:4] != real[5:9]
