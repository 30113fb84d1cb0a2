#!/usr/bin/env bash
# Checks the Kubernetes operator: operator.sh [--control-plane], called by ./run operator. Formats, go vet, unit tests;
# the tests against a real API server where it is built. --control-plane builds it first.
set -euo pipefail
source tools/setup.sh

BINARIES=(etcd kube-apiserver)

control_plane_dir() {
  local sum
  sum=$(cd operator/test/controlplane && cat go.mod go.sum | sha256sum)
  echo "$PHALANX_CACHE/controlplane/${sum:0:16}"
}

source_of() {
  case "$1" in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    *) echo "k8s.io/kubernetes/cmd/$1" ;;
  esac
}

built() {
  local name
  for name in "${BINARIES[@]}"; do [[ -x "$(control_plane_dir)/$name" ]] || return 1; done
}

build_control_plane() {
  local name
  for name in "${BINARIES[@]}"; do
    if [[ -x "$(control_plane_dir)/$name" ]]; then continue; fi
    say "building $name: minutes"
    timed "$name" go build -C operator/test/controlplane -o "$(control_plane_dir)/$name" "$(source_of "$name")"
  done
}

check() {
  local unformatted
  unformatted=$(gofmt -l operator)
  [[ -z $unformatted ]] || die "gofmt -w would change: ${unformatted//$'\n'/ }"
  cd operator
  timed "vet" go vet -tags apiserver ./...
  timed "unit tests" go test ./...
}

command -v go >/dev/null || die "no go on PATH; the operator needs Go 1.26 or newer"
check_places
case "${1:-}" in
  --control-plane) build_control_plane ;;
  "") ;;
  *) die "operator: '$1' is no option; expected --control-plane or nothing" ;;
esac
(check)
if built; then
  timed "API server tests" go test -C operator -tags apiserver -count=1 -timeout 20m -v ./test/apiserver |
    grep -E '^(---|===|ok|FAIL|PASS|panic)|figure:|first worker' | grep -vE '=== (RUN|NAME)'
else
  say "not run: the tests against an API server; ./run operator --control-plane builds one, a quarter of an hour"
fi
