#!/usr/bin/env bash
# Makes .venv in the root of the project, installs requirements.txt into it and builds the C++ core. Run again, it does
# nothing unless the requirements or the core's source changed. PYTHON=python3.12 scripts/setup.sh chooses the interpreter.
set -euo pipefail
case "${1:-}" in
  "") ;;
  --help | -h) sed -n '2,3s/^# //p' "$0"; exit 0 ;;
  *) echo "usage: [PYTHON=python3.12] scripts/setup.sh [--help]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
stamp=.venv/.installed
wanted=$(cat requirements.txt mita/attention/native/kernels.cpp | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ -x .venv/bin/python ]; then exit 0; fi

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  candidates=(python3 python3.13 python3.12 python3.11)
  if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
  for python in "${candidates[@]}"; do
    if is_new_enough "$python"; then break; fi
    python=
  done
  if [ -z "$python" ]; then
    echo "setup: Python 3.11 or newer is needed, but ${PYTHON:-python3} is not; name one with PYTHON=/path/to/python3.11" >&2
    exit 1
  fi
  echo "setup: making .venv with $("$python" --version)"
  "$python" -m venv .venv
fi
echo "setup: installing requirements.txt into .venv; PyTorch alone is about 5 GB, so the first time takes minutes"
.venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check -r requirements.txt
# Seconds; without a C++ compiler the attention core runs in PyTorch, more slowly.
.venv/bin/python -m mita.attention.native || echo "setup: going on without the native backend"
echo "$wanted" >"$stamp"
echo "setup: done; .venv/bin/python is the interpreter, make doctor says what this machine can run"
