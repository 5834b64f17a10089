#!/usr/bin/env bash
# The command `commitlake` in a clone: sets up what it needs and runs it. Python 3.11 or newer and Java 17 must be there.
#
#   ./spark-submit.sh                                  the demo: a broker, the coordinator, a small order service
#   ./spark-submit.sh run --conf FILE [--set k=v]...   the coordinator, until SIGTERM or Ctrl-C
#   ./spark-submit.sh COMMAND [ARGUMENT...]            as `commitlake COMMAND`; --help lists the commands
#
# --master or MASTER picks the cluster (default local[*]); SPARK_HOME or a spark-submit on the PATH is used when set.
# COMMITLAKE_SPARK_ARGS holds more arguments for spark-submit. --dry-run prints the command. PYTHON picks the Python.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/.venv

fail() {
  echo "error: $1" >&2
  exit "${2:-1}"
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or newer found on the PATH; install it (for example the package python3.11), or set PYTHON to it"
}

check_java() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  command -v "$java" >/dev/null 2>&1 ||
    fail "no Java found (${JAVA_HOME:+JAVA_HOME=$JAVA_HOME, }PATH); install Java 17, for example openjdk-17-jre-headless"
}

# What the set-up fetches and makes is in one of these.
megabytes() {
  du -scm "$venv" "$HOME/.ivy2.5.2" "${XDG_CACHE_HOME:-$HOME/.cache}/commitlake" 2>/dev/null | tail -n 1 | cut -f 1
}

# Runs a command. Until it ends, a line every five seconds says how long that takes and how much has come.
watched() { # COMMAND...
  local begin came ticker code=0
  begin=$(megabytes) SECONDS=0
  while sleep 5 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    came=$(($(megabytes) - begin))
    echo "  $SECONDS s$([[ $came -gt 0 ]] && echo ", $came MB")" >&2
  done &
  ticker=$!
  "$@" || code=$?
  { kill "$ticker" && wait "$ticker"; } 2>/dev/null || true
  return "$code"
}

# Temporary files of pip lie in the environment, so that its size tells what has come.
install() { # EXTRAS
  local code=0 fetched=$venv/fetched.$$
  mkdir -p "$fetched"
  TMPDIR=$fetched "$venv/bin/python" -P -m pip install --progress-bar off --disable-pip-version-check \
    --constraint "$here/constraints.txt" --editable "$here[$1]" |
    { grep --line-buffered -oE "^ *(Downloading .* MB.*|Building wheel for .*|Installing collected packages)" || true; } >&2 || code=$?
  rm -rf "$fetched"
  return "$code"
}

warm_up() {
  COMMITLAKE_LOG=WARNING PYTHONPATH=$here/lib${PYTHONPATH:+:$PYTHONPATH} \
    "$venv/bin/python" -P -m commitlake.tools.cli.warm_up >&2
}

# The environment is set up again when its requirements have changed.
set_up() {
  local extras=$1 stamp wanted python
  stamp=$venv/.commitlake-$extras
  wanted=$(cat "$here/setup.py" "$here/constraints.txt" | cksum)
  if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then return; fi
  python=$(find_python)
  echo "setting up the Python environment in $venv (once, some minutes) ..." >&2
  [[ -x $venv/bin/python ]] || "$python" -P -m venv "$venv" || fail "$python cannot make a virtual environment; install its venv module"
  watched install "$extras" || fail "pip could not install the requirements, see above"
  echo "fetching Spark's jars, and starting Spark once, so that later starts are quick (a minute or two) ..." >&2
  watched warm_up || true # starts are slower without
  echo "$wanted" | tee "$stamp" >"$venv/.commitlake-all" # `dev` holds all of `all`
}

if [[ ${1:-} == --set-up ]]; then # for tests/run.sh
  check_java
  set_up "${2:-all}"
  exit
fi

if [[ $# -eq 0 || $1 == -* && $1 != --help && $1 != -h ]]; then
  set -- demo "$@"
fi
check_java
set_up all
# No process of it runs a kafka.py or queue.py of the directory that it is called from.
export PYTHONSAFEPATH=1
PYTHONPATH=$here/lib${PYTHONPATH:+:$PYTHONPATH} exec "$venv/bin/python" -m commitlake.tools.cli "$@"
