"""Samples that contradict themselves or what was asked do not pass, and sound ones do."""

from dataclasses import replace

import numpy as np
import pytest

from rlax_plugin.base.tokens.defects import ROUNDING, defect
from rlax_plugin.base.types import Sampled, SamplingParams, SideSpec

STOP, VOCABULARY, MOST = 9, 20, 4
SAMPLING = SamplingParams(max_new_tokens=MOST, stop_ids=(8, STOP))


def sample(index: int, *tokens: int, finish: str | None, **changes) -> Sampled:
    fields = {
        "tokens": np.array(tokens, np.int32),
        "logprobs": np.full(len(tokens), -0.5, np.float32),
        "versions": np.arange(len(tokens), dtype=np.int32),
        "finish": finish,
    }
    return Sampled(index, **(fields | changes))


def logprobs(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def group(second: Sampled) -> list[Sampled]:
    """Between two sound samples, so that a defect has to be found where it is."""
    return [sample(0, 1, 2, 3, 4, finish="length"), second, sample(2, 1, STOP, finish="stop")]


@pytest.mark.parametrize(
    "second",
    [
        sample(1, 1, 2, 3, 4, finish="length"),
        sample(1, 1, 2, 3, 8, finish="stop"),  # a stop id as the last token of all
        sample(1, finish=None),
        sample(1, 0, VOCABULARY - 1, STOP, finish="stop"),
        sample(1, 1, STOP, finish="stop", logprobs=logprobs(-1, ROUNDING / 2)),
        sample(1, 1, STOP, finish="stop", logprobs=logprobs(-104, -0.5)),
        sample(1, 1, STOP, finish="stop", versions=np.array([0, 0], np.int32)),
    ],
)
def test_sound_samples_pass(second):
    assert defect(group(second), SAMPLING, VOCABULARY) is None


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (sample(1, 1, finish="tired"), "ended by 'tired'"),
        (sample(1, finish="stop"), "is empty"),
        (sample(1, 1, STOP, finish="stop", versions=np.zeros(1, np.int32)), "has uneven arrays"),
        (sample(1, 1, 2, 3, 4, STOP, finish="stop"), "has 5 tokens, 4 were asked for"),
        (sample(1, 1, VOCABULARY, STOP, finish="stop"), "has token id 20, which must be from 0"),
        (
            sample(1, 1, STOP, finish="stop", logprobs=logprobs(-1, np.nan)),
            "has log-probs that are not finite",
        ),
        (
            sample(1, 1, STOP, finish="stop", logprobs=logprobs(-1, 0.25)),
            "has log-probs above 0 (0.25)",
        ),
        (
            sample(1, 1, STOP, finish="stop", logprobs=logprobs(-1, -3e38)),
            "has log-probs below -150 (-3e+38)",
        ),
        (
            sample(1, 1, 2, STOP, finish="stop", versions=np.array([4, 3, 5], np.int32)),
            "has versions that are negative or go backwards",
        ),
        (
            sample(1, 1, STOP, finish="stop", versions=np.array([-1, 3], np.int32)),
            "has versions that are negative or go backwards",
        ),
        (sample(1, 1, 2, finish="stop"), "ended by 'stop' with token 2; stop ids are [8, 9]"),
        (sample(1, 1, 2, finish="length"), "ended by 'length' with 2 of 4 tokens"),
        (sample(1, 1, 2, 3, STOP, finish="length"), "has stop id 9 and did not end with it"),
        (sample(1, 1, STOP, finish=None), "has stop id 9 and did not end with it"),
        (sample(1, 1, 2, 3, 4, finish=None), "is unfinished with all of its 4 tokens"),
    ],
)
def test_a_defect_is_named_with_its_sample(second, problem):
    found = defect(group(second), SAMPLING, VOCABULARY)
    assert found is not None and found.startswith(f"sample 1 {problem}"), found


def test_samples_without_tokens_before_a_defect_are_counted():
    behind = [sample(0, finish=None), sample(1, 1, 2, finish="stop")]
    assert (defect(behind, SAMPLING, VOCABULARY) or "").startswith("sample 1 ended by 'stop'")


@pytest.mark.parametrize(
    ("temperature", "least"), [(1.0, -150), (4.0, -150), (0.0, -150), (0.1, -1500)]
)
def test_low_temperatures_allow_lower_log_probs(temperature: float, least: float) -> None:
    sampling = replace(SAMPLING, temperature=temperature)
    low, lower = (
        sample(1, 1, STOP, finish="stop", logprobs=logprobs(-1, least * factor))
        for factor in (0.99, 1.01)
    )
    assert defect(group(low), sampling, VOCABULARY) is None
    text = defect(group(lower), sampling, VOCABULARY)
    assert text is not None and f"has log-probs below {least} (" in text


def test_what_is_not_known_of_the_vocabulary_is_not_held_against_it():
    high = [sample(0, 2**31 - 1, STOP, finish="stop")]
    assert defect(high, SAMPLING) is None
    assert "has token id -1, which must not be negative" in (
        defect([sample(0, -1, STOP, finish="stop")], SAMPLING) or ""
    )


SIDE = {
    "entropy": SideSpec("float32"),
    "experts": SideSpec("int8", (2, 3)),
    "routes": SideSpec("int8", (), "context+sampled"),
}


def with_side(**arrays: np.ndarray) -> Sampled:
    """Of two tokens behind a context of three."""
    return sample(1, 1, STOP, finish="stop", side=arrays)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"entropy": np.zeros(2, np.float32)},
        {"entropy": np.full(2, np.nan, np.float32)},  # its meaning is not ours
        {"experts": np.zeros((2, 2, 3), np.int8), "routes": np.zeros(5, np.int8)},
    ],
)
def test_declared_side_channels_of_the_right_shape_pass(arrays):
    found = group(with_side(**arrays))
    assert defect(found, SAMPLING, VOCABULARY, context_length=3, side=SIDE) is None


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.zeros(2)}, "has a side channel 'x', which its worker has not declared"),
        (
            {"entropy": np.zeros(3, np.float32)},
            "has a side channel 'entropy' of float32[3]: expected float32[2]",
        ),
        (
            {"experts": np.zeros((2, 3, 2), np.int8)},
            "has a side channel 'experts' of int8[2, 3, 2]: expected int8[2, 2, 3]",
        ),
        (
            {"routes": np.zeros(2, np.int8)},
            "has a side channel 'routes' of int8[2]: expected int8[5]",
        ),
    ],
)
def test_side_channels_that_were_not_declared_so_are_named(arrays, problem):
    found = group(with_side(**arrays))
    assert defect(found, SAMPLING, VOCABULARY, context_length=3, side=SIDE) == f"sample 1 {problem}"


def letters(tokens: np.ndarray) -> str:
    return "".join("?abcdefghijklmnopqrs"[t] for t in tokens)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (sample(1, 1, 2, 3, finish="stop"), None),  # "abc"
        (sample(1, 1, STOP, finish="stop"), None),
        (sample(1, 1, 2, 4, 3, finish="length"), None),
        (sample(1, 2, 3, 1, finish="stop"), "goes on for 1 tokens behind a stop string"),
        (sample(1, 1, 2, 3, finish=None), "has a stop string at its end and did not end by 'stop'"),
        (sample(1, 1, 2, finish="stop"), "ended by 'stop' with token 2; stop ids are [8, 9], stop"),
        (sample(1, 2, 3, STOP, finish="stop"), "goes on for 1 tokens behind a stop string"),
        (sample(1, 1, STOP, finish=None), "has stop id 9 and did not end with it by 'stop'"),
    ],
)
def test_what_a_worker_says_of_its_end_is_checked_with_stop_strings(second, problem):
    sampling = SamplingParams(max_new_tokens=MOST, stop_ids=(8, STOP), stop_strings=("bc", "zz"))
    samples = [sample(0, 1, 2, 4, 4, finish="length"), second]
    found = defect(samples, sampling, VOCABULARY, decode=letters)
    assert (found is None) if problem is None else found.startswith(f"sample 1 {problem}")


def test_without_decode_only_the_place_of_stop_ids_is_checked():
    sampling = SamplingParams(max_new_tokens=MOST, stop_ids=(STOP,), stop_strings=("bc",))
    assert defect([sample(0, 1, 2, finish="stop")], sampling) is None
    found = defect([sample(0, STOP, 2, finish="stop")], sampling)
    assert found == "sample 0 has stop id 9 and did not end with it by 'stop'"
