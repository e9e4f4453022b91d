"""Recording one forward: which memory every operation reads, writes and makes, and the calls of modules around it."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import UsageError
from ...usercode import randomness, tree
from .cut import Call, Op, Trace
from .memory import UNKNOWN, Keys
from .operations import operands, written_by
from .patches import Patch, patch_for, running
from .rewinding import Kept, generator_state, rewound
from .states import State
from .structure import Like, Skeleton, tensors_in

Forward = Callable[[Any], Any]

#: The key of whatever requires grad.
_GRADED = -2
#: Ways in which values leave for Python, or for code that torch does not see.
_WAYS_OUT = frozenset({"numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "__reduce_ex__"})
#: Operations that return no tensor, and tell nothing of the values either.
_TELL_NOTHING = frozenset({"_assert_tensor_metadata", "record_stream", "is_pinned", "is_same_size"})


class Weight(NamedTuple):
    """Where a parameter or buffer is found, now and later."""

    name: str
    module: nn.Module
    attribute: str

    def tensor(self) -> Tensor | None:
        """What is there now."""
        return getattr(self.module, self.attribute, None)


class Given:
    """Stands for the tensor that a call was given as its ``number``-th."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass
class Facts:
    """What the pure side need not know of a call.

    Attributes:
        module: that was called.
        given: the tensors in its arguments, without their values.
        form: its result, with :class:`~.structure.Like` and :class:`Given` in place of tensors; None if there is more
            in it than these could stand for.
    """

    module: nn.Module
    given: tuple[Like, ...]
    form: Skeleton | None = None


@dataclass(frozen=True)
class Recording:
    """One forward.

    Attributes:
        trace: for :func:`.cut.cut`.
        facts: of the calls, in the same order.
        names: the modules whose calls were watched.
        roots: the modules that no other of them is in, as far as is known.
        read: tensors that were there before and were read, by key.
        weights: where those of them are found that are parameters or buffers.
        generators: that were given to operations which draw.
        devices: where the batch and the weights lie.
    """

    trace: Trace
    facts: list[Facts]
    names: Mapping[nn.Module, str]
    roots: list[nn.Module]
    read: dict[int, Tensor]
    weights: dict[int, Weight]
    generators: list[torch.Generator]
    devices: set[torch.device]


def record(forward: Forward, batch: Any, roots: Mapping[str, nn.Module]) -> Recording:
    """Run ``forward(batch)`` twice and record the second time: the first fills caches and shows what is called.

    Whatever it changes is put back: tensors that it writes into, attributes of modules, random generators.

    Args:
        forward: the part of the training step that is to be cut.
        batch: as the loop gets it, on the device.
        roots: modules with their names; others are found when they are called.

    Raises:
        UsageError: a module has no parameters yet, or runs in threads of its own.
    """
    modules = _Modules()
    for name, module in roots.items():
        modules.add(name, module)
    with rewound(_devices(batch, modules.names)) as kept:
        for root in roots.values():
            kept.add(root)
        with _discovering(modules, kept):
            _Recorder(modules, batch, kept).run(forward)
        return _Recorder(modules, batch, kept).run(forward)


class _Modules:
    """The modules whose calls are watched, with their names: not those inside of compiled ones, which run as one."""

    def __init__(self) -> None:
        self.names: dict[nn.Module, str] = {}
        self.roots: dict[str, nn.Module] = {}
        self._inside: set[nn.Module] = set()

    def __contains__(self, module: nn.Module) -> bool:
        return module in self.names or module in self._inside

    def add(self, name: str, root: nn.Module) -> None:
        if root in self:
            return
        for part in root.modules():
            _check(part)
        self.roots[name] = root
        pending = [(name, root)]
        while pending:
            name, module = pending.pop()
            if module in self:
                continue
            self.names[module] = name or type(module).__name__
            if _is_closed(module):
                self._inside.update(part for part in module.modules() if part is not module)
                self.names = {part: name for part, name in self.names.items() if part not in self._inside}
            else:
                pending += [(_joined(name, part), child) for part, child in module.named_children()]

    def weights(self) -> Iterator[Weight]:
        """Every parameter and buffer, those of modules that are not watched included."""
        for name, root in self.roots.items():
            for path, module in root.named_modules():
                own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
                for attribute, _ in own:
                    yield Weight(_joined(name, path, attribute), module, attribute)


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _is_closed(module: nn.Module) -> bool:
    """Whether what happens inside of a module is no Python code that could be told apart: it is compiled."""
    if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_compiled_call_impl", None) is not None:
        return True
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _check(module: nn.Module) -> None:
    if isinstance(module, nn.DataParallel):
        raise UsageError("DataParallel runs its module in threads of its own: use DistributedDataParallel")
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise UsageError(f"{type(module).__name__} has no parameters yet: run one batch through the model first")


def _devices(batch: Any, modules: Iterable[nn.Module]) -> set[torch.device]:
    found = {tensor.device for tensor in tree.tensors(batch)}
    found |= {weight.device for module in modules for weight in module.parameters(recurse=False)}
    if torch.cuda.is_initialized():
        found.add(torch.device("cuda", torch.cuda.current_device()))
    return {device for device in found if device.type != "meta"}


@contextmanager
def _discovering(modules: _Modules, kept: Kept) -> Iterator[None]:
    """Add modules when they are first called, once what they hold has been kept."""
    thread = threading.get_ident()

    def hook(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == thread and module not in modules:
            kept.add(module)
            alike = sum(type(one) is type(module) for one in modules.roots.values())
            modules.add(f"{type(module).__name__}{alike + 1 if alike else ''}", module)

    handle = register_module_forward_pre_hook(hook)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `torch.compile")  # the hook may fire twice
            yield
    finally:
        handle.remove()


@dataclass
class _Open:
    """A call while it runs."""

    module: nn.Module
    parent: int
    begin: int
    given: list[Tensor]
    takes: frozenset[int]
    state: State
    ungraded: bool
    inner: bool = False  # there are calls inside


class _Recorder:
    """Runs every call and every operation as it is, and notes it."""

    def __init__(self, modules: _Modules, batch: Any, kept: Kept) -> None:
        self._modules = modules
        self._batch = batch
        self._kept = kept
        self._keys = Keys()
        self._in_batch = self._keys.of_all(tree.tensors(batch))
        self._made: dict[int, int] = {UNKNOWN: -1}  # by which operation
        self._read: dict[int, Tensor] = {}
        self._graded: set[int] = set()
        self._ops: list[Op] = []
        self._calls: list[Call] = []
        self._facts: list[Facts] = []
        self._stack: list[tuple[int, _Open]] = []
        self._draws = _Draws(_devices(batch, modules.names))
        self._generators: list[torch.Generator] = []
        self._trained: dict[nn.Module, str] = {}
        self._paused = False

    def run(self, forward: Forward) -> Recording:
        patches = [patch_for(module) for module in self._modules.names]
        with torch.enable_grad(), running(self, patches), _Functions(self), _Operations(self):
            result = forward(self._batch)
            self._tick()
        returned = self._keys.of_all([*tree.tensors(result), *tensors_in(result)])
        weights = self._weights()
        names = {key: weight.name for key, weight in weights.items()}
        trace = Trace(self._ops, self._calls, self._in_batch, returned, self._lost(weights), names)
        devices = _devices(self._batch, self._modules.names)
        roots = list(self._modules.roots.values())
        return Recording(trace, self._facts, self._modules.names, roots, self._read, weights, self._generators, devices)

    # ---- calls

    def called(self, patch: Patch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._begin(patch.module, args, kwargs)
        try:
            result = patch.original(*args, **kwargs)
        except BaseException as error:
            self._note(Op(halts=f"{self._modules.names[patch.module]} raises {type(error).__name__}"))
            self._end(None, "nothing")
            raise
        if not self._stack[-1][1].inner:
            self._depends(result)
        self._end(result)
        return result

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tick()
        parent = -1
        if self._stack:
            parent, around = self._stack[-1]
            around.inner = True
        with self._aside():
            given = list(tree.tensors((args, kwargs)))
            takes = self._keys.of_all(given)
            call = _Open(module, parent, len(self._ops), given, takes, State(module), not torch.is_grad_enabled())
            self._facts.append(Facts(module, tuple(map(Like, given))))
        self._stack.append((len(self._calls), call))
        self._calls.append(Call(self._modules.names[module], parent, call.begin, call.begin))  # until it is over

    def _depends(self, result: Any) -> None:
        """What a call without calls inside returns depends on all that it has, whatever kernels were seen at work."""
        call = self._stack[-1][1]
        with self._aside():
            gives = self._keys.of_all(tensors_in(result))
        made = {key for key in gives if self._made.get(key, call.begin) >= call.begin}
        self._note(Op(reads=call.takes, makes=frozenset(made - self._in_batch - self._read.keys())))

    def _end(self, result: Any, unfit: str = "") -> None:
        self._tick()
        number, call = self._stack.pop()
        name = self._modules.names[call.module]
        with self._aside():
            form = _Form(result, call.given, any(op.leaks for op in self._ops[call.begin :]))
            gives, renews = self._keys.of_all(tensors_in(result)), self._keys.of_all(form.renewed)
        unfit = unfit or form.unfit
        if not unfit:
            self._facts[number].form = form.skeleton
        self._calls[number] = Call(
            name=name,
            parent=call.parent,
            begin=call.begin,
            end=len(self._ops),
            takes=call.takes,
            gives=gives,
            renews=renews,
            fixed=unfit and f"{name} returns {unfit}, so it has to run",
            trained=self._first_trained(call.module),
            owns=any(True for _ in call.module.parameters()) or any(True for _ in call.module.buffers()),
            training=call.module.training,
            ungraded=call.ungraded,
            hooked=bool(call.module._forward_hooks or call.module._forward_pre_hooks),
        )

    def _first_trained(self, module: nn.Module) -> str:
        if module not in self._trained:
            name = "" if self._modules.roots.get("") is module else self._modules.names[module]
            trained = (_joined(name, path) for path, weight in module.named_parameters() if weight.requires_grad)
            self._trained[module] = next(trained, "")
        return self._trained[module]

    def _tick(self) -> None:
        """Note what changed without an operation: attributes of the modules that are running, random generators."""
        with self._aside():
            whose = self._draws.moved()
            changes = [f"{whose} random generator is drawn from"] if whose else []
            for _, call in self._stack:
                before, call.state = call.state, State(call.module)
                name = self._modules.names[call.module]
                changes += [f"{name} changes its attribute {one!r}" for one in before.changes(call.state)]
        for change in changes:
            self._note(Op(halts=change))

    # ---- operations

    def operated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._paused:
            return func(*args, **kwargs)
        schema, tags = getattr(func, "_schema", None), getattr(func, "tags", ())
        name = getattr(schema, "name", "").rpartition("::")[2]
        given, written = list(operands((args, kwargs))), list(written_by(schema, args, kwargs))
        if name == "lift_fresh":  # how torch.tensor() hands out what it has made
            self._note(Op(makes=frozenset(key for key in self._keys.of_all(given) if self._is_new(key))))
        self._meet(given)
        for tensor in written:
            if not self._keys.of(tensor) <= self._made.keys():
                self._kept.before_write(tensor)
        seeded = torch.Tag.nondeterministic_seeded in tags
        own = [value for value in (*args, *kwargs.values()) if seeded and isinstance(value, torch.Generator)]
        for generator in own:
            self._kept.before_draw(generator)

        result = func(*args, **kwargs)

        outs = list(operands(result))
        makes = frozenset(key for key in self._keys.of_all(outs) if self._is_new(key))
        silent = not outs and not written and name not in _TELL_NOTHING
        is_view = bool(outs) and not makes and not written
        self._note(
            Op(
                reads=self._keys.of_all(given),
                writes=self._keys.of_all(written),
                makes=makes,
                draws=seeded and self._drew(own),
                leaks=silent or _size_tells(tags, name, args),
                traffic=0 if is_view else sum(map(_nbytes, [*given, *outs])),
            )
        )
        return result

    def left(self, tensors: Iterable[Tensor]) -> None:
        """Values of these tensors went to Python."""
        if not self._paused:
            with self._aside():
                reads = self._keys.of_all(tensors)
            self._note(Op(reads=reads, leaks=True))

    def _drew(self, own: list[torch.Generator]) -> bool:
        """Whether an operation that may draw did: attention, for one, draws only where it drops."""
        self._generators += [generator for generator in own if generator not in self._generators]
        return bool(self._draws.moved()) or bool(own)

    def _meet(self, given: Iterable[Tensor]) -> None:
        """Tensors that an operation is given: those that the forward has not made were there before."""
        for tensor in given:
            for key in self._keys.of(tensor):
                if self._is_new(key):
                    self._read[key] = tensor
                if tensor.requires_grad and key not in self._graded:
                    self._graded.add(key)
                    if key in self._made:
                        self._note(Op(reads=frozenset({_GRADED}), makes=frozenset({key})))

    def _is_new(self, key: int) -> bool:
        return key not in self._made and key not in self._read and key not in self._in_batch

    def _note(self, op: Op) -> None:
        for key in op.makes:
            self._made.setdefault(key, len(self._ops))
        self._ops.append(op)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is done inside is no part of the forward."""
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused

    # ---- the outcome

    def _weights(self) -> dict[int, Weight]:
        found: dict[int, Weight] = {}
        for weight in self._modules.weights():
            tensor = weight.tensor()
            if tensor is not None:
                for key in self._keys.of(tensor):
                    found.setdefault(key, weight)
        return found

    def _lost(self, weights: dict[int, Weight]) -> dict[int, str]:
        """What no frozen call may read: what is trained, and what an optimizer might still change."""
        lost = {UNKNOWN: "a tensor without memory of its own", _GRADED: "a tensor that requires grad"}
        lost.update((key, "a tensor that requires grad") for key in self._graded - self._made.keys())
        lost.update((key, "the batch, which requires grad") for key in self._graded & self._in_batch)
        for weight in self._modules.weights():
            tensor = weight.tensor()
            if tensor is not None and tensor.requires_grad:
                lost.update((key, f"{weight.name}, which requires grad") for key in self._keys.of(tensor))
            elif tensor is not None and tensor.is_leaf and tensor.grad is not None:
                what = f"which an optimizer may change by its old gradient: set {weight.name}.grad to None"
                lost.update((key, f"{weight.name}, {what}") for key in self._keys.of(tensor))
        return lost


class _Operations(TorchDispatchMode):  # type: ignore[misc]
    """While it is active, compiled code runs as it was written, too."""

    supports_higher_order_operators = True

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recorder.operated(func, args, kwargs or {})


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _WAYS_OUT:
            self._recorder.left(operands((args, kwargs or {})))
        return func(*args, **kwargs or {})


class _Draws:
    """The process-wide random generators."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._devices = [device for device in devices if device.type != "cpu"]
        self._host, self._there = randomness.state(), self._on_devices()

    def moved(self) -> str:
        """Whose generator has been drawn from since this was last asked; empty for none."""
        host, there = randomness.state(), self._on_devices()
        whose = randomness.moved(self._host, host) or ("" if there == self._there else "the device's")
        self._host, self._there = host, there
        return whose

    def _on_devices(self) -> list[bytes]:
        return [bytes(generator_state(device).numpy()) for device in self._devices]


class _Form:
    """A call's result without its values.

    Attributes:
        skeleton: with :class:`Like` and :class:`Given` in place of tensors.
        renewed: the tensors that :class:`Like` stands for.
        unfit: what is in it that nothing can stand for; empty where there is nothing.
    """

    def __init__(self, result: Any, given: list[Tensor], leaked: bool) -> None:
        """``leaked`` says that numbers in the result may have been computed from values."""
        self.unfit = ""
        self.renewed: list[Tensor] = []
        numbers = {id(tensor): number for number, tensor in enumerate(given)}

        def stand_in(leaf: Any) -> Any:
            if id(leaf) in numbers:
                return Given(numbers[id(leaf)])
            if isinstance(leaf, Tensor) and type(leaf) is Tensor and leaf.layout == torch.strided:
                self.renewed.append(leaf)
                return Like(leaf)
            if not isinstance(leaf, (int, float, str, type(None))):
                self.unfit = f"an object of type {type(leaf).__name__!r}"
            elif isinstance(leaf, (int, float)) and leaked:
                self.unfit = "numbers that it computed"
            return None if self.unfit else leaf

        self.skeleton = Skeleton(result, stand_in)


def _size_tells(tags: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Whether the size of the result depends on values."""
    if torch.Tag.dynamic_output_shape not in tags:
        return False
    return name != "index" or any(mask.dtype in (torch.bool, torch.uint8) for mask in operands(args[1:]))


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
