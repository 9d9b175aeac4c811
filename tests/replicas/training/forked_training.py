"""`maquette train tiny.yaml` again and again, each time in forks of this process, which has imported everything.

A script: for every line `folder<TAB>shards<TAB>ranks` on stdin it starts that many processes, set up as torchrun
sets them up if there are several, and prints their process ids; when all have ended it prints their exit codes,
minus the signal if one ended it. Their output goes to `output.txt` in the folder.
"""

import os
import signal
import socket
import sys

import wandb.sdk.launch.inputs.internal  # noqa: F401 - takes long, and is imported by every run

import maquette
import replicas.training.train  # noqa: F401 - takes long, too

LONGEST = 240  # seconds, after which a rank that hangs ends by itself


def start(folder: str, shards: str, rank: int, ranks: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(LONGEST)
    os.chdir(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if ranks > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    sys.argv = ["maquette", "train", "tiny.yaml", "--shards", shards]
    maquette.main()
    raise AssertionError("the command line always raises SystemExit")


for line in sys.stdin:
    folder, shards, ranks = line.rstrip("\n").split("\t")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids: list[int] = []
    for rank in range(int(ranks)):
        pids.append(start(folder, shards, rank, int(ranks), port))
        os.setpgid(pids[-1], pids[0])  # so that all, and their helpers, can be killed together
    print(*pids, flush=True)
    print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids), flush=True)
