#!/bin/sh
# Installs the Debian packages named, as root, without starting the services that some of them bring.
set -eu

quiet_services=/usr/sbin/policy-rc.d # asked by Debian's installer before it starts a service; 101 says no
if [ ! -e "$quiet_services" ]; then
    trap 'rm -f "$quiet_services"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$quiet_services"
    chmod 755 "$quiet_services"
fi

export DEBIAN_FRONTEND=noninteractive
echo "ridgeline: installing Debian packages: $*"
apt-get update -qq
apt-get install -qq -y --no-install-recommends "$@" >/dev/null
