"""Where text of plug-ins, data sets, workers and older records enters or is shown."""

import io
import json
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import typer
from dispatching import answer, join, make
from histories import History
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rlax_jetstream.driver import JetStreamDriver

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.terminal import HarmlessConsole
from rlax_plugin.base.types import Rejected, Unscored, group_of
from rlax_plugin.config import Rollouts
from rlax_plugin.data.prompts.checking import checked_prompts
from rlax_plugin.rollout.fleet.identities import figures, malformed
from rlax_plugin.rollout.fleet.requests import single_turn
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.channels import describe
from rlax_plugin.run.state import journal, samples
from rlax_plugin.testing.builders import make_episode, make_prompt, make_sampled
from rlax_plugin.tools.cli.common import exit_status
from rlax_plugin.tools.commands.report.rollouts import read_rollouts
from rlax_plugin.tools.commands.report.run import no_progress, read_run
from rlax_plugin.tools.commands.report.write import write_report

NASTY = "[red]a\x1b]0;title\x07\x9b2J\u202eb[/nothing]\x00"
SHOWN = r"[red]a\x1b]0;title\x07\x9b2J\u202eb[/nothing]\x00"
PRINTED = SHOWN.replace(r"\x07", "")  # a Text of rich leaves out bells


def test_a_terminal_shows_text_and_obeys_only_us():
    out = io.StringIO()
    console = HarmlessConsole(
        file=out, width=120, force_terminal=True, color_system="standard", highlight=False
    )
    table = Table(title=NASTY)
    table.add_column(NASTY)
    table.add_row(NASTY)
    for shown in (NASTY, table, Text(NASTY, "bold red"), Panel(Text(NASTY)), Text("\ud800")):
        console.print(shown)
    said = out.getvalue()
    assert said.count(SHOWN) == 4  # also where the width of a column depends on it
    assert said.count(PRINTED) == 2
    assert "\ufffd" in said
    left = re.sub(r"\x1b\[[\d;]*m", "", said)  # colours are ours
    assert "\x1b[1;31m" in said and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", left)


def test_an_error_that_quotes_is_shown_harmlessly(capsys):
    with pytest.raises(typer.Exit), exit_status():
        raise RlaxError(f"the model said {NASTY}\nand so on\ud800")
    assert capsys.readouterr().err == f"error: the model said {PRINTED}\nand so on\ufffd\n"


def test_prompts_are_made_harmless_and_their_ids_must_be():
    ordinary = make_prompt("12")
    nasty = replace(make_prompt("7"), text=NASTY, reference="1\x1f2\ud800")
    kept, changed = checked_prompts([ordinary, nasty], "train", "rlax.prompt_source", "x")
    assert kept is ordinary
    assert (changed.text, changed.reference, changed.id) == (SHOWN, "1\x1f2\ufffd", nasty.id)
    for bad in ("a\nb", "\ud800", NASTY, "x" * 257):
        with pytest.raises(ConfigError, match=r"rlax\.prompt_source = 'x': prompt 1 has the id"):
            checked_prompts([ordinary, make_prompt(id=bad)], "train", "rlax.prompt_source", "x")


@pytest.mark.parametrize("field", ["id", "text", "reference"])
def test_what_is_not_text_is_rejected_by_name(field):
    prompts = [make_prompt("7"), replace(make_prompt("8"), **{field: None})]
    with pytest.raises(ConfigError, match=f"prompt 1 has the {field} None: it must be text"):
        checked_prompts(prompts, "train", "rlax.prompt_source", "x")


def test_completions_are_made_harmless():
    source = SimpleNamespace(decode=lambda tokens: NASTY * len(tokens), stop_strings=())
    (one,) = single_turn(source, make_prompt().tokens, [make_sampled(2)])
    assert one.text == SHOWN * 2


@pytest.mark.parametrize("name", ["", "a\nb", NASTY, "x" * 129])
def test_a_worker_with_a_name_that_is_none_is_rejected(name):
    request = pb.RegisterRequest(worker=name, address="x:1", process="p")
    assert "printable characters" in (malformed(request) or "")


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("w0\u200b", r"U\+200B \(ZERO WIDTH SPACE\)"), ("w\u31640", r"U\+3164 \(HANGUL FILLER\)")],
)
def test_no_worker_looks_like_another(name, hidden):
    request = pb.RegisterRequest(worker=name, address="x:1", process="p")
    why = malformed(request)
    assert why is not None and re.fullmatch(f"its name has {hidden}, which cannot be seen: .*", why)
    assert malformed(pb.RegisterRequest(worker="wörker 0", address="x:1", process="p")) is None
    assert figures({"a": 1.0, f"a{name[-2:]}\u200b": 2.0}) == {"a": 1.0}


async def test_a_worker_says_why_it_is_quarantined_in_one_short_line():
    workers, _, _ = make()
    await join(workers, "a", answer)
    request = pb.DeregisterRequest(worker="a", process="p", quarantine=NASTY + "\n" * 2000)
    await workers.Deregister(request, None)
    reason = workers.identities.quarantined["a"]
    assert reason.startswith(SHOWN + r"\n\n") and len(reason) < 1100


def test_details_of_a_failed_call_are_one_short_line():
    code = SimpleNamespace(name="UNAVAILABLE")
    error = SimpleNamespace(code=lambda: code, details=lambda: NASTY + "\nTraceback" + "x" * 5000)
    said = describe(error)
    assert said.startswith(f"UNAVAILABLE: {SHOWN}\\nTraceback") and len(said) < 1100


def test_a_page_shows_records_of_earlier_versions_harmlessly(tmp_path):
    files = RunFiles(tmp_path / "runs/mine")
    History().write(files)
    segment = journal.read_one(files, journal.last_number(files))
    name = journal.samples_name(segment.number)
    first, *others = (one.judged for one in journal.read_samples(files, segment))
    group = group_of(first)
    sampled = replace(next(group.sampled), workers=(NASTY,))
    said = make_episode(sampled, prompt=group.prompt, text=NASTY)
    nasty = replace(
        group,
        prompt=replace(group.prompt, id="nasty", text=NASTY, reference=NASTY),
        episodes=(said, *group.episodes[1:]),
        scores=(Unscored(NASTY), *group.scores[1:]),
    )
    judged = [Rejected(nasty, NASTY), *others]
    files.put(name, samples.to_parquet(3, samples.to_table(judged)))
    index = json.loads(read_rollouts(files, read_run(files), no_progress).index)
    columns = index["columns"]
    row = columns["completion"].index(SHOWN)
    assert columns["error"][row] == columns["worker"][row] == SHOWN
    assert index["fates"][columns["fate"][row]] == f"rejected: {SHOWN}"
    (shown,) = [p for p in index["prompts"] if p["id"] == "nasty"]
    assert shown["text"] == shown["reference"] == SHOWN

    files.put("config.yml", json.dumps({"run_name": f"\x9b{NASTY}\ud800"}).encode())
    page = write_report(str(tmp_path / "runs/mine")).read_text()
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", page)


def test_a_stock_client_gets_what_the_model_wrote_as_far_as_utf_8_holds_it():
    pytest.importorskip("jetstream.core.utils.return_sample")
    source = SimpleNamespace(decode=lambda tokens: "1\x1b\ud800\n")
    source.stop_ids, source.encode = (), lambda text: [1]
    source.stop_strings, source.tokenizer = (), None
    results, closed = [], threading.Event()
    channel = SimpleNamespace(add_result=results.append, close=closed.set, cancelled=closed.is_set)
    engine = SimpleNamespace(
        prompt_source=lambda: source,
        rollouts=Rollouts(slots=1),
        backlog=0,
        rejection=lambda request: None,
        submit=lambda jobs: jobs[0].deliver([make_sampled()]),
    )
    request = SimpleNamespace(prefill_content="a prompt", max_tokens=0, return_channel=channel)
    JetStreamDriver(engine).place_request_on_prefill_queue(request)
    assert closed.wait(60)
    assert results[0][0].text == ["1\x1b\ufffd\n"]
