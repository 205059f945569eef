#!/usr/bin/env bash
# From a clone to a running server: checks, installation, images, doctor, serve.
# Run again, it does only what is still missing.
#
#   ./quickstart.sh           everything, then `sandlot serve` in the foreground
#   ./quickstart.sh --setup   everything except starting the server
#   ./quickstart.sh --check   look, and change nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

MODE=${1:-serve}
case $MODE in
  serve | --setup | --check) ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

# The one that README and tutorial make too. Who has installed sandlot there has it as they want it: it is used as
# it is. What this script has installed, it keeps up to date.
VENV=.venv
INSTALLED=$VENV/.quickstart

say() { printf '%s\n' "$*"; }
stop() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

# --- what must be there ---------------------------------------------------------------------------

[ "$(uname -s)" = Linux ] || stop "sandboxes need Linux; on another system use a Linux virtual machine"

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}
PYTHON=$(find_python) || stop "Python 3.11 or newer is missing; install it, or name it: PYTHON=/path/to/python3 $0"
say "python   $PYTHON ($("$PYTHON" -c 'import platform; print(platform.python_version())'))"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || stop "Python's venv is missing; on Debian: sudo apt install python3-venv"

# Beside a second, older client the engine's own package is the one that fits it.
DOCKER=/usr/bin/docker
[ -x "$DOCKER" ] || DOCKER=$(command -v docker) || stop "Docker is missing: https://docs.docker.com/engine/install/"
if ! ENGINE=$("$DOCKER" version --format '{{.Server.Version}}' 2>&1); then
  case $ENGINE in
    *"permission denied"*) stop "$(id -un) has no access to Docker: sudo usermod -aG docker $(id -un), then log in again" ;;
    *) stop "the Docker engine does not answer: ${ENGINE##*$'\n'}" ;;
  esac
fi
say "docker   $DOCKER (engine $ENGINE)"

has_image() { "$DOCKER" image inspect "sandlot/$1" >/dev/null 2>&1; }

if [ "$MODE" = --check ]; then
  if [ -x "$VENV/bin/sandlot" ]; then say "sandlot  $("$VENV/bin/sandlot" version)"; else say "sandlot  not installed yet"; fi
  for image in base slim; do
    if has_image "$image"; then say "image    sandlot/$image"; else say "image    sandlot/$image is not built yet"; fi
  done
  exit 0
fi

# --- what is made ---------------------------------------------------------------------------------

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
# A source that is newer than the last installation means that it is out of date; what builds leave behind does not.
newer_source() {
  find src agent console registry images pyproject.toml hatch_build.py -type f -newer "$INSTALLED" \
    -not -path '*/__pycache__/*' -not -path '*/link/bin/*' -not -path '*/node_modules/*' -not -path '*/console/dist/*' -print -quit
}
serves() { "$VENV/bin/python" -c 'import sandlot.wiring' 2>/dev/null; }
if [ ! -e "$INSTALLED" ] && serves; then
  say "sandlot  as it is installed in $VENV"
elif [ ! -e "$INSTALLED" ] || [ -n "$(newer_source)" ]; then
  say "installing sandlot into $VENV (the first time takes a minute or two)"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check '.[server]'
  touch "$INSTALLED"
fi

for image in base slim; do
  has_image "$image" || "$VENV/bin/sandlot" images build "$image"
done

"$VENV/bin/sandlot" doctor || stop "fix what doctor found, then run this again"

[ "$MODE" = --setup ] && { say "ready: $VENV/bin/sandlot serve"; exit 0; }
# `serve` reads the same variables; who calls it has to be told of another port.
PORT=${SANDLOT_PORT:-${PORT:-8000}}
CLIENT="$PWD/$VENV/bin/sandlot"
[ "$PORT" = 8000 ] || CLIENT="SANDLOT_URL=http://127.0.0.1:$PORT $CLIENT"
say "serving on port $PORT; try it from another terminal: $CLIENT run 'echo hello from \$(hostname)'"
exec "$VENV/bin/sandlot" serve
