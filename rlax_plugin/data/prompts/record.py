"""Checks that a run's prompts do not change: recorded at the start, compared on resume.

A run finds prompts by their place and id, so with other prompts it would continue in another order
than before. The record has four bytes of each prompt's id, which identify the first prompt that
differs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles, holds_results
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.kept import ONLY, file_digest
from rlax_plugin.data.prompts.of_run import RunPrompts
from rlax_plugin.data.prompts.table import JoinedPrompts, PromptTable
from rlax_plugin.ports.protocols import PromptSource

_RECORD = "prompts/prompts.json"
_TRAINING = "training"
_EVALUATION = "evaluation set "
LOGGED = "rlax.logged_samples.path"
"""The config key of samples that were recorded before the run, whose groups are its prompts."""


def training_prompts(files: RunFiles) -> int | None:
    """Reads the number of training prompts; None if it is not recorded.

    Raises:
      RlaxError: the record is damaged.
    """
    known = (files.get_json(_RECORD) or {}).get(_TRAINING)
    return None if known is None else known["rows"]


def recorded_digests(files: RunFiles) -> dict[str, str]:
    """Reads evaluation set -> hash of its prompts; nothing if they are not recorded.

    Raises:
      RlaxError: the record is damaged.
    """
    known = files.get_json(_RECORD) or {}
    try:
        return {
            name.removeprefix(_EVALUATION): str(found["digest"])
            for name, found in known.items()
            if name.startswith(_EVALUATION)
        }
    except (AttributeError, LookupError, TypeError) as error:
        raise RlaxError(f"{_RECORD} is damaged: {error!r}") from error


def record_prompts(files: RunFiles, section: RlaxSection, prompts: RunPrompts) -> None:
    """Records the prompts of a new run, or compares those of a resumed run with the record.

    Raises:
      ConfigError: they differ.
    """
    known = files.get_json(_RECORD) if holds_results(files) else None
    found: dict[str, Any] = {}
    for name, key, source, some in _all(section, prompts):
        ids_n, digest = identity(some)
        ids_file = f"prompts/{name.replace(' ', '_')}.ids"
        origin = prompts.identity() if name == _TRAINING else source.identity()
        found[name] = {"rows": len(some), "digest": digest, "ids": ids_file, **origin}
        if name == _TRAINING and section.curation.only:
            found[name]["only"] = file_digest(section.curation.only)
        found[name]["weights"] = _weights(some)
        before = None if known is None else known.get(name)
        if before is None:
            files.put(ids_file, ids_n.tobytes())
        elif before["digest"] != digest:
            then_n = np.frombuffer(files.get(before["ids"]), "<u4")
            choice = _choice(section, key)
            if before.get("only") != found[name].get("only"):
                key, choice = ONLY, section.curation.only
            raise ConfigError(key, choice, _difference(name, before, found[name], then_n, some))
        elif (reason := _reweighted(name, before.get("weights", {}), _weights(some))) is not None:
            raise ConfigError(key, _choice(section, key), reason)
    if known is None or found.keys() - known.keys():
        files.put_json(_RECORD, found if known is None else found | known)


def _all(
    section: RlaxSection, prompts: RunPrompts
) -> Iterator[tuple[str, str, PromptSource, Sequence[Prompt]]]:
    """(name, config key, source, prompts) of the training prompts and of each evaluation set."""
    key = "rlax.prompt_source"
    several = "rlax.environments" if section.environments else key
    yield _TRAINING, LOGGED if section.trains_on_log else several, prompts.source, prompts.train
    for one in prompts.asked:
        own = one.chosen.prompt_source is not None
        its_key = f"rlax.evaluation.sets.{one.name}.prompt_source" if own else several
        yield f"{_EVALUATION}{one.name}", its_key, one.source, one.prompts


def _choice(section: RlaxSection, key: str) -> str:
    if key == LOGGED:
        return section.logged_samples.path
    if key == "rlax.prompt_source":
        return section.prompt_source.name
    if key == "rlax.environments":
        return ", ".join(section.environments)
    chosen = section.evaluation.sets[key.split(".")[3]].prompt_source
    return "" if chosen is None else chosen.name


def identity(prompts: Sequence[Prompt]) -> tuple[np.ndarray, str]:
    """uint32 [prompts], a part of each id; and a hash of all ids and tokens."""
    if isinstance(prompts, PromptTable):
        return prompts.ids.view("<u4")[:, 0], prompts.digest
    if isinstance(prompts, JoinedPrompts):
        found = {name: identity(part) for name, part in prompts.parts.items()}
        digests = [f"{name}/{digest}/" for name, (_, digest) in found.items()]
        joined = hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()
        return np.concatenate([ids_n for ids_n, _ in found.values()]), joined
    whole = hashlib.blake2b(digest_size=16)
    parts = []
    for prompt in prompts:
        one = hashlib.blake2b(prompt.id.encode(errors="replace"), digest_size=16).digest()
        tokens = np.ascontiguousarray(prompt.tokens, np.int32)
        whole.update(one + len(tokens).to_bytes(4, "little") + tokens.tobytes())
        parts.append(int.from_bytes(one[:4], "little"))
    return np.array(parts, "<u4"), whole.hexdigest()


def _weights(prompts: Sequence[Prompt]) -> dict[str, float]:
    """Domain -> share of the prompts; {} without domains: then only the prompts set the order."""
    if isinstance(prompts, JoinedPrompts):
        shares = {name: _weights(part) for name, part in prompts.parts.items()}
        return {f"{name}/{one}": w for name, own in shares.items() for one, w in own.items()}
    domains = prompts.domains if isinstance(prompts, PromptTable) else None
    if domains is None:
        return {}
    return dict(zip(domains.names, domains.weights.tolist(), strict=True))


def _reweighted(name: str, then: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    """Describes a changed share of a domain; None if none changed or none was recorded before."""
    for domain, share in now.items():
        if not math.isclose(before := then.get(domain, share), share):
            return (
                f"has other weights than when this run began ({name}: {domain} had a share of "
                f"{before:.4g} then, {share:.4g} now), so the prompts would come in another order: "
                "bring the weights back, or begin another run with another run_name"
            )
    return None


def _difference(
    name: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    then_n: np.ndarray,
    prompts: Sequence[Prompt],
) -> str:
    now_n, _ = identity(prompts)
    both = min(len(then_n), len(now_n))
    first = next(iter(np.flatnonzero(then_n[:both] != now_n[:both]).tolist()), both)
    counts = f"{len(then_n):,} then, {len(now_n):,} now"
    if first == both == len(then_n) == len(now_n):
        what = "all have the same text and other tokens: the tokenizer has changed"
    elif first == both:
        what = f"the first {both:,} are the same"
    else:
        what = f"the first that differs is number {first + 1:,}, now {_shown(prompts, first)}"
    changed = f"; {'; '.join(said)}" if (said := list(_changes(before, now))) else ""
    return (
        f"has other prompts than when this run began ({name}: {counts}; {what}{changed}): bring "
        "the data back, or begin another run with another run_name"
    )


def _shown(prompts: Sequence[Prompt], index: int) -> str:
    if isinstance(prompts, PromptTable):
        return prompts.place_of(index).removesuffix(",")
    return one_line(repr(prompts[index].text), 60)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describes the changes of the files."""
    then, there = (
        {one["path"]: one for files in known.get("files", {}).values() for one in files}
        for known in (before, now)
    )
    for path in sorted(then.keys() | there.keys()):
        if path not in there:
            yield f"{path} is gone"
        elif path not in then:
            yield f"{path} is new"
        elif then[path] != there[path]:
            sizes = f"{then[path]['size']:,} bytes then, {there[path]['size']:,} now"
            yield f"{path} was written to since ({sizes})"
