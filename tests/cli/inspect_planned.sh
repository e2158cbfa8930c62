# The views that look at the planned program.  Sizes that follow from the spec
# are compared as they are; of those that depend on how well the passes do, only
# that they add up.
cp "$MEGAC_ROOT/configs/examples/demo.yaml" .
megac inspect demo.yaml params | tail -n 6
megac inspect demo.yaml params --json >params.json
grep -o '"total":[0-9]*,"unique":[0-9]*' params.json
grep -o '{"name":"model.layers.1.self_attn.q_proj[^}]*}' params.json
grep -o '"by_rank":.*' params.json
megac inspect demo.yaml params --json --set parallel.tp=1 \
    --set parallel.sp=false | grep -o '"by_rank":.*'

adds_up='NR > 1 { print "stage", $1, $2 + $3 + $4 + $5 + $6 + $7 == $8,
                  $10 <= $8, $11 }'
megac inspect demo.yaml memory | awk "$adds_up"
megac inspect demo.yaml memory --json |
    grep -o '"[a-z_]*":' | sort | uniq -c | tr -s ' '

megac inspect demo.yaml tensors --set parallel.dp=2 | head -n 11
megac inspect demo.yaml tensors --json | grep -o '{"rank":3[^}]*}'

megac inspect demo.yaml comm |
    awk '$1 == "stage" { stage = $2 }
         $1 == "send" || $1 == "recv" { print stage, $1, $2, $3, $4 }
         $1 == "total" { if ($4 != sum[stage $3]) print "wrong", $0 }
         NF > 4 { sum[stage $2] += $5 }'
megac inspect demo.yaml comm --json | grep -o '{"op":"send"[^}]*}'

megac inspect demo.yaml plan | head -n 1
megac inspect demo.yaml plan --json | grep -o '{"pp":[0-9]*' 
