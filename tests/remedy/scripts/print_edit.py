"""Runs a script up to its first loader's iteration, and prints the change that would keep a remedy of that loader."""

import sys

import torch
from torch.utils.data import DataLoader

from pipediag.host.script import Target, run
from pipediag.remedy.edit import edit_for


def tell(loader):
    edit = edit_for(loader, torch.device("cpu"))
    sys.stdout.write(edit.diff or edit.why_not)
    raise SystemExit


DataLoader._get_iterator = tell
run(Target(sys.argv[1], sys.argv[2:]))
