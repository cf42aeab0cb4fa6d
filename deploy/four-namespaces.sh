#!/bin/sh
# A rehearsal on a network: a server and three sites in four network namespaces, connected by a bridge, over mutual TLS.
# Ends with OK if every site's weights have the same sha256 as after `fedal run` in one process. Needs root and iproute2.
#
#   sudo deploy/four-namespaces.sh [CONFIG]
#
# CONFIG describes a federation of three clients (default: configs/federation.toml). The script uses $FEDAL, else `fedal`
# from PATH. It writes to a temporary folder, and removes the folder and the namespaces at the end.
set -eu

config=$(realpath "${1:-$(dirname "$0")/../configs/federation.toml}")
fedal=$(command -v "${FEDAL:-fedal}") || { echo "error: no fedal in PATH. Set FEDAL=/path/to/fedal." >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "error: network namespaces need root. Try: sudo FEDAL=$fedal $0" >&2; exit 2; }
command -v ip >/dev/null || { echo "error: command ip not found. Install iproute2." >&2; exit 2; }

sites="client-00 client-01 client-02"
tag=fedal-$$
folder=$(mktemp -d)
pids=""

clean() {
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    for name in server $sites switch; do ip netns del "$tag-$name" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

# One namespace for the bridge and one for each process: 10.77.0.1 is the server, .10, .11, .12 are the sites. Nothing
# connects them to the host.
ip netns add "$tag-switch"
ip -n "$tag-switch" link add bridge type bridge
ip -n "$tag-switch" link set bridge up
plug() {
    ip netns add "$tag-$1"
    ip -n "$tag-switch" link add "$1" type veth peer name eth0 netns "$tag-$1"
    ip -n "$tag-switch" link set "$1" master bridge up
    ip -n "$tag-$1" address add "$2/24" dev eth0
    ip -n "$tag-$1" link set eth0 up
    ip -n "$tag-$1" link set lo up
}
plug server 10.77.0.1
number=10
for site in $sites; do plug "$site" 10.77.0.$number; number=$((number + 1)); done

cd "$folder"
sed 's/^listen *=.*/listen = "10.77.0.1:7443"/' "$config" >federation.toml
"$fedal" certs all --config federation.toml --host 10.77.0.1 >/dev/null
"$fedal" export-sites --config federation.toml --out sites >/dev/null

ip netns exec "$tag-server" "$fedal" serve --config federation.toml 2>server.log &
server=$!
pids=$server
for site in $sites; do
    ip netns exec "$tag-$site" "$fedal" join --server 10.77.0.1:7443 --name "$site" --invitation "certs/$site" \
        --data "sites/$site.npz" --save "trained/$site.safetensors" 2>"$site.log" &
    pids="$pids $!"
done
"$fedal" run --config federation.toml --quiet --out alone
for pid in $pids; do
    wait "$pid" || { echo "error: a process failed. The last lines of the logs:" >&2; tail -n 3 ./*.log >&2; exit 1; }
done

grep -h joined client-*.log
(cd alone/models && sha256sum ./*.safetensors) >alone.sha256
(cd trained && sha256sum --check ../alone.sha256)
