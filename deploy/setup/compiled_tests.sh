#!/bin/sh
# Runs the tests of the serving path against the copy that `make compiled` has made: the code that the image runs.
# Arguments reach pytest.
set -eu
cd -- "$(dirname -- "$0")/../.."
top=$(pwd)
cd .cache/compiled

# The tests come along, as they look for the product from where they are; the rest of the checkout is only read.
for entry in "$top"/* "$top/.venv" "$top/.cache"; do
    name=${entry##*/}
    [ -e "$name" ] || [ "$name" = tests ] || ln -s "$entry" "$name"
done
rm -rf tests
cp -R "$top/tests" .

export PYTHONPATH="$PWD"
how=$(.venv/bin/python -c 'from proxy.built import serving_path; print(serving_path())')
[ "$how" = compiled ] || {
    echo "ridgeline: .cache/compiled is $how; make it anew: make compiled" >&2
    exit 1
}
.venv/bin/python -m pytest -q --part=units -n 2 --dist worksteal tests/proxy/serving tests/proxy/upstream tests/proxy/wire \
    tests/routing tests/telemetry "$@"
.venv/bin/python -m pytest -q --part=integration -n 2 --dist loadfile --reruns 1 \
    tests/integration/test_connections.py tests/integration/test_client_framing.py tests/integration/test_what_passes.py \
    tests/integration/test_outcomes.py tests/integration/test_stopping.py tests/integration/test_captures.py "$@"
