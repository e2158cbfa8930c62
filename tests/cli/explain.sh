# One screen; numbers that depend on how well the passes do are left out.
cp "$MEGAC_ROOT/configs/examples/demo.yaml" .
megac explain demo.yaml | sed 's/[0-9.]* MiB.*/N MiB/'
megac explain demo.yaml --set parallel.tp=1 --set parallel.sp=false \
    --set parallel.pp=1 --set training.micro_batch_size=1 |
    sed 's/[0-9.]* MiB.*/N MiB/' | head -n 12
megac explain missing.yaml
