#!/bin/sh
# Whether the serving path can be compiled here, as the image's build and `make test-compiled` do: a C compiler, the C library's
# headers, and those of each Python that the tests compile for. Prints what is missing, as program:Debian package:what is left out.
set -u
cd -- "$(dirname -- "$0")/../.."

part='the tests of the serving path as the image compiles it'
status=0
lacks() {
    echo "$1:$2:$part"
    status=1
}

command -v cc >/dev/null || lacks cc gcc
echo '#include <stdio.h>' | cc -E -x c - >/dev/null 2>&1 || lacks stdio.h libc6-dev
for python in .venv/bin/python /usr/bin/python3; do
    [ ! -x "$python" ] || "$python" -c '
import os, sysconfig
open(os.path.join(sysconfig.get_path("include"), "Python.h")).close()' 2>/dev/null || lacks "Python.h of $python" python3-dev
done
exit "$status"
