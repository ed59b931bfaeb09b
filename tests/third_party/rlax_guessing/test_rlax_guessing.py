from rlax_plugin.testing import check_plugin


def test_it_keeps_the_contract_of_environments():
    check_plugin("rlax_guessing")
