"""A small training with accelerate's own interface: <folder> <steps>. Rank 1 is killed once, in the first life, after
its third step; each life goes on from the state that accelerate saved last."""

import os
import signal
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from report import report


def main(folder, steps):
    accelerator = Accelerator(cpu=True)
    set_seed(7)
    data = torch.utils.data.TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state, done = os.path.join(folder, "state"), 0
    if os.path.exists(os.path.join(folder, "step")):
        accelerator.load_state(state)
        with open(os.path.join(folder, "step")) as file:
            done = int(file.read())
    report("main", kind=type(model).__name__, backend=torch.distributed.get_backend(), resumed_at=done)
    for step, (inputs, wanted) in zip(range(done, steps), loader):
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state(state)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            with open(os.path.join(folder, "step"), "w") as file:
                file.write(str(step + 1))
        accelerator.wait_for_everyone()
        if step == 2 and accelerator.process_index == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    total = accelerator.gather(sum(parameter.sum() for parameter in model.parameters()).reshape(1))
    report("done", step=steps, sums=total.tolist(), epoch=os.environ.get("PHALANX_EPOCH"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
