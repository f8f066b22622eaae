#!/usr/bin/env bash
# Builds the documentation as a site of plain files, and fails at the first warning.
#
#   scripts/docs.sh           into the folder site
#   scripts/docs.sh FOLDER    elsewhere
set -euo pipefail
source "$(dirname "$0")/environment.sh"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi

[ -x "$VENV/bin/mkdocs" ] || make_environment cpu,docs
site=$(realpath -m "${1:-$ROOT/site}")
# The site's sources are the repository without what git ignores, which can be large.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$ROOT"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --no-dereference --parents -t "$copy"
export PYTHONPATH=$copy NO_MKDOCS_2_WARNING=1 TF_CPP_MIN_LOG_LEVEL=2
"$VENV/bin/mkdocs" build --strict --config-file "$copy/docs/mkdocs.yml" --site-dir "$site"
echo "built: $site/index.html"
