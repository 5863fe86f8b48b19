#!/bin/sh
# Runs all tests: unit tests in two processes, then, alone on the machine, what measures time or starts real programs.
# Arguments reach pytest. A part in which they select nothing is no failure, unless they select nothing in both.
set -u
cd -- "$(dirname -- "$0")/../.."

.venv/bin/python -m pytest --part=units -n 2 --dist worksteal "$@"
units=$?
if [ "$units" != 0 ] && [ "$units" != 5 ]; then
    echo "ridgeline: unit tests failed (status $units); the others follow" >&2
fi
.venv/bin/python -m pytest --part=apart "$@"
apart=$?

if [ "$units" = 5 ]; then # nothing selected
    exit "$apart"
fi
if [ "$units" = 0 ] && [ "$apart" = 5 ]; then
    exit 0
fi
[ "$units" = 0 ] || exit "$units"
exit "$apart"
