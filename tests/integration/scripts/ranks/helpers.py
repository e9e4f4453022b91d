"""Starts processes that do not train, in many ways, and prints what each of them is given; then it trains itself."""

import os
import subprocess
import sys
from multiprocessing import Process

import torch
from torch import nn
from torch.utils.data import DataLoader

CODE = "import sys; print(sys.argv, sys.flags.dont_write_bytecode, sys.orig_argv[1:])"


def log(text):
    print(text, sys.argv[1:], flush=True)


if __name__ == "__main__":
    with open("helper.py", "w") as file:
        file.write(CODE)
    os.environ["RANK"] = "0"
    for command in (["-c", CODE, "a"], ["helper.py", "b", "--rank=1"], ["-B", "helper.py"], ["-m", "helper", "c"]):
        subprocess.run([sys.executable, *command], check=True)
        subprocess.run(args=[sys.executable, *command], check=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "0"})
    subprocess.run(f"{sys.executable} helper.py in a shell", shell=True, check=True, env={"RANK": "1"})
    print(subprocess.check_output(["echo", "plain"], text=True, env={**os.environ, "RANK": "1"}), end="")
    process = Process(target=log, args=("logged",))
    process.start()
    process.join()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(torch.zeros(256, 8), batch_size=4):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
