"""Makes a chat model of a few hundred thousand random weights, its tokenizer and conversations to learn: <folder>."""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

MARKS = "<|endoftext|> <|im_start|> <|im_end|> <think> </think>".split()
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def sentence(dice):
    words = ["".join(dice.choices("aeioubdfgklmnprst", k=dice.randint(2, 8))) for _ in range(dice.randint(4, 12))]
    return " ".join(words)


def main(folder):
    dice = random.Random(11)
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=MARKS, initial_alphabet=alphabet)
    byte_level.train_from_iterator((sentence(dice) for _ in range(400)), trainer)
    ends = {"pad_token": MARKS[0], "eos_token": MARKS[2], "additional_special_tokens": MARKS[1:]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level, **ends)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3Config(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **sizes, **heads)
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    with (folder / "data.jsonl").open("w") as file:
        for _ in range(600):
            turns = [{"role": role, "content": sentence(dice)} for role in ("user", "assistant")]
            file.write(json.dumps({"messages": turns}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
