"""What every section of the config is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of every config class, also of a plug-in's: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NoOptions(Section):
    """Config class of a part without options."""


class Choice(BaseModel):
    """``name`` picks a registered part; every other key is an option of that part."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def default_part(name: str) -> BeforeValidator:
    """Lets options that are given without a name be those of the part called ``name``."""

    def named(value: Any) -> Any:
        return {"name": name, **value} if isinstance(value, Mapping) else value

    return BeforeValidator(named)
