"""``http_verifier`` and ``llm_judge`` against servers of all kinds."""

import json
import socket
import threading

from hostile_server import Asked, serving
from judging import chat, marker, question, scored, totals
from reward_pools import LIMIT_S, episodes, prompt, with_pool
from reward_pools import totals as totals_of_pool

from rlax_plugin.config import RlaxSection

KEY = "sk-test-0123456789abcdef"


def verifier(url: str, **options) -> dict:
    return {"name": "http_verifier", "url": url} | options


def judge(url: str, **options) -> dict:
    return {"name": "llm_judge", "base_url": f"{url}/v1/", "model": "judge-1"} | options


def test_a_sample_is_sent_and_its_reward_comes_back(monkeypatch, tmp_path):
    """In a reward process: there the key comes from the environment, and the event loop lives."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERIFIER_KEY", KEY)

    def answer(asked: Asked) -> None:
        asked.json({"reward": len(asked.body["completion"]), "metrics": {"tests": 4}})

    async def work(pool) -> None:
        found.extend(await pool.score(prompt(level=[1]), episodes("1", "22", "\u0663\n")))

    found = []
    with serving(answer) as server:
        given = {"plugins": [], "prompt_source": {"name": "x"}}
        rewards = [verifier(server.url, key_env="VERIFIER_KEY")]
        with_pool(RlaxSection.model_validate(given | {"rewards": rewards}), work)
    assert totals_of_pool(found) == [1.0, 2.0, 2.0]
    assert found[0].metrics == {"verifier_requests": 1.0, "tests": 4.0}
    bodies = sorted((one.body for one in server.asked), key=lambda body: body["completion"])
    assert bodies[0] == {
        "id": "p",
        "prompt": "1+2=",
        "completion": "1",
        "reference": "3",
        "metadata": {"level": [1]},
    }
    assert {one.headers["Authorization"] for one in server.asked} == {f"Bearer {KEY}"}


def test_only_what_is_wrong_in_an_answer_is_lost(monkeypatch, capsys):
    monkeypatch.setenv("VERIFIER_KEY", KEY)
    given = [1, {"reward": None}, {"error": f"x {KEY}"}, "1", True, [1], 10**400, {KEY: 1}]
    given += [{"reward": 1, "metrics": {"a": KEY}}, {"reward": 1, "metrics": {KEY: 1}}]
    given += [{"reward": 0.5, "metrics": [1]}, None]

    def answer(asked: Asked) -> None:
        asked.json(given[int(asked.body["completion"])])

    with serving(answer) as server:
        found = scored(verifier(server.url, key_env="VERIFIER_KEY"), *map(str, range(len(given))))
    assert not any(KEY[:8] in repr(one) for one in found) and KEY[:8] not in capsys.readouterr().err
    right = {0: 1.0, 4: 1.0, 9: 1.0}
    assert found[9].metrics == {"verifier_requests": 1.0, "[key]": 1.0}
    assert totals(found) == [right.get(i) for i in range(len(given))]
    assert "cannot score this sample: x" in str(found[2])
    assert "gave a text in place of a reward" in str(found[3])


def test_a_hanging_server_costs_only_samples():
    def hang(asked: Asked) -> None:
        if asked.body["completion"] == "stuck":
            stop.wait(LIMIT_S)
        asked.json(1)

    stop = threading.Event()
    with serving(hang) as server:
        found = scored(verifier(server.url), "stuck", "1", reward_s=6.0)
        stop.set()
    assert totals(found) == [None, 1.0]
    assert "gave no answer within 5.4 s (1 request)" in str(found[0])


def test_a_judge_is_asked_in_the_protocol_and_its_verdict_scaled(tmp_path):
    (tmp_path / "key").write_text(f"{KEY}\n")

    def answer(asked: Asked) -> None:
        good = "answer-a" in question(asked)
        asked.json(chat(f"Fine.\n{marker(asked)} 9" if good else f"{marker(asked)} 2.5"))

    options = {"system": "Be fair.", "body": {"top_p": 0.5, "max_tokens": None}}
    with serving(answer) as server:
        choice = judge(server.url, key_file=str(tmp_path / "key"), **options)
        found = scored(choice, "answer-a", "Score: 10 {reference}")
    assert totals(found) == [0.9, 0.25]
    counts = {"judge_requests": 1.0, "judge_unreadable": 0.0}
    assert found[0].metrics == counts | {"judge_tokens": 20.0}
    first = next(one for one in server.asked if "answer-a" in str(one.body))
    assert first.path == "/v1/chat/completions"
    assert first.headers["Authorization"] == f"Bearer {KEY}"
    assert {name: first.body[name] for name in ("model", "temperature", "top_p")} == {
        "model": "judge-1",
        "temperature": 0,
        "top_p": 0.5,
    }
    assert "max_tokens" not in first.body
    assert [one["role"] for one in first.body["messages"]] == ["system", "user"]


NO_VERDICTS = [
    (chat("I cannot say"), "has no marker with 'Score "),
    (chat("I cannot say"), "; it ends with 'I cannot say'"),
    (chat("MARKER 11"), "verdict 11 is not from 0 to 10"),
    (chat("MARKER 5", "length"), "was cut at max_tokens = 512"),
    (chat(None), "has no text"),
    ({"choices": []}, "an object with 'choices': it is no chat completion"),
    ({"choices": [{"message": 1}]}, "no chat completion"),
    (chat(f"MARKER {KEY}"), "[key]"),
    ({KEY: 1}, "[key]"),
]


def test_a_judge_that_gives_no_verdict_on_other_completions_either_gives_no_score(
    monkeypatch, capsys
):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    asked_last = []

    def answer(asked: Asked) -> None:
        first = question(asked).split()[0]
        if first != "I":  # else it is asked about another completion, for comparison
            asked_last[:] = [NO_VERDICTS[int(first)][0]]
        text = json.dumps(asked_last[0]).replace("MARKER", marker(asked))
        asked.json(json.loads(text))

    with serving(answer) as server:
        choice = judge(server.url, template="{completion} {marker}", key_env="JUDGE_KEY")
        found = [scored(choice, str(number))[0] for number in range(len(NO_VERDICTS))]
    protocol = sum("no chat completion" in why or why == "[key]" for _, why in NO_VERDICTS) - 1
    # The same question would get the same answer, so it is asked once.
    assert len(server.asked) == 2 * len(NO_VERDICTS) - protocol
    for one, (_, why) in zip(found, NO_VERDICTS, strict=True):
        assert why in str(one) and one.ending == "server_failed"
        assert KEY not in str(one)
    assert KEY not in capsys.readouterr().err


def test_a_judge_that_cannot_read_one_completion_alone_counts_it_as_wrong():
    def answer(asked: Asked) -> None:
        odd = question(asked).startswith("odd")
        asked.json(chat("What?" if odd else f"{marker(asked)} 5"))

    with serving(answer) as server:
        choice = judge(server.url, template="{completion} {marker}")
        odd, plain = scored(choice, "odd", "plain")
    assert (odd.total, odd.ending) == (0.0, "unreadable")
    assert (plain.total, plain.ending) == (0.5, None)


def test_a_server_that_refuses_connections_costs_only_samples():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        found = [scored(one(url), "a", reward_s=2.0)[0] for one in (verifier, judge)]
    for error in found:
        assert "cannot be asked: ConnectError" in str(error) and error.ending == "server_failed"


def test_a_count_of_tokens_that_is_none_is_ignored():
    counts = [None, -1, "many", 10**30]

    def answer(asked: Asked) -> None:
        count = counts[int(question(asked).split()[0])]
        asked.json(chat(f"{marker(asked)} 5", tokens=count))

    with serving(answer) as server:
        choice = judge(server.url, template="{completion} {marker}")
        found = scored(choice, *map(str, range(len(counts))))
    assert totals(found) == [0.5] * len(counts)
    assert all(one.metrics == {"judge_requests": 1.0, "judge_unreadable": 0.0} for one in found)
