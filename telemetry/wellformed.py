"""Records whose text can be encoded.

Text that came from JSON may hold half of a surrogate pair, which Python keeps and UTF-8 has no bytes for. Such a record
must not be lost, nor break the batch it is in.
"""

from __future__ import annotations

from typing import Any

import msgspec

from telemetry.record import RequestRecord


def well_formed(record: RequestRecord) -> RequestRecord:
    r"""Return the record with every lone surrogate written as its escape (``\ud800``, six characters); others unchanged."""
    changes = {name: _escaped(getattr(record, name)) for name in record.__struct_fields__}
    return msgspec.structs.replace(record, **changes)


def _escaped(value: Any) -> Any:
    if type(value) is str:  # the enumerations are strings too, and always well formed
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, tuple):
        return tuple(_escaped(item) for item in value)
    return value
