# One screen; numbers that depend on how well the passes do are left out.
cp "$MEGAC_ROOT/configs/examples/demo.yaml" .
megac explain demo.yaml | sed 's/[0-9.]* MiB.*/N MiB/'
megac explain demo.yaml --set parallel.tp=1 --set parallel.sp=false \
    --set parallel.pp=1 --set training.micro_batch_size=1 |
    sed 's/[0-9.]* MiB.*/N MiB/' | head -n 12
megac explain missing.yaml
# On a named machine: parts add up to the step, whatever it is.
megac explain demo.yaml --hardware h100-sxm |
    sed 's/[0-9.]* MiB/N MiB/g; s/[0-9][0-9.]* /N /g; s/  */ /g' |
    sed -n '13,24p'
megac explain demo.yaml --set target.hardware=h100-sx
megac explain demo.yaml --set target.hardware=h100-sxm --json | python3 -c '
import json, sys
d = json.load(sys.stdin)
print(sorted(d), all(abs(sum(s[k + "_s"] for k in ("compute", "launch",
      "exposed", "host", "bubble")) - d["step_time_s"]) < 1e-9
      for s in d["stages"]))'
