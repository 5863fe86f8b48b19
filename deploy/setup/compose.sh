#!/bin/sh
# Sees to a `docker compose` that checks files (no engine is needed for that). Without one on the machine, that of a newer Debian is
# unpacked into .cache; nothing is installed. Fails where neither can be had.
set -eu
cd -- "$(dirname -- "$0")/../.."

plugin=.cache/docker-compose/docker-compose
if [ -x "$plugin" ] || docker compose version >/dev/null 2>&1; then
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg >/dev/null || exit 1
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keys" ] || exit 1
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1) # this machine's own
[ -n "$mirror" ] || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
echo "deb [signed-by=$keys] $mirror trixie main" >"$work/sources.list"
apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$work/lists" \
        -o Dir::Cache="$work/cache" -o Dir::State::status="$work/status" -o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
}
echo "ridgeline: fetching docker compose of Debian trixie"
apt update
(cd "$work" && apt download docker-compose)
dpkg -x "$work"/docker-compose_*.deb "$work/unpacked"
mkdir -p "${plugin%/*}"
mv "$work/unpacked/usr/libexec/docker/cli-plugins/docker-compose" "$plugin.new"
"$plugin.new" version
mv "$plugin.new" "$plugin"
