# Compiling: what is wrong is said before anything is written.
cp "$MEGAC_ROOT/configs/examples/demo.yaml" .
megac compile missing.yaml
megac compile demo.yaml --set parallel.tp=3 2>errors
grep -c 'error:' errors
megac compile demo.yaml --stop-after=nothing
megac compile demo.yaml --dump-ir=nothing
megac compile demo.yaml --target gpu 2>errors
grep -c 'target.backend' errors
megac compile demo.yaml --target cpu:
megac compile demo.yaml --stop-after=layout
megac compile demo.yaml --stop-after=grad --dump-ir=grad | head -n 1
mkdir other
echo mine >other/file
megac compile demo.yaml -o other 2>errors
grep -c 'other exists' errors
ls
cat other/file

# Too large for any machine of today: exit code 4, the largest terms.
cp -r "$MEGAC_ROOT/configs/models" .
megac compile models/gpt3-175b.yaml --set training.precision=fp32 \
    --set training.micro_batch_size=4 2>errors
grep -c 'MC0501' errors
ls
# An architecture of GPUs has to be named, for none is looked for.
megac compile demo.yaml --target cuda -o gpu
ls gpu
