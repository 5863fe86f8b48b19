"""Who may use the admin listener: tokens, and where they come from. Only their SHA-256 is kept."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.config.errors import RefusedError

if TYPE_CHECKING:
    from proxy.config.settings import Config

MIN_TOKEN_CHARACTERS = 16
MOST_TOKENS = 2
"""Valid at a time, so that one can be replaced while the other is in use."""
_MOST_FILE_BYTES = 4096
_MAKE_ONE = "make one: openssl rand -hex 32"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRules:
    """What a configuration says of the admin listener."""

    digests: tuple[bytes, ...] = ()  # SHA-256 of the tokens that it names
    file: Path | None = None  # holds tokens, and may change
    hosts: frozenset[str] = frozenset()  # further names of this listener, lower case

    @property
    def wants_token(self) -> bool:
        """Whether calls need a token."""
        return bool(self.digests) or self.file is not None


def admin_rules(config: Config, folder: Path) -> AdminRules:
    """The rules of a configuration whose file lies in ``folder``."""
    digests = [bytes.fromhex(text) for text in config.admin_token_sha256]
    if config.admin_token is not None:
        digests.append(digest_of(config.admin_token.get_secret_value()))
    file = None if config.admin_token_file is None else folder / config.admin_token_file
    return AdminRules(digests=tuple(digests), file=file, hosts=frozenset(config.admin_hosts))


def digest_of(token: str) -> bytes:
    """What is kept of a token, or of whatever a caller sends as one."""
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def check_token(text: str) -> str:
    """Return a text that may be an admin token. Raises `RefusedError`, which does not show it."""
    if len(text) < MIN_TOKEN_CHARACTERS:
        raise RefusedError(f"is shorter than {MIN_TOKEN_CHARACTERS} characters, which can be guessed", _MAKE_ONE)
    if any(not "!" <= character <= "~" for character in text):
        raise RefusedError("has a blank, a line break or a character outside ASCII", _MAKE_ONE)
    return text


def read_tokens(file: Path) -> tuple[bytes, ...]:
    """The digests of the tokens in a file, one or two, a line each. Raises `RefusedError` and OSError."""
    with file.open("rb") as opened:
        content = opened.read(_MOST_FILE_BYTES + 1)
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
    if not 1 <= len(lines) <= MOST_TOKENS or len(content) > _MOST_FILE_BYTES:
        raise RefusedError(f"the file does not hold one or {MOST_TOKENS} lines", "write a token on a line of its own")
    try:
        return tuple(digest_of(check_token(line)) for line in lines)
    except RefusedError as error:
        raise RefusedError(f"a token in the file {error.wrong}", error.right) from None


def is_one_of(token: str, digests: tuple[bytes, ...]) -> bytes | None:
    """The digest among these that a token has; None if there is none. Takes as long whichever it is."""
    given, found = digest_of(token), None
    for digest in digests:
        if compare_digest(given, digest):
            found = digest
    return found
