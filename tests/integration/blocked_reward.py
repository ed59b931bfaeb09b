"""A reward that computes nothing while a file exists."""

import time
from pathlib import Path

from rlax_plugin.api import Extension, Prompt, Section, hookimpl


class BlockedConfig(Section):
    """1 for an even number of characters."""

    file: str


def build(config: BlockedConfig, context: object):
    def blocks_while_a_file_exists(prompt: Prompt, completion: str) -> float:
        while Path(config.file).exists():
            time.sleep(0.05)
        return float(len(completion) % 2 == 0)

    return blocks_while_a_file_exists


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"blocked": Extension(BlockedConfig, build)}
