# `megac run` with a stand-in for what starts a rank: what it passes on, what it
# shows, and how it reports a rank that fails.
megac compile "$MEGAC_ROOT/configs/examples/demo.yaml" -o out
launch() {
    rm -f out/launch
    { echo '#!/bin/sh'; echo 'r=$OMPI_COMM_WORLD_RANK'; cat; } >out/launch
    chmod +x out/launch
}

launch <<'END'
[ $r = 0 ] || exit 0
echo "$OMPI_COMM_WORLD_SIZE ranks: $*" >args
printf '\rstep 1\rstep 2\n' >&2
END
megac run out
cat args
megac run out --steps 12 --save-step 0 --to weights --metrics m.jsonl \
    -- --threads 2
cat args
megac run out --load w.safetensors

launch <<'END'
[ $r = 1 ] || exec sleep 60
echo "rank 1: step 3: loss is nan" >&2
exit 3
END
megac run out
launch <<'END'
[ $r = 1 ] || exec sleep 60
echo "rank 1: corpus.bin: sample 7: token 300" >&2
exit 1
END
megac run out
launch <<'END'
[ $r = 2 ] || exec sleep 60
kill -9 $$
END
megac run out

launch <<'END'
[ $r = 0 ] && echo "the table of $*" >out/profile.0
exit 0
END
megac run out --profile

megac run out --save-step 3
megac run out/spec.yaml
rm out/launch
megac run out
megac run missing
