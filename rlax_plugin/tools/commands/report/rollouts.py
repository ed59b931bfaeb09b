"""The rollouts of the page: a table of those that are shown, and their tokens in chunks.

A rollout is one episode with all of its turns and trajectories: one line of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.build import build_part
from rlax_plugin.config import RlaxSection, distinct_names, plain_name
from rlax_plugin.config.environments import completed
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.protocols import BuildContext, PromptSource
from rlax_plugin.run.state.pruned import read_pruned
from rlax_plugin.tools.commands.report.recorded_samples import (
    GroupAt,
    Recorded,
    figures_of,
    recorded_episodes,
    recorded_groups,
)
from rlax_plugin.tools.commands.report.run import Progress, RunData

CHUNK = 500
"""Number of rollouts whose tokens are unpacked together when one of them is opened."""

_NO_SOURCE = "texts of tokens: the run's prompt source cannot be used here"
_UNUSABLE = (RlaxError, ImportError, OSError, ValueError)


@dataclass(slots=True)
class Rollouts:
    """A run's rollouts, as the page shows them.

    Attributes:
      index: JSON text of the table: a list per column.
      chunks: JSON texts of tokens, milli-nats and versions of ``CHUNK`` rollouts each.
      shown, recorded: numbers of rollouts.
    """

    index: str
    chunks: list[str]
    shown: int
    recorded: int


@dataclass(slots=True)
class _Index:
    """Columns with one entry per rollout; ``prompt`` and ``fate`` index lists of these names."""

    prompts: dict[str, int] = field(default_factory=dict)
    texts: list[dict[str, str]] = field(default_factory=list)
    fates: dict[str, int] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, found: Recorded, fate: str, asked: str | None) -> None:
        # A reference may hold anything; the rest does only if an earlier version wrote it.
        row = {name: harmless(v) if isinstance(v, str) else v for name, v in found.row.items()}
        prompt = self.prompts.setdefault(row["prompt_id"], len(self.prompts))
        if prompt == len(self.texts):
            text = {"id": row["prompt_id"], "text": row["prompt"], "reference": row["reference"]}
            self.texts.append(text | ({} if asked is None else {"asked": asked}))
        logprobs, versions = found.arrays["logprobs"], found.arrays["versions"]
        values = {
            "step": row["step"],
            "group": row["group"],
            "sample": row["sample"],
            "attempt": row["attempt"],
            "prompt": prompt,
            "completion": row["completion"],
            "turns": found.turns or None,
            "tokens": len(logprobs),
            "logprob": round(float(logprobs.mean()), 4) if len(logprobs) else None,
            "reward": row["reward"],
            "parts": row["reward_parts"],
            "figures": figures_of(row["reward_metrics"]) or None,
            "error": row["reward_error"],
            "advantage": _advantage(row),
            "passrate": row["pass_rate_before"],
            "oldest": int(versions.min()) if len(versions) else None,
            "newest": int(versions.max()) if len(versions) else None,
            "finish": row["ending"],
            "worker": "demonstration"
            if row["demonstration"]
            else "+".join(dict.fromkeys(map(harmless, row["workers"]))),
            # 64 bits are more than a number in JavaScript holds.
            "seed": "".join(map(str, row["seeds"][:1])),
            "fate": self.fates.setdefault(harmless(fate), len(self.fates)),
        }
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)

    def to_json(
        self, rewards: list[str], vocabulary: Mapping[int, str], stops: Iterable[int]
    ) -> str:
        document = {
            "rewards": rewards,
            "prompts": self.texts,
            "fates": list(self.fates),
            "chunk": CHUNK,
            "vocabulary": vocabulary,
            "stops": list(stops),
            "columns": self.columns,
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def read_rollouts(files: RunFiles, run: RunData, progress: Progress) -> Rollouts:
    """Reads a run's samples and prepares them for the page.

    Raises:
      RlaxError: the file system fails.
    """
    groups = recorded_groups(files, run, progress)
    with run.noting():
        if (pruned := read_pruned(files)).until:
            run.missing.append(f"{pruned}: no rollout of these steps is shown")
    if not groups:
        run.missing.append("samples/ is empty: no rollout has been recorded yet")
    if large := sum(not fits(group) for group in groups):
        run.missing.append(f"{large} groups of rollouts, each of which is too large for a page")
    chosen = choose(groups)
    source = _prompt_source(run) if chosen else None
    index, chunks, used = _Index(), list[dict[str, list[Any]]](), set[int]()
    for found in recorded_episodes(files, run, chosen, progress):
        arrays = found.arrays
        index.add(found, _fate(found.row, run), _asked(found, source))
        if not chunks or len(chunks[-1]["tokens"]) == CHUNK:
            chunks.append({"tokens": [], "logprobs": [], "versions": []})
        chunks[-1]["tokens"].append(arrays["tokens"].tolist())
        chunks[-1]["logprobs"].append(_milli(arrays["logprobs"]))
        chunks[-1]["versions"].append(_runs(arrays["versions"]))
        used.update(chunks[-1]["tokens"][-1])
    return Rollouts(
        index=index.to_json(reward_names(run), *_vocabulary(run, source, used)),
        chunks=[json.dumps(chunk, separators=(",", ":")) for chunk in chunks],
        shown=len(index.columns.get("step", ())),
        recorded=sum(group.samples for group in groups),
    )


def _fate(row: Mapping[str, Any], run: RunData) -> str:
    if row["rejected"]:
        return f"rejected: {row['rejected']}"
    if row["state"] == "trained":
        return "trained"
    dropped = run.history.dropped.get(row["group"]) if run.history else None
    return f"dropped: {dropped}" if dropped else "not yet trained"


def _advantage(row: Mapping[str, Any]) -> float | None:
    """Returns the advantage of a sample; the mean over its tokens if each has its own."""
    by_token = row["token_advantages"]
    return round(float(np.mean(by_token)), 6) if by_token else row["advantage"]


def _milli(logprobs: np.ndarray) -> list[int]:
    """Converts log-probs to thousandths of a nat, precise enough for colours and a tooltip."""
    return np.rint(np.nan_to_num(logprobs, neginf=-1e3) * 1000).astype(int).tolist()


def _runs(versions: np.ndarray) -> list[int]:
    """Returns run lengths: [version, number of consecutive tokens, version, ...]."""
    return [x for version, found in groupby(versions.tolist()) for x in (version, len(list(found)))]


def reward_names(run: RunData) -> list[str]:
    """Returns the names in ``rlax.rewards``, in order, with the weight if it is not 1."""
    listed = (run.config.get("rlax") or {}).get("rewards") or []
    rewards = [one for one in listed if isinstance(one, dict)]
    names = distinct_names(
        [
            str(one.get("label") or plain_name(str(one.get("name") or one.get("function"))))
            for one in rewards
        ]
    )
    return [
        name + (f", weight {weight}" if (weight := one.get("weight", 1)) != 1 else "")
        for name, one in zip(names, rewards, strict=True)
    ]


def _prompt_source(run: RunData) -> PromptSource | None:
    """Returns the run's prompt source, which decodes tokens; None if it cannot be used here."""
    if not run.config.get("rlax"):
        return None
    try:
        section = validate(RlaxSection, completed(run.config["rlax"]), "rlax")
        maxtext = {name: value for name, value in run.config.items() if name != "rlax"}
        config = ResolvedConfig(section, maxtext, run.config)
        context = BuildContext.outside_run(section, config)
        key = "prompt_source"
        return build_part(key, section.prompt_source, f"rlax.{key}", context)
    except _UNUSABLE as error:
        run.missing.append(f"{_NO_SOURCE}: {error}")
        return None


def _asked(found: Recorded, source: PromptSource | None) -> str | None:
    """Returns the text that the policy was given first, if it is not the prompt; or None."""
    if found.asked is None:
        return None
    try:
        if source is not None:
            return harmless(source.decode(found.asked))
    except _UNUSABLE:
        pass  # it is said of the vocabulary
    return f"tokens {', '.join(map(str, found.asked.tolist()))}"


def _vocabulary(
    run: RunData, source: PromptSource | None, used: set[int]
) -> tuple[dict[int, str], tuple[int, ...]]:
    """Returns texts of the tokens that occur, and the stop ids; both are empty without a source."""
    if source is None:
        return {}, ()
    try:
        alone = ((token, source.decode(np.array([token], np.int32))) for token in sorted(used))
        texts = {token: harmless(text) for token, text in alone}
        return texts, tuple(source.stop_ids)
    except _UNUSABLE as error:
        run.missing.append(f"{_NO_SOURCE}: {error}")
        return {}, ()


MAX_ROLLOUTS = 10_000
MAX_BYTES = 7_300_000  # of rollouts, as estimated; with plotly's 2 MB a page of 10 MB

_GOLDEN = 0.6180339887498949


def fits(group: GroupAt, max_rollouts: int = MAX_ROLLOUTS, max_bytes: float = MAX_BYTES) -> bool:
    """True if a group alone fits on the page."""
    return group.samples <= max_rollouts and group.size <= max_bytes


def choose(
    groups: Sequence[GroupAt], max_rollouts: int = MAX_ROLLOUTS, max_bytes: float = MAX_BYTES
) -> list[GroupAt]:
    """Returns as many groups as fit, with the steps evenly represented.

    Groups that would not fit alone are left out. Groups are numbered in the order of their issue,
    and multiples of the golden ratio, modulo 1, are spread evenly, however many one takes.
    """
    groups = [group for group in groups if fits(group, max_rollouts, max_bytes)]
    chosen: list[GroupAt] = []
    rollouts, size = 0, 0.0
    for group in sorted(groups, key=lambda g: g.group * _GOLDEN % 1):
        rollouts, size = rollouts + group.samples, size + group.size
        if rollouts > max_rollouts or size > max_bytes:
            break
        chosen.append(group)
    return sorted(chosen, key=lambda g: (g.step, g.group))
