#!/usr/bin/env bash
# Checks the Kubernetes operator, called by ./run operator and ./run test: operator.sh [PART] [--junit FILE].
#   --unit            gofmt, go vet, unit tests
#   --api-server      the tests against a real API server; the first time it is built: a quarter of an hour
#   --if-built        the same where it is built
#   --control-plane   both
# Without a part: unit tests, and the others where the API server is built.
set -euo pipefail
source tools/setup.sh

BINARIES=(etcd kube-apiserver kube-scheduler kube-controller-manager)
JUNIT=""

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

is_built() {
  local name
  for name in "${BINARIES[@]}"; do [[ -x "$(control_plane_dir)/$name" ]] || return 1; done
}

# One clone builds, others wait; a program appears by rename, complete or not at all.
build_control_plane() {
  local name folder lock
  folder=$(control_plane_dir)
  mkdir -p "$folder"
  exec {lock}>"$folder/.lock"
  flock "$lock"
  for name in "${BINARIES[@]}"; do
    if [[ -x $folder/$name ]]; then continue; fi
    say "building $name: minutes"
    timed "$name" go build -C operator/test/controlplane -o "$folder/.$name.new" "$(source_of "$name")"
    mv -f "$folder/.$name.new" "$folder/$name"
  done
  exec {lock}>&-
}

# go_test ARGUMENTS...: with a report where one is asked for.
go_test() {
  if [[ -n $JUNIT ]]; then
    (cd operator && python3 ../tools/suite/gotest.py --junit "$JUNIT" "$@")
  else
    go test -C operator "$@"
  fi
}

# not_run WHAT WHY: said, and in the report.
not_run() {
  say "not run: $1: $2"
  if [[ -n $JUNIT ]]; then python3 tools/suite/gotest.py --junit "$JUNIT" --skipped "$1" "$2"; fi
}

check_unit() {
  local unformatted
  if ! go mod download -C operator; then
    not_run "unit tests" "Go's modules cannot be downloaded here"
    return
  fi
  unformatted=$(gofmt -l operator)
  [[ -z $unformatted ]] || die "gofmt -w would change: ${unformatted//$'\n'/ }"
  timed "vet" go vet -C operator -tags apiserver ./...
  timed "unit tests" go_test -count=1 ./...
}

check_api_server() {
  timed "API server tests" go_test -tags apiserver,master -count=1 -timeout 20m \
    ./test/apiserver ./test/link ./test/chart ./test/images
}

PART=""
while (($#)); do
  case "$1" in
    --unit | --api-server | --if-built | --control-plane) PART="$1" ;;
    --junit)
      (($# > 1)) || die "operator: --junit: expected a file"
      JUNIT=$(realpath -m "$2")
      shift
      ;;
    *) die "operator: '$1' is no option; expected --unit, --api-server, --if-built, --control-plane or --junit FILE" ;;
  esac
  shift
done
if [[ -n $JUNIT && $PART != --unit && $PART != --api-server && $PART != --if-built ]]; then
  die "operator: --junit: expected --unit or --api-server beside it; each is a report of its own"
fi
check_places
prepare_go
case "$PART" in
  --unit) check_unit ;;
  --if-built)
    if is_built; then
      check_api_server
    else
      not_run "API server tests" "no API server is built: ./run operator --control-plane"
    fi
    ;;
  --api-server)
    build_control_plane
    check_api_server
    ;;
  --control-plane)
    build_control_plane
    check_unit
    check_api_server
    ;;
  *)
    check_unit
    if is_built; then
      check_api_server
    else
      say "not run: the tests against an API server; ./run operator --control-plane builds one, a quarter of an hour"
    fi
    ;;
esac
