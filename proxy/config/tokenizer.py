"""The setting of how prompts are counted exactly."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from proxy.config.errors import RefusedError
from proxy.config.file import kind_of
from proxy.config.values import Bytes, Seconds, Section, Text
from routing.topology import TIKTOKEN_PATTERN, TokenizerSource

_TOKENIZER = TokenizerSource()


def _word_or_mapping(schema: dict[str, Any]) -> None:
    mapping = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"const": "from-worker", "description": "Ask a worker's `/tokenize`."}, mapping]


_PACKAGES = {"file": "tokenizers", "tiktoken": "tiktoken"}  # of the extra `counting`


class TokenizerConfig(Section):
    """How prompts are counted exactly: `from-worker`, or a mapping with either `file` or `tiktoken`. Nothing is downloaded."""

    model_config = ConfigDict(json_schema_extra=_word_or_mapping)

    file: Text | None = Field(default=None, description="Path of the model's `tokenizer.json`.")
    tiktoken: Text | None = Field(default=None, description="Path of the ranks of a tiktoken encoding, `*.tiktoken`.")
    pattern: Text = Field(default=TIKTOKEN_PATTERN, description="Regular expression by which that encoding splits a text.")
    from_worker: bool = Field(default=False, description="Ask a worker's `/tokenize`, which knows the chat template too.")
    timeout_seconds: Seconds = Field(
        default=_TOKENIZER.timeout_seconds, description="Seconds for one count; then the larger pool gets the request."
    )
    most_bytes: Bytes = Field(
        default=_TOKENIZER.most_bytes, description="Bytes of text up to which is counted; more goes by the estimate."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, TokenizerConfig):
            return value
        if value == "from-worker":
            return {"from_worker": True}
        if not isinstance(value, Mapping):
            raise RefusedError(f"is {kind_of(value)}", "write from-worker, or {file: PATH}, or {tiktoken: PATH}")
        given = [name for name in ("file", "tiktoken", "from_worker") if value.get(name)]
        if len(given) != 1:
            which = "names " + " and ".join(given) if given else "names nothing to count with"
            raise RefusedError(which, "write from-worker, or {file: PATH}, or {tiktoken: PATH}")
        package = _PACKAGES.get(given[0])
        if package is not None and find_spec(package) is None:
            raise RefusedError(
                f"counts with the package {package}, which is not installed here",
                "install the extra `counting`, or write from-worker",
            )
        return value

    @model_validator(mode="after")
    def _pattern_is_one(self) -> TokenizerConfig:
        if self.tiktoken is None or self.pattern == TIKTOKEN_PATTERN:
            return self
        from tiktoken import Encoding  # noqa: PLC0415 - an optional dependency, and its own idea of expressions

        letters = {bytes([byte]): byte for byte in range(256)}
        try:
            Encoding("pattern", pat_str=self.pattern, mergeable_ranks=letters, special_tokens={}).encode_ordinary("a 1")
        except Exception as error:
            wrong = f"has a pattern that is no regular expression: {str(error).splitlines()[-1].removeprefix('error: ')}"
            raise RefusedError(wrong, "write it as tiktoken has it, or leave it out") from error
        return self
