"""What a user may give as ``llm=``."""

from pathlib import Path

from rolellm.llm.llm import LLM
from rolellm.llm.model import Request, RunOptions, user
from rolellm.llm.scripted import ScriptedModel

SERVER = {"base_url": "http://localhost:8000/v1", "model": "small"}


def test_a_server_its_limits_and_its_price() -> None:
    llm = LLM(**SERVER, concurrency=3, max_attempts=2, budget=1, price={"prompt": 1}, retry_failed=True)
    assert llm.options == RunOptions(max_attempts=2, budget=1.0, retry_failed=True)
    (model,) = llm.models
    assert (model.name, model.concurrency, model.price.prompt) == ("localhost:8000/small", 3, 1.0)
    assert llm.estimate([Request((user("Who?"),))]).worst.calls == 2
    assert not llm.counter.exact


def test_a_file_a_dict_an_llm_and_a_model_are_the_same_thing(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text("endpoints: [{base_url: http://localhost:8000/v1, model: small}]\nmax_attempts: 2\n")
    listed = {"endpoints": [SERVER], "max_attempts": 2}
    for given in (file, str(file), listed, {**SERVER, "max_attempts": 2}, LLM(**SERVER, max_attempts=2)):
        llm = LLM.of(given)
        assert [model.name for model in llm.models] == ["localhost:8000/small"]
        assert llm.describe() == LLM.of(listed).describe()
        assert llm.options.max_attempts == 2
    scripted = ScriptedModel(lambda _: "Aye.", rules_hash="1")
    llm = LLM.of(scripted)
    assert llm.models == [scripted]
    assert llm.describe()["endpoints"][0]["name"] == "scripted"
    assert repr(llm) == "LLM(scripted)"
