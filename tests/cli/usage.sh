# Usage errors: exit code 2, the nearest name, where to find help.
megac dta
megac data
megac data pakc
megac data pack
megac data pack x
megac data pack x --ouput y
megac data pack x --output
megac data pack x -o y --tokens utf8
megac data pack x -o y --dtype float32
megac data pack x -o y --append-eod=-1
megac data pack x -o y --tokens ids --append-eod
megac data info x --json=1
megac data info x --vocab-size -5
megac schema x
megac schema --bogus
