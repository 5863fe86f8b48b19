"""Certificates made for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Authority:
    """A CA of its own, whose files lie in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *hosts: str, is_expired: bool = False) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key for these hosts, and give back where."""
        ends = datetime.now(UTC) - timedelta(hours=1) if is_expired else None
        made = self._ca.issue_cert(*(hosts or ("localhost", "127.0.0.1")), not_after=ends)
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key
