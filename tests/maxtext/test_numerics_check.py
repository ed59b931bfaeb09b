"""``rlax check --numerics`` with MaxText and JetStream: planted faults are found, and named."""

import threading
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import pytest
from rlax_jetstream.engine import JetstreamEngine

from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.tools.commands.numerics import judge
from rlax_plugin.tools.commands.numerics.gaps import (
    KEPT,
    KEPT_UPDATED,
    PACKED,
    UPDATED,
    Bounds,
    Cell,
    Verdict,
    cells,
)
from rlax_plugin.tools.commands.numerics.measuring import Measured, measure, measured_config
from rlax_plugin.tools.commands.numerics.ways import (
    ALONE,
    COMPANY,
    PREFILL,
    RESUMED,
    SHARED,
)

from tiny_engine import TINY  # isort: skip
from maxtext.layers import embeddings  # isort: skip

PROMPT, NEW, AFTER = 96, 16, 96


def config_of(*arguments: str, prompt: int = PROMPT, after: int = AFTER) -> ResolvedConfig:
    """One layer, eight slots; episodes of several turns, samples go on with new weights."""
    return resolve(
        TINY,
        (
            "base_num_decoder_layers=1",
            f"max_target_length={prompt + after}",
            "per_device_batch_size=4",
            "steps=2",
            "rlax.prompt_source={name: synthetic, vocab_size: 64}",
            "rlax.environment={name: calculator}",
            f"rlax.episodes={{max_turns: 4, max_tokens: {after}}}",
            f"rlax.rollouts={{group_size: 4, groups_per_step: 1, slots: 8, max_new_tokens: {NEW}, "
            f"max_prompt_tokens: {prompt}, on_new_weights: continue}}",
            "rlax.rollouts.engine={name: jetstream, warm_up: false}",
            *arguments,
        ),
    )


@dataclass
class Case:
    measured: Measured
    table: list[Cell]
    verdict: Verdict

    @classmethod
    def of(cls, directory: Path, config: ResolvedConfig) -> "Case":
        found = measure(measured_config(config, directory), directory, lambda what: None)
        assert found.tolerance is not None
        table = [cell for gaps in found.gaps for cell in cells(gaps)]
        return cls(found, table, judge(table, Bounds.of(found.tolerance, 1.0), exact=True))

    @property
    def wrong(self) -> set[str]:
        return {cell.name for cell in self.verdict.wrong}


def test_a_healthy_engine_passes_in_every_way(tmp_path):
    case = Case.of(tmp_path, config_of("rlax.batches.sequences_per_row=4"))
    ways = [cell.name for cell in case.table if not cell.depth]
    assert ways == [
        *(PREFILL, ALONE, SHARED, RESUMED, KEPT, COMPANY, PACKED, UPDATED, KEPT_UPDATED)
    ]
    assert case.verdict.passes and not case.measured.refused
    assert max(cell.max for cell in case.table) < 1e-5
    # The update could have shown weights or contexts of the version before.
    assert case.measured.moved > 1e-2
    deepest = {
        cell.name: max(c.depth for c in case.table if c.name == cell.name) for cell in case.table
    }
    assert deepest[KEPT] == 128 and deepest[COMPANY] == 64


@pytest.mark.parametrize(
    ("depth", "prompt"), [(64, PROMPT), pytest.param(2048, 2304, marks=pytest.mark.long)]
)
def test_a_rope_that_is_wrong_from_a_depth_on_is_found_there(tmp_path, monkeypatch, depth, prompt):
    right = embeddings.RotaryEmbedding.__call__

    def scaled(self, inputs, position=None, *rest, **options):
        if threading.current_thread().name.startswith("rlax-engine") and position is not None:
            beyond = jnp.maximum(position - depth, 0)
            position = position - 0.5 * beyond
        return right(self, inputs, position, *rest, **options)

    monkeypatch.setattr(embeddings.RotaryEmbedding, "__call__", scaled)
    case = Case.of(tmp_path, config_of(prompt=prompt))
    assert not case.verdict.passes
    assert case.verdict.text.startswith(f"from depth {depth:,} on, and not before")
    assert {PREFILL, COMPANY, KEPT} <= case.wrong
    assert not case.measured.refused  # the canary is too short to find it


def test_contexts_that_are_kept_over_an_update_are_found(tmp_path, monkeypatch):
    made = JetstreamEngine._turn

    def never_forgets(self, slots, scheduler):
        scheduler.forget_contexts = lambda: None
        return made(self, slots, scheduler)

    monkeypatch.setattr(JetstreamEngine, "_turn", never_forgets)
    case = Case.of(tmp_path, config_of())
    assert case.wrong == {KEPT_UPDATED}
    assert "a cache of other tokens or of older weights" in case.verdict.text


def test_an_engine_in_another_dtype_is_found_and_refused_by_its_worker(tmp_path):
    config = config_of(
        "rlax.rollouts.engine.maxtext.dtype=bfloat16",
        "rlax.environment={name: single_turn}",
        "rlax.episodes={max_turns: 1}",
        "rlax.batches={rows: 4, sequences_per_row: 2, shared_prompts: true}",
        after=2 * NEW,
    )
    case = Case.of(tmp_path, config)
    assert case.verdict.text.startswith("everywhere: the engine computes in another dtype")
    assert {PREFILL, ALONE, COMPANY, PACKED, UPDATED} <= case.wrong
    assert max(cell.max for cell in case.table) < 0.2
    assert "the canary's log-prob at position" in case.measured.refused
