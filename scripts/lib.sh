# Sourced by the other scripts.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOOLS=$ROOT/.tools
export PATH=$TOOLS/bin:$ROOT/bin:/usr/sbin:/sbin:$PATH

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# quiet NAME COMMAND...: one line when it works, the log when it does not.
quiet() {
	local name=$1 log began=$SECONDS
	shift
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		die "$name failed"
	fi
	rm -f "$log"
	say "$name ($((SECONDS - began)) s)"
}

# free_port: a port of the loopback that nobody listens on.
free_port() {
	local p
	while :; do
		p=$((20000 + RANDOM % 20000))
		(exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p"; return; }
	done
}

# await WHAT SECONDS COMMAND...: until the command works.
await() {
	local what=$1 end=$((SECONDS + $2))
	shift 2
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || die "$what did not come"
		sleep 0.05
	done
}
