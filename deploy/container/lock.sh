#!/bin/sh
# Locks what goes into the image, with hashes, from pyproject.toml. Needs uv (pip install uv). Arguments reach it (--upgrade).
set -eu
cd -- "$(dirname -- "$0")/../.."
export UV_CUSTOM_COMPILE_COMMAND=deploy/container/lock.sh

compile() { uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate "$@"; }

compile pyproject.toml --extra counting --extra quotas -o deploy/container/requirements.lock "$@"
printf '%s\n' 'setuptools>=77' 'Cython>=3.1' | compile - -o deploy/container/build.lock "$@"
