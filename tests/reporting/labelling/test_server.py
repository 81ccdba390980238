"""The server of the labelling page, asked over HTTP as a browser would and as it never would."""

import http.client
import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from rolellm.judging.people.labels import AuditLabel, RankingLabel, label_path, read_labels
from rolellm.judging.records import read_run
from rolellm.reporting.labelling import LabelServer
from rolellm.reporting.labelling.server import MAX_BODY
from rolellm.reporting.labelling.tasks import MAX_TEXT

from ...judge_runs import CONTESTANTS, make_comparison, make_rows, write_run

Serve = Callable[..., LabelServer]
RANKED = {"groups": [["B"], ["A", "C"]], "seconds": 2.5}
SENT = {"item": 0, "seconds": 1}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(server: LabelServer, path: str = "", method: str = "GET", body: Any = None, **headers: str | None) -> Answer:
    """As the page asks; headers replace its own, None leaves one out, and a path from / on is taken as it stands."""
    at = urlsplit(server.url)
    ours: dict[str, str | None] = {"Host": at.netloc}
    if method == "POST":
        ours |= {"Origin": f"http://{at.netloc}", "Content-Type": "application/json"}
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    if content is not None:
        ours["Content-Length"] = str(len(content))
    ours |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path if path.startswith("/") else at.path + path, skip_host=True)
    for name, value in ours.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(content)
    reply = connection.getresponse()
    found = Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    connection.close()
    return found


def post(server: LabelServer, body: Any, **headers: str | None) -> Answer:
    return ask(server, "label", "POST", body, **headers)


def test_a_ranking_is_on_the_disk_before_the_page_is_told(serve: Serve, folder: Path) -> None:
    server = serve(sample=3)
    assert ask(server, "state").json["statuses"] == ["open"] * 3
    item = ask(server, "item/0").json
    assert [one["letter"] for one in item["answers"]] == ["A", "B", "C"] and item["label"] is None
    said = post(server, {"item": 0, **RANKED})
    (label,) = read_labels(read_run(folder), "anna", RankingLabel).values()
    assert said.status == 200 and said.json["statuses"] == ["done", "open", "open"]
    assert label.ranks == (2.5, 1.0, 2.5) and label.seconds == 2.5
    assert f"Answer {list(CONTESTANTS).index(label.order[1])} " in item["answers"][1]["text"]
    assert ask(server, "item/0").json["label"] == {"groups": [["B"], ["A", "C"]]}


def test_one_who_comes_back_finds_it_as_it_was_and_can_correct_it(serve: Serve, folder: Path) -> None:
    first = serve(sample=3)
    post(first, {"item": 0, **RANKED})
    post(first, {"item": 1, "skipped": True, "seconds": 1})
    again = serve(sample=4)
    assert ask(again, "state").json["statuses"] == ["done", "skipped", "open", "open"]
    assert ask(again, "item/0").json["answers"] == ask(first, "item/0").json["answers"]
    post(again, {"item": 1, "groups": [["A", "B", "C"]], "seconds": 1})
    assert ask(again, "state").json["statuses"] == ["done", "done", "open", "open"]
    assert ask(again, "item/1").json["label"] == {"groups": [["A", "B", "C"]]}


def test_what_is_next_is_named_once_all_is_labelled(serve: Serve) -> None:
    server = serve(sample=2)
    assert post(server, {"item": 0, **RANKED}).json["commands"] is None
    assert post(server, {"item": 1, "skipped": True, "seconds": 0}).json["commands"] == {
        "What now?": "rolellm label --agreement the-run"
    }


def test_no_response_names_a_system(serve: Serve) -> None:
    for server in (serve(), serve(audit=True)):
        paths = ["", "page.js", "page.css", "ranking.js", "audit.js", "state", *(f"item/{n}" for n in range(6))]
        answers = [ask(server, path) for path in paths]
        answers.append(post(server, {"item": 0, "skipped": True, "seconds": 0}))
        answers += [post(server, {"item": 1}), ask(server, "item/77"), ask(server, "item/0")]
        for one in answers:
            text = json.dumps(one.headers) + one.body.decode()
            assert not [name for name in CONTESTANTS if name in text]
            assert "reference" not in one.headers


def test_the_audit_keeps_three_answers(serve: Serve, folder: Path) -> None:
    server = serve(audit=True, sample=4)
    item = ask(server, "item/0").json
    assert len(item["answers"]) == 1 and len(item["references"]) == 2
    said = {"instruction": True, "style": False, "correct": None}
    assert post(server, {"item": 0, "seconds": 1, **said}).json["statuses"] == ["done", "open", "open", "open"]
    assert ask(server, "item/0").json["label"] == said
    (label,) = read_labels(read_run(folder), "anna", AuditLabel).values()
    assert (label.instruction, label.style, label.correct) == (True, False, None)


def test_the_reference_is_audited_without_itself_beside_it(serve: Serve) -> None:
    item = ask(serve(audit=True, system="reference"), "item/0").json
    assert item["references"] == [] and item["answers"][0]["text"].startswith("On day")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Host": "evil.example"}, 403, id="another name that points here"),
        pytest.param({"Host": "127.0.0.1"}, 403, id="no port"),
        pytest.param({"Host": "127.0.0.1:1"}, 403, id="another port"),
        pytest.param({"Host": None}, 403, id="no host"),
        pytest.param({"Host": "localhost"}, 403, id="localhost without its port"),
        pytest.param({"Origin": "http://evil.example"}, 403, id="another page"),
        pytest.param({"Origin": "null"}, 403, id="a page without origin"),
        pytest.param({"Origin": None}, 403, id="no page"),
        pytest.param({"Origin": "http://127.0.0.1:1"}, 403, id="another server of this machine"),
        pytest.param({"Content-Type": "text/plain"}, 415, id="a form's plain text"),
        pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, 415, id="a form"),
        pytest.param({"Content-Type": None}, 415, id="no type"),
        pytest.param({"Content-Length": None}, 411, id="no length"),
        pytest.param({"Content-Length": "-1"}, 411, id="a length below nothing"),
        pytest.param({"Content-Length": "²"}, 411, id="a length that is no number"),
        pytest.param({"Content-Length": str(MAX_BODY + 1)}, 413, id="a byte too long"),
        pytest.param({"Content-Length": "9" * 30}, 413, id="longer than a disk"),
    ],
)
def test_what_does_not_come_from_the_page_is_refused(serve: Serve, folder: Path, headers: Any, status: int) -> None:
    server = serve()
    if "Host" in headers:
        assert {ask(server, path, **headers).status for path in ("", "state", "item/0")} == {status}
    encoded = {name: value.encode().decode("latin-1") if value else value for name, value in headers.items()}
    body = b"" if "Content-Length" in headers else {"item": 0, **RANKED}
    assert post(server, body, **encoded).status == status
    assert not label_path(folder, "anna", RankingLabel).exists()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", id="root"),
        pytest.param("/state", id="no token"),
        pytest.param("/wrong/state", id="wrong token"),
        pytest.param("/%2e%2e/etc/passwd", id="encoded dots"),
        pytest.param("/../../etc/passwd", id="dots"),
        pytest.param("//state", id="empty token"),
        pytest.param("../state", id="up from the token"),
        pytest.param("../../../../../etc/passwd", id="up to the system"),
        pytest.param("server.py", id="a file of the package that is none of the page's"),
        pytest.param("..%2fserver.py", id="encoded slash"),
        pytest.param("page.js/", id="a file as a folder"),
        pytest.param("page.js?x", id="a query"),
        pytest.param("item/6", id="behind the last"),
        pytest.param("item/-1", id="before the first"),
        pytest.param("item/one", id="no number"),
        pytest.param("item/" + "9" * 5000, id="a long number"),
        pytest.param("label", id="labels are not read"),
    ],
)
def test_nothing_else_is_served(serve: Serve, path: str) -> None:
    found = ask(serve(), path)
    assert found.status == 404 and set(found.json) == {"problem"}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW"])
def test_other_methods_are_not_known(serve: Serve, method: str) -> None:
    found = ask(serve(), "state", method)
    assert found.status == 501 and "default-src 'none'" in found.headers["content-security-policy"]


def test_every_answer_forbids_what_the_page_does_not_need(serve: Serve) -> None:
    server = serve()
    for found in (ask(server), ask(server, "page.js"), ask(server, "state"), ask(server, "/"), ask(server, Host="x")):
        assert found.headers["cache-control"] == "no-store"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cross-origin-resource-policy"] == "same-origin"
        policy = found.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "*" not in policy
        assert "access-control-allow-origin" not in found.headers
        assert found.headers["server"] == "rolellm"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="nothing"),
        pytest.param(b"{", 400, id="half of JSON"),
        pytest.param(b"\xff\xfe{}", 400, id="no UTF-8"),
        pytest.param(b"[" * 9000, 400, id="deep"),
        pytest.param(b'{"item": ' + b"9" * 5000 + b"}", 400, id="a number of 5,000 digits"),
        pytest.param([1], 400, id="a list"),
        pytest.param({}, 400, id="no item"),
        pytest.param({"item": "0", **RANKED}, 400, id="an item that is a word"),
        pytest.param({"item": True, **RANKED}, 400, id="an item that is true"),
        pytest.param({"item": 600, **RANKED}, 404, id="a row that is not in the sample"),
        pytest.param({"item": -1, **RANKED}, 404, id="the last but from behind"),
        pytest.param({**SENT}, 400, id="no ranking"),
        pytest.param({**SENT, "groups": [["A"], ["B"]]}, 400, id="one missing"),
        pytest.param({**SENT, "groups": [["A"], ["B"], ["C"], ["D"]]}, 400, id="one too many"),
        pytest.param({**SENT, "groups": [["A"], ["B", "A"], ["C"]]}, 400, id="one twice"),
        pytest.param({**SENT, "groups": ["A", "B", "C"]}, 400, id="no groups"),
        pytest.param({**SENT, "groups": [[1], [{}], [None]]}, 400, id="no letters"),
        pytest.param({"item": 0, "groups": RANKED["groups"]}, 400, id="no time"),
        pytest.param({"item": 0, **RANKED, "seconds": -1}, 400, id="a time before"),
        pytest.param({"item": 0, **RANKED, "seconds": float("nan")}, 400, id="a time that is no number"),
        pytest.param({"item": 0, **RANKED, "seconds": "1"}, 400, id="a time in words"),
        pytest.param({"item": 0, **RANKED, "skipped": "no"}, 400, id="skipped in words"),
        pytest.param({**SENT, "instruction": True, "style": True}, 400, id="the third answer open"),
        pytest.param({**SENT, "instruction": None, "style": True, "correct": True}, 400, id="cannot tell the first"),
        pytest.param({**SENT, "instruction": 1, "style": 0, "correct": 1}, 400, id="numbers"),
    ],
)
@pytest.mark.parametrize("audit", [pytest.param(False, id="ranking"), pytest.param(True, id="audit")])
def test_what_is_no_label_is_refused_and_nothing_written(
    serve: Serve, folder: Path, body: Any, status: int, audit: bool
) -> None:
    refused = post(serve(audit=audit), body)
    assert refused.status == status and refused.json["problem"]
    assert not (folder / "labels").exists()


def test_an_endless_time_counts_as_a_day(serve: Serve, folder: Path) -> None:
    for seconds in (10**300, float("inf"), 10**400):
        server = serve()
        assert post(server, {"item": 0, **RANKED, "seconds": seconds}).status == 200
        assert next(iter(read_labels(read_run(folder), "anna", RankingLabel).values())).seconds == 86_400


def test_two_tabs_that_save_at_once_lose_nothing(serve: Serve, folder: Path) -> None:
    server = serve()
    ranked = [[["A"], ["B"], ["C"]], [["C"], ["B"], ["A"]]]

    def save(tab: int) -> None:
        for number in range(6):
            assert post(server, {"item": number, "groups": ranked[tab], "seconds": tab}).status == 200

    tabs = [threading.Thread(target=save, args=(tab,)) for tab in (0, 1)]
    for tab in tabs:
        tab.start()
    for tab in tabs:
        tab.join()
    lines = label_path(folder, "anna", RankingLabel).read_text().splitlines()
    assert len(lines) == 12 and len(read_labels(read_run(folder), "anna", RankingLabel)) == 6
    shown = [ask(server, f"item/{number}").json["label"] for number in range(6)]
    assert all(label["groups"] in ranked for label in shown)
    # What the page says is what the last lines say.
    assert [ask(serve(), f"item/{number}").json["label"] for number in range(6)] == shown


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_and_the_label_can_be_saved_once_there_is_room(serve: Serve, folder: Path) -> None:
    server = serve()
    post(server, {"item": 0, **RANKED})
    path = label_path(folder, "anna", RankingLabel)
    with files_of_at_most(path.stat().st_size + 20):
        full = post(server, {"item": 1, **RANKED})
    assert full.status == 507 and "disk is full" in full.json["problem"]
    assert ask(server, "state").json["statuses"][:2] == ["done", "open"]
    assert len(read_labels(read_run(folder), "anna", RankingLabel)) == 1
    assert post(server, {"item": 1, **RANKED}).status == 200
    assert len(read_labels(read_run(folder), "anna", RankingLabel)) == 2
    assert len(path.read_text().splitlines()) == 2


def test_a_connection_that_says_nothing_holds_nobody_up(serve: Serve) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.server_port)) as mute:
        mute.sendall(b"POST /")
        assert ask(server, "state").status == 200


@pytest.mark.parametrize(
    "line", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"]
)
def test_what_is_no_http_is_refused_without_a_word_in_the_terminal(
    serve: Serve, capfd: pytest.CaptureFixture[str], line: bytes
) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.server_port)) as odd:
        odd.settimeout(5)
        odd.sendall(line)
        odd.shutdown(socket.SHUT_WR)
        while odd.recv(4096):
            pass
    assert ask(server, "state").status == 200
    assert capfd.readouterr() == ("", "")


def test_an_answer_of_megabytes_is_shown_in_part_and_said_so(serve: Serve, folder: Path) -> None:
    write_run(folder, make_comparison(make_rows(2), answer=lambda number, row: "x" * 3_000_000 if number else "short"))
    found = ask(serve(), "item/0")
    assert len(found.body) < 5 * MAX_TEXT
    assert sum("more characters]" in one["text"] for one in found.json["answers"]) == 2


def test_what_cannot_be_seen_is_spelt_out(serve: Serve, folder: Path) -> None:
    hidden = "a\u202eb\u200bc\x1b[31m\ud800\U000e0041"
    write_run(folder, make_comparison(make_rows(1)))
    answers = {"id": "row-000", "answers": dict.fromkeys(CONTESTANTS, hidden)}
    (folder / "answers.jsonl").write_text(json.dumps(answers) + "\n")
    found = ask(serve(), "item/0")
    assert {one["text"] for one in found.json["answers"]} == {"a⟨U+202E⟩b⟨U+200B⟩c␛[31m⟨U+D800⟩⟨U+E0041⟩"}


def test_one_more_system_opens_a_row_again_and_keeps_what_was_said(serve: Serve, folder: Path) -> None:
    post(serve(sample=1), {"item": 0, **RANKED})
    write_run(folder, make_comparison(make_rows(6), {**CONTESTANTS, "newcomer": "model"}))
    server = serve(sample=1)
    assert ask(server, "state").json["statuses"] == ["open"]
    assert len(ask(server, "item/0").json["answers"]) == 4
    assert len(read_labels(read_run(folder), "anna", RankingLabel)) == 1
