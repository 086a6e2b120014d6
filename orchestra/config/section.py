"""The base class of every section of params.yaml."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """A section of params.yaml: unknown keys, infinities and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def switch(default: Any, **rules: Any) -> Any:
    """A field added later: written only where it differs from its default, so that older records keep their bytes."""
    return Field(default=default, exclude_if=lambda value: value == default, **rules)
