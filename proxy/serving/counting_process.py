"""Counts tokens for one serving process, in a process of its own: ``python -m proxy.serving.counting_process``.

Tokenizers hold the interpreter for as long as they run, so no thread of a serving process could do this without stopping its
streams; and one that runs for ever or breaks takes only itself along. Jobs come on standard input and results go to standard
output, each as a length (4 bytes, big-endian) and msgpack. It ends when its standard input does.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from routing.estimate_prompt import texts_of
from routing.topology import TokenizerSource

_log = logging.getLogger(__name__)

_NICENESS = 5
_MOST_RUN = 10_000
_RUN = re.compile(rf"[^\s]{{{_MOST_RUN}}}|(.)\1{{{_MOST_RUN - 1}}}", re.DOTALL)
LENGTH = struct.Struct(">I")

Count = Callable[[str], int]


class Job(msgspec.Struct, array_like=True, gc=False):
    """What is to be counted: raw JSON as the client sent it."""

    number: int
    source: TokenizerSource
    messages: bytes = b""
    others: tuple[bytes, ...] = ()
    prompt: bytes = b""


class Counted(msgspec.Struct, array_like=True, gc=False):
    """The result; ``None``: it failed."""

    number: int
    tokens: int | None


def load(source: TokenizerSource) -> Count:
    """How texts are counted by this source. Raises what its library raises when that cannot be read."""
    if source.file is not None:
        from tokenizers import Tokenizer  # noqa: PLC0415 (an optional dependency)

        tokenizer = Tokenizer.from_file(source.file)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # a special token's text in a prompt is text
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
    if source.tiktoken is None:
        raise ValueError("a source without a file")
    from tiktoken import Encoding  # noqa: PLC0415 (the same)

    lines = Path(source.tiktoken).read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    encoding = Encoding("local", pat_str=source.pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def count_text(text: str, count: Count) -> int:
    """Tokens of a text. Long runs without a blank or of one character are counted in pieces, or they would take for ever."""
    if len(text) <= _MOST_RUN:
        return count(text)
    total = start = 0
    for run in _RUN.finditer(text):
        if run.start() > start:
            total += count(text[start : run.start()])
        total += count(run[0])
        start = run.end()
    return total + count(text[start:]) if start < len(text) else total


class Counters:
    """What has been loaded."""

    def __init__(self) -> None:
        self._loaded: dict[TokenizerSource, Count] = {}

    def run(self, job: Job) -> Counted:
        """Do a job. One that fails, for whatever reason, has no tokens."""
        try:
            count = self._loaded.get(job.source)
            if count is None:
                count = self._loaded[job.source] = load(job.source)
            texts = texts_of(job.messages, job.others, job.prompt)
            return Counted(job.number, sum(count_text(text, count) for text in texts))
        except Exception as error:
            _log.warning("counting failed: %s", type(error).__name__)  # its text might quote a prompt
        except BaseException as error:  # what a panic of a library becomes
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        return Counted(job.number, None)


def serve(jobs: BinaryIO, results: BinaryIO) -> None:
    """Do jobs until there are no more."""
    counters = Counters()
    decode, encode = msgspec.msgpack.Decoder(Job).decode, msgspec.msgpack.encode
    while len(head := jobs.read(LENGTH.size)) == LENGTH.size:
        body = jobs.read(LENGTH.unpack(head)[0])
        result = encode(counters.run(decode(body)))
        results.write(LENGTH.pack(len(result)) + result)
        results.flush()


def main() -> int:
    """Entry point of the process."""
    logging.basicConfig(format="%(asctime)s %(levelname)s counting: %(message)s")
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
