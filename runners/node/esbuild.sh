# Starts the esbuild that waits beside a prestarted process: see esbuild.cjs. It wants to hear its own
# version.
cd "${0%/*}"/node_modules/@esbuild/linux-* &&
  exec bin/esbuild --service="$(sed -n 's/.*"version": "\([^"]*\)".*/\1/p' package.json)"
