"""Relaunches itself for each further rank, as Lightning does, and trains as rank 0."""

import os
import socket
import subprocess
import sys

from train import arguments, train

if __name__ == "__main__":
    others = []
    if "LOCAL_RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
        os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2")
        command = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
        others.append(subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": "1"}))
    os.environ["RANK"] = os.environ["LOCAL_RANK"]
    train(arguments())
    for other in others:
        other.wait()
