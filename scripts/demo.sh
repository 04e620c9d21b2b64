#!/usr/bin/env bash
# A real image becomes a running sandbox, and nothing is left of it.
# IMAGE=reference uses that image; ROLES=split runs three processes.
. "$(dirname "$0")/lib.sh"

work=$(mktemp -d /tmp/paddock-demo-XXXXXX)
data=$work/data
pids=()
stop() {
	local pid end=$((SECONDS + 30))
	for pid in ${pids[@]+"${pids[@]}"}; do kill -TERM "$pid" 2>/dev/null || true; done
	for pid in ${pids[@]+"${pids[@]}"}; do
		while kill -0 "$pid" 2>/dev/null; do
			[ $SECONDS -lt $end ] || { kill -KILL "$pid" 2>/dev/null || true; break; }
			sleep 0.05
		done
		wait "$pid" 2>/dev/null || true
	done
	pids=()
}
failed() {
	local status=$?
	trap - EXIT
	stop
	if [ $status != 0 ]; then
		say "the last words of the roles:"
		tail -n 20 "$work"/*.log >&2 2>/dev/null || true
	fi
	rm -rf "$work"
	exit $status
}
trap failed EXIT

start() { # NAME COMMAND...
	local name=$1
	shift
	"$@" >"$work/$name.log" 2>&1 &
	pids+=($!)
}

image=${IMAGE:-}
if [ -z "$image" ]; then
	tar=$("$ROOT/scripts/image.sh")
	port=$(free_port)
	cat >"$work/registry.yml" <<-Y
		version: 0.1
		storage: {filesystem: {rootdirectory: $work/registry}}
		http: {addr: 127.0.0.1:$port}
	Y
	start registry docker-registry serve "$work/registry.yml"
	await "the registry" 10 bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
	image=127.0.0.1:$port/debian-python:demo
	quiet "push $image" "$ROOT/bin/pushimage" "$tar" "$image"
fi

master=127.0.0.1:$(free_port) centre=127.0.0.1:$(free_port)
export PADDOCK_MASTER_LISTEN=$master CUBE_TEMPLATE_CENTER_LISTEN=$centre PADDOCK_CUBELET_LISTEN=127.0.0.1:$(free_port) PADDOCK_CUBELET_METRICS_LISTEN=127.0.0.1:$(free_port)
export CUBE_TEMPLATE_CENTER_ADDR=http://$centre PADDOCK_ON_STOP=kill PADDOCK_DATA_DIR=$data
if [ "${ROLES:-up}" = split ]; then
	for role in master templatecenter cubelet; do start $role paddock $role; done
else
	start up paddock up
fi
await "the master" 20 test -s "$data/cli.json"
healthy() { paddock host list -o json 2>/dev/null | grep -q '"health": "healthy"'; }
await "a healthy host" 20 healthy

say "image $image becomes a template"
paddock tpl create-from-image --image "$image" --alias demo --writable-layer-size 1Gi >"$work/job.txt"
say "a sandbox of it"
paddock sandbox create demo -o json >"$work/sandbox.json"
id=$(sed -n 's/^  "sandbox_id": "\(.*\)",*$/\1/p' "$work/sandbox.json" | head -n 1)
create=$(sed -n 's/.*"cube-e2e": "\(.*\)".*/\1/p' "$work/sandbox.json")

timed() { # the milliseconds of a command, into $ms
	local a b
	a=$(date +%s%N)
	"$@" >"$work/out"
	b=$(date +%s%N)
	ms=$(((b - a) / 1000000))
}
timed paddock sandbox exec "$id" -- sh -c 'echo "hello from $(uname -n), a $(. /etc/os-release; echo "$PRETTY_NAME")"'
shell=$ms
cat "$work/out"
timed paddock sandbox exec "$id" -- python3 -c 'import sys; print("python", sys.version.split()[0], "says", 6 * 7)'
python=$ms
cat "$work/out"
grep -q 'says 42' "$work/out" || die "python did not say 42"
echo "written at $(date -u +%FT%TZ)" >"$work/in.txt"
paddock sandbox cp "$work/in.txt" "$id:/root/notes/hello.txt"
paddock sandbox cp "$id:/root/notes/hello.txt" "$work/back.txt"
cmp "$work/in.txt" "$work/back.txt" || die "the file came back different"

printf '\n%-22s %s\n' phase time
sed -n 's/^\(pulling\|unpacking\|building_ext4\|storing\|distributing\|registering\): *\(.*\)$/\1 \2/p' "$work/job.txt" | while read -r p t; do printf '%-22s %s\n' "$p" "$t"; done
printf '%-22s %s ms\n%-22s %s ms\n%-22s %s ms\n\n' 'create to usable' "$create" 'exec shell (whole CLI)' "$shell" 'exec python (whole CLI)' "$python"

paddock sandbox delete "$id"
paddock tpl delete demo
# The bytes go after the answer, by the outbox.
# A directory of artifacts keeps its name.
bytes_gone() { [ -z "$(find "$data/artifacts" -type f ! -name .store-id)" ]; }
await "the end of the artifact's bytes" 15 bytes_gone
stop
trap - EXIT

# Nothing of it may remain.
left=$(
	grep " $work" /proc/self/mountinfo || true
	losetup -a 2>/dev/null | grep "$work" || true
	grep -laFf <(printf "%s" "$work") /proc/[0-9]*/cmdline 2>/dev/null || true
	tag=$(printf '%s' "$data/cubelet" | sha256sum | cut -c1-4)
	ls /run/netns 2>/dev/null | grep "paddock-$tag" || true
	ip -o link 2>/dev/null | grep "pd$tag-" || true
	find /sys/fs/cgroup -maxdepth 2 -name "paddock-$tag" 2>/dev/null || true
	nft list tables 2>/dev/null | grep "paddock_$tag" || true
	find "$data/cubelet" "$data/artifacts" "$data/work" -type f ! -name .store-id ! -path "$data/cubelet/revision" 2>/dev/null || true
)
rm -rf "$work"
[ -z "$left" ] || die "left behind: $left"
say "done; nothing is left behind"
