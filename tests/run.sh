#!/usr/bin/env bash
# Sets up all that the tests need, then runs the checks and tests; fails when one of them does.
#   tests/run.sh                the short run: what an edit may break unnoticed, each kind of real thing once; 12 minutes
#   tests/run.sh --changed      the short run, and all tests of the folders that differ from main (tests/changed.py)
#   tests/run.sh --all [PART]   all but soak: rules, kills, commands and load, or one of these parts
#   tests/run.sh ARGUMENT...    ruff, mypy, then pytest with these arguments: tests/run.sh tests/unit -k config
# What takes longest (more kills, floods, waiting) is marked `soak`: tests/nightly.sh runs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./spark-submit.sh --set-up dev
bin=.venv/bin
logs=$(mktemp -d)
running=()
failed=0
free_kb=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || echo 0)
trap 'for each in "${running[@]}"; do kill "${each%%:*}" 2>/dev/null || true; done; rm -rf "$logs"' EXIT

# Runs a part beside the others where memory allows: one after the other takes twice as long. Those that take
# longest come first at the processors, and the rest takes what they leave: all end at about the same time.
beside() {
  local name=$1 first=10
  shift
  [[ $name =~ ^(commands|coordinator|kills|clients)$ ]] && first=0
  nice -n "$first" "$@" >"$logs/$name" 2>&1 &
  running+=("$!:$name")
  ((free_kb > 14000000)) || finish
}

finish() {
  local each
  for each in "${running[@]}"; do
    wait "${each%%:*}" && echo "== ${each#*:}: passed" || { failed=1 && echo "== ${each#*:}: FAILED"; }
    cat "$logs/${each#*:}"
  done
  running=()
}

check() {
  "$bin/ruff" check . && "$bin/ruff" format --check . && "$bin/mypy"
}
export -f check
export bin

tests() { # NAME MARKERS PATH...
  beside "$1" "$bin/python" -m pytest -q -m "$2" "${@:3}"
}

# Tests of clients mostly wait for time-outs, so they have a process of their own.
clients=(tests/e2e/test_producer.py tests/e2e/test_producer_faults.py tests/e2e/test_embedded_broker.py)
consumers=(tests/unit/test_consum*.py)
others=(tests/e2e "${clients[@]/#/--ignore=}")
rules=(tests/unit tests/property "${consumers[@]/#/--ignore=}")

all() {
  local markers="not soak"
  case $1 in
    rules)
      beside checks bash -c check
      tests clients "$markers" "${consumers[@]}" "${clients[@]}"
      tests rules "$markers" "${rules[@]}" tests/spark
      ;;
    kills) tests kills "$markers" tests/recovery ;;
    commands) tests commands "$markers" "${others[@]}" ;;
    load) finish && tests load "$markers" tests/steady ;; # alone: it measures
    *) echo "error: no part '$1': rules, kills, commands or load" >&2 && exit 2 ;;
  esac
}

short() {
  local markers="short and not long and not soak"
  beside checks bash -c check
  tests commands "$markers" "${others[@]}"
  tests coordinator "$markers" tests/spark tests/recovery # one warm JVM: a cold one takes 50 core seconds more
  tests clients "$markers" "${consumers[@]}" "${clients[@]}"
  tests rules "$markers" "${rules[@]}"
}

case ${1:-} in
  "") short ;;
  --changed)
    short && finish
    mapfile -t files < <("$bin/python" -m tests.changed)
    ((${#files[@]} == 0)) || tests changed "not soak" "${files[@]}"
    ;;
  --all) for part in ${2:-commands kills rules load}; do all "$part"; done ;;
  *) check && exec "$bin/python" -m pytest "$@" ;;
esac
finish
exit "$failed"
