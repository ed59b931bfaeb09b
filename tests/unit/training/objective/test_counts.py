"""Every aggregation, count, KL aggregation, layout and cut in micro-batches against plain numpy."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from examples import examples
from objective_harness import data_of, differentiated, slots_of

from rlax_plugin.api import loss_weight, own_terms, whole_update
from rlax_plugin.base.errors import ConfigError

NAMES = ("token_mean", "sequence_mean", "sequence_sum", "constant_length")
LOW, HIGH, LONGEST, BETA = 0.5, 5.0, 4, 0.3
PACKED = [[0, 1, 2], [3], [], [4, 5]]


def weighed(name: str, seen: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
    """(weight of each token, the divisor) of an aggregation that sees these tokens."""
    count = sum(1 for s in seen if s.any())
    if name == "token_mean":
        return [s * 1.0 for s in seen], float(sum(s.sum() for s in seen))
    if name == "sequence_mean":
        return [s / max(s.sum(), 1) for s in seen], count
    return [s / (LONGEST if name == "constant_length" else 1) for s in seen], count


def plain(case: dict[str, Any], cases: list[dict[str, np.ndarray]]) -> tuple[float, np.ndarray]:
    """The loss of an update, and its gradient by all log-probs in the order of the sequences."""
    kept = [((m := np.exp(s["logprobs"] - s["behaviour"])) >= LOW) & (m <= HIGH) for s in cases]
    seen = kept if case["count"] == "kept" else [np.ones_like(k) for k in kept]
    weights, divisor = weighed(case["aggregation"], seen)
    kl_weights, kl_divisor = weighed(case["kl_aggregation"] or case["aggregation"], seen)
    loss, gradient = 0.0, []
    for s, k, w, kl_w in zip(cases, kept, weights, kl_weights, strict=True):
        d = s["logprobs"] - s["reference"]
        factor = k if case["weighted"] else np.ones_like(k)
        of_policy, of_kl = w * k / max(divisor, 1), BETA * kl_w * factor / max(kl_divisor, 1)
        loss += (-of_policy * s["advantage"] * s["logprobs"]).sum()
        loss += (of_kl * (np.exp(-d) + d - 1)).sum()
        gradient.append(-of_policy * s["advantage"] + of_kl * (1 - np.exp(-d)))
    return loss, np.concatenate(gradient)


def laid_out(
    rows: list[list[int]], cases: list[dict[str, np.ndarray]]
) -> tuple[np.ndarray, dict[str, Any]]:
    """(logprobs_bt, data), with the sequences of each row one after the other."""
    length = max(sum(len(cases[i]["logprobs"]) for i in row) for row in rows)
    found = {name: np.zeros((len(rows), length)) for name in cases[0]}
    segments = np.zeros((len(rows), length), np.int32)
    for b, row in enumerate(rows):
        t = 0
        for number, i in enumerate(row):
            here = slice(t, t := t + len(cases[i]["logprobs"]))
            segments[b, here] = number + 1
            for name in found:
                found[name][b, here] = cases[i][name]
    arrays = {name: x.astype(np.float32) for name, x in found.items()}
    data = data_of(segments > 0, arrays["advantage"], arrays["behaviour"])
    data |= {"targets_segmentation": segments, "rl_reference_logprobs": arrays["reference"]}
    return arrays["logprobs"], data


def chosen(number: int) -> dict[str, Any]:
    """Any two values of a case meet in the first twenty cases; the next ones have other bits."""
    turn, pair = divmod(number, 20)
    kl, own = divmod(pair, 4)
    sums = (own + kl, (own + kl) // 2, own + kl // 2, own // 2 + kl // 2)
    kept, weighted, packed, cut = (bool((n ^ turn >> i) & 1) for i, n in enumerate(sums))
    case = {"aggregation": NAMES[own], "kl_aggregation": ("", *NAMES)[kl], "weighted": weighted}
    return case | {"count": "kept" if kept else "trained", "packed": packed, "parts": 1 + cut}


def test_any_two_values_meet_in_twenty_cases() -> None:
    sizes = (len(NAMES), len(NAMES) + 1, 2, 2, 2, 2)
    cases = [sorted(chosen(number).items()) for number in range(20)]
    pairs = {pair for case in cases for pair in itertools.combinations(case, 2)}
    assert len(pairs) == sum(a * b for a, b in itertools.combinations(sizes, 2))


def drawn(rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    sequences = []
    for _ in range(6):
        behaviour = -rng.exponential(1.0, rng.integers(1, LONGEST + 1))
        logprobs = behaviour + rng.normal(0, 1, behaviour.shape)
        reference = logprobs + rng.normal(0, 0.5, behaviour.shape)
        advantage = np.full(behaviour.shape, rng.normal())
        names = ("logprobs", "behaviour", "reference", "advantage")
        every = (logprobs, behaviour, reference, advantage)
        sequences.append({n: np.float32(x) for n, x in zip(names, every, strict=True)})
    return sequences


@pytest.mark.property
@pytest.mark.parametrize("number", range(examples(20)))
def test_the_loss_of_an_update_against_numpy(number: int) -> None:
    case, sequences = chosen(number), drawn(np.random.default_rng(number))
    kl: dict[str, Any] = {"coefficient": BETA, "weighted": case["weighted"]}
    if case["kl_aggregation"]:
        kl["aggregation"] = {"name": case["kl_aggregation"]}
    slots = slots_of(
        aggregation={"name": case["aggregation"], "count": case["count"]},
        advantage={"name": "leave_one_out"},
        grad_1={"name": "log_prob"},
        importance_weight={"name": "one"},
        corrections=[{"name": "icepop", "low": LOW, "high": HIGH}],
        kl=kl,
        max_new_tokens=LONGEST,
        sequences_per_row=3,
    )
    rows = PACKED if case["packed"] else [[i] for i in range(6)]
    logprobs_bt, data = laid_out(rows, sequences)
    if case["parts"] > 1:
        weight = functools.partial(loss_weight, slots)
        if case["count"] == "kept" and own_terms(slots):
            with pytest.raises(ConfigError, match=r"aggregation\.count = 'kept': cannot be comb"):
                whole_update(own_terms(slots), data, weight)
            return
        if own_terms(slots):
            data = whole_update(own_terms(slots), data, weight)
    run = differentiated(slots)
    loss, total = 0.0, 0.0
    gradient_bt = np.zeros(logprobs_bt.shape)
    for b in np.array_split(np.arange(len(rows)), case["parts"]):
        part = run(logprobs_bt[b], {name: x[b] for name, x in data.items()})
        loss, total = loss + float(part.loss_sum), total + float(part.weight)
        gradient_bt[b] = part.grad_bt
    expected, expected_gradient = plain(case, [sequences[i] for row in rows for i in row])
    assert loss / max(total, 1) == pytest.approx(expected, rel=1e-4, abs=1e-5), case
    found = gradient_bt[data["targets_segmentation"] > 0] / max(total, 1)
    np.testing.assert_allclose(found, expected_gradient, rtol=1e-4, atol=1e-5, err_msg=str(case))


def test_a_count_of_the_kl_alone_is_refused() -> None:
    kl = {"coefficient": BETA, "aggregation": {"name": "token_mean", "count": "kept"}}
    with pytest.raises(ConfigError, match=r"kl\.aggregation\.count = 'kept': has no effect by its"):
        slots_of(kl=kl)
    slots_of(aggregation={"name": "token_mean", "count": "kept"}, kl=kl)
