#!/usr/bin/env bash
# Builds the fuzzers and runs each for SECONDS with its corpus: fuzz.sh [SECONDS [NAME]], called by ./run fuzz.
# A fuzzer NAME stands in src/MODULE/NAME.cc; its seeds, where there are some, in src/MODULE/corpus/NAME/. New finds
# go to build/fuzz/corpus/NAME, a crashing input stays in build/fuzz/crashes and fails the command.
set -euo pipefail
source tools/setup.sh

duration_s="${1:-60}"
only="${2:-}"
[[ $duration_s =~ ^[0-9]+$ ]] || die "fuzz wants a number of seconds, not '$duration_s'"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1" ASAN_OPTIONS="detect_leaks=0"
ASAN_SYMBOLIZER_PATH="$(command -v llvm-symbolizer-14 || true)"
export ASAN_SYMBOLIZER_PATH

mapfile -t sources < <(find src -name "${only:-*_fuzzer}.cc" | sort)
if [[ ${#sources[@]} == 0 ]]; then
  [[ -z $only ]] || die "no fuzzer '$only'"
  say "there are no fuzzers"
  exit 0
fi
targets=()
for source in "${sources[@]}"; do targets+=("$(basename "$source" .cc)"); done

configure fuzz
timed "compile fuzzers" compile fuzz --target "${targets[@]}"
mkdir -p build/fuzz/crashes
failed=0
for source in "${sources[@]}"; do
  name=$(basename "$source" .cc)
  program=$(find build/fuzz/src -type f -name "$name" -perm -u+x -print -quit)
  corpus=("build/fuzz/corpus/$name")
  seeds="$(dirname "$source")/corpus/$name"
  [[ -d $seeds ]] && corpus+=("$seeds")
  mkdir -p "${corpus[0]}"
  say "$name for $duration_s s"
  if ! "$program" -max_total_time="$duration_s" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/crashes/$name-" "${corpus[@]}"; then
    failed=$((failed + 1))
  fi
done
echo "$((${#sources[@]} - failed)) passed, $failed failed"
[[ $failed == 0 ]]
