"""Hidden state of datasets, and what a loop edits of dataset, transform and sampler."""

from __future__ import annotations


class State:
    """Hidden state of a dataset: where it stands, the number that a sample reads of it, and how the loop edits it.

    Args:
        reads: expression for an integer, inside ``__getitem__``.
        edit: statement of the loop.
        top, init, before: lines at the module's top, in ``__init__``, and before the dataset is made.
        method: a method of the dataset's.
        shared: whether workers that run already see the edit.
        copied: whether a dataset that has it can be pickled and copied.
    """

    def __init__(
        self,
        reads: str,
        edit: str = "",
        top: str = "",
        init: str = "",
        before: str = "",
        method: str = "",
        shared: bool = False,
        copied: bool = True,
    ) -> None:
        self.reads, self.edit, self.top, self.init, self.before = reads, edit, top, init, before
        self.method, self.shared, self.copied = method, shared, copied


_NUMBER = """def number(self):
    with self.seen.get_lock():
        self.seen.value += 1
        return self.seen.value % 5"""
_COUNTER = """SEEN = 0


def next_number():
    global SEEN
    SEEN += 1
    return SEEN % 5"""
_CACHED_LEVEL = """LEVELS = [0]


@lru_cache(None)
def cached_level(n):
    return LEVELS[0] + n"""
_PREVIOUS = """def previous(self, i):
    before, self.last = self.last, i
    return before % 5"""
_GETATTR = """def __getattr__(self, name):
    if name == 'absent':
        return self.found[name]
    raise AttributeError(name)"""
_WRITE_LEVEL = """def write_level(level):
    with open('level.txt', 'w') as file:
        file.write(str(level))"""
STATES = {
    "namespace": State("self.args.epoch", "args.epoch = epoch", init="self.args = args"),
    "config": State("self.cfg.aug['strength']", "cfg.aug['strength'] = epoch", init="self.cfg = cfg",
                    before="cfg = SimpleNamespace(aug={'strength': 0})"),
    "helper": State("helper.STRENGTH", "helper.STRENGTH = epoch"),
    "value": State("self.value.value", "value.value = epoch", init="self.value = value",
                   before="value = mp.Value('i', 0)", shared=True, copied=False),
    "class": State("self.level", "Data.level = epoch"),
    "global": State("LEVEL", "LEVEL = epoch", top="LEVEL = 0"),
    "note": State("getattr(self, 'note', 0)"),
    "worker": State("getattr(get_worker_info(), 'id', 0)"),
    "written": State("int(self.levels[i])", "data.levels[:] += 1", init="self.levels = np.zeros(n, dtype=np.int64)"),
    "buffer": State("len(self.buffer) % 5", "data.buffer.append(epoch)", init="self.buffer = []"),
    "late": State("int(np.random.randint(0, 5)) if i >= 12 else 0"),
    "late-own": State("int(self.late.integers(0, 5)) if i >= 12 else 0", init="self.late = np.random.default_rng(9)"),
    "own": State("int(self.rng.integers(0, 5))", init="self.rng = np.random.default_rng(7)"),
    "seen": State("self.number()", init="self.seen = mp.Value('i', 0)", shared=True,
                  method=_NUMBER, copied=False),
    "seeded": State("int(np.random.default_rng([self.args.epoch, i]).integers(0, 9))", "args.epoch = epoch",
                    init="self.args = args"),
    "env": State("int(os.environ['LEVEL'])", "os.environ['LEVEL'] = str(epoch)", before="os.environ['LEVEL'] = '0'"),
    "closure": State("self.reads()", "box[0] = epoch", init="self.reads = reads",
                     before="box = [0]\nreads = lambda: box[0]", copied=False),
    "shared": State("int(self.tensor[0])", "level.fill_(epoch)", init="self.tensor = level",
                    before="level = torch.zeros(1).share_memory_()", shared=True),
    "file": State("int(open('level.txt').read())", "write_level(epoch)", before="write_level(0)", shared=True,
                  top=_WRITE_LEVEL),
    "function": State("strength.level", "strength.level = epoch",
                      top="def strength():\n    pass\n\n\nstrength.level = 0"),
    "listed": State("self.levels_of[i % 4]", "data.levels_of[1] = epoch", init="self.levels_of = [0, 0, 1, 1]"),
    "default": State("level_of()", "level_of.__defaults__[0][0] = epoch",
                     top="def level_of(box=[0]):\n    return box[0]"),
    "descriptor": State("self.strength", "data._strength = epoch", init="self._strength = 0",
                        method="@property\ndef strength(self):\n    called()\n    return self._strength"),
    "torch": State("int(torch.randint(0, 5, ()))"),
    "random": State("random.randint(0, 4)"),
    "worker-seed": State("(get_worker_info().seed if get_worker_info() else 0) % 5"),
    "initial-seed": State("torch.initial_seed() % 5"),
    "counter": State("next_number()", top=_COUNTER),
    "previous": State("self.previous(i)", init="self.last = 0", method=_PREVIOUS),
    "memo": State("self.memo.setdefault(i, len(self.memo)) % 5", init="self.memo = {}"),
    "lru": State("cached_level(i % 2)", "LEVELS[0] = epoch", top=_CACHED_LEVEL),
    "mapped": State("int(self.map[0])", "data.map[0] = epoch", shared=True, copied=False,
                    init="self.map = np.memmap('level.bin', np.int64, 'w+', shape=(1,))"),
    "weak": State("self.ref().epoch", "args.epoch = epoch", init="self.ref = weakref.ref(args)", copied=False),
    "context": State("level_of_context.get()", "level_of_context.set(epoch)",
                     top="level_of_context = contextvars.ContextVar('level', default=0)"),
    "thread": State("getattr(local, 'level', 7)", "local.level = epoch", top="local = threading.local()"),
    "getattr": State("self.absent", "data.found['absent'] = epoch", init="self.found = {'absent': 0}",
                     method=_GETATTR),
    "dtype": State("int(torch.get_default_dtype() == torch.float64)",
                   "torch.set_default_dtype(torch.float64 if epoch == 1 else torch.float32)"),
    "gradients": State("int(torch.is_grad_enabled())"),
}  # fmt: skip
#: Edits of a loop's curriculum, by the stage of the transform that they need; ``{stage}`` is the stage itself.
CURRICULUM = {
    "probability": ("T.RandomHorizontalFlip()", "{stage}.p = 0.9"),
    "factor": ("Scale()", "{stage}.factor = 0.5 + epoch"),
    "method": ("Scale()", "Scale.__call__ = lambda self, x: x + epoch"),
    "level": ("Level()", "FACTOR = 1.0 + epoch"),
    "statistics": ("T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))", "{stage}.mean = [0.1, 0.2, 0.1 * epoch]"),
    "constant": ("", "FACTOR = 1.0 + epoch / 2"),
    "note": ("", "transform.note = epoch"),
    "transform": ("", "dataset.transform = make_transform()"),
    "labels": ("", "data.labels[3] = epoch"),
    "indices": ("", "sampler.indices = sampler.indices[1:]"),
    "grow": ("", "data.n = min(N, N - 6 + 2 * epoch)"),
    "epoch": ("", "sampler.set_epoch(epoch)"),
    "size": ("T.RandomCrop(8, pad_if_needed=True)", "{stage}.size = (8, 7 + epoch)"),
    "degrees": ("T.RandomRotation(20)", "{stage}.degrees = [0.0, 1.0 + 5 * epoch]"),
    "appended": ("", "transform.transforms.append(Scale(0.5))"),
    "weights": ("", "loader.sampler.weights[:4] = epoch + 1.0"),
    "collate": ("", "loader.collate_fn = collate_reversed if epoch == 1 else default_collate"),
    "workers": ("", "loader.num_workers = 1 + epoch % 2"),
}
