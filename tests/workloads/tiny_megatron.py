"""A tiny GPT of megatron-core's, in as many tensor and pipeline parallel ranks as it is told, on the CPU."""

import hashlib
import random

import megatron_on_cpu  # before megatron.core
import numpy
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

LENGTH, VOCABULARY, MICRO_BATCH, MICRO_BATCHES = 8, 64, 2, 2


def begin(tensor, pipeline):
    megatron_on_cpu.begin()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor, pipeline)
    tensor_parallel.model_parallel_cuda_manual_seed(5)
    init_num_microbatches_calculator(
        dist.get_rank(), None, MICRO_BATCH * MICRO_BATCHES, MICRO_BATCH, parallel_state.get_data_parallel_world_size()
    )


def make(is_distributed, hidden=16, dropout=0.1, layers=2):
    """(model, optimizer, scheduler), as Megatron-LM's setup_model_and_optimizer() gives them."""
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    config = TransformerConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=4,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        hidden_dropout=dropout,
        attention_dropout=dropout,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        batch_p2p_comm=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        VOCABULARY,
        LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )
    wrapped = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=is_distributed), model
    )
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-2, min_lr=1e-4, use_distributed_optimizer=is_distributed, clip_grad=0.0
    )
    optimizer = get_megatron_optimizer(settings, [wrapped])
    scheduler = OptimizerParamScheduler(optimizer, 0.0, 1e-2, 1e-4, 2, 50, "cosine", 0.01, 0.01, 50, "constant")
    return [wrapped], optimizer, scheduler


def train_step(model, optimizer, scheduler, step):
    """The loss on ranks of the last stage; None on others."""
    generator = torch.Generator().manual_seed(1000 * step + parallel_state.get_data_parallel_rank())
    batches = [torch.randint(VOCABULARY, (MICRO_BATCH, LENGTH + 1), generator=generator) for _ in range(MICRO_BATCHES)]
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=_forward_step,
        data_iterator=iter(batches),
        model=model,
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=MICRO_BATCH,
        forward_only=False,
    )
    optimizer.step()
    scheduler.step(increment=1)
    return sum(each["loss"] for each in losses) if losses else None


def _forward_step(batches, model):
    batch = next(batches)
    positions = torch.arange(LENGTH).expand(MICRO_BATCH, LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    output = model(batch[:, :-1], positions, mask, labels=batch[:, 1:])

    def loss_of(output):
        loss = output.float().mean()
        return loss, {"loss": loss.item()}

    return output, loss_of


def digest(model, optimizer, scheduler):
    """Of all that this rank has."""
    found = hashlib.sha256()
    for chunk in model:
        for name, value in sorted(chunk.module.state_dict().items()):
            if isinstance(value, torch.Tensor):
                found.update(name.encode() + value.numpy().tobytes())
    for inner in optimizer.chained_optimizers:
        for state in inner.optimizer.state.values():
            for _, value in sorted(state.items()):
                found.update(torch.as_tensor(value).float().numpy().tobytes())
    found.update(str(scheduler.num_steps).encode())
    return found.hexdigest()[:16]
