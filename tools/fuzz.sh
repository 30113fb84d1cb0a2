#!/usr/bin/env bash
# Builds the fuzzers and runs each for SECONDS with its corpus: fuzz.sh [SECONDS [NAME [SEED]]], called by ./run fuzz.
# NAME may be empty, for all. With SEED and the same corpus a fuzzer tries the same inputs, for as long as it runs.
# Seeds of a corpus lie beside the fuzzer, in corpus/NAME/ or, for a module with one fuzzer, in corpus/. New finds go to
# build/fuzz/corpus/NAME; a crashing input stays in build/fuzz/crashes and fails the command. build/reports/fuzz.xml has
# one case a fuzzer, in JUnit's format.
set -euo pipefail
source tools/setup.sh

duration_s="${1:-60}"
only="${2:-}"
seed="${3:-0}" # 0: libFuzzer chooses one
[[ $duration_s =~ ^[1-9][0-9]*$ ]] || die "fuzz wants a number of seconds, not '$duration_s'"
[[ $seed =~ ^[0-9]+$ ]] || die "fuzz wants a number as its seed, not '$seed'"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
ASAN_SYMBOLIZER_PATH="$(command -v llvm-symbolizer-14 || true)"
export ASAN_SYMBOLIZER_PATH

timed "configure" configure fuzz
ninja -C build/fuzz build.ninja >/dev/null # a fuzzer may be new
mapfile -t programs < <(ninja -C build/fuzz -t targets all | sed -n 's/^\(src\/.*_fuzzer\): CXX_EXECUTABLE.*/\1/p' |
  grep -E "/${only:-.*}\$" | sort)
[[ ${#programs[@]} != 0 ]] || die "no fuzzer ${only:-at all}"
timed "compile" compile fuzz "${programs[@]##*/}"

mkdir -p build/fuzz/crashes build/reports
failed=0
cases=""
for program in "${programs[@]}"; do
  name="${program##*/}"
  finds="build/fuzz/corpus/$name"
  mkdir -p "$finds"
  corpus=("$finds")
  for seeds in "${program%/*}/corpus/$name" "${program%/*}/corpus"; do
    if [[ -d $seeds ]]; then
      corpus+=("$seeds")
      break
    fi
  done
  say "$name for $duration_s s, corpus: ${corpus[*]}"
  log="build/fuzz/$name.log"
  if "build/fuzz/$program" -seed="$((seed % (1 << 32)))" -max_total_time="$duration_s" -rss_limit_mb=2048 \
    -timeout=10 -print_final_stats=1 -artifact_prefix="build/fuzz/crashes/$name-" "${corpus[@]}" >"$log" 2>&1; then
    sed -n 's/^stat::number_of_executed_units: */   inputs tried: /p' "$log"
    cases+="<testcase classname=\"fuzz\" name=\"$name\" time=\"$duration_s\"/>"
  else
    failed=$((failed + 1))
    cases+="<testcase classname=\"fuzz\" name=\"$name\"><failure message=\"see $log\"/></testcase>"
    tail -n 60 "$log"
  fi
done
printf '<testsuite name="fuzz">%s</testsuite>\n' "$cases" >build/reports/fuzz.xml
echo "$((${#programs[@]} - failed)) passed, $failed failed"
[[ $failed == 0 ]]
