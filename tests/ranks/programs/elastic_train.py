"""A small elastic training whose one weight counts the samples that were used, so what is lost or used twice shows.

Arguments: a file for what happened (one JSON line each), and a JSON object:
  sizes: train until generations of these sizes were seen, in this order
  until: and then until this file exists
  late: which worker begins only when a generation of that size was seen, e.g. {"4": 3}
  reports_late: this worker says that it has the state only when a third worker was started
  deaths: what happens to whom and when, e.g. {"1:0:7": "kill"}: worker 1 is killed in epoch 0 at step 7; "1:start", "1:init",
    "1:reset"; "stick": it does nothing any more, but lives; "disagree": it gives another shape than the others
  stall_s: the stall check ends the communication after so long
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

import unisono.horovod.torch as hvd
from unisono.horovod._impl.elastic.driver_connection import DriverConnection
from unisono.horovod._impl.job.process_state import PROCESS

story, asked = sys.argv[1], json.loads(sys.argv[2])
deaths = asked.get("deaths", {})
number = int(os.environ["UNISONO_ELASTIC_WORKER"])
NUM_SAMPLES = 120


def note(**what: object) -> None:
    with Path(story).open("a") as file:
        file.write(json.dumps({"worker": number, "host": os.environ["HOROVOD_HOSTNAME"], "pid": os.getpid(), **what}) + "\n")


def die(how: str) -> None:
    note(dies=how)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while how == "stick":
        signal.sigtimedwait((), 1)
    if how == "disagree":
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="odd")
    raise RuntimeError("this worker fails on purpose")


def die_when_assigned() -> None:
    while PROCESS.driver_connection.assignment is None:
        time.sleep(1e-4)
    die("kill")


def report_late() -> None:
    while '"worker": 2' not in Path(story).read_text():
        time.sleep(1e-2)
    DriverConnection.report_synced(PROCESS.driver_connection)


def begun(size: int) -> bool:
    events = [json.loads(line) for line in Path(story).read_text().split("\n")[:-1]]
    return any("begins" in event and event["size"] == size for event in events)


def seen_all(seen: list[int]) -> bool:
    left = iter(seen)
    return all(size in left for size in asked.get("sizes", []))


note(starts=True)
if f"{number}:start" in deaths:
    die(deaths[f"{number}:start"])
if f"{number}:init" in deaths:
    threading.Thread(target=die_when_assigned, daemon=True).start()
if number == asked.get("reports_late"):
    vars(PROCESS.driver_connection).update(report_synced=report_late)
if "stall_s" in asked:
    os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(asked["stall_s"])
if str(number) in asked.get("late", {}):
    while not begun(asked["late"][str(number)]):
        time.sleep(1e-2)
hvd.init()

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
plain = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), op=hvd.Sum)
samples = torch.ones(NUM_SAMPLES, 1)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    state.seen.append(hvd.size())
    place = {"rank": hvd.rank(), "size": hvd.size(), "local": (hvd.local_rank(), hvd.local_size())}
    note(begins=len(state.seen), **place, used=model.weight.item(), processed=state.sampler.processed_num, epoch=state.epoch)
    while state.step or not (state.epoch and state.enough and seen_all(state.seen)):
        for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=2, sampler=state.sampler):
            how = deaths.get(f"{number}:{state.epoch}:{state.step}")
            if how:
                die(how)
            optimizer.zero_grad()
            (-model(batch).sum()).backward()
            optimizer.step()
            state.step += 1
            state.sampler.record_batch(0, len(batch))
            time.sleep(0.01)
            state.commit()
        state.epoch += 1
        state.step = 0
        state.sampler.set_epoch(state.epoch)
        state.enough = hvd.broadcast_object("until" not in asked or Path(asked["until"]).exists())
        if hvd.rank() == 0:
            note(epochs=state.epoch, used=model.weight.item())
        state.commit()


state = hvd.elastic.TorchState(
    model, optimizer, epoch=0, step=0, seen=[], enough=False, sampler=hvd.elastic.ElasticSampler(samples, shuffle=False)
)


def after_reset() -> None:
    note(reset=True, size=hvd.size())
    if f"{number}:reset" in deaths:
        die(deaths[f"{number}:reset"])
    if any(when.endswith(":reset") for when in deaths):  # newcomers do not come here, so there must be none
        hvd.allreduce(torch.ones(1), name="reset")


state.register_reset_callbacks([after_reset])
train(state)
note(done=True, used=model.weight.item(), epochs=state.epoch, seen=state.seen)
