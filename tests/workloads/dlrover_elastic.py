"""A training by ElasticTrainer, ElasticDistributedSampler and ElasticDataLoader of compat/dlrover, as DLRover's
examples have it: the batch of all ranks together stays the same in a world of any size."""

import argparse
import signal

import torch
import torch.distributed as dist
from dlrover.trainer.torch.elastic.dataloader import ElasticDataLoader
from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler
from dlrover.trainer.torch.elastic.trainer import ElasticTrainer
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
from leaving import leave_group
from report import report
from torch.nn.parallel import DistributedDataParallel

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--samples", type=int, default=64)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--zero-grad", choices=["before", "behind"], default="before")
parser.add_argument("--pause-at", type=int, default=0, help="wait to be killed behind this step of the optimizer")
options = parser.parse_args()


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return options.samples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator, dtype=torch.float64), index


dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(16, 4).double())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
sampler = ElasticDistributedSampler(dataset=Samples())
loader = ElasticDataLoader(Samples(), batch_size=options.batch, sampler=sampler, num_workers=options.workers)
trainer = ElasticTrainer(model, dataloader=loader)
checkpointer = DdpCheckpointer(options.dir)

done, state = 0, checkpointer.load_checkpoint()
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    sampler.load_state_dict(state["sampler"])
    done = state["step"]
optimizer, scheduler = trainer.prepare(optimizer, scheduler)
report("begins", n=done, epoch=sampler.epoch)

taken = []
for epoch in range(sampler.epoch, options.epochs):
    sampler.set_epoch(epoch)
    trainer.reset()
    for data, indices in loader:
        taken += indices.tolist()
        with trainer.step(fix_total_batch_size=True):
            if options.zero_grad == "before":
                optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            scheduler.step()
            if options.zero_grad == "behind":
                optimizer.zero_grad()
        if not trainer.ends_batch:
            continue
        done += 1
        weights = sum(parameter.detach().sum().item() for parameter in model.parameters())
        report("step", n=done, epoch=epoch, taken=taken, weights=weights, lr=scheduler.get_last_lr()[0])
        taken = []
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        state.update(sampler=sampler.state_dict(trainer.num_micro_batches, options.batch), step=done)
        checkpointer.save_checkpoint(done, state, storage_type=StorageType.DISK)
        if done == options.pause_at:
            checkpointer.wait_latest_checkpoint()
            report("pausing")
            dist.barrier()
            signal.pause()
checkpointer.wait_latest_checkpoint()
leave_group()
