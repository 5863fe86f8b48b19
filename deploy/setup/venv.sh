#!/bin/sh
# Makes .venv, or brings it up to date: `venv.sh runtime` installs what the product needs, `venv.sh dev` what the tests need too.
# Does nothing when the last installation was made for the same pyproject.toml, in the same place, with the same Python.
set -eu
cd -- "$(dirname -- "$0")/../.."

# Another active environment must not leak into this one.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

python=.venv/bin/python

fail() {
    printf 'ridgeline: %s\n' "$@" >&2
    exit 1
}

# Started, not only found: a shim on the PATH may stand for a version that is not installed.
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
makes_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Prints the first Python that is new enough and can make environments; without one, the first that is new enough.
choose_python() {
    fallback=
    for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
        if new_enough "$candidate"; then
            if makes_venvs "$candidate"; then
                echo "$candidate"
                return
            fi
            fallback=${fallback:-$candidate}
        fi
    done
    echo "$fallback"
}

make_venv() {
    base=$(choose_python)
    if [ -z "$base" ]; then
        found=$(version_of python3 || echo none)
        fail "Python 3.11 or newer is needed, and python3 is: $found." \
            "Looked for python3 and python3.11 to python3.14 on the PATH."
    fi
    if ! makes_venvs "$base"; then
        package=python$(version_of "$base")-venv
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            deploy/setup/debian.sh "$package" || true
        fi
        makes_venvs "$base" || fail "$base cannot make virtual environments: its module venv or ensurepip is missing." \
            "On Debian and Ubuntu: apt-get install $package"
    fi
    echo "ridgeline: making .venv with $base ($(version_of "$base"))"
    "$base" -m venv --clear .venv
}

state() { echo "$(cksum <pyproject.toml) $("$python" -VV) $(pwd -P)"; }
is_current() { [ -f ".venv/ridgeline-$1" ] && [ "$(cat ".venv/ridgeline-$1")" = "$(state)" ]; }

case "${1:-}" in
runtime) requirement=. ;;
dev) requirement='.[dev]' ;;
*) fail "usage: venv.sh runtime|dev" ;;
esac

if ! new_enough "$python" || ! "$python" -m pip --version >/dev/null 2>&1; then
    make_venv
fi
if is_current "$1" || is_current dev; then # what the tests need contains what the product needs
    exit 0
fi
echo "ridgeline: installing ($1); the first time takes about a minute"
"$python" -m pip install --quiet --editable "$requirement"
state >".venv/ridgeline-$1"
