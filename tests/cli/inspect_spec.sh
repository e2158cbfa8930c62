# The views that follow from the spec alone, of a file and of a directory.
cp "$MEGAC_ROOT/configs/examples/demo.yaml" .
megac inspect demo.yaml groups
megac inspect demo.yaml groups --json --set parallel.dp=2
megac inspect demo.yaml layout
megac inspect demo.yaml layout --json --set parallel.pp=4
megac inspect demo.yaml lr --json --set training.steps=4 \
    --set training.lr_schedule.warmup_steps=2
megac inspect demo.yaml nothing
megac inspect missing.yaml groups
mkdir empty
megac inspect empty groups
megac inspect demo.yaml groups --json --set parallel.tp=3 2>errors
[ -s errors ] && echo "errors are on stderr"
megac inspect demo.yaml schedule
megac inspect demo.yaml schedule --json --set parallel.schedule=gpipe \
    --set training.global_batch_size=8
