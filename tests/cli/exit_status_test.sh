#!/usr/bin/env bash
# Malformed inputs of every kind: each ends the program with status 2 and one line on stderr (or,
# with --json, one JSON object on stdout), within milliseconds, and leaves nothing behind.
set -uo pipefail
cd "$(dirname "$0")/../.."
data=$PWD/tests/cli/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/in" "$work/cwd"
cd "$work/cwd" || exit 1
failed=0

complain() {
  echo "FAILED: $1" >&2
  failed=$((failed + 1))
}

# refused NAME PATTERN ARGUMENTS...: PATTERN is a grep -E expression that the line must match.
refused() {
  local name=$1 pattern=$2 status
  shift 2
  "$MILLRACE" "$@" > "$work/out" 2> "$work/err"
  status=$?
  [[ $status == 2 ]] || complain "$name: status $status, expected 2"
  [[ ! -s $work/out ]] || complain "$name: printed on stdout: $(head -c 200 "$work/out")"
  [[ $(wc -l < "$work/err") == 1 ]] || complain "$name: expected one line on stderr, found: $(cat "$work/err")"
  grep -qE "^millrace: .*($pattern)" "$work/err" || complain "$name: expected \"$pattern\" in: $(cat "$work/err")"

  "$MILLRACE" "$@" --json > "$work/out" 2> "$work/err"
  status=$?
  [[ $status == 2 ]] || complain "$name --json: status $status, expected 2"
  [[ ! -s $work/err ]] || complain "$name --json: printed on stderr: $(head -c 200 "$work/err")"
  grep -qE '^\{"error": \{"code": "[a-z-]+", "message": ".+\}\}$' "$work/out" ||
    complain "$name --json: no JSON error: $(head -c 200 "$work/out")"
  [[ -z $(ls -A) ]] || complain "$name: left files behind: $(ls -A)"
}

# edit FILE NEW SED_EXPRESSION: a copy of a good input with one thing spoilt. Fails if nothing changed.
edit() {
  sed -E "$3" "$data/$1" > "$work/in/$2"
  ! cmp -s "$data/$1" "$work/in/$2" || complain "the edit of $2 changed nothing"
}

plan() { refused "$1" "$2" plan "$work/in/$3" --cluster "$data/cluster.toml" -o plan.json; }
simulate() { refused "$1" "$2" simulate "$work/in/$3" --profile "$data/profile.json" --cluster "$data/cluster.toml" --trace t.json; }
train() { refused "$1" "$2" train "$work/in/$3"; }

# Profiles.
edit profile.json cyclic.json 's/^\}$/, "edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}, {"from": "c", "to": "a"}, {"from": "c", "to": "d"}]}/'
plan "cyclic profile" 'cyclic.json.*edges: .*cycle.*`a`' cyclic.json
edit profile.json nan.json '/"name": "b"/ s/"forward_s": 0.004/"forward_s": NaN/'
plan "NaN in a profile" 'nan.json:8' nan.json
edit profile.json negative.json '/"name": "b"/ s/"forward_s": 0.004/"forward_s": -0.004/'
plan "negative seconds" 'negative.json:8: layers\[1\].forward_s: .*-0.004' negative.json
edit profile.json infinite.json '/"name": "b"/ s/"forward_s": 0.004/"forward_s": 1e999/'
plan "infinite seconds" 'infinite.json:8' infinite.json
edit profile.json duplicate.json 's/"name": "b"/"name": "a"/'
plan "duplicate layer" 'duplicate.json:8: layers\[1\].name: .*twice' duplicate.json
edit profile.json edge.json 's/^\}$/, "edges": [{"from": "a", "to": "z"}]}/'
plan "unknown layer in an edge" 'edge.json.*no layer is called `z`' edge.json
edit profile.json typo.json 's/"stash_bytes"/"stahs_bytes"/'
plan "misspelt key in a profile" 'typo.json:7: .*stash_bytes' typo.json
edit profile.json comma.json 's/^  "model": "four",/  "model": "four",,/'
plan "two commas in a profile" 'comma.json:4' comma.json
edit profile.json version.json 's/"version": 1/"version": 99/'
plan "profile of another version" 'version.json:3: version: expected version 1, found 99' version.json
head -c 300 "$data/profile.json" > "$work/in/half.json"
plan "half a profile" 'half.json:[0-9]+' half.json
cp "$data/plan.json" "$work/in/plan.json"
plan "a plan in place of a profile" 'expected a profile file' plan.json
plan "missing profile" 'no/such.json: cannot open' no/such.json
: > "$work/in/empty.json"
plan "empty profile" 'empty.json: .*empty' empty.json
refused "a folder for a profile" 'in: ' plan "$work/in" --cluster "$data/cluster.toml"

# Clusters.
cluster() { refused "$1" "$2" plan "$data/profile.json" --cluster "$work/in/$3" -o plan.json; }
edit cluster.toml zero.toml 's/bandwidth_bytes_per_s = 1e9/bandwidth_bytes_per_s = 0/'
cluster "no bandwidth" 'zero.toml:4: level\[0\].bandwidth_bytes_per_s' zero.toml
edit cluster.toml unit.toml 's/bandwidth_bytes_per_s = 1e9/bandwidth_gbps = 8/'
cluster "another unit" 'unit.toml:[0-9]+: .*bandwidth' unit.toml
cluster "missing cluster" 'no/such.toml: cannot open' no/such.toml

# Requests that no planner can meet.
request() { local name=$1 pattern=$2; shift 2; refused "$name" "$pattern" plan "$data/profile.json" --cluster "$data/cluster.toml" -o plan.json "$@"; }
request "more stages than layers" '5 stages of a model of 4 layers' --stages 5 --workers 4
request "more stages than workers" '3 stages on 2 workers' --stages 3 --workers 2
request "zero workers" 'found `0`' --workers 0
request "zero stages" 'found `0`' --stages 0
request "more workers than devices" 'the cluster has 4' --workers 5
request "too many replicas" 'needs 8 workers' --stages 4 --replicas 2
request "unknown planner" 'did you mean `pipedream`' --planner pipedreem
request "unknown schedule" 'did you mean `1f1b`' --schedule 1f2b
request "unknown rule" 'bsp' --rule bps
request "unknown option" 'did you mean `--stages`' --stagse 2

# Plans by hand.
edit plan.json gap.json 's/"c", "d"/"d"/'
simulate "a gap" 'gap.json: .*layer `c` is in no stage' gap.json
edit plan.json overlap.json 's/"c", "d"/"b", "c", "d"/'
simulate "an overlap" 'overlap.json:9: .*layer `b` stands twice' overlap.json
edit plan.json disorder.json 's/"c", "d"/"d", "c"/'
simulate "layers out of order" 'disorder.json: .*`c` comes after `d`' disorder.json
edit plan.json stranger.json 's/"c", "d"/"c", "dd"/'
simulate "an unknown layer" 'stranger.json: .*no layer `dd`' stranger.json
edit plan.json twice.json 's/"ranks": \[1\]/"ranks": [1, 1]/'
simulate "a rank twice" 'twice.json:9: .*rank 1 stands twice in stage 1' twice.json
edit plan.json shared.json 's/"ranks": \[1\]/"ranks": [1, 0]/'
simulate "a rank in two stages of a schedule that runs one" 'shared.json: .*1f1b runs one stage a rank' shared.json
edit plan.json beyond.json 's/"ranks": \[1\]/"ranks": [2]/'
simulate "a rank beyond the workers" 'beyond.json:[0-9]+: .*rank 2' beyond.json
edit plan.json none.json 's/"ranks": \[1\]/"ranks": []/'
simulate "a stage without ranks" 'none.json:9: .*no ranks' none.json
edit plan.json name.json 's/"1f1b"/"1f2b"/'
simulate "an unknown schedule in a plan" 'name.json: .*did you mean `1f1b`' name.json
edit plan.json noflush.json 's/"1f1b"/"pipedream"/'
simulate "microbatches without a flush" 'noflush.json: .*one microbatch a step' noflush.json
edit plan.json quote.json 's/"schedule"/schedule/'
simulate "an unquoted key" 'quote.json:4' quote.json
edit plan.json remark.json 's/"schedule"/# by hand\n  "schedule"/'
simulate "a comment in JSON" 'remark.json:[0-9]+' remark.json
edit plan.json missing.json 's/"ranks": \[1\]/"ranks": [2]/; s/"workers": 2/"workers": 3/'
simulate "a rank in no stage" 'missing.json:[0-9]+: stages: rank 1 of the 3 workers is in no stage' missing.json
edit plan.json negative.json 's/"ranks": \[1\]/"ranks": [-1]/'
simulate "a negative rank" 'negative.json:9: .*from 0 up, found -1' negative.json
edit plan.json depth.json 's/"ranks": \[1\]/"ranks": [1], "depth": -1/'
simulate "a key that a stage has not" 'depth.json:9: stages\[1\].depth: unknown key' depth.json
simulate "missing plan" 'no/such.json: cannot open' no/such.json
refused "microbatches that the batch does not hold" '3 ' simulate "$data/plan.json" --profile "$data/profile.json" --cluster "$data/cluster.toml" --batch 3

# Schedules.
refused "ranks that are no number" 'found `four`' schedule --name 1f1b --ranks four
refused "no ranks" 'needs --ranks' schedule --name 1f1b
refused "another picture" 'pdf. is not offered.*text, svg or html' schedule --name 1f1b --ranks 2 --draw pdf
refused "a picture without a file" 'give both' simulate --name 1f1b --ranks 2 --draw svg
refused "a text picture of a simulation" 'text. is not offered.*svg or html' simulate --name 1f1b --ranks 2 --draw text -o x
refused "an unfitting policy" 'does not take weight policy' schedule --name gpipe --ranks 2 --policy stash
refused "slots without a colon" 'two numbers above 0' simulate --name 1f1b --ranks 2 --slots 12
refused "nothing to simulate" 'give a plan file' simulate
refused "an unknown kind" 'did you mean `schedules`' list scheduls
refused "a folder that is no run" 'holds no config.toml' report "$work/in"

# Layer graphs of PipeDream's profiler.
printf 'a -- Linear(1) -- forward_compute_time=fast\n' > "$work/in/graph.txt"
refused "a time that is no number" 'graph.txt:1: node `a`: forward_compute_time: .*found `fast`' profile --from "$work/in/graph.txt"
refused "a graph that is not there" 'no/such.txt: cannot open' profile --from no/such.txt
refused "nothing to profile" 'RUN is missing, or --from FILE' profile

# run.toml, checked by the light program before libtorch is loaded.
edit run.toml lr.toml 's/^lr = /learning_rte = /'
train "misspelt key" 'lr.toml:21: train.learning_rte: unknown key; did you mean `lr`' lr.toml
edit run.toml again.toml 's/^lr = .*/lr = 0.1\nlr = 0.2/'
train "duplicate key" 'again.toml:2[12]: ' again.toml
edit run.toml type.toml 's/^batch = .*/batch = "many"/'
train "text for a number" 'type.toml:20: train.batch: expected a whole number, found the text `many`' type.toml
edit run.toml minus.toml 's/^lr = .*/lr = -0.05/'
train "negative lr" 'minus.toml:21: train.lr: .*-0.05' minus.toml
edit run.toml nanlr.toml 's/^lr = .*/lr = nan/'
train "NaN lr" 'nanlr.toml:21: train.lr: .*finite' nanlr.toml
: > "$work/in/empty.toml"
train "empty file" 'empty.toml: .*empty' empty.toml
printf '[model]\nname = "ml\377p"\n' > "$work/in/bytes.toml"
train "not UTF-8" 'bytes.toml:2: .*UTF-8' bytes.toml
edit run.toml comma.toml 's/^lr = .*/lr = 0.05,/'
train "trailing comma" 'comma.toml:21' comma.toml
{ cat "$data/run.toml"; printf '[modle]\n'; head -c 10000000 /dev/zero | tr '\0' '#'; echo; } > "$work/in/large.toml"
train "10 MB with a misspelt table" 'large.toml:22: modle: unknown key; did you mean `model`' large.toml
edit run.toml model.toml 's/"mlp"/"mpl"/'
train "unknown model" 'model.toml:2: model.name: .*did you mean `mlp`' model.toml
edit run.toml fit.toml 's/^batch = .*/batch = 2/'
train "a batch smaller than its microbatches" 'fit.toml:20: train.batch: .*microbatches' fit.toml
train "missing run.toml" 'no/such.toml: cannot open' no/such.toml

# Processes.
refused "more processes than workers" '2 workers and 4 processes; add -n 4' train "$data/run.toml" --processes 4
refused "an engine without processes" 'add --processes N' train "$data/run.toml" --engine gloo
printf 'node1 slots=2\nnode2 slots=none\n' > "$work/in/hosts.txt"
refused "a wrong file of hosts" 'hosts.txt:2: .*found `slots=none`' train "$data/run.toml" --hosts "$work/in/hosts.txt"
refused "a setting that is none" 'no `=`' train "$data/run.toml" --set train.lr
refused "verify checks as well" 'minus.toml:21: train.lr' verify "$work/in/minus.toml"
refused "profile checks as well" 'minus.toml:21: train.lr' profile "$work/in/minus.toml"
refused "eval of nothing" 'found nothing there' eval no/such/run

((failed == 0)) || { echo "$failed checks failed" >&2; exit 1; }
echo "all refusals are right"
