# shellcheck shell=bash
# Sourced by ./run in the clone's root: everything a command needs, each step skipped where its result is there.
#
# Slow results live outside the clone, keyed by content, so that a second clone is ready in seconds.

CACHES="${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}"
PHALANX_CACHE="${PHALANX_CACHE:-${CACHES:+$CACHES/phalanx}}" # empty where nothing names a place: see check_places
export PHALANX_CACHE
export CCACHE_DIR="$PHALANX_CACHE/ccache" CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-3G}"
# Paths below the clone count as relative, so that one clone's results serve another.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
export PIP_CACHE_DIR="$PHALANX_CACHE/pip" PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '== %s\n' "$*" >&2; }

die() {
  printf 'run: %s\n' "$*" >&2
  exit 2
}

# timed NAME COMMAND...: prints what took longer than two seconds.
timed() {
  local name="$1" began=$SECONDS
  shift
  "$@"
  local took_s=$((SECONDS - began))
  if ((took_s > 2)); then say "$name: $took_s s"; fi
}

# check_places: what every command writes to.
check_places() {
  [[ -n $PHALANX_CACHE ]] || die "HOME is not set; set PHALANX_CACHE to a folder for downloads and compiler results"
  { mkdir -p "$PHALANX_CACHE" && [[ -w $PHALANX_CACHE ]]; } 2>/dev/null ||
    die "cannot write to $PHALANX_CACHE; set PHALANX_CACHE to a folder for downloads and compiler results"
  { mkdir -p build && : >>build/.run.lock; } 2>/dev/null ||
    die "cannot write to build in this clone, which is $(stat -c %U .)'s and you are $(id -un); use a clone of your own"
}

# locked COMMAND...: one at a time in this clone. The lock's file names who has it.
locked() {
  check_places
  exec 9>>build/.run.lock
  if ! flock -n 9; then
    say "$(<build/.run.lock) works in this clone; waiting for it"
    flock 9
  fi
  echo "${RUN_COMMAND:-another ./run} (process $$)" >build/.run.lock
  "$@" 9>&-
  exec 9>&-
}

# test_works: whether ./run test runs in this clone. What is built then takes the place of what it tests.
test_works() {
  check_places
  ! flock -n build/.test.lock true
}

# as_root COMMAND...: where can_be_root.
as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

can_be_root() {
  [[ $(id -u) == 0 ]] || command -v sudo >/dev/null
}

# wanted_packages GROUP...: what tools/apt-packages.txt lists for them.
wanted_packages() {
  awk -v groups=" $* " '/^\[/ { split($0, name, /[][]/); on = index(groups, " " name[2] " "); next }
    on && /^[^#]/ { print $1 }' tools/apt-packages.txt
}

missing_packages() {
  local wanted
  mapfile -t wanted < <(wanted_packages "$@")
  [[ ${#wanted[@]} != 0 ]] || die "tools/apt-packages.txt has nothing for '$*'"
  # Prints "name status" for the known ones; what it does not know is missing too.
  comm -23 <(printf '%s\n' "${wanted[@]}" | sort) \
    <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
      awk '$2 == "installed" { print $1 }' | sort)
}

# install_packages GROUP...: where they are missing. Tests in several processes may ask at the same time.
install_packages() {
  command -v dpkg-query >/dev/null || die "this sets up Debian 12; elsewhere install what tools/apt-packages.txt lists"
  local missing lock
  missing=$(missing_packages "$@") # an assignment of its own: what it dies of ends us, too
  [[ -n $missing ]] || return 0
  check_places
  exec {lock}>"$PHALANX_CACHE/apt.lock"
  flock "$lock"
  missing=$(missing_packages "$@" | xargs)
  if [[ -n $missing ]]; then apt_install "$missing" {lock}>&-; fi
  exec {lock}>&-
}

# with_clock LOG COMMAND...: says every few seconds where a command is that tells that in LOG alone. It works without
# Python, which may be what is installed. The clock reads from a pipe that nobody writes to, and ends with us.
SAY_EVERY_S=10
with_clock() {
  local log="$1" clock teller status=0
  shift
  exec {clock}> >(tell_time "$log" "$SECONDS")
  teller=$!
  "$@" {clock}>&- >"$log" 2>&1 || status=$?
  exec {clock}>&-
  wait "$teller" # so that its last line stands before ours
  return "$status"
}

# tell_time LOG BEGAN: until its input ends. A read that waited for as long as it may returns more than 128.
tell_time() {
  local status at
  while true; do
    status=0
    read -rt "$SAY_EVERY_S" || status=$?
    ((status > 128)) || return 0
    at=$((SECONDS - $2))
    say "$(printf '%d:%02d' $((at / 60)) $((at % 60)))  packages: $(tail -n 1 "$1" 2>/dev/null | cut -c1-100)"
  done
}

# apt_install "NAMES": with everything that apt says in build/apt.log.
apt_install() {
  local names apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -y)
  read -ra names <<<"$1"
  can_be_root || die "neither root nor sudo; please install: ${names[*]}"
  say "installing ${names[*]}"
  with_clock build/apt.log as_root "${apt[@]}" update ||
    die "apt-get update failed: $(tail -n 5 build/apt.log)"
  with_clock build/apt.log as_root "${apt[@]}" install --no-install-recommends "${names[@]}" ||
    die "apt-get failed: $(tail -n 5 build/apt.log)"
}

# The first Python that numpy and pyarrow of the lock support and that can make virtual environments.
choose_python() {
  local python
  for python in "${PHALANX_PYTHON:-}" python3 /usr/bin/python3; do
    if [[ -n $python ]] && "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  die "no Python 3.11 or newer with the venv module; set PHALANX_PYTHON"
}

prepare_environment() {
  local python
  python=$(choose_python)
  "$python" tools/venv.py --venv .venv --requirements tools/locks/dev.lock --cache "$PHALANX_CACHE/venv" "$@"
}

# prepare_go: has a Go on PATH that the operator's modules take: the machine's, else that of tools/locks/go.lock. Debian
# 12 has one of 2022.
prepare_go() {
  local wanted python
  wanted=go$(awk '$1 == "go" { print $2 }' operator/go.mod)
  export GOTOOLCHAIN=local # no other is downloaded
  if command -v go >/dev/null && printf '%s\n' "$wanted" "$(go env GOVERSION)" | sort -V -C; then return; fi
  python=$(choose_python)
  "$python" tools/venv.py --venv build/go --requirements tools/locks/go.lock --cache "$PHALANX_CACHE/venv"
  PATH="$(build/go/bin/python -c 'import go; print(go.__path__[0])')/bin:$PATH"
  export PATH
}

# configure PRESET: makes build/PRESET; ninja itself sees later changes of CMakeLists.txt.
configure() {
  local preset="$1" stamp key
  stamp="build/$preset/.preset"
  key=$(sha256sum CMakePresets.json)
  if [[ -f build/$preset/build.ninja && -f $stamp && $(<"$stamp") == "$key" ]]; then return; fi
  echo "now: configuring" # for tools/together.py
  cmake --preset "$preset" >"build/configure-$preset.log" 2>&1 ||
    die "cmake failed, see build/configure-$preset.log: $(grep -A4 -m1 'CMake Error' "build/configure-$preset.log")"
  echo "$key" >"$stamp"
}

# compile PRESET [TARGET...]: them, or everything.
compile() {
  cmake --build "build/$1" -j "$(nproc)" ${2:+--target "${@:2}"}
}

configure_and_compile() {
  configure "$1"
  compile "$@"
}

# install_script NAME MODULE: a command that is Python, as pip makes it of [project.scripts]. Through the shell: the
# kernel takes neither a blank in the path after #! nor a long one.
install_script() {
  local script=".venv/bin/$1.new.$$"
  printf "#!/bin/sh\n'''exec' \"%s\" \"\$0\" \"\$@\"\n' '''\n" "$PWD/.venv/bin/python" >"$script"
  printf 'import sys\n\nfrom %s import main\n\nif __name__ == "__main__":\n    sys.exit(main())\n' "$2" >>"$script"
  chmod +x "$script"
  mv -f "$script" ".venv/bin/$1"
}

# Puts the commands beside .venv's python and the libraries into the package, each replaced in one step: a running job
# keeps the file it started from.
install_commands() {
  local command target site library
  for command in build/release/bin/*; do
    [[ -x $command ]] || continue
    target=".venv/bin/${command##*/}"
    cmp -s "$command" "$target" && continue
    cp "$command" "$target.new.$$"
    mv -f "$target.new.$$" "$target"
  done
  for library in checkpoint/libphalanx_{checkpoint,describe,universal} data/libphalanx_data \
    elasticity/libphalanx_elasticity; do
    library="python/phalanx/$library.so"
    [[ -f build/release/lib/${library##*/} ]] || continue # ./run demo does without
    cmp -s "build/release/lib/${library##*/}" "$library" && continue
    mkdir -p "${library%/*}"
    cp "build/release/lib/${library##*/}" "$library.new.$$"
    mv -f "$library.new.$$" "$library"
  done
  install_script phalanx-preprocess phalanx.preprocess.run
  for site in .venv/lib/python3*/site-packages; do
    [[ $(readlink "$site/phalanx") == ../../../../python/phalanx ]] && continue
    ln -sfn ../../../../python/phalanx "$site/phalanx"
  done
}

# steps_tools GROUP...: packages, and .venv.
steps_tools() {
  timed "packages" install_packages environment "$@"
  timed "environment" prepare_environment
}

# steps_build [TARGET...]: .venv and the build, at the same time: one waits for the network, the other for processors.
steps_build() {
  local python
  timed "packages" install_packages environment build
  python=$(choose_python) # an assignment of its own: what it dies of ends us, too
  "$python" tools/together.py "environment: prepare_environment --tell" \
    "compile: configure_and_compile release $*"
  install_commands
}

# What lint reads beside the sources: generated ones. Their names are targets.
steps_lint() {
  local python
  timed "packages" install_packages environment build format lint
  python=$(choose_python)
  "$python" tools/together.py "environment: prepare_environment --tell" \
    "generated: configure_and_compile release phx_proto_sources phx_planted_sources"
}

prepare_tools() { locked steps_tools "$@"; }
prepare_lint() { locked steps_lint; }
prepare_build() {
  if test_works; then say "./run test works in this clone: what is built now takes the place of what it tests"; fi
  locked steps_build "$@"
}
