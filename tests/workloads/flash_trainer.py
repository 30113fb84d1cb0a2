"""Hugging Face's Trainer with dropout, a shuffled data set, a schedule and a tokenizer, saved for by
phalanx.checkpoint.adapters.huggingface, or by the Trainer itself (--stock). Tells the loss of each step, and what the
weights are at the end."""

import argparse
import os
import signal

import pausing
import resuming_on_cpu
import torch
import transformers
from flash_files import digest_of
from report import report
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainerCallback

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--save-steps", type=int, default=8)
parser.add_argument("--memory-steps", type=int, default=1)
parser.add_argument("--limit", type=int)
parser.add_argument("--best", action="store_true", help="evaluate at each save, and load the best at the end")
parser.add_argument("--by-epoch", action="store_true", help="save at the end of each epoch, of 6 steps")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--stock", action="store_true")
parser.add_argument("--subclass", action="store_true")
parser.add_argument("--adapters", action="store_true", help="PEFT's, and nothing else of the model")
parser.add_argument("--resume", default="true", help="true, none, or a folder")
parser.add_argument("--die-at", type=int, default=-1, help="in the first life, the last rank behind that step")
pausing.add_option(parser)
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--begun-alone", action="store_true", help="rank 1 again, as torchrun says it on that node alone")
options = parser.parse_args()
if options.begun_alone and os.environ["RANK"] == "1":
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"

FIRST_LIFE = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
WORDS = 64


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 6 * 2  # 6 steps of 2 ranks

    def __getitem__(self, index):
        words = torch.tensor([(index * place) % WORDS for place in range(1, 9)])
        return {"input_ids": words, "labels": words}


class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if logs and "loss" in logs:
            report("loss", n=state.global_step, loss=logs["loss"])

    def on_train_begin(self, args, state, control, **more):
        report("begin", n=state.global_step)

    def on_step_begin(self, args, state, control, **more):
        if (
            FIRST_LIFE
            and state.global_step == options.die_at
            and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        if pausing.is_due(state.global_step, options.pause_at):
            pausing.wait_to_be_killed()


def model():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=options.width, n_layer=2, n_head=2)
    made = GPT2LMHeadModel(config)
    if not options.adapters:
        return made
    import peft

    return peft.get_peft_model(made, peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM"))


torch.set_num_threads(1)
report("main")
strategy = "epoch" if options.by_epoch else "steps"
more = {"eval_strategy": strategy, "eval_steps": options.save_steps} if options.best else {}
arguments = transformers.TrainingArguments(
    output_dir=options.folder,
    max_steps=options.steps,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=options.rate,
    logging_steps=1,
    save_strategy=strategy,
    save_steps=options.save_steps,
    save_total_limit=options.limit,
    load_best_model_at_end=options.best,
    metric_for_best_model="loss" if options.best else None,
    report_to=[],
    use_cpu=True,
    ddp_backend="gloo",
    disable_tqdm=True,
    **more,
)
words = {f"w{number}": number for number in range(WORDS)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), unk_token="w0", pad_token="w0"
)
given = {"model": model(), "args": arguments, "train_dataset": Data(), "eval_dataset": Data()}
given.update(processing_class=tokenizer, callbacks=[Watch()])
if options.stock:
    resuming_on_cpu.let_resume()
    trainer = Trainer(**given)
else:
    from phalanx.checkpoint.adapters.huggingface import FlashCheckpoint, FlashTrainer

    if options.subclass:
        trainer = FlashTrainer(**given, flash_checkpoint={"memory_steps": options.memory_steps})
    else:
        trainer = Trainer(**given)
        FlashCheckpoint(trainer, memory_steps=options.memory_steps)
trainer.train(resume_from_checkpoint={"true": True, "none": None}.get(options.resume, options.resume))
report(
    "done",
    n=trainer.state.global_step,
    weights=digest_of(trainer.model.state_dict()),
    best=trainer.state.best_model_checkpoint,
)
