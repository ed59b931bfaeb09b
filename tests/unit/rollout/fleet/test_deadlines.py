"""What deadlines must at least be, and what is said when one expires."""

import asyncio
import dataclasses

import doors
import grpc
import pytest
from sections import section_with
from toy_versions import scripted

from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.types import TensorSpec
from rlax_plugin.rollout.fleet.deadlines import Need, Rates, loading_s, needs, while_loading
from rlax_plugin.rollout.worker.joining import RunToJoin
from rlax_plugin.rollout.worker.member import Member
from rlax_plugin.rpc.transport.channels import describe
from rlax_plugin.testing.builders import make_version

KEY = "rlax.deadlines.batch_s"


@pytest.mark.parametrize(
    ("needed_s", "advice"),
    [
        (None, " to wait longer"),
        (1970.4, " would have needed about 1,970 s "),
        (0.25, ", although about 0.25 s were expected: something may be stuck"),
    ],
)
def test_an_expiry_names_its_key_and_what_it_would_have_needed(needed_s, advice):
    error = DeadlineError("the batch", 300.0, KEY, needed_s)
    assert str(error).startswith("the batch took longer than 300 s")
    assert KEY in str(error) and advice in str(error)
    assert (error.seconds, error.key, error.needed_s) == (300.0, KEY, needed_s)


class Failed:
    """A call of gRPC that has failed."""

    def __init__(self, code: grpc.StatusCode, details: str):
        self.code, self.details = lambda: code, lambda: details


def test_a_call_that_took_too_long_is_told_by_its_own_deadline():
    late = Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    away = Failed(grpc.StatusCode.UNAVAILABLE, "connection refused")
    deadline = (10.0, "rlax.deadlines.rpc_s")
    assert describe(late, deadline) == "no answer within 10 s (rlax.deadlines.rpc_s)"
    assert describe(late) == "no answer"
    assert describe(away, deadline) == describe(away) == "UNAVAILABLE: connection refused"


async def test_a_worker_whose_controller_does_not_answer_names_the_key():
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    values = section_with(deadlines={"startup_s": 0.3, "rpc_s": 0.2})
    member = Member(
        name="a",
        run=RunToJoin(address, values, "abc", doors.SECRETS.of_worker),
        endpoint=doors.Called(),
        engine=scripted(),
    )
    with pytest.raises(DeadlineError) as error:
        await member.register()
    await member.leave()
    silent.close()
    assert str(error.value) == (
        "reaching the controller (no answer) took longer than 0.3 s "
        "(set rlax.deadlines.startup_s to wait longer)"
    )


RATES = Rates(tokens_per_s=20, prefill_tokens_per_s=1000, bytes_per_s=100, startup_s=60)
ROLLOUTS = {"group_size": 4, "groups_per_step": 8, "max_prompt_tokens": 100, "max_new_tokens": 400}


# 400 tokens at 20/s are 20 s; in 16 slots there are 4 groups, whose prompts take 0.4 s.
@pytest.mark.parametrize(
    ("values", "workers", "expected"),
    [
        # 32 samples in 2 turns; 1000 bytes are written in 10 s and read in 10 s; 10 s for a reward
        ({}, 1, {"group_s": 20.4, "batch_s": 70.8, "weights_s": 10, "startup_s": 80}),
        ({}, 2, {"group_s": 20.4, "batch_s": 50.4, "weights_s": 10, "startup_s": 80}),
        # Evaluated with one sample each, 16 prompts fill the slots: 1.6 s.
        (
            {"evaluation": {"problems": 64, "samples": 1, "k": [1]}},
            1,
            {"group_s": 21.6, "batch_s": 70.8},
        ),
        # One group at a time, 4 for each of 2 workers.
        ({"deterministic": True}, 2, {"group_s": 20.4, "batch_s": 111.6}),
        # A group of 4 in 2 slots takes two turns, each behind one prompt of 0.1 s; a batch 16.
        ({"rollouts": {"slots": 2}}, 1, {"group_s": 20.1, "batch_s": 351.6}),
        # Further ahead than lockstep running samples end first ...
        ({"staleness": {"max_staleness": 2}}, 2, {"group_s": 20.4, "batch_s": 70.8}),
        # ... or are prefilled again: 16 of up to 500 tokens take 8 s.
        (
            {"staleness": {"max_staleness": 2}, "rollouts": {"on_new_weights": "continue"}},
            2,
            {"group_s": 28.4, "batch_s": 58.4},
        ),
        ({"deadlines": {"reward_s": 100}}, 1, {"batch_s": 160.8}),
        # One server sends the version to all workers, 10 s for each, before they read it.
        ({"weights": {"transfer": "stream"}}, 1, {"batch_s": 80.8, "weights_s": 10}),
        (
            {"weights": {"transfer": "stream"}},
            3,
            {"batch_s": 80.4, "weights_s": 30, "startup_s": 110},
        ),
    ],
)
def test_what_deadlines_must_at_least_be(values, workers, expected):
    rollouts = ROLLOUTS | {"slots": 16} | values.get("rollouts", {})
    config = section_with(**values | {"rollouts": rollouts})
    found = needs(
        config,
        RATES,
        slots=[config.rollouts.slots] * workers,
        weights_bytes=1000,
        silent_tokens=None,
    )
    seconds = {name: need.needed_s for name, need in found.items()}
    assert {name: seconds[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("silent_tokens", "group_s"), [(32, 2.0), (500, 20.4), (None, 20.4)])
def test_a_group_may_be_silent_for_as_long_as_its_engine_shows_no_progress(silent_tokens, group_s):
    config = section_with(rollouts=ROLLOUTS | {"slots": 16})
    found = needs(config, RATES, slots=[16], weights_bytes=None, silent_tokens=silent_tokens)
    # Without the size of the weights only what generating takes counts.
    seconds = {name: need.needed_s for name, need in found.items()}
    assert seconds == pytest.approx({"group_s": group_s, "batch_s": 50.8})
    assert ("may report no progress" in found["group_s"].why) == (silent_tokens is None)


def test_the_defaults_break_an_8b_model_whose_engine_shows_no_progress_and_suggestions_hold():
    rollouts = {"max_new_tokens": 32_768, "max_prompt_tokens": 1024}

    def found(**deadlines: float) -> dict[str, Need]:
        config = section_with(rollouts=rollouts, deadlines=deadlines)
        rates = Rates.assumed(config.deadlines.assume)
        return needs(config, rates, slots=[64], weights_bytes=32_121_044_992, silent_tokens=None)

    broken = found()
    # 1638.4 s of decoding behind 8 prompts in 1.6 s; 160.6 s to write weights, and to read them.
    assert {name: (round(need.needed_s), need.holds) for name, need in broken.items()} == {
        "group_s": (1640, False),
        "batch_s": (1640 + 321 + 10, False),
        "weights_s": (161, False),
        "startup_s": (381, False),
    }
    suggested = {name: need.suggested_s for name, need in broken.items()}
    assert suggested == {"group_s": 2000, "batch_s": 2400, "weights_s": 200, "startup_s": 460}
    assert all(need.holds for need in found(**suggested).values())


@pytest.mark.parametrize(
    ("needed_s", "suggested_s"),
    [(1638.4, 2000), (1970, 2400), (160.6, 200), (381.2, 460), (10, 12), (0.03, 1), (83.4, 110)],
)
def test_a_suggestion_is_a_fifth_more_rounded_up(needed_s, suggested_s):
    need = Need("k", needed_s - 0.01, needed_s, "")
    assert need.suggested_s == suggested_s and not need.holds
    assert Need("k", suggested_s, needed_s, "").holds


def test_workers_that_receive_weights_share_the_speed_of_the_server_until_it_is_measured():
    streamed = section_with(rollouts=ROLLOUTS, weights={"transfer": "stream"})
    rates = dataclasses.replace(RATES, measured=frozenset({"bytes_per_s"}))
    work = {"slots": [64] * 3, "weights_bytes": 1000, "silent_tokens": 100}
    # A speed that was measured is that of a worker beside which the others received.
    assert needs(streamed, rates, **work)["weights_s"].needed_s == 10
    assert needs(streamed, RATES, **work)["weights_s"].text.startswith(
        "= 120 s is too short: a weight version of 1,000 B takes 30 s until 3 workers have "
    )


def test_loading_takes_what_was_measured_or_else_assumed():
    config = section_with(deadlines={"assume": {"bytes_per_s": 100}})
    tensors = {"a": TensorSpec((10, 5), "float32", 0), "b": TensorSpec((100,), "int8", 0)}
    version = make_version(0, "/w", tensors)  # 300 bytes
    assert loading_s(config, version, {}) == 3
    measured = {"read_s": 3.0, "read_bytes": 150.0}
    assert loading_s(config, version, measured) == 6
    changes = {"read_s": 3.0, "read_bytes": 149.0}  # less than half of a version
    assert loading_s(config, version, changes) == 3
    unknown = make_version(0, "/w", {"a": TensorSpec((1,), "float7", 0)})
    assert loading_s(config, unknown, {}) is None


def test_a_deadline_that_expires_while_weights_are_loaded_says_what_that_needs():
    config = section_with(deadlines={"assume": {"bytes_per_s": 100}})
    version = make_version(0, "/w", {"a": TensorSpec((50,), "float32", 0)})
    with (
        pytest.raises(DeadlineError, match=r"took longer than 0.5 s: .* needed about 2 s \(set"),
        while_loading(config, version, dict),
    ):
        raise DeadlineError("reading a weight version", 0.5, "rlax.deadlines.startup_s")
