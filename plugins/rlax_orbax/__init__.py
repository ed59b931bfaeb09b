"""Weight store ``orbax``: every version is an Orbax checkpoint with a crc32c in every chunk."""

from __future__ import annotations

from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    Extension,
    PositiveInt,
    Section,
    WeightStore,
    hookimpl,
)


class OrbaxConfig(Section):
    """Stores weight versions as Orbax checkpoints, with a checksum for every chunk."""

    chunk_mib: PositiveInt = Field(
        64,
        description="maximum size of a chunk: an array is halved until no piece is larger, and "
        "each piece is read as a unit and has its own checksum",
    )
    in_flight_mib: PositiveInt = Field(
        2048,
        description="largest amount of host memory that one process uses at once for arrays on "
        "their way to devices",
    )


def _build(config: OrbaxConfig, context: BuildContext) -> WeightStore:
    # Importing Orbax takes seconds and brings JAX; looking at a config needs neither.
    from rlax_orbax.store import OrbaxStore

    return OrbaxStore(
        deadline_s=context.section.deadlines.weights_s,
        chunk_bytes=config.chunk_mib << 20,
        in_flight_bytes=config.in_flight_mib << 20,
    )


def _check_start(config: OrbaxConfig, context: BuildContext) -> None:
    given = context.section.weights.path
    place = given or str(context.maxtext.get("base_output_directory") or "")
    if place.startswith("s3://"):
        key = "rlax.weights.path" if given else "base_output_directory"
        other = "" if given else ": set rlax.weights.path to one"
        reason = (
            "cannot hold weight versions: Orbax renames a directory to complete a version, and S3 "
            "cannot rename. They must be on a disk that every worker sees, or on gs://"
        )
        raise ConfigError(key, place, f"{reason}{other}")


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    return {"orbax": Extension(OrbaxConfig, _build, check_start=_check_start)}
