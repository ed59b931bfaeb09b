"""Base classes of the sections of the config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.functions import check_label, function_text, named_function
from rlax_plugin.config.schedules import Schedule, Scheduled, highest, lowest

INT32_MAX = 2**31 - 1
"""Maximum of most integers, which have 32 bits in messages and recorded samples."""

YEAR_S = 31_536_000
"""Maximum of every deadline; much longer waits exceed what the system can represent."""

PositiveInt = Annotated[int, Field(ge=1, le=INT32_MAX)]
NonNegativeInt = Annotated[int, Field(ge=0, le=INT32_MAX)]
Seconds = Annotated[float, Field(gt=0, le=YEAR_S)]
# Each is a process of its own on one machine.
Processes = Annotated[int, Field(ge=1, le=1024)]


def _printable(text: str) -> str:
    """Rejects text that file systems, terminals or logs cannot take unchanged."""
    if not text.isprintable():
        raise ValueError("must be a path without control characters")
    return text


PathText = Annotated[str, AfterValidator(_printable)]
"""A path or URL."""


def _temperature(value: float) -> float:
    if 0 < value < 1e-3:  # logits divided by it would not be finite
        raise ValueError("must be 0, which is greedy, or at least 0.001")
    return value


Temperature = Annotated[float, Field(ge=0, le=1000), AfterValidator(_temperature)]


class Section(BaseModel):
    """Base of every config class, including those of plug-ins.

    It is frozen. Unknown keys are rejected, and so are NaN and infinity, unless a field is declared
    with ``Field(allow_inf_nan=True)``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def check_together(self) -> None:
        """Checks options that depend on each other, once each of them is valid.

        A class that derives from another has both checks, first the base's, and calls no super.

        Raises:
          ValueError: they do not fit; a ConfigError names the key.
        """

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for owner in reversed(type(self).__mro__):
            if check := vars(owner).get("check_together"):
                check(self)
        return self


def leaf_fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yields (dotted name, field) of every field that is not a section, also inside sections."""
    for name, field in model.model_fields.items():
        inside = field.annotation
        if isinstance(inside, type) and issubclass(inside, Section):
            yield from leaf_fields(inside, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


class NoOptions(Section):
    """Config class of a part without options."""


def plain_name(name: str) -> str:
    """Returns a part's name without the plug-in's: ``x`` for ``plugin:x`` and for ``x``."""
    return name.rpartition(":")[2]


class Choice(BaseModel):
    """``name`` picks a registered part; every other key is an option of that part.

    Attributes:
      name: name of the part, or ``plugin:name`` if several plug-ins offer that name.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def part(self) -> str:
        """The name under which the part is registered."""
        return self.name

    @property
    def plain_name(self) -> str:
        """The name without the plug-in's."""
        return plain_name(self.name)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


FUNCTION = "a function"
"""The name of the built-in part that calls a function of the user's; no config can write it."""


class FunctionOptions(Section):
    """The keys of a choice that names a function."""

    function: str = Field(
        description="FILE.py:NAME, a function of a file (relative to the config file), or "
        "package.module:NAME"
    )
    label: str = Field(
        default="", description="name in metrics and messages; empty: that of the function"
    )


class FunctionChoice(Choice):
    """A choice that may name a function, ``function: FILE.py:NAME``, in place of a part.

    ``name`` is then the function's name or its ``label``, which metrics and messages use.

    Attributes:
      function: the function; empty: ``name`` is that of a registered part.
    """

    function: Annotated[str, AfterValidator(function_text)] = Field(
        default="", description="in place of name: a function, FILE.py:NAME or package.module:NAME"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_function(cls, value: Any) -> Any:
        if type(value) is Choice:
            return {"name": value.name, **value.options}
        if isinstance(value, Mapping) and "function" in value:
            return named_function(value)
        return value

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What names a part has no function, and what names a function has no name.
        shown = handler(self)
        del shown["name" if self.function else "function"]
        if shown.get("label") == "":
            del shown["label"]
        return shown

    @property
    def part(self) -> str:
        return FUNCTION if self.function else self.name

    @property
    def metric_name(self) -> str:
        """Its name in metrics."""
        return self.plain_name

    @property
    def options(self) -> dict[str, Any]:
        own = {"function": self.function} if self.function else {}
        return {**own, **(self.model_extra or {})}


class EnvironmentChoice(Choice):
    """An environment, which may name functions that the policy can call.

    Attributes:
      functions: the functions; an environment that takes none has no such option.
    """

    functions: tuple[FunctionChoice, ...] = Field(
        default=(),
        description="functions that the environment offers to the policy as tools",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_choice(cls, value: Any) -> Any:
        return {"name": value.name, **value.options} if type(value) is Choice else value

    @field_validator("functions", mode="before")
    @classmethod
    def _of_json(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value  # ``DefaultPart`` has read it

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        shown = handler(self)
        if not self.functions:
            del shown["functions"]
        return shown

    @property
    def options(self) -> dict[str, Any]:
        functions = [one.options for one in self.functions]
        return {**({"functions": functions} if functions else {}), **(self.model_extra or {})}


def distinct_names(names: Sequence[str]) -> list[str]:
    """Returns the names of a list in metrics: one that is listed several times gets its index."""
    return [n if names.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(names)]


def check_labels(choices: Sequence[FunctionChoice], key: str) -> None:
    """Checks that metrics can tell what has a label, and functions, from all others of a list.

    Raises:
      ConfigError: a label is given twice, or it or a function has the name of another part, or
        the name with an index that metrics use for one of several.
    """
    names = [choice.metric_name for choice in choices]
    of_all, of_metrics = Counter(names), Counter(distinct_names(names))
    for number, choice in reversed(list(enumerate(choices))):
        if of_all[choice.metric_name] == 1 and of_metrics[choice.metric_name] == 1:
            continue
        if isinstance(choice, RewardChoice) and choice.label:
            reason = f"is the name of another entry of {key}: metrics could not tell them apart"
            raise ConfigError(f"{key}.{number}.label", choice.label, reason)
        if choice.function:
            reason = (
                f"has the name of another entry of {key}, and metrics could not tell them apart: "
                f"give it a label, such as {{function: {choice.function}, "
                f"label: {choice.metric_name}_{number + 1}}}"
            )
            raise ConfigError(f"{key}.{number}.function", choice.function, reason)
        if of_all[choice.metric_name] == 1 and isinstance(choice, RewardChoice):
            reason = f"is the name of another entry of {key} in metrics: give it a label"
            raise ConfigError(f"{key}.{number}.name", choice.name, reason)


class RewardChoice(FunctionChoice):
    """A reward with its weight and label, which are not options of the part.

    Attributes:
      label: its name in metrics and messages; empty: that of the part or the function.
      weight: factor of its value in the sample's reward; 0: the value is only recorded.
    """

    # The options beside it are the part's, which its own class checks.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    label: str = Field(default="", description="name in metrics and messages; empty: its own")
    weight: Scheduled[Annotated[float, Field(ge=-1e6, le=1e6)]] = Field(
        default=1.0,
        description="factor of this reward in the reward of a sample; 0: it is only recorded",
    )

    @field_validator("label")
    @classmethod
    def _of_metrics(cls, label: str) -> str:
        check_label(label)
        return label

    @field_validator("weight")
    @classmethod
    def _of_one_sign(cls, weight: Scheduled[float]) -> Scheduled[float]:
        if lowest(weight) < 0 < highest(weight):
            raise ValueError(
                "must not change its sign, by which a reward decides what an answer is worth that "
                "it cannot score"
            )
        return weight

    @property
    def lowest_weight(self) -> float:
        """The lowest weight in any step."""
        return lowest(self.weight)

    @property
    def metric_name(self) -> str:
        return self.label or self.plain_name

    def __str__(self) -> str:
        if isinstance(self.weight, Schedule):
            return f"({self.weight}) * {self.metric_name}"
        return self.metric_name if self.weight == 1 else f"{self.weight:g} * {self.metric_name}"


class SelectionChoice(Choice):
    """A selection of samples; ``samples`` is not an option of the part.

    Attributes:
      samples: rows of a batch for each of its groups; 0: ``group_size``.
    """

    samples: NonNegativeInt = Field(
        default=0, description="rows of a batch for each of its groups; 0: group_size"
    )


@dataclass(frozen=True, slots=True)
class DefaultPart:
    """Annotates a choice with the part whose options may be given without a name.

    Attributes:
      name: name of the part; empty if it depends on something else, such as a preset.
    """

    name: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._named, handler(source))

    def _named(self, value: Any) -> Any:
        return {"name": self.name, **value} if isinstance(value, Mapping) else value


def default_parts(model: type[BaseModel], key: str) -> Iterator[tuple[str, str]]:
    """Yields (dotted key, name) of every choice below ``key`` whose name may be left out."""
    for name, field in model.model_fields.items():
        place = f"{key}.{name}"
        for item in field.metadata:
            if isinstance(item, DefaultPart) and item.name:
                yield place, item.name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from default_parts(field.annotation, place)
