"""What every section of the configuration has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are errors, and no error quotes a value, which may be a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)
