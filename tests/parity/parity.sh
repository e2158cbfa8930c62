#!/bin/sh
# parity.sh MODEL LAYOUT - trains MODEL.yaml (five SGD steps, real ranks) under
# a layout, with 1 and with 4 microbatches or as many as it takes, and compares
# with one rank.
#
# Runs where MEGAC_PARITY says (default: here) with `megac` and `parity_compare`
# from PATH.  LAYOUT `one` makes what the others are compared with.  Each layout
# runs five steps twice: the second run must agree bit for bit with the first,
# and ranks that hold the same part of a tensor with each other.  LAYOUT `bf16`
# trains the last one in bf16, of which only the loss is compared.
set -eu
model=$1
layout=$2
here=$(cd "$(dirname "$0")" && pwd)
cd "${MEGAC_PARITY:-.}"
export MEGAC_CACHE="$PWD/cache"

batch=4 # sequences per microbatch, of all replicas together
precision=fp32
degrees=""
dp=1
training=recompute.granularity=none # one more key
counts="1 4" # microbatches
case $layout in
one) degrees="" counts="1 4 5" ;;
tp2) degrees="tp=2" ;;
tp4) degrees="tp=4" ;;
tp8) degrees="tp=8" ;;
tp2sp) degrees="tp=2 sp=true" ;;
tp4sp) degrees="tp=4 sp=true" ;;
pp2) degrees="pp=2" ;;
pp4) degrees="pp=4" ;;
gpipe) degrees="pp=4 schedule=gpipe" ;;
dp2) degrees="" dp=2 ;;
dp4) degrees="" dp=4 ;;
vpp2) degrees="pp=2 vpp=2" counts=4 ;;
vpp2odd) degrees="pp=2 vpp=2 microbatch_group=3" counts=5 ;;
vpp2tp) degrees="tp=2 sp=true pp=2 vpp=2" counts=4 ;;
ends) degrees="pp=4 pp_layout=E|ttt|t|L" ;;
empty) degrees="pp=2 pp_layout=Ett|tt||L" counts=4 ;;
zbh1) degrees="pp=4 schedule=zb-h1" ;;
zbv) degrees="pp=2 schedule=zb-v" ;;
dualpipev) degrees="pp=2 schedule=dualpipe-v" counts=4 ;;
zbvtp) degrees="tp=2 sp=true pp=2 schedule=zb-v" counts=4 ;;
cp2) degrees="cp=2" ;;
cp4) degrees="cp=4" ;;
cp2tp2sp) degrees="cp=2 tp=2 sp=true" ;;
cp2dp2zero3) degrees="cp=2 sharding=optim_grads_params" dp=2 ;;
cp2pp2) degrees="cp=2 pp=2" ;;
cp2all) degrees="tp=2 sp=true pp=2 cp=2" dp=2 ;;
cp2a2a) degrees="cp=2 cp_comm=a2a" ;;
cp4a2a) degrees="cp=4 cp_comm=a2a" ;;
cp4a2a-groups2) degrees="cp=4 cp_comm=a2a tp=2" ;;
cp2a2a-tp2sp) degrees="cp=2 cp_comm=a2a tp=2 sp=true" ;;
cp2a2a-dp2zero1) degrees="cp=2 cp_comm=a2a sharding=optim" dp=2 ;;
cp2a2a-pp2) degrees="cp=2 cp_comm=a2a pp=2" ;;
cp2ag) degrees="cp=2 cp_comm=all_gather" ;;
cp4ag) degrees="cp=4 cp_comm=all_gather" ;;
cp2ag-tp2sp) degrees="cp=2 cp_comm=all_gather tp=2 sp=true" ;;
cp2ag-dp2zero2) degrees="cp=2 cp_comm=all_gather sharding=optim_grads" dp=2 ;;
cp2ag-pp2) degrees="cp=2 cp_comm=all_gather pp=2"
    training=recompute.granularity=selective ;;
cp4mix) degrees="cp=4 cp_comm=a2a+p2p cp_sizes=[2,2]" ;;
cp4mix-tp2sp) degrees="cp=4 cp_comm=a2a+p2p cp_sizes=[2,2] tp=2 sp=true" ;;
cp4mix-dp2zero3)
    degrees="cp=4 cp_comm=a2a+p2p cp_sizes=[2,2] sharding=optim_grads_params"
    dp=2 training=recompute.granularity=full
    ;;
cp4list)
    degrees="cp=4 cp_comm=[p2p,all_gather,a2a,a2a+p2p] cp_sizes=[2,2]"
    ;;
cp2list-pp2)
    degrees="cp=2 cp_comm=[p2p,a2a,a2a,all_gather] pp=2 sharding=optim_grads"
    dp=2
    ;;
cp4mix-pp2) degrees="cp=4 cp_comm=a2a+p2p cp_sizes=[2,2] pp=2" counts=4 ;;
all) degrees="tp=2 sp=true pp=2" dp=2 ;;
order) degrees="tp=2 pp=2 order=tp-cp-ep-pp-dp" dp=2 ;;
order-pp) degrees="tp=2 pp=2 cp=2 order=pp-dp-cp-tp sharding=optim" dp=2 ;;
# Ranks of ep are replicas of everything but the experts.
ep2) degrees="ep=2 dp=1" dp=2 ;;
ep4) degrees="ep=4 dp=1" dp=4 ;;
ep2dp) degrees="ep=2 dp=2" dp=4 ;;
ep2sp) degrees="tp=2 sp=true ep=2 dp=1" dp=2 ;;
etp1) degrees="tp=2 sp=true etp=1" ;;
# Experts over the ranks of cp.
cp2fold) degrees="cp=2 ep=2 dp=null world_size=2" ;;
cp2agfold) degrees="cp=2 cp_comm=all_gather ep=2 dp=null world_size=2" ;;
cp2a2afold) degrees="cp=2 cp_comm=a2a tp=2 sp=true ep=4 etp=1 dp=null world_size=4" ;;
cp4mixfold)
    degrees="cp=4 cp_comm=a2a+p2p cp_sizes=[2,2] ep=4 dp=null world_size=4"
    ;;
fold) degrees="tp=2 sp=true ep=4 etp=1 dp=null world_size=4" dp=2 ;;
ep2zero1) degrees="ep=2 dp=1 sharding=optim" dp=2 ;;
ep2zero3) degrees="ep=2 pp=2 dp=2 sharding=optim_grads_params" dp=4 ;;
ep8tp2sp) degrees="tp=2 sp=true ep=8 dp=1" dp=8 counts=4 ;;
moe16) degrees="tp=2 sp=true pp=2 ep=2 dp=2 sharding=optim_grads_params" dp=4 ;;
full) degrees="" recompute=full ;;
selective) degrees="cp=2" recompute=selective ;;
fulltp) degrees="tp=2 sp=true pp=2 vpp=2" recompute=full counts=4 ;;
bf16) degrees="tp=2 sp=true pp=2" dp=2 precision=bf16 ;;
# What is computed again, or lies in host memory meanwhile.
again) degrees="pp=2" training="recompute.granularity=full" ;;
groups) degrees="tp=2 sp=true"
    training="recompute={granularity: full, num_layers: 3}" ;;
block) degrees="pp=2"
    training="recompute={granularity: full, method: block, num_layers: 1}" ;;
parts) degrees="tp=2 sp=true"
    training="recompute={granularity: selective, modules: [core_attn, mlp]}" ;;
offload) degrees="pp=2"
    training="offload={activations: [core_attn, mlp], optimizer: 1}" ;;
# zeroN-…: what rests in shards, beside each other axis.
zero?-dp4) dp=4 ;;
zero?-tp2) degrees="tp=2 sp=true" dp=2 ;;
zero?-pp2) degrees="pp=2" dp=2 ;;
zero?-cp2) degrees="cp=2" dp=2 ;;
zero?-ep2) degrees="ep=2 dp=2" dp=4 ;;
*)
    echo "parity.sh: no layout $layout" >&2
    exit 2
    ;;
esac
case $layout in
zero1-*) degrees="$degrees sharding=optim" ;;
zero2-*) degrees="$degrees sharding=optim_grads" ;;
zero3-*) degrees="$degrees sharding=optim_grads_params" ;;
esac

# train FOLDER SUBFOLDER STEP - five steps; saves STEP's tensors there.
train() {
    timeout 100 megac run "$1" --steps 5 --save-step "$3" --to "$1/$2" \
        -- --quiet --threads 1 --check-replicas
}

sequences=$((batch / dp)) # per replica
[ $sequences -gt 0 ] || sequences=1
for microbatches in $counts; do
    folder=$model-$layout-m$microbatches
    expected=$model-one-m$microbatches
    set -- --set training.precision=$precision --set parallel.dp=$dp \
        --set training.micro_batch_size=$sequences \
        --set training.global_batch_size=$((batch * microbatches)) \
        --set "training.$training"
    for degree in $degrees; do
        set -- "$@" --set "parallel.$degree"
    done
    rm -rf "$folder" "$folder-again"
    megac compile "$here/$model.yaml" -o "$folder" "$@"
    train "$folder" first 1
    train "$folder" last 5
    if [ $layout = bf16 ]; then
        parity_compare --loss-only 2e-2 "$expected" "$folder"
    elif [ $layout != one ]; then
        parity_compare "$expected" "$folder"
    fi
    if [ "$microbatches" = "${counts##* }" ]; then
        cp -r "$folder" "$folder-again"
        rm -rf "$folder-again/last"
        train "$folder-again" last 5
        parity_compare --exact "$folder" "$folder-again"
        rm -rf "$folder-again"
    fi
    [ $layout = one ] || rm -rf "$folder"
done
