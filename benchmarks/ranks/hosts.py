"""Run jobs on two hosts: network namespaces of this machine, with their own addresses and temporary folders.

python -m benchmarks.ranks.hosts                    # all cases; needs root, iproute2 and unshare
python -m benchmarks.ranks.hosts --only link-down

Each job has 2 x 2 ranks that train with gloo. A third namespace on the same bridge is the stranger's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..common import ROOT

SCRIPT = str(Path(__file__).resolve().with_name("hosts_script.py"))
NET, PORT = "10.77.0", 29577
ADDRESS = f"{NET}.1"
#: Maximum seconds of a job, and until everything has ended after a fault.
PATIENCE, AFTER_FAULT = 240.0, 15.0
BUDGET = "20"


def possible() -> bool:
    """Return whether this user may make network namespaces."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    name = f"pd{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


@dataclass
class Host:
    """A namespace: a number in the network, a host name, and a temporary folder."""

    number: int
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"pd{os.getpid()}-{self.number}"

    @property
    def address(self) -> str:
        return f"{NET}.{self.number}"

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command on the host."""
        scratch = self.folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(scratch),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "PIPEDIAG_TEST_MOVES_ON_CPU": "1",
            **variables,
        }
        line = f'hostname host{self.number}; exec "$@"'
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "-u", "sh", "-c", line, "sh", *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def pids(self) -> list[int]:
        said = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in said.stdout.split()]

    def rank(self, number: int) -> int | None:
        """Return the process of a rank, or None if it has not begun."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if f"RANK={number}".encode() in variables and b"hosts_script" in words and b"member" in words:
                    return pid
        return None

    def listening(self) -> list[tuple[str, int]]:
        """Return the addresses of the namespace at which somebody listens."""
        said = subprocess.run(
            ["ip", "netns", "exec", self.name, "ss", "-Htln"], capture_output=True, text=True, check=True
        )
        found = []
        for line in said.stdout.splitlines():
            host, _, port = line.split()[3].rpartition(":")
            found.append((host.strip("[]"), int(port)))
        return found


class Network:
    """Two hosts and a stranger on one bridge."""

    def __init__(self, folder: Path) -> None:
        self.hosts = [Host(number, folder / f"host{number}") for number in (1, 2)]
        self.stranger = Host(3, folder / "stranger")
        self._bridge = f"pd{os.getpid()}-0"

    def __enter__(self) -> Network:
        _ip("netns", "add", self._bridge)
        self._within("link", "add", "br0", "type", "bridge")
        self._within("link", "set", "br0", "up")
        for host in (*self.hosts, self.stranger):
            host.folder.mkdir(parents=True)
            _ip("netns", "add", host.name)
            _ip("link", "add", "eth0", "netns", host.name, "type", "veth", "peer", f"v{host.number}", "netns",
                self._bridge)  # fmt: skip
            self._within("link", "set", f"v{host.number}", "master", "br0", "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in (*self.hosts, self.stranger):
            for pid in host.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for process in host.started:
                process.communicate()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
        subprocess.run(["ip", "netns", "del", self._bridge], capture_output=True)

    def _within(self, *words: str) -> None:
        _ip("-n", self._bridge, *words)

    def cut(self) -> None:
        """Set the link to the second host down, at the bridge: neither host sees its own interface go."""
        self._within("link", "set", "v2", "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Ended:
    """How a job ended: by host, the exit codes and what was printed; and the seconds since the fault."""

    codes: list[int]
    said: list[str]
    seconds: float


class Job:
    """One command on both hosts."""

    def __init__(self, net: Network, slurm: bool, *command: str) -> None:
        self.net = net
        self.processes: list[tuple[Host, subprocess.Popen[str]]] = []
        for node, host in enumerate(net.hosts):
            launch = [
                *("-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2"),
                *(f"--master-addr={ADDRESS}", f"--master-port={PORT}"),
            ]
            for local in range(2) if slurm else [0]:
                variables = _slurm(node, local) if slurm else {}
                words = [word for one in command for word in ([] if slurm and one == "LAUNCH" else [one])]
                words = [part for word in words for part in (launch if word == "LAUNCH" else [word])]
                self.processes.append((host, host.start(*words, **variables)))

    def until(self, condition: Callable[[], object], what: str) -> object:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if found := condition():
                return found
            if all(process.poll() is not None for _, process in self.processes):
                break
            time.sleep(0.2)
        raise RuntimeError(f"{what} did not come:\n{self.ended(5.0).said}")

    def measuring(self) -> int:
        """Wait until rank 3 runs, and windows are measured; return its process."""
        pid = self.until(lambda: self.net.hosts[1].rank(3), "rank 3")
        assert isinstance(pid, int)
        self.until(lambda: (self.net.hosts[1].folder / "trains").exists(), "training")
        time.sleep(4.0)
        return pid

    def ended(self, seconds: float) -> Ended:
        """Return how it ended, once all its processes have; at the latest after so many seconds."""
        began = time.monotonic()
        codes, said = [], []
        for _, process in self.processes:
            try:
                out, _ = process.communicate(timeout=max(0.1, began + seconds - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out = process.communicate()[0] + "\n(it had to be ended)"
            codes.append(process.returncode)
            said.append(out)
        left = [pid for host in self.net.hosts for pid in host.pids()]
        while left and time.monotonic() < began + seconds:
            time.sleep(0.1)
            left = [pid for host in self.net.hosts for pid in host.pids()]
        if left:
            names = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:90] for pid in left]
            said.append(f"(left: {names})")
        return Ended(codes, said, time.monotonic() - began)


def _slurm(node: int, local: int) -> dict[str, str]:
    """The variables that ``srun --nodes 2 --ntasks-per-node 2`` sets, and those of the batch script."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(2 * node + local),
        "SLURM_LOCALID": str(local),
        "SLURM_JOB_NODELIST": "host[1-2]",
        "SLURM_LAUNCH_NODE_IPADDR": ADDRESS,
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(PORT),
    }


# Cases


def analyze(net: Network, slurm: bool = False, *more: str) -> Job:
    words = (sys.executable, "-m", "pipediag", "analyze", "--no-knobs", "--budget", BUDGET, "-o", "report.json")
    return Job(net, slurm, *words, "LAUNCH", SCRIPT, *more)


def check(claim: object, text: str, ended: Ended) -> None:
    print(f"    {'ok  ' if claim else 'FAIL'} {text}")
    if not claim:
        _failed.append(text)
        print("\n".join(f"    | {line}" for one in ended.said for line in one.splitlines()[-40:]))


_failed: list[str] = []


def one_report(net: Network, ended: Ended) -> None:
    """There is one report, on the first host, with all four ranks."""
    reports = [host.folder / "report.json" for host in net.hosts]
    check(reports[0].exists() and not reports[1].exists(), "one report, that of rank 0's host", ended)
    if reports[0].exists():
        report = json.loads(reports[0].read_text())
        ranks = [(rank["rank"], rank["host"]) for rank in report["ranks"]]
        expected = [(rank, f"host{1 + rank // 2}") for rank in range(4)]
        check(ranks == expected, f"with {ranks}", ended)
        paces = [rank["step_ms"] for rank in report["ranks"]]
        check(all(paces), f"each with its own steps: {paces} ms", ended)


def of_analyze(net: Network, slurm: bool = False) -> None:
    ended = analyze(net, slurm).ended(PATIENCE)
    check(not any(ended.codes), f"exit codes {ended.codes} after {ended.seconds:.0f} s", ended)
    one_report(net, ended)
    told = [said for said in ended.said if "that of the host of rank 0" in said]
    check(len(told) == 1, "the second host says who reports", ended)
    check("left:" not in ended.said[-1], "nothing is left", ended)


def of_slurm(net: Network) -> None:
    of_analyze(net, slurm=True)


def of_plan(net: Network) -> None:
    """Losses of ``run --plan`` are those of the plain script."""
    plan = net.hosts[0].folder / "plan.json"
    words = (sys.executable, "-m", "pipediag", "analyze", "--no-knobs", "--budget", BUDGET, "--apply")
    ended = Job(net, False, *words, "--plan", str(plan), "LAUNCH", SCRIPT, "--vision").ended(PATIENCE)
    check(plan.exists() and not any(ended.codes), f"a plan is written, exit codes {ended.codes}", ended)
    if not plan.exists():
        return
    losses = []
    for words in ((sys.executable,), (sys.executable, "-m", "pipediag", "run", "--plan", str(plan))):
        ended = Job(net, False, *words, "LAUNCH", SCRIPT, "--vision", "--steps", "60").ended(PATIENCE)
        losses.append(sorted(re.findall(r"rank \d losses \S+", "\n".join(ended.said))))
        check(not any(ended.codes), f"exit codes {ended.codes} after {ended.seconds:.0f} s", ended)
    check(losses[0] == losses[1] and len(losses[0]) == 4, "losses of all ranks as natively", ended)
    moved = re.findall(r"pipediag: .*moved.*", "\n".join(ended.said))
    check(moved, f"it says {moved[:1]}", ended)


def of_killed(net: Network) -> None:
    job = analyze(net)
    os.kill(job.measuring(), signal.SIGKILL)
    ended = job.ended(PATIENCE)
    check(ended.seconds < AFTER_FAULT, f"all ended {ended.seconds:.1f} s after rank 3 was killed", ended)
    check(all(ended.codes), f"exit codes {ended.codes}", ended)
    causes = re.findall(r"pipediag: your script failed.*", "\n".join(ended.said))
    check(any("rank 3" in cause for cause in causes), f"it says {causes}", ended)
    check("left:" not in ended.said[-1], "nothing is left", ended)


def of_link_down(net: Network) -> None:
    job = analyze(net)
    job.measuring()
    net.cut()
    ended = job.ended(PATIENCE)
    check(ended.seconds < AFTER_FAULT, f"all ended {ended.seconds:.1f} s after the link went down", ended)
    check(all(ended.codes), f"exit codes {ended.codes}", ended)
    for said in ended.said[:2]:
        causes = re.findall("another host of the job does not answer", " ".join(said.split()))
        check(causes, f"a host says: {causes[:1]}", ended)
    check("left:" not in ended.said[-1], "nothing is left", ended)


_STRANGER = """
import socket, sys, time
held = []
for line in sys.argv[1:]:
    host, port = line.rsplit(":", 1)
    try:
        one = socket.create_connection((host, int(port)), 2)
        one.settimeout(2)
        heard = one.recv(1000)
    except OSError as error:
        heard = b""
    if len(heard) == 32:  # the random number that pipediag sends
        print("ours", line, flush=True)
        for words in (b"", b"x" * 100000, bytes(32) + b"\\0\\0\\0\\5" + bytes(37), heard + b"\\xff" * 36):
            for _ in range(40):
                held.append(socket.create_connection((host, int(port)), 2))
                try:
                    held[-1].sendall(words)
                except OSError:
                    pass
        more = b""
        for other in held:
            other.settimeout(0.2)
            try:
                more = max(more, other.recv(1000), key=len)
            except OSError:
                pass
        print("heard", len(more), flush=True)
time.sleep(5)
"""


def of_stranger(net: Network) -> None:
    """A stranger on the bridge finds pipediag's port, and gets nothing from it."""
    plain = Job(net, False, sys.executable, "LAUNCH", SCRIPT)
    plain.until(lambda: (net.hosts[1].folder / "trains").exists(), "training")
    natively = len({port for host in net.hosts for _, port in host.listening()})
    for _, process in plain.processes:
        os.killpg(process.pid, signal.SIGTERM)
    plain.ended(60.0)
    (net.hosts[1].folder / "trains").unlink()
    job = analyze(net)
    job.measuring()
    found = [(host, *where) for host in net.hosts for where in host.listening()]
    addresses = [f"{host.address}:{port}" for host, where, port in found if where not in ("127.0.0.1", "::1")]
    stranger = net.stranger.start(sys.executable, "-c", _STRANGER, *addresses)
    said = stranger.communicate(timeout=PATIENCE)[0]
    ended = job.ended(PATIENCE)
    check(len(found) - natively <= 2, f"{len(found)} ports, natively {natively}", ended)
    check(said.count("ours") == 1 and said.count("heard 32") == 1, f"the stranger: {said.split()}", ended)
    check(not any(ended.codes), f"exit codes {ended.codes}", ended)
    check("strange" not in "".join(ended.said), "no message of his was taken in", ended)
    one_report(net, ended)


CASES = {
    "analyze": of_analyze,
    "slurm": of_slurm,
    "plan": of_plan,
    "killed": of_killed,
    "link-down": of_link_down,
    "stranger": of_stranger,
}


@contextlib.contextmanager
def network() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, Network(Path(folder)) as net:
        yield net


def run(name: str) -> list[str]:
    """Run a case; return what did not hold."""
    _failed.clear()
    with network() as net:
        CASES[name](net)
    return [*_failed]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks.hosts", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*CASES], default=[*CASES])
    args = parser.parse_args()
    if not possible():
        sys.exit("this system allows no network namespaces")
    failed = {}
    for name in args.only:
        print(name, flush=True)
        failed[name] = run(name)
    sys.exit(1 if any(failed.values()) else 0)


if __name__ == "__main__":
    main()
