# Sourced by the tests beside it: a work folder with a small run.toml, and `complain`.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MILLRACE_CACHE=$work/cache
cd "$work" || exit 1
failed=0

complain() {
  echo "FAILED: $1" >&2
  failed=$((failed + 1))
}

finish() {
  ((failed == 0)) || { echo "$failed checks failed" >&2; exit 1; }
  echo "$1"
}

cat > run.toml <<'TOML'
[model]
name = "mlp"
depth = 3
width = 16
[data]
name = "synthetic"
samples = 200
test_samples = 50
height = 4
width = 4
classes = 4
[parallel]
workers = 2
schedule = "pipedream"
[train]
epochs = 2
batch = 20
TOML
