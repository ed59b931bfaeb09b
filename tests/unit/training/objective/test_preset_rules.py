"""What presets say of themselves, and which combinations of their slots are rejected."""

from pathlib import Path

import numpy as np
import pytest
from objective_harness import PRESETS, data_of, differentiated, jit, slots_of

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.training.objective.combinations import corrects_sampler, reads_logprobs
from rlax_plugin.training.objective.presets import presets_from_yaml


@pytest.mark.parametrize("preset", PRESETS)
def test_stale_samples_need_a_correction(preset):
    if preset in ("cispo", "aipo", "topr", "decoupled_ppo"):
        slots_of(preset, max_staleness=2)
        return
    with pytest.raises(
        ConfigError, match="has no correction for samples of older weights"
    ) as error:
        slots_of(preset, max_staleness=2)
    assert error.value.key == "rlax.objective.preset" and "max_staleness = 2" in str(error.value)
    slots_of(preset, max_staleness=2, allow_uncorrected=True)
    with pytest.raises(ConfigError, match="no correction"):
        slots_of(preset, max_staleness=2, corrections=[{"name": "veto"}])
    slots_of(preset, max_staleness=2, corrections=[{"name": "icepop"}, {"name": "veto"}])
    slots_of(
        preset,
        max_staleness=2,
        old_policy="proximal",
        corrections=[{"name": "truncated_importance_sampling"}],
    )


def test_logged_samples_are_imitated_or_corrected():
    for preset in ("behaviour_cloning", "awr", "cispo", "aipo", "topr", "decoupled_ppo"):
        slots_of(preset, logged=True)
    slots_of("awr", logged=True, epochs=2)  # pi_theta may be any policy
    for preset in ("grpo", "rloo", "dapo"):
        with pytest.raises(ConfigError, match="no correction for samples of another policy"):
            slots_of(preset, logged=True)
        slots_of(preset, logged=True, allow_uncorrected=True)
    with pytest.raises(ConfigError, match="choose proximal"):
        slots_of("aipo", logged=True, old_policy="reprefill")
    with pytest.raises(ConfigError, match=r"guidance = .*must be null with rlax\.logged_samples"):
        slots_of("aipo", logged=True, guidance={})


@pytest.mark.parametrize(
    ("preset", "changes", "reads"),
    [
        ("behaviour_cloning", {}, False),
        ("behaviour_cloning", {"kl": {"coefficient": 0.1}}, False),
        ("behaviour_cloning", {"kl": {"coefficient": 0.1, "placement": "reward"}}, True),
        ("behaviour_cloning", {"corrections": [{"name": "icepop"}]}, True),
        ("behaviour_cloning", {"grad_2": {"name": "log_ratio_penalty"}}, True),
        ("grpo", {}, True),
        ("grpo", {"old_policy": "proximal"}, False),
        ("aipo", {"old_policy": "proximal"}, True),
        ("decoupled_ppo", {}, True),
    ],
)
def test_which_objectives_read_the_log_probs_of_samples(preset, changes, reads):
    assert reads_logprobs(slots_of(preset, **changes)) == reads


def test_cispo_of_the_proximal_policy_corrects_nothing():
    # Its ratio is then to weights that are not old.
    with pytest.raises(ConfigError, match="no correction"):
        slots_of("cispo", max_staleness=2, old_policy="proximal")


TIS = [{"name": "truncated_importance_sampling"}]


@pytest.mark.parametrize(
    ("preset", "changes", "first", "second"),
    [
        ("grpo", {"corrections": TIS}, "grad_1 (clipped_ratio", "corrections.0 (truncated_imp"),
        ("aipo", {"corrections": TIS}, "importance_weight (truncated:", "corrections.0"),
        ("reinforce", {"grad_1": {"name": "clipped_ratio"}}, "importance_weight (ratio:", "grad_1"),
        ("aipo", {"grad_1": {"name": "clipped_ratio"}}, "importance_weight (truncated:", "grad_1"),
        ("decoupled_ppo", {"old_policy": "sampler"}, "importance_weight (decoupled:", "grad_1"),
        (
            "aipo",
            {"old_policy": "proximal", "corrections": TIS},
            "importance_weight (truncated:",
            "corrections.0",
        ),
    ],
)
def test_a_ratio_that_enters_twice_is_rejected(preset, changes, first, second):
    with pytest.raises(ConfigError, match="by the policy's ratio more than once") as e:
        slots_of(preset, **changes)
    assert f"rlax.objective.{first}" in str(e.value) and second in str(e.value)


def test_a_ratio_in_each_of_two_terms_enters_once():
    both = slots_of("grpo", grad_2={"name": "clipped_ratio"})
    data = data_of([[1, 1]], 1.0, np.float32([[-1, -1]]))
    metrics = jit(differentiated(both))(np.float32([[-0.5, -1]]), data).metrics
    # e^0.5 is above 1.2, and both terms say so.
    assert metrics["objective/clip_fraction_high"] == 1
    assert metrics["objective/grad_2_clip_fraction_high"] == 1
    with pytest.raises(ConfigError, match=r"multiplies grad_2 by .*grad_2 \(clipped_ratio"):
        slots_of("cispo", grad_2={"name": "clipped_ratio"})


def test_with_reprefill_only_a_ratio_to_the_samplers_policy_shows_age():
    # pi_old is then as old as the sample: its ratio to mu is 1 up to numerics, however old.
    for preset, changes in (
        ("grpo", {"corrections": TIS}),
        ("grpo", {"corrections": [{"name": "icepop"}]}),
        ("decoupled_ppo", {}),
    ):
        with pytest.raises(ConfigError, match=r"no correction .* with old_policy: reprefill"):
            slots_of(preset, max_staleness=2, old_policy="reprefill", **changes)
    for preset in ("cispo", "aipo", "topr"):
        slots_of(preset, max_staleness=2, old_policy="reprefill")
    # One copy is kept: of what is older than it pi_old is not the policy that generated it.
    with pytest.raises(ConfigError, match="no correction"):
        slots_of("cispo", max_staleness=3, old_policy="reprefill")
    slots_of("aipo", max_staleness=3, old_policy="reprefill")


@pytest.mark.parametrize(
    ("preset", "changes", "corrects"),
    [
        ("dapo", {}, False),
        ("dapo", {"corrections": [{"name": "icepop"}]}, True),
        ("dapo", {"corrections": [{"name": "veto"}]}, False),
        ("dapo", {"old_policy": "proximal", "corrections": TIS}, True),
        # pi_old is the trainer's view of the policy that generated the samples.
        ("dapo", {"old_policy": "reprefill", "corrections": TIS}, True),
        ("cispo", {}, True),
        ("cispo", {"old_policy": "reprefill"}, False),
        ("aipo", {"old_policy": "reprefill"}, True),
    ],
)
def test_which_objectives_correct_for_log_probs_of_another_sampler(preset, changes, corrects):
    assert corrects_sampler(slots_of(preset, **changes)) == corrects


@pytest.mark.parametrize("preset", ["opo", "rloo"])
def test_several_updates_need_a_ratio(preset):
    with pytest.raises(
        ConfigError, match=r"no importance ratio,.* epochs \* mini_batches = 4 updates"
    ):
        slots_of(preset, epochs=4)
    slots_of(preset, epochs=4, allow_uncorrected=True)
    slots_of(preset, epochs=4, importance_weight={"name": "clipped"})
    # With the sampler's pi_old its ratio is taken at each update.
    slots_of(preset, epochs=4, corrections=TIS)
    with pytest.raises(ConfigError, match="no importance ratio"):
        slots_of(preset, epochs=4, corrections=TIS, old_policy="proximal")
    with pytest.raises(ConfigError, match="no importance ratio"):
        slots_of(preset, epochs=4, grad_2={"name": "clipped_ratio"})
    slots_of("grpo", epochs=2, mini_batches=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corrections": [{"name": "veto"}] * 2}, "must name 'veto' once"),
        ({"overlong": {"penalty": 0, "buffer_tokens": 2}}, "penalty = 0.0: must be above 0"),
        ({"reference": {"path": "x"}}, "no effect while rlax.objective.kl.coefficient is 0"),
        (
            {"overlong": {"penalty": 1, "buffer_tokens": 9, "max_tokens": 8}},
            "buffer_tokens = 9: must not exceed max_tokens = 8",
        ),
    ],
)
def test_options_that_contradict_each_other_or_do_nothing_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        slots_of("dapo", **changes)


def test_options_of_a_slot_are_merged_with_the_presets_unless_it_names_another_part():
    def grad_1(**options):
        return slots_of("dapo", grad_1=options).grad_1

    for same in ({}, {"name": "clipped_ratio"}):
        assert (grad_1(**same, low=0.1).low, grad_1(**same, low=0.1).high) == (0.1, 0.28)
    assert grad_1(name="sequence_ratio", low=0.1).high == 4e-4
    plus = slots_of("reinforce_plus_plus_baseline", advantage={"whiten_over": "samples"})
    assert plus.algorithm.advantage.options["baseline"] == "group_mean"
    with pytest.raises(ConfigError, match=r"grad_1\.hgih.*did you mean 'high'"):
        grad_1(hgih=0.3)


def test_a_slot_set_to_nothing_is_the_presets():
    found = slots_of("decoupled_ppo", aggregation=None)
    assert found.aggregation == slots_of("dapo").aggregation


def test_two_ratios_that_are_two_things_are_fine():
    for preset in ("grpo", "gspo", "cispo", "reinforce", "ppo"):
        slots_of(preset, old_policy="proximal", corrections=TIS)
    masks = [{"name": "icepop"}, {"name": "sequence_mask"}, {"name": "veto"}]
    for preset in PRESETS:
        assert len(slots_of(preset, corrections=masks).corrections) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- grpo", r"expected {preset: fields}, got \['grpo'\]"),
        ("a: {agregation: {name: token_mean}}", "a: agregation: Extra inputs"),
        ("a: {grad_1: {high: 1}}", "a: grad_1.name: must be given"),
        ("a: {kl: {estimator: k4}}", "a: kl.estimator: Input should be 'k1', 'k2' or 'k3'"),
    ],
)
def test_a_wrong_file_names_file_preset_and_field(tmp_path: Path, text: str, problem: str):
    path = tmp_path / "mine.yml"
    path.write_text(text)
    with pytest.raises(PluginError, match=problem) as error:
        presets_from_yaml(path)
    assert str(path) in str(error.value)
