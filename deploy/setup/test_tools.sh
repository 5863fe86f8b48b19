#!/bin/sh
# Sees to the real programs that some tests use. Installs what is missing where that is allowed (root, apt-get); otherwise
# says what will be left out, which is a failure with REQUIRE_REAL=1.
set -eu
cd -- "$(dirname -- "$0")/../.."

if ! deploy/setup/vocabularies.sh; then
    echo "ridgeline: LEFT OUT: the tests of the token estimate (the vocabularies could not be fetched)" >&2
    if [ "${REQUIRE_REAL:-}" = 1 ]; then
        echo "ridgeline: REQUIRE_REAL=1 allows no omission" >&2
        exit 1
    fi
fi

deploy/setup/newer_prometheus.sh

if ! deploy/setup/compose.sh; then
    echo "ridgeline: LEFT OUT: docker compose's own reading of deploy/compose (the plugin could not be fetched)" >&2
    if [ "${REQUIRE_REAL:-}" = 1 ]; then
        echo "ridgeline: REQUIRE_REAL=1 allows no omission" >&2
        exit 1
    fi
fi

# program:Debian package:what is left out without it
tools='
promtool:prometheus:the checks of the metrics page, of the alert rules and of what dashboards ask
prometheus-alertmanager:prometheus-alertmanager:the way of an alert from a fault to its receiver
chromium:chromium:the tests of the live page in a browser
nginx:nginx-light:streams through nginx
systemd-analyze:systemd:the check of the systemd unit
setpriv:util-linux:the gateway as a user without rights
unshare:util-linux:volumes that are full or read-only, links that swallow packets
ip:iproute2:links that swallow packets
redis-server:redis-server:quotas that several gateways share
faketime:faketime:a wall clock that is set while the gateway runs
jq:jq:the commands of the how-to pages
curl:curl:the commands of the how-to pages
'

missing() {
    echo "$tools" | while IFS=: read -r program package part; do
        if [ -n "$program" ] && ! command -v "$program" >/dev/null; then
            echo "$program:$package:$part"
        fi
    done
    deploy/setup/can_compile.sh || :
}

if [ -z "$(missing)" ]; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2046  # one word a package
    deploy/setup/debian.sh $(missing | cut -d: -f2 | sort -u) || echo "ridgeline: the installation failed" >&2
fi
missing | while IFS=: read -r program package part; do
    echo "ridgeline: LEFT OUT: $part ($program is missing; Debian package: $package)" >&2
done
if [ -n "$(missing)" ] && [ "${REQUIRE_REAL:-}" = 1 ]; then
    echo "ridgeline: REQUIRE_REAL=1 allows no omission" >&2
    exit 1
fi
