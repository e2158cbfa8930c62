# megac ckpt: what it says, and what it refuses without leaving anything.
files=$MEGAC_ROOT/tests/oracle/files
megac ckpt
megac ckpt reshard
megac ckpt reshard x
megac ckpt reshard missing -o out
megac ckpt reshard missing -o out --max-shard-size 5gb
megac ckpt reshard missing -o out --max-shard-size 0
megac ckpt reshard missing -o out --max-shard-size 99999999TB
megac ckpt export-hf missing -o out
megac ckpt export-hf missing
megac ckpt import-hf missing -o out
megac ckpt import-hf missing -o out --set model.num_layers=2
megac ckpt import-hf x --spec x.yaml
megac ckpt import-hf x -o out --spec x.yaml --dtype int8
ls
cp -r "$files/llama" "$files/gpt2" .
megac ckpt import-hf llama -o fp32
megac ckpt import-hf llama -o parts --spec "$files/llama.yaml" \
    --dtype bf16 --max-shard-size 4KiB
megac ckpt reshard parts -o one
cmp fp32/model.safetensors one/model.safetensors | sed 's/:.*//'
megac ckpt import-hf one -o again
megac ckpt import-hf one -o again --spec "$files/llama.yaml"
cmp fp32/model.safetensors again/model.safetensors
ls parts one again
megac ckpt export-hf llama -o hf --spec "$files/llama.yaml" --dtype fp16
ls hf
grep torch_dtype hf/config.json
megac ckpt export-hf hf -o out
megac ckpt export-hf hf -o hf --spec "$files/llama.yaml"
megac ckpt import-hf llama -o one --spec "$files/llama.yaml"
megac ckpt import-hf llama -o out --spec "$files/llama_tied.yaml"
megac ckpt import-hf gpt2 -o out --spec "$files/llama.yaml"
printf '{' >parts/model.safetensors.index.json
megac ckpt reshard parts -o out
rm parts/model.safetensors.index.json
megac ckpt reshard parts -o out
mkdir empty
megac ckpt reshard empty -o out
megac ckpt reshard one -o empty
mkdir one/more
megac ckpt reshard one -o out
ls
