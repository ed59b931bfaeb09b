from rlax_variety import VarietyConfig, rlax_register_reward

from rlax_plugin.testing import check_plugin


def test_it_keeps_the_contracts():
    check_plugin("rlax_variety")


def test_repetition_costs():
    variety = rlax_register_reward()["variety"].build(VarietyConfig(most=2.0), None)
    assert variety(None, "abab") == 1.0
