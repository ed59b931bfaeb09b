"""The pass rates that a run begins with: none, or those of ``rlax.curation.prior``.

A run keeps a copy of the pass rates of its own prompts: the sampler's choices depend on them, and a
resume must repeat these choices even if the file has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles, holds_results
from rlax_plugin.base.types import Prompt, SamplingParams
from rlax_plugin.config import Prior, RlaxSection
from rlax_plugin.data.curation.pass_rate_files import About, MeasuredRates, read_table
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.run.state.snapshots import pack_rates, unpack_rates

_COPY = "prompts/prior.parquet"
_KEY = "rlax.curation.prior.path"


def about_rates(section: RlaxSection, sampling: SamplingParams, run: str, weights: object) -> About:
    """Returns the settings under which a run measures pass rates.

    Args:
      run, weights: see ``About``; weights None: its own.
    """
    return About(
        run=run,
        weights=None if weights is None else str(weights),
        version=0,
        sampling=sampling,
        pass_threshold=section.curation.pass_threshold,
        half_life=section.curation.pass_rate_half_life,
    )


def check_prior(section: RlaxSection) -> None:
    """Checks that the prior's file was measured with the settings of the config.

    It compares only settings that the config contains.

    Raises:
      ConfigError: the settings differ, or the file is missing or is no table of pass rates.
    """
    prior, r = section.curation.prior, section.rollouts
    about = _read(prior.path).about
    settings = {"temperature": r.last_temperature, "top_k": r.top_k, "top_p": r.top_p}
    sampling = replace(about.sampling, max_new_tokens=r.max_new_tokens, **settings)
    _check_alike(prior, about, about_rates(section, sampling, "", None))


def kept_prior(files: RunFiles) -> bool:
    """True if a run has a copy of the prior, so that it does not read the file again."""
    return files.exists(_COPY) and holds_results(files)


def first_rates(
    section: RlaxSection,
    prompts: Sequence[Prompt],
    about: About,
    files: RunFiles,
    note: Callable[[str], None],
) -> PassRateTable:
    """Returns the table of a run's first step; blocking, a few seconds for a million prompts.

    Args:
      prompts: of training.
      about: settings under which the run measures.
      note: called with one line on the pass rates found.

    Raises:
      ConfigError: the prior cannot be read, or was measured with different settings.
    """
    curation = section.curation
    table = PassRateTable(
        len(prompts), curation.pass_rate_half_life, curation.prior_samples, curation.prior_rate
    )
    if not (prior := curation.prior).path:
        return table
    if kept_prior(files):
        table.restore(unpack_rates(files.get(_COPY), files.location(_COPY), prompts))
        return table
    rates = _read(prior.path)
    _check_alike(prior, rates.about, about)
    passed_n, failed_n, unknown = rates.at_prompts(prompts)
    table.begin_with(prior.weight * passed_n, prior.weight * failed_n)
    files.put(_COPY, pack_rates(table.columns(), prompts, about))
    known, others = int(table.measured().sum()), f"; {unknown:,} of its rows are of other prompts"
    note(
        f"{prior.path}: pass rates of {known:,} of the {len(prompts):,} prompts"
        + (others if unknown else "")
    )
    return table


def _read(path: str) -> MeasuredRates:
    try:
        return read_table(path)
    except FileNotFoundError:
        raise ConfigError(_KEY, path, "does not exist") from None
    except RlaxError as error:
        reason = str(error).removeprefix(f"{path} ")
        raise ConfigError(_KEY, path, reason) from error


def _check_alike(prior: Prior, about: About, ours: About) -> None:
    if prior.any_sampling or (why := ours.differs(about)) is None:
        return
    reason = (
        f"was measured with other settings than those of this run: {why}. Measure again, or set "
        "rlax.curation.prior.any_sampling"
    )
    raise ConfigError(_KEY, prior.path, reason)
