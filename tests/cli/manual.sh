# docs/CLI.md is what `megac --manual` prints.
[ -z "${MEGAC_REFRESH:-}" ] || megac --manual >"$MEGAC_ROOT/docs/CLI.md"
megac --manual | diff "$MEGAC_ROOT/docs/CLI.md" -
