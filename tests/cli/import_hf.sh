# A configuration of Hugging Face's, and everything that it may say wrongly.
tiny='"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8,
  "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 96,
  "max_position_embeddings": 128'
mkdir tiny
cat >tiny/config.json <<END
{
  $tiny,
  "rope_theta": 5e5, "torch_dtype": "bfloat16"
}
END
megac import
megac import --hf tiny
megac import --hf tiny/config.json -o tiny.yaml
megac compile tiny.yaml --plan-only
echo "# kept" >kept.yaml

try() {
    cat >config.json
    megac import --hf config.json -o kept.yaml
}
megac import --hf missing
try <<END
{"model_type": "llama",
 "hidden_size" 64}
END
try <<END
{"model_type": "llama", "hidden_size": 64, "hidden_size": 65}
END
try <<END
["model_type", "llama"]
END
try <<'END'
{"model_type":
 "llama", "id2label": {"0": "\ud83d\ude00 \" }"}, "_name_or_path": "${HOME}",
 "hidden_act"
	: "größer", "größe": [ ]}
END
try <<END
{ $tiny,
  "hiden_act": "silu",
  "quantization_config": {"bits": 4},
  "hidden_act": "gelu_new",
  "rms_norm_eps": "1e-5",
  "num_key_value_heads": 3,
  "attention_bias": true,
  "rope_theta": null
}
END
try <<END
{ $tiny,
  "num_key_value_heads": 3
}
END
try <<END
{ $tiny,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0}
}
END
try <<END
{ $tiny,
  "rope_scaling": {"type": "mystery", "factor": 2.0}
}
END
try <<END
{ $tiny,
  "rope_scaling": {"type": "llama3", "factor": 8.0, "beta_fast": 32}
}
END
try <<END
{ $tiny,
  "rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}
}
END
try <<END
{ "model_type": "gpt2", "n_embd": 64, "hidden_size": 64,
  "scale_attn_by_inverse_layer_idx": true }
END
cat kept.yaml
cat >config.json <<END
{ $tiny, "my_note": [1] }
END
megac import --hf . --ignore my_note -o kept.yaml
grep -c . kept.yaml
