# A command line of Megatron-LM: what it means, and what may be wrong with it.
flags="--num-layers 2 --hidden-size 64 --num-attention-heads 8 --vocab-size 96
--seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 --lr 1e-3
--train-iters 10"
megac import
megac import --hf . --megatron x
megac import --megatron "torchrun --nproc-per-node 2 pretrain_gpt.py $flags" \
    -o two.yaml
cat two.yaml
megac compile two.yaml --plan-only -- --tensor-model-parallel-size 2 --bf16
megac compile two.yaml --plan-only -- --tensor-model-parallel-size 3
megac import --megatron "$flags --wandb-project a --log-throughput
    --moe-grouped-gemm" -o ignored.yaml
megac import --megatron "$flags --tensor-model-paralel-size 2
    --decoupled-lr 1e-3 --optimizer lion | tee log" -o wrong.yaml
megac import --megatron "$flags --tensor-model-paralel-size 2
    --decoupled-lr 1e-3 --optimizer lion" -o wrong.yaml
[ -e wrong.yaml ] || echo "nothing was written"
megac import --list | cmp - "$MEGAC_ROOT/docs/MEGATRON.md"
