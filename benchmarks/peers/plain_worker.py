# mypy: ignore-errors
"""The plain loop, written without any framework."""

import copy
import sys

import torch
from torch_work import final_loss, initial_model, train
from work import Stopwatch, read, write

work = read(sys.argv[1])
x, y, rows = torch.from_numpy(work.x), torch.from_numpy(work.y), work.rows()
server, watch = initial_model(work), Stopwatch(work)
client = copy.deepcopy(server)

for cohort in rows:
    mean = [torch.zeros_like(w) for w in server.parameters()]
    for samples in cohort:
        client.load_state_dict(server.state_dict())
        train(client, x[samples], y[samples], work.batch_size, work.learning_rate)
        for m, w in zip(mean, client.parameters(), strict=True):
            m += w.detach() / len(cohort)
    with torch.no_grad():
        for w, m in zip(server.parameters(), mean, strict=True):
            w.copy_(m)
    watch.round_ended()

note = f"{torch.get_num_threads()} threads"
write("plain PyTorch loop", torch.__version__, watch, final_loss(server, work), note)
