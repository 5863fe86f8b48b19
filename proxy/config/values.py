"""What one value of a configuration must be: the types of the settings, each judging without knowing its place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from proxy.admin.token import check_token
from proxy.config.errors import RefusedError
from proxy.config.worker_url import parse_listen_address, parse_worker_url
from proxy.wire.request_head import NOT_FORWARDED
from routing.topology import NO_POOL, UNKNOWN_MODEL

MAX_NAME_LENGTH = 200
MAX_SECONDS = 7 * 24 * 3600
GRPC_PORT = 4317
UNSEEN_HEADERS = frozenset(name.decode() for name in NOT_FORWARDED | {b"traceparent", b"tracestate"})


class Section(BaseModel):
    """A mapping of the file: unknown keys are errors, values are never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)


def _not_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise RefusedError("is a boolean", "write a number")
    return value


def _label(text: str) -> str:
    """Judge a name that becomes a label of metrics and may travel in a header."""
    if text != text.strip() or any(not " " <= character <= "~" for character in text):
        raise RefusedError("has blanks at an end, or characters outside printable ASCII", "use letters, digits and - . _ : /")
    return text


def check_name(text: str) -> str:
    """Return a name that may become a label. Raises `RefusedError` for one that a configuration could not have."""
    if not 0 < len(text) <= MAX_NAME_LENGTH:
        raise RefusedError(f"a name has 1 to {MAX_NAME_LENGTH} characters", "use a shorter name")
    return _label(text)


def _model_name(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise RefusedError("has blanks at an end, or characters that cannot be printed", "write the name that clients send")
    if text == UNKNOWN_MODEL:
        raise RefusedError(
            f"`{UNKNOWN_MODEL}` is reserved: metrics use it for requests whose model is not configured", "use another name"
        )
    return text


def _pool_name(text: str) -> str:
    if text == NO_POOL:
        raise RefusedError(f"`{NO_POOL}` is reserved: metrics use it for requests that reached no pool", "use another name")
    return _label(text)


def _worker_key(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text:
        raise RefusedError("is empty", "give the key, or leave worker_key out")
    if any(not "!" <= character <= "~" for character in text):
        raise RefusedError("has a blank, a line break or a character outside ASCII", "give the bare key, without `Bearer`")
    return secret


def _sha256(text: str) -> str:
    if re.match(r"[0-9A-Fa-f]{64}\s", text):
        raise RefusedError(
            "has something behind the SHA-256's 64 digits, as sha256sum writes the name of what it read (`-` is its input)",
            "give the 64 digits alone: printf %s \"$KEY\" | sha256sum | cut -d' ' -f1",
        )
    if re.search(r"[\s:=][0-9A-Fa-f]{64}$", text):
        raise RefusedError("has something before the SHA-256's 64 digits", "give the 64 digits alone")
    if not re.fullmatch("[0-9A-Fa-f]{64}", text):
        raise RefusedError(
            "is not a SHA-256 (64 hexadecimal digits); the value is not shown, as it may be the key itself",
            'printf %s "$KEY" | sha256sum',
        )
    if text.lower() == hashlib.sha256(b"").hexdigest():
        raise RefusedError("is the SHA-256 of an empty text", 'printf %s "$KEY" | sha256sum')
    return text.lower()


def _not_a_port(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        raise RefusedError("is a number without a host", f"write 0.0.0.0:{value} or 127.0.0.1:{value}")
    return value


def _listen(text: str) -> str:
    return str(parse_listen_address(text))


def list_of_workers(value: object) -> object:
    """Raise `RefusedError` for forms of `workers` that are neither a list nor a mapping that says how they are found."""
    if isinstance(value, str):
        raise RefusedError("is a single text", "put the URL into a list: [http://10.0.0.11:8000]")
    return value


def text_or_mapping(value: object) -> object:
    """Raise `RefusedError` for what is neither a name nor fields."""
    if isinstance(value, str | Mapping):
        return value
    if isinstance(value, list | bool) or value is None:
        raise RefusedError("is neither text nor a mapping", "write a name, or fields as a mapping")
    raise RefusedError(f"is the number {value}, not text or a mapping", f'put a name into quotes: "{value}"')


def one_or_list(value: object) -> object:
    """A single text stands for a list of one."""
    return (value,) if isinstance(value, str) else value


def _admin_token(secret: SecretStr) -> SecretStr:
    check_token(secret.get_secret_value())
    return secret


def _store(secret: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(secret.get_secret_value())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or port == 0:
        raise RefusedError("is no redis or rediss URL; it is not shown", "write it like redis://10.0.0.9:6379/0")
    return secret


def _host_name(text: str) -> str:
    try:
        return parse_listen_address(f"{text}:1").host
    except RefusedError:
        raise RefusedError("is no host name", "write a name such as gateway.example.com, without a port") from None


def _header_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", text):
        raise RefusedError("is no name of a header", "write a name such as x-session-id, without a colon")
    return text.lower()


def _chain_header(name: str) -> str:
    if name in UNSEEN_HEADERS:
        raise RefusedError(f"`{name}` belongs to one connection or one request, or is a secret", "name another header")
    return name


def _url_path(text: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9._~!$&'()*+,;=:@/%-]*", text):
        raise RefusedError("is no path of a URL", "write it like /health, without a host or a query")
    return text


def _header_value(secret: SecretStr) -> SecretStr:
    if any(not " " <= character <= "~" for character in secret.get_secret_value()):
        raise RefusedError("has a line break or a character outside ASCII", "write the bare value")
    return secret


def _collector(text: str) -> str:
    """Judge the URL of an OTLP receiver."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise RefusedError("is no http or https URL", "write the receiver's base URL, such as http://127.0.0.1:4318")
    if "@" in parts.netloc:
        raise RefusedError("has a user name or password in it, which is not shown", "put credentials under `headers`")
    if parts.query or parts.fragment:
        raise RefusedError("has a query or fragment", "end the URL before it")
    if port == GRPC_PORT:
        raise RefusedError(f"has the port of OTLP over gRPC, {GRPC_PORT}", "use the receiver's HTTP port, 4318 as a rule")
    return text.rstrip("/")


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_label)]
ModelName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_model_name)]
PoolName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_pool_name)]
Address = Annotated[str, BeforeValidator(_not_a_port), AfterValidator(_listen)]
Count = Annotated[int, Field(ge=1, le=2**53), BeforeValidator(_not_boolean)]
CountOrZero = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_not_boolean)]
Bytes = Annotated[int, Field(ge=1, le=2**40), BeforeValidator(_not_boolean)]
Attempts = Annotated[int, Field(ge=1, le=100), BeforeValidator(_not_boolean)]
Weight = Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False), BeforeValidator(_not_boolean)]
Quantile = Annotated[float, Field(ge=0.5, le=0.9999, allow_inf_nan=False), BeforeValidator(_not_boolean)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False), BeforeValidator(_not_boolean)]
SecondsOrZero = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False), BeforeValidator(_not_boolean)]
NumberOrZero = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False), BeforeValidator(_not_boolean)]
Text = Annotated[str, Field(min_length=1)]
WorkerKey = Annotated[SecretStr, AfterValidator(_worker_key)]
AdminToken = Annotated[SecretStr, AfterValidator(_admin_token)]
HostName = Annotated[str, AfterValidator(_host_name)]
LeaseRatio = Annotated[float, Field(gt=0, le=0.5, allow_inf_nan=False), BeforeValidator(_not_boolean)]
StoreUrl = Annotated[SecretStr, AfterValidator(_store)]
Sha256 = Annotated[str, AfterValidator(_sha256)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(_not_boolean)]
RatioAboveZero = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), BeforeValidator(_not_boolean)]
BorrowRatio = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), BeforeValidator(_not_boolean)]
HeaderName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_header_name)]
ChainHeader = Annotated[HeaderName, AfterValidator(_chain_header)]
HeaderValue = Annotated[SecretStr, AfterValidator(_header_value)]
CollectorUrl = Annotated[str, AfterValidator(_collector)]
UrlPath = Annotated[str, AfterValidator(_url_path)]
BaseUrl = Annotated[str, AfterValidator(lambda text: parse_worker_url(text).url)]
