#!/bin/sh
# Fetches the Prometheus and Alertmanager of a newer Debian into .cache/prometheus, unpacked and not installed, so that rules
# are tested on two versions. Prints what it got. Where it cannot be had it says so and is no failure: the installed version is
# tested in any case.
set -u
cd -- "$(dirname -- "$0")/../.."

suite=${1:-sid}
cache=$PWD/.cache/prometheus
if [ -x "$cache/usr/bin/promtool" ]; then
    exit 0
fi
give_up() {
    echo "ridgeline: rules are not tested on a newer Prometheus: $1" >&2
    exit 0
}
command -v apt-get >/dev/null && command -v dpkg >/dev/null || give_up "this is no Debian"

work=$cache.new
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/root"
: >"$work/status"
# From where this system's own packages come.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -1)
[ -n "$mirror" ] || give_up "no package lists: apt-get update first"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
apt() {
    (cd "$work" && apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work" -o Dir::State::status="$work/status" -o APT::Sandbox::User=root "$@") >"$work/log" 2>&1
}
apt update || give_up "$suite cannot be reached (see $work/log)"
for package in prometheus prometheus-alertmanager promtool; do
    apt download "$package" || [ "$package" = promtool ] || give_up "$package of $suite cannot be fetched (see $work/log)"
done
for file in "$work"/*.deb; do
    dpkg -x "$file" "$work/root" || give_up "$file cannot be unpacked"
done
"$work/root/usr/bin/promtool" --version >"$work/version" 2>&1 || give_up "it does not run here"
rm -rf "$cache"
mv "$work/root" "$cache"
echo "ridgeline: rules are tested on $(head -1 "$work/version") too"
rm -rf "$work"
