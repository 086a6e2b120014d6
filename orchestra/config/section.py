"""The base class of every section of params.yaml."""

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, field_validator

OURS = frozenset({"model", "messages", "tools", "max_completion_tokens", "max_tokens", "n", "stream"})
"""What we say in requests ourselves: another value would break the cap of dollars, or the reading of the reply."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What every generator of random numbers takes."""
Factor = Annotated[float, Field(gt=0, le=1e6)]
"""A number that something is multiplied by, or divided by."""
Margin = Annotated[float, Field(ge=0, le=1)]
"""A difference of two shares."""


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ValueError("must be a name of at most 64 letters, digits, dots, dashes and underscores")
    return text


def _inside(text: str) -> str:
    parts = text.split("/")
    if len(text) > 300 or not text.isprintable() or "\\" in text or not all(parts) or set(parts) & {".", ".."}:
        raise ValueError("must be a path within the workspace, written from its root, without . and ..")
    return text


def _more(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if taken := sorted(OURS & set(settings)):
        raise ValueError(f"must not hold {taken[0]}, which each request says by itself")
    return settings


RequestSettings = Annotated[dict[str, JsonValue], AfterValidator(_more)]
"""What else requests to a model say, such as temperature; null: not sent."""
Name = Annotated[str, AfterValidator(_name)]
"""Of a folder, a model, a rule: it is joined to paths, addresses and queries."""
Policy = Annotated[str, AfterValidator(lambda text: _name(text.removeprefix("chat:")) and text)]
"""A name in evaluate.policies: a checkpoint's, a registered policy's, or `chat:` and an expert's."""
Rule = Annotated[str, AfterValidator(lambda text: _name(text.replace("@", "-", 1)) and text)]
"""A name in evaluate.baselines: a rule's, and after `@` a setting of its knob."""
Inside = Annotated[str, AfterValidator(_inside)]
"""A path within the workspace."""


class Section(BaseModel):
    """A section of params.yaml: unknown keys, infinities, NaN and negative zeros are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _one_zero(cls, value: Any) -> Any:
        if _negative_zero(value):
            raise ValueError("must not be a negative zero; write 0")
        return value


def _negative_zero(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_negative_zero, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_negative_zero, value))
    return isinstance(value, float) and value == 0 and math.copysign(1, value) < 0


def switch(default: Any, **rules: Any) -> Any:
    """A field added later: written only where it differs from its default, so that older records keep their bytes."""
    return Field(default=default, exclude_if=lambda value: value == default, **rules)
