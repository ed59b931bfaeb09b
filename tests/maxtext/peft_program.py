"""Trains and runs adapters with PEFT; for a Python that has torch, transformers and peft.

    python peft_program.py train SOURCE ADAPTERS TOKENS.npy LOGITS.npy
    python peft_program.py generate SOURCE [ADAPTERS] PROMPTS.npy ANSWERS.npy

``train`` writes a tiny Llama to SOURCE if there is nothing, and the logits of int64 [rows, n].
"""

import sys
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

RANK, ALPHA, STEPS, NEW = 4, 6, 5, 24


def loaded(source):
    keys = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    return AutoModelForCausalLM.from_pretrained(source, **keys)


def write_llama(source):
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(source)


def train(source, adapters, tokens, logits):
    torch.manual_seed(0)
    if not Path(source).exists():
        write_llama(source)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=names, task_type="CAUSAL_LM")
    model = get_peft_model(loaded(source), config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(STEPS):
        row = torch.randint(0, 64, (4, 16))
        loss = model(row, labels=row).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(adapters)
    with torch.inference_mode():
        found = model.eval()(torch.tensor(np.load(tokens))).logits
    np.save(logits, found.numpy())


def generate(source, *rest):
    *adapters, prompts, answers = rest
    model = loaded(source)
    if adapters:
        model = PeftModel.from_pretrained(model, adapters[0])
    row = torch.tensor(np.load(prompts))
    with torch.inference_mode():
        for _ in range(NEW):
            last = model.eval()(row).logits[:, -1]
            row = torch.cat([row, last.argmax(-1, keepdim=True)], 1)
    np.save(answers, row.numpy())


if __name__ == "__main__":
    {"train": train, "generate": generate}[sys.argv[1]](*sys.argv[2:])
