# docs/CLI.md is what `megac --manual` prints; refresh it from there.
megac --manual | diff "$MEGAC_ROOT/docs/CLI.md" -
