"""Hosts of one trainer must agree on more than a run and its continuation."""

from rlax_plugin.config.identity import config_hash, host_hash


def test_hosts_with_another_number_of_steps_differ():
    one, other = {"steps": 4, "rlax": {}}, {"steps": 8, "rlax": {}}
    assert config_hash(one) == config_hash(other)
    assert host_hash(one) == f"{config_hash(one)} (steps=4)"
    assert host_hash(other) == f"{config_hash(one)} (steps=8)"
