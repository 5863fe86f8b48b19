"""The proxies that are compared: where each is found, how it is configured, started and ended.

Each runs as its makers start it, in front of one worker; none is tuned beyond what forwarding a stream needs.
"""

# ruff: noqa: S603 -- the programs are named here or by the person who starts the benchmark

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

import yaml

from benchmarks.cost import tree_of
from benchmarks.tool import ROOT, pinned

GATEWAY = "ridgeline"
NAMES = ("nginx", "vllm-router", "sglang-router", "litellm", GATEWAY)
_LITELLM_SHARE = 0.02  # a request takes it some 20 ms: enough are left to tell, and a round stays within a minute

_KEY = "sk-test"  # what the tool sends
_START_SECONDS = 60.0
_END_SECONDS = 15.0
_NGINX = """\
daemon off; worker_processes 1; error_log /dev/null; pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_buffer_size 64m; client_max_body_size 64m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  upstream worker {{ server 127.0.0.1:{worker_port}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://worker; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


class ProxyStartError(Exception):
    """A proxy does not run or does not answer; the text says what it wrote last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one run of a proxy may use: ports on 127.0.0.1 and a fresh folder."""

    port: int  # where it has to listen
    worker_port: int
    spare_ports: tuple[int, int]  # for listeners of its own
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """One proxy that is installed."""

    name: str
    version: str
    command: Callable[[Place], list[str]]  # writes the configuration and says how to start it
    environ: Mapping[str, str] = field(default_factory=dict)  # beside the benchmark's own
    is_elsewhere: bool = False  # its modules are not those of this folder
    share: float = 1.0  # of the requests that others get

    def role_of(self, command_line: str) -> str:
        """What a process of its tree is for; the same for all of a proxy that has no parts."""
        module = re.search(r" -m proxy\.(supervisor|control|serving)(?:\.process)? ", f"{command_line} ")
        return module[1] if module else self.name


def find_proxies(names: list[str], router_folder: Path | None, processes: int) -> tuple[list[Proxy], list[str]]:
    """Return the proxies of these names, in this order, and the names of those that are not installed."""
    found: list[Proxy] = []
    missing: list[str] = []
    for name in names:
        proxy = _find(name, router_folder, processes)
        if proxy is None:
            missing.append(name)
        else:
            found.append(proxy)
    return found, missing


def _find(name: str, router_folder: Path | None, processes: int) -> Proxy | None:
    if name == GATEWAY:
        return Proxy(name=name, version=_gateway_version(), command=partial(_gateway, processes))
    if name == "nginx":
        program = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
        if program is None:
            return None
        return Proxy(name=name, version=_output([program, "-v"]).rpartition("/")[2], command=partial(_nginx, program))
    if name == "litellm":
        program = (router_folder and shutil.which(name, path=str(router_folder))) or shutil.which(name)
        if program is None:
            return None
        environ = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched
            "LITELLM_TELEMETRY": "False",  # or told
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it listens on loopback, and so does all else here
        }
        return Proxy(
            name=name,
            version=_router_version(name, Path(program)),
            command=partial(_litellm, program),
            environ=environ,
            share=_LITELLM_SHARE,
        )
    program = (router_folder and shutil.which(name, path=str(router_folder))) or shutil.which(name)
    if program is None:
        return None
    return Proxy(name=name, version=_router_version(name, Path(program)), command=partial(_router, name, program))


def _gateway(processes: int, place: Place, python: str = sys.executable) -> list[str]:
    observe, admin = place.spare_ports
    settings = {
        "listen": f"127.0.0.1:{place.port}",
        "observe_listen": f"127.0.0.1:{observe}",
        "admin_listen": f"127.0.0.1:{admin}",
        "keys": [{"name": "bench", "sha256": sha256(_KEY.encode()).hexdigest()}],
        "models": [{"name": "m", "workers": [f"http://127.0.0.1:{place.worker_port}"]}],
        "log": {"path": str(place.folder / "requests.jsonl")},
    }
    config = place.folder / "ridgeline.yaml"
    config.write_text(yaml.safe_dump(settings))
    return [python, "-m", "proxy.cli", "serve", "--config", str(config), "--processes", str(processes)]


def another_gateway(spec: str) -> Proxy:
    """The gateway by another interpreter: ``NAME=PYTHON``, or ``NAME=PYTHON,PATH`` with what PYTHONPATH is to be.

    Raises ValueError with what is wrong.
    """
    name, _, rest = spec.partition("=")
    python, _, path = rest.partition(",")
    program = shutil.which(python)
    if not name or name in NAMES or program is None:
        raise ValueError(f"{spec}: a name of its own and a Python, as in compiled=.venv/bin/python,.cache/compiled")
    version = _output([python, "-c", "import platform; print(*platform.python_build(), platform.python_version())"])
    return Proxy(
        name=name,
        version=f"{_gateway_version()}, Python {version}",
        command=partial(_gateway, 1, python=str(Path(program).absolute())),
        environ={"PYTHONPATH": os.pathsep.join(str(Path(part).absolute()) for part in path.split(os.pathsep) if part)},
        is_elsewhere=True,
    )


def _nginx(program: str, place: Place) -> list[str]:
    config = place.folder / "nginx.conf"
    config.write_text(_NGINX.format(port=place.port, worker_port=place.worker_port, folder=place.folder))
    return [program, "-c", str(config)]


def _router(name: str, program: str, place: Place) -> list[str]:
    metrics, _ = place.spare_ports
    worker = f"http://127.0.0.1:{place.worker_port}"
    launch = ["launch"] if name == "sglang-router" else []
    listeners = ["--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(metrics)]
    return [program, *launch, *listeners, "--worker-urls", worker]


def _litellm(program: str, place: Place) -> list[str]:
    parameters = {"model": "hosted_vllm/m", "api_base": f"http://127.0.0.1:{place.worker_port}/v1", "api_key": _KEY}
    config = place.folder / "litellm.yaml"
    config.write_text(yaml.safe_dump({"model_list": [{"model_name": "m", "litellm_params": parameters}]}))
    return [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)]


def new_place(folder: Path) -> Place:
    """Choose free ports. They are free now; nothing keeps them."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        port, worker_port, *spare = [server.getsockname()[1] for server in taken]
    return Place(port=port, worker_port=worker_port, spare_ports=(spare[0], spare[1]), folder=folder)


@contextmanager
def running(proxy: Proxy, place: Place, core: int) -> Iterator[int]:
    """Run a proxy for as long as the block lasts, which gets its process id once it answers. Raises `ProxyStartError`.

    The worker has to be there. At the end the proxy is told to stop, and what is left of its tree is killed.
    """
    log = place.folder / "proxy.log"
    with log.open("wb") as output, pinned(core):
        try:
            process = subprocess.Popen(
                proxy.command(place),
                cwd=place.folder if proxy.is_elsewhere else ROOT,
                env={**os.environ, **proxy.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the benchmark alone, which ends it in order
            )
        except OSError as error:
            raise ProxyStartError(f"cannot be started: {error.strerror}") from None
    try:
        _wait_for_answer(process, place.port, log)
        yield process.pid
    finally:
        _end(process)


def _wait_for_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(port):
        if process.poll() is not None:
            raise ProxyStartError(f"ended with code {process.returncode}: {_last_words(log)}")
        if time.monotonic() > deadline:
            raise ProxyStartError(f"gave no 200 within {_START_SECONDS:g} s: {_last_words(log)}")
        time.sleep(0.2)


def _answers(port: int) -> bool:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as connection:
        connection.settimeout(5)
        connection.sendall(head.encode() + body)
        return connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the first process, and SIGKILL to all of its tree that is left after a while."""
    handles: list[int] = []
    for pid in tree_of(process.pid) if process.poll() is None else []:
        with suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))  # keeps meaning this process, even when its number is used again
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    process.wait()


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-400:] or "it wrote nothing"


def _output(command: list[str]) -> str:
    """What a command says about itself, on either output; empty when it cannot be asked."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip() if done.returncode == 0 else ""


def _gateway_version() -> str:
    commit = _output(["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
    return f"commit {commit}" if commit else "commit unknown"


def _router_version(name: str, program: Path) -> str:
    """The version of the distribution that brought a script, asked of the script's own interpreter."""
    interpreter = program.resolve().with_name("python3")
    question = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return _output([str(interpreter), "-c", question, name]) or "version unknown"
