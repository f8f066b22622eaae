#!/usr/bin/env bash
# Tries the private names that ooodist uses (tests/compat) on the newest TensorFlow and Keras that
# pip offers, in an environment of its own, which is deleted.
#
#   scripts/newest.sh            only if one of them is newer than what .venv has: else it takes
#                                three seconds, and no disk
#   scripts/newest.sh --always
#
# It prints one line, and what has changed, if something has. It is a warning: it never fails.
set -uo pipefail
source "$(dirname "$0")/environment.sh"

case "${1:-}" in
  --help | -h) show_help; exit ;;
  --always | "") ;;
  *) fail "unknown argument $1; see --help" ;;
esac

# "installed latest" of a package; empty if pip cannot say.
versions() {
  "$VENV/bin/python" -m pip index versions "$1" 2>/dev/null |
    awk '/INSTALLED:/ { installed = $2 } /LATEST:/ { print installed, $2 }'
}

newest=()
is_newer=0
for package in tensorflow-cpu keras; do
  read -r installed latest <<<"$(versions "$package")"
  if [ -z "${latest:-}" ]; then
    echo "newest: not tried: pip does not say which $package is the newest"
    exit
  fi
  newest+=("$package==$latest")
  if [ "$installed" != "$latest" ]; then is_newer=1; fi
done
if [ "$is_newer" = 0 ] && [ "${1:-}" != --always ]; then
  echo "newest: ${newest[*]}, as installed and tested"
  exit
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
SECONDS=0
if ! "$VENV/bin/python" -m venv "$folder/venv" >"$folder/log" 2>&1 ||
  ! "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    "${newest[@]}" pytest >>"$folder/log" 2>&1; then
  echo "newest: not tried: ${newest[*]} cannot be installed: $(tail -n 1 "$folder/log")"
  exit
fi
cd "$ROOT" || exit 0
if PYTHONPATH="$ROOT" timeout 300 "$folder/venv/bin/python" -m pytest -q -p no:cacheprovider \
  tests/compat >"$folder/log" 2>&1; then
  echo "newest: ${newest[*]} keep all that ooodist uses ($SECONDS s)"
else
  grep -E "^E +AssertionError: .* has changed|^(FAILED|ERROR)" "$folder/log" || tail "$folder/log"
  echo "newest: WARNING: ${newest[*]} have changed what ooodist uses ($SECONDS s)"
fi
