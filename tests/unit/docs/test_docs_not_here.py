"""What docs/not_here.md says about configs that are rejected, and about parts to use instead."""

from __future__ import annotations

import re
from typing import Any

from documents import prose, read

from maxtext_overrides.config.rejected import rejections
from rlax_plugin.build import registry_of

PAGE = prose(read("not_here.md"))
ROWS = [row.strip("| ").split(" | ") for row in re.findall(r"^\| .* \|$", PAGE, re.MULTILINE)]


def asked(key: str, value: object) -> dict[str, Any]:
    """MaxText's keys that ask for something; a dotted key is one of a section."""
    section, _, name = key.rpartition(".")
    return {section: {"enable_lora": True, name: value}} if section else {key: value}


def test_every_key_that_is_said_to_be_rejected_is_rejected() -> None:
    keys = {
        key
        for _, reason, _ in ROWS
        if " rejected" in reason
        for key in re.findall(r"`([a-z][\w.]*)(?:: \w+)?`", reason)
    }
    assert {"use_multimodal", "lora.lora_weight_qtype", "training_objective"} <= keys
    values = (True, 2, 0.1, "block_diffusion")
    accepted = {
        key
        for key in keys
        if not any(error.key == key for value in values for error in rejections(asked(key, value)))
    }
    assert accepted == set()


def test_parts_that_are_named_exist_and_those_that_are_missing_do_not() -> None:
    offers = registry_of(()).offers
    assert {"http_verifier", "llm_judge"} <= offers["reward"].keys()
    assert set(offers["rollout_engine"]) == {"jetstream", "rast", "vllm"}
    for kind, name in re.findall(r"`rlax\.(?:rollouts\.)?(\w+): \{name: (\w+)\}`", PAGE):
        assert name in offers[{"engine": "rollout_engine"}.get(kind, kind)], (kind, name)
