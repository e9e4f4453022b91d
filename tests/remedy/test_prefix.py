"""A model in two parts trains as it does in one, bit by bit; and what must not run ahead of the loop does not."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from pipediag.analysis.intervals import Interval
from pipediag.errors import UsageError
from pipediag.remedy.prefix import (
    Costs,
    NotFrozen,
    Split,
    SplitDiffers,
    compare,
    find_prefix,
    measure,
    patches,
    predict,
    propose,
)
from pipediag.remedy.prefix.cut import Action, Call, Cut, Op, Trace, cut

CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No forward stays stood in for."""
    yield
    for patch in list(patches._patches.values()):
        assert patch._users == 0
        assert not isinstance(vars(patch.module).get("forward"), patches.Patch)


def frozen(module: nn.Module) -> Any:
    return module.eval().requires_grad_(False)


def encoder(channels: int = 3, out: int = 4) -> nn.Sequential:
    """Frozen, once its statistics are no longer the initial ones."""
    made = nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True), nn.Conv2d(out, out, 1)
    )
    made(torch.randn(4, channels, 8, 8))
    return frozen(made)  # type: ignore[no-any-return]


def decoder(channels: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.4), nn.ReLU(), nn.Conv2d(4, 2, 1))


def images(size: int = 4, channels: int = 3) -> Tensor:
    return torch.randn(size, channels, 8, 8)


# ---- models that can be split


@dataclass
class Case:
    """A forward: ``make`` gives the model, or a function and what is trained in it, and what makes a batch.

    ``names`` are the modules that run ahead.
    """

    make: Callable[[], tuple[Any, ...]]
    names: tuple[str, ...]
    call: Callable[[Any, Any], Any] | None = None


CASES: list[Any] = []


def case(*names: str, call: Any = None) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        CASES.append(pytest.param(Case(make, names, call), id=make.__name__))
        return make

    return add


class Chained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.decoder = decoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))  # type: ignore[no-any-return]


@case("encoder")
def wrapper() -> Any:
    return Chained(), images


@case("encoder")
def wrapper_in_no_grad() -> Any:
    class Model(Chained):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.encoder(x)
            return self.decoder(features)  # type: ignore[no-any-return]

    return Model(), images


@case("0", "1", "2", "3", "4")
def sequential() -> Any:
    return nn.Sequential(*encoder(), nn.MaxPool2d(2), *decoder()), images


@case("conv1", "bn1", "relu", "maxpool", "layer1", "layer2")
def stages_of_a_resnet() -> Any:
    model = torchvision.models.resnet18(num_classes=3)
    for part in (model.conv1, model.bn1, model.layer1, model.layer2):
        frozen(part)
    return model, lambda: torch.randn(2, 3, 32, 32)


@case("low", "high")
def glue_and_a_skip_connection() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high, self.decoder = encoder(), encoder(7), decoder(11)

        def forward(self, x: Tensor) -> Tensor:
            x = x * torch.tensor([[1.0], [2.0]]).mul_(3).view(2, 1, 1, 1).repeat(2, 1, 1, 1)
            small = F.interpolate(x, scale_factor=0.5, mode="bilinear")
            low = F.interpolate(self.low(small), size=x.shape[-2:])
            high = self.high(torch.cat([x, low], 1))
            return self.decoder(torch.cat([high, low, x], 1))  # type: ignore[no-any-return]

    return Model(), images


@case("encoder")
def one_module_on_two_views() -> Any:
    class Model(Chained):
        def forward(self, views: tuple[Tensor, Tensor]) -> Tensor:
            return sum(self.decoder(self.encoder(view)) for view in views)  # type: ignore[return-value]

    return Model(), lambda: (images(), images())


@case("encoder")
def one_module_before_and_after_what_is_trained() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.trained = encoder(4), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(self.trained(self.encoder(x)))  # type: ignore[no-any-return]

    return Model(), lambda: images(channels=4)


@case("teacher")
def student_before_its_teacher() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = decoder(3), frozen(decoder(3))

        def forward(self, x: Tensor) -> Tensor:
            logits = self.student(x)
            with torch.no_grad():
                target = self.teacher(x).argmax(1)
            return F.cross_entropy(logits, target)

    return Model(), images


class Pair(NamedTuple):
    first: Tensor
    rest: list[Tensor]


@dataclass
class Features:
    maps: dict[str, Tensor]
    count: int


@case("teacher")
def skipped_modules_with_structured_results() -> Any:
    class Student(nn.Conv2d):
        def forward(self, x: Tensor) -> Any:
            y = super().forward(x)
            return Pair(y, [x, y + 1]), Features({"y": y}, 3), None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = Student(3, 4, 1), encoder()

        def forward(self, x: Tensor) -> Tensor:
            pair, features, _ = self.student(x)
            assert features.count == 3
            target = self.teacher(pair.rest[0])
            return ((pair.rest[1] + features.maps["y"] - target) ** 2).mean()

    return Model(), images


@case("encoder")
def structured_features() -> Any:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = encoder()

        def forward(self, x: Tensor) -> Any:
            y = self.body(x)
            return Features({"y": y, "index": y.argmax(1)}, 2), Pair(y * 2, [y + 1]), (None, "text", 5)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = frozen(Encoder()), decoder()

        def forward(self, x: Tensor) -> Tensor:
            features, pair, (_, text, five) = self.encoder(x)
            pair.rest.append(x)  # the list is the caller's
            assert (text, five, len(pair.rest)) == ("text", 5, 2)
            mixed = features.maps["y"] * features.count + pair.first + pair.rest[0] + features.maps["index"][:, None]
            return self.decoder(mixed)  # type: ignore[no-any-return]

    return Model(), images


@dataclass
class Output(OrderedDict[str, Tensor]):
    """As model libraries return them: fields that are also items."""

    logits: Tensor
    hidden: Tensor

    def __post_init__(self) -> None:
        OrderedDict.__setitem__(self, "logits", self.logits)
        OrderedDict.__setitem__(self, "hidden", self.hidden)

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("it is not to be updated")


@case("teacher")
def outputs_that_are_mappings_and_dataclasses() -> Any:
    class Named(nn.Conv2d):
        def forward(self, x: Tensor) -> Output:
            y = super().forward(x)
            return Output(y, y + 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = Named(3, 4, 1), frozen(Named(3, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            ours, theirs = self.student(x), self.teacher(x)
            return (ours.logits - theirs["hidden"]).square().mean() + ours["hidden"].mean() * theirs.logits.mean()

    return Model(), images


@case("encoder", call=lambda model, batch: model(batch["pixels"], scale=batch["scale"]))
def keywords_and_a_dict() -> Any:
    class Model(Chained):
        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            return super().forward(x * scale)

    return Model(), lambda: {"pixels": images(), "scale": torch.rand(4, 1, 1, 1), "name": "a"}


@case("features")
def separate_modules_in_a_function() -> Any:
    features, head = encoder(), decoder()

    def forward(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            made = features(batch[0])
        return F.cross_entropy(head(made), batch[1])

    return forward, lambda: (images(), torch.randint(0, 2, (4, 6, 6))), head


@case("Sequential")
def modules_that_no_name_leads_to() -> Any:
    class Trainer:
        def __init__(self) -> None:
            self.parts = [encoder(), nn.Conv2d(4, 2, 1)]

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[1](self.parts[0](x))  # type: ignore[no-any-return]

    trainer = Trainer()
    return trainer.forward, images, trainer.parts[1]


@case("vae.encoder", "vae.quantize", "text")
def sampling_between_frozen_parts() -> Any:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.quantize = encoder(), nn.Conv2d(4, 4, 1)

        def encode(self, x: Tensor) -> Tensor:
            mean, log_scale = self.quantize(self.encoder(x)).chunk(2, 1)
            return mean + log_scale.exp() * torch.randn_like(mean)

    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vae = frozen(Vae())
            self.text = frozen(nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 2)))
            self.denoiser = decoder(2)

        def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            latents = self.vae.encode(batch[0])
            noise = torch.randn(latents.shape)
            condition = self.text(batch[1]).mean(1)[:, :, None, None]
            return self.denoiser(latents + noise + condition)  # type: ignore[no-any-return]

    return Diffusion(), lambda: (images(), torch.randint(0, 20, (4, 5)))


@case("encoder.0", "encoder.1", "encoder.2", "encoder.3", "encoder.4")
def features_by_hooks() -> Any:
    return Hooked(), images


@case("encoder.0", "encoder.1", "encoder.2", "encoder.3")
def features_by_a_hook_on_the_last_part() -> Any:
    model = Hooked(changes=False)
    model.encoder.pop(4)
    return model, images


class Hooked(nn.Module):
    """What is decoded is what a hook caught."""

    def __init__(self, changes: bool = True) -> None:
        super().__init__()
        self.changes = changes
        self.encoder, self.decoder = frozen(nn.Sequential(*encoder(), nn.Conv2d(4, 9, 1))), decoder()
        self.encoder[3].register_forward_hook(self.keep)
        self.caught = Caught()

    def keep(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        self.caught.features = output
        return output + 1 if self.changes else None

    def forward(self, x: Tensor) -> Tensor:
        self.encoder(x)
        return self.decoder(self.caught.features)  # type: ignore[no-any-return]


class Caught:
    features: Tensor


@case("encoder")
def transformer_and_embedding() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.embed = nn.Embedding(11, 8)
            self.encoder = frozen(nn.Sequential(self.embed, nn.TransformerEncoder(layer, 2)))
            self.head = nn.LSTM(8, 4, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.encoder(tokens))[0]  # type: ignore[no-any-return]

    return Model(), lambda: torch.randint(0, 11, (3, 5))


@case("encoder", call=lambda model, x: _autocast(model, x))
def autocast_around_both() -> Any:
    class Model(Chained):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            shift = (x.mean((2, 3))[:, :1].expand(4, 4) @ self.scale)[:, :, None, None]
            return self.decoder(self.encoder(x) + shift)  # type: ignore[no-any-return]

    return Model(), images


def _autocast(model: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x)


@case("encoder")
def checkpointed() -> Any:
    from torch.utils.checkpoint import checkpoint

    class Model(Chained):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]

    return Model(), images


@case("backbone")
def parametrized_and_cached() -> Any:
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 1))
            self.table: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.table is None:
                self.table = torch.arange(8.0).cos()
            return self.conv(x) * self.table  # type: ignore[no-any-return]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = frozen(Backbone()), decoder()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.backbone(x))  # type: ignore[no-any-return]

    return Model(), images


@case("encoder")
def code_that_swallows_everything() -> Any:
    class Model(Chained):
        def forward(self, x: Tensor) -> Tensor:
            try:
                x = self.encoder(x)
            except BaseException:
                x = x[:, :1].expand(-1, 4, -1, -1)
            return self.decoder(x)  # type: ignore[no-any-return]

    return Model(), images


@case("encoder")
def features_changed_in_place_by_the_rest() -> Any:
    class Model(Chained):
        def forward(self, x: Tensor) -> Tensor:
            y = self.encoder(x)
            y += 1
            return self.decoder(F.relu_(y))  # type: ignore[no-any-return]

    return Model(), images


@case("encoder")
def sparse_batch() -> Any:
    class Gather(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4))

        def forward(self, graph: Tensor) -> Tensor:
            return torch.sparse.mm(graph, self.weight)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = frozen(Gather()), nn.Linear(4, 2)

        def forward(self, graph: Tensor) -> Tensor:
            return self.head(self.encoder(graph))  # type: ignore[no-any-return]

    return Model(), lambda: torch.randn(5, 6).relu().to_sparse()


@case("features")
def everything_is_frozen() -> Any:
    features = encoder()
    return (lambda x: x.mean() * features(x)), images, features


def train(
    case: Case, run: Callable[[Any, list[Any], Callable[[Any], None]], None]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The losses and all weights after some steps, and what torch draws next; ``run`` is the loop."""
    torch.manual_seed(0)
    model, make_batch, *modules = case.make()
    root: nn.Module = modules[0] if modules else model
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1)), *root.parameters()], 0.1, momentum=0.9)
    losses: list[Tensor] = []

    def learn(output: Any) -> None:
        optimizer.zero_grad()
        losses.append(output.float().square().mean())
        if losses[-1].requires_grad:
            losses[-1].backward()
        optimizer.step()

    batches = [make_batch() for _ in range(4)]
    run(model, batches, learn)
    return [loss.detach() for loss in losses], [*root.parameters(), *root.buffers()], torch.rand(3)


def same(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return all(torch.equal(here, there) for here, there in zip(one, other, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_in_one_piece(case: Case) -> None:
    found: list[Split] = []

    def in_one(model: Any, batches: list[Any], learn: Callable[[Any], None]) -> None:
        for batch in batches:
            learn(case.call(model, batch) if case.call else model(batch))

    def in_two(model: Any, batches: list[Any], learn: Callable[[Any], None]) -> None:
        split = find_prefix(model, batches[0], call=case.call)
        assert isinstance(split, Split), split.reason
        found.append(split)
        agreement = split.verify(batches[1])
        assert agreement.exact and agreement.noise == 0.0
        ahead = split.prefix(batches[0])
        for batch, after in itertools.zip_longest(batches, batches[1:]):
            features, ahead = ahead, () if after is None else split.prefix(after)
            learn(split.rest(batch, features))
        assert split.changed() is None

    (losses, weights, drawn), (losses_2, weights_2, drawn_2) = train(case, in_one), train(case, in_two)
    assert found[0].names == case.names, (found[0].reason, found[0].blocked)
    assert same(losses, losses_2) and same(weights, weights_2) and torch.equal(drawn, drawn_2)


# ---- what must not run ahead


class Tail(nn.Module):
    """An encoder, and something between that and a decoder."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.between, self.decoder = encoder(), between or nn.Identity(), decoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.between(self.encoder(x)))  # type: ignore[no-any-return]


REFUSED: list[Any] = []


def refused(*names: str, because: str, blocked: bool = True) -> Callable[[Any], Any]:
    """``because`` is a part of what is told; ``blocked`` whether it is one of the things to be done about."""

    def add(make: Any) -> Any:
        REFUSED.append(pytest.param(make, names, because, blocked, id=make.__name__))
        return make

    return add


@pytest.mark.parametrize(("make", "names", "because", "blocked"), REFUSED)
def test_it_does_not_run_ahead(make: Any, names: tuple[str, ...], because: str, blocked: bool) -> None:
    torch.manual_seed(0)
    model, x = make()
    found = find_prefix(model, x)
    assert (found.names if found else ()) == names
    assert any(because in text for text in (found.blocked if blocked else [found.reason])), found
    if found:
        assert isinstance(found, Split)
        assert found.verify(x).exact


@refused(
    "encoder.0", because="encoder.1 is in train mode and changes encoder.1.num_batches_tracked: call encoder.eval()"
)
def encoder_in_train_mode() -> Any:
    model = Tail()
    model.encoder.train()
    return model, images()


@refused("encoder", because="between is in train mode and changes between.running_mean: call between.eval()")
def statistics_without_a_count() -> Any:
    norm = nn.BatchNorm2d(4).requires_grad_(False)
    norm.num_batches_tracked = None
    return Tail(norm), images()


@refused("encoder", "between.0", because="between.1 is in train mode and draws random numbers: call between.eval()")
def dropout() -> Any:
    between = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(0.1), nn.Conv2d(4, 4, 1))
    return Tail(between.requires_grad_(False)), images()


class Noisy(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.draw(x)

    def draw(self, x: Tensor) -> Any:
        return torch.randn_like(x)


@refused("encoder", because="between draws random numbers")
def noise() -> Any:
    return Tail(frozen(Noisy(4, 4, 1))), images()


@refused("encoder", because="between draws random numbers")
def noise_from_its_own_generator() -> Any:
    generator = torch.Generator()

    class Own(Noisy):
        def draw(self, x: Tensor) -> Any:
            return torch.randn(x.shape, generator=generator)

    return Tail(frozen(Own(4, 4, 1))), images()


@refused("encoder", because="between cannot run early: Python's random generator is drawn from")
def layers_dropped_by_python() -> Any:
    class Python(Noisy):
        def draw(self, x: Tensor) -> Any:
            return random.random()

    return Tail(frozen(Python(4, 4, 1))), images()


@refused("encoder", because="between cannot run early: between changes its attribute 'calls'")
def a_counter() -> Any:
    class Counting(nn.Conv2d):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) * self.calls

    return Tail(frozen(Counting(4, 4, 1))), images()


@refused("encoder", because="between cannot run early: between changes its attribute 'seen'")
def a_list_that_grows() -> Any:
    class Noting(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(float(x.mean()))
            return super().forward(x)

    module = frozen(Noting(4, 4, 1))
    module.seen = []
    return Tail(module), images()


@refused("encoder", because="between cannot run early: between changes its attribute 'total'")
def a_buffer_that_is_exchanged() -> Any:
    class Exchanging(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(4, 4, 1)
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.total.data = self.total.data + 1
            return super().forward(x) * self.total

    return Tail(frozen(Exchanging())), images()


@refused("encoder", because="between changes between.total")
def a_buffer_of_its_own() -> Any:
    class Summing(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(4, 4, 1)
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x.mean())
            return super().forward(x)

    return Tail(frozen(Summing())), images()


@refused("encoder", because="between.0 reads between.0.weight, which the forward changes")
def an_embedding_that_is_renormalized() -> Any:
    class Codes(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.abs().long().clamp(max=3)).mean(-1)

    return Tail(frozen(Codes(nn.Embedding(4, 3, max_norm=0.1)))), images()


@refused("encoder", because="between needs between.weight, which an optimizer may change by its old gradient")
def a_gradient_that_was_left() -> Any:
    model = Tail(frozen(nn.Conv2d(4, 4, 1)))
    model.between.weight.grad = torch.ones_like(model.between.weight)
    return model, images()


@refused("encoder", because="between reads between.scale, which the forward changes")
def weights_that_the_forward_changes_later() -> Any:
    class Scaled(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(4, 4, 1)
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    class Model(Tail):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            self.between.scale.copy_(y.mean().detach())
            return y

    return Model(frozen(Scaled())), images()


@refused(because="model.0 runs without gradients, but model.0.0.weight requires grad", blocked=False)
def weights_that_require_grad_in_no_grad() -> Any:
    model = nn.Sequential(encoder().requires_grad_(True), decoder())

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            features = model[0](x)
        return model[1](features)  # type: ignore[no-any-return]

    return forward, images()


@refused("encoder", because="target needs what predict makes")
def what_is_computed_from_trained_weights_by_way_of_detach() -> Any:
    return Taint(lambda y, _: y.detach()), images()


@refused("encoder", because="target needs what predict makes")
def what_is_computed_from_trained_weights_by_way_of_argmax() -> Any:
    return Taint(lambda y, x: x * y.argmax(1, keepdim=True)), images()


@refused("encoder", because="target needs what predict makes")
def what_is_written_in_place_by_trained_parts() -> Any:
    def write(y: Tensor, x: Tensor) -> Tensor:
        buffer = torch.zeros_like(y)
        with torch.no_grad():
            buffer[:2] = y[:2]
        return buffer

    return Taint(write), images()


@refused("encoder", because="target needs predict.weight, which requires grad")
def trained_weights_by_way_of_data() -> Any:
    model = Taint(lambda y, x: x + model.predict.weight.data.mean())
    return model, images()


@refused("encoder", because="target cannot be reached: Python looks at what predict makes")
def trained_values_by_way_of_python() -> Any:
    return Taint(lambda y, x: x * y.mean().item()), images()


@refused("encoder", because="target cannot be reached: Python looks at what predict makes")
def trained_values_by_way_of_lists() -> Any:
    return Taint(lambda y, x: x * y.detach()[0, 0, 0].tolist()[0]), images()


@refused("encoder", because="target cannot be reached: Python looks at what predict makes")
def trained_values_by_way_of_numpy() -> Any:
    return Taint(lambda y, x: x + torch.from_numpy(y.detach().numpy() + 1)), images()


@refused("encoder", because="target cannot be reached: Python looks at what predict makes")
def trained_values_by_way_of_a_size() -> Any:
    return Taint(lambda y, x: x * len(y[y > 0])), images()


class Taint(nn.Module):
    """``target`` is frozen, and takes what ``way`` makes of the prediction and the features."""

    def __init__(self, way: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self.predict = encoder(), nn.Conv2d(4, 4, 1)
        self.target = frozen(nn.Conv2d(4, 4, 1))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        y = self.predict(x)
        return (y - self.target(self.way(y, x))).square().mean()


@refused("encoder", because="target cannot be reached: the forward writes in place into the batch")
def a_batch_that_is_written_into() -> Any:
    class Model(Taint):
        def forward(self, x: Tensor) -> Tensor:
            y = self.predict(self.encoder(x))
            x.mul_(2)
            return (y - self.target(x[:, :1].expand(-1, 4, -1, -1))).square().mean()

    return Model(lambda y, x: x), images()


@refused("encoder", because="target cannot be reached: the forward writes in place into a tensor made before")
def features_that_are_written_into() -> Any:
    class Model(Taint):
        def forward(self, x: Tensor) -> Tensor:
            x = self.encoder(x)
            y = self.predict(x.clone())
            x += 1
            return (y - self.target(x)).square().mean()

    return Model(lambda y, x: x), images()


@refused("encoder", because="target cannot be reached: Model changes its attribute 'steps'")
def a_counter_between_the_calls() -> Any:
    class Model(Taint):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            y = self.predict(self.encoder(x))
            self.steps += 1
            return y.mean() + self.target(x[:, :1].expand(-1, 4, -1, -1)).mean() * self.steps

    return Model(lambda y, x: x), images()


@refused("encoder", because="target cannot be reached: predict returns an object of type 'Opaque', so it has to run")
def trained_parts_that_nothing_can_stand_in_for() -> Any:
    class Opaque:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    class Predict(nn.Conv2d):
        def forward(self, x: Tensor) -> Any:
            return Opaque(super().forward(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.predict, self.target = encoder(), Predict(4, 4, 1), frozen(nn.Conv2d(4, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = self.encoder(x)
            return (self.predict(x).value - self.target(x)).square().mean()

    return Model(), images()


@refused("first", because="relu.0 writes in place into a tensor that was used before")
def features_used_before_a_frozen_part_writes_into_them() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.relu, self.last = frozen(nn.Conv2d(3, 4, 1)), nn.ReLU(inplace=True), decoder()

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            z = y + 1
            return self.last(self.relu(y) * z)  # type: ignore[no-any-return]

    model = Model()
    model.relu = frozen(nn.Sequential(model.relu, nn.Conv2d(4, 4, 1)))
    return model, images()


class Unseen(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad(), _disable_current_modes():
            return super().forward(x)


@refused("encoder", because="target needs what predict.0 makes")
def kernels_that_torch_does_not_see() -> Any:
    model = Taint(lambda y, x: model.predict[0](x))
    model.predict = nn.Sequential(Unseen(4, 4, 1), nn.Conv2d(4, 4, 1))
    return model, images()


@refused("encoder", because="target needs a tensor without memory of its own")
def a_format_without_memory_of_its_own() -> Any:
    return Taint(lambda y, x: x.to_mkldnn().to_dense()), images()


@refused("encoder", because="target needs random numbers, which are drawn anew for each batch")
def random_numbers_that_a_frozen_part_is_given() -> Any:
    return Taint(lambda y, x: x + torch.randn_like(x)), images()


@refused(because="encoder needs the batch, which requires grad")
def a_batch_that_requires_grad() -> Any:
    return Chained(), images().requires_grad_()


@refused("encoder", because="target needs what 0 makes; so it is with 2 more")
def one_thing_at_a_time() -> Any:
    parts = {"encoder": encoder(), "0": nn.Conv2d(4, 4, 1), "target": encoder(4), "1": encoder(4), "2": encoder(4)}
    model = nn.Sequential()
    for name, part in parts.items():
        model.add_module(name, part)
    return model, images()


@refused("encoder", because="target cannot be reached: predict hands on a part of what it was given")
def trained_parts_that_hand_on_a_view_of_the_batch() -> Any:
    class Predict(nn.Conv2d):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x[:2]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.predict, self.target = encoder(4), Predict(4, 4, 1), frozen(nn.Conv2d(4, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            features = self.encoder(x)
            y, half = self.predict(x)
            return (y - self.target(features)).square().mean() + self.target(half).mean()

    return Model(), images(channels=4)


@refused(because="is in train mode and changes encoder.1.num_batches_tracked: call encoder.eval()")
def a_compiled_encoder_in_train_mode() -> Any:
    def hiding(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            with _disable_current_modes():
                return graph(*args)

        return run

    model = Chained()
    model.encoder.train().compile(backend=hiding)
    model(images())
    return model, images()


@refused(because="what needs no gradient does too little: 0", blocked=False)
def nothing_but_what_is_trained() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.randn(3, 12)


@refused(because="no module is called", blocked=False)
def no_module_at_all() -> Any:
    return (lambda x: x + 1), images()


@refused(because="OptimizedModule is trained", blocked=False)
def a_model_compiled_as_a_whole() -> Any:
    return torch.compile(Chained(), backend="eager"), images()


# ---- the two parts on their own


def split_of(model: Any, batch: Any, **settings: Any) -> Split:
    found = find_prefix(model, batch, **settings)
    assert isinstance(found, Split), found.reason
    return found


def gradients(model: nn.Module, output: Tensor) -> list[Tensor]:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return list(torch.autograd.grad(output.float().square().mean(), weights))


def test_finding_and_verifying_leave_everything_as_it_was() -> None:
    class Model(Chained):
        def forward(self, x: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            self.log.append(self.calls)
            shift = torch.randn((), generator=generator) + torch.rand(()) + random.random()
            self.bank.data = self.bank.data * 2
            x.add_(1)
            return super().forward(x + shift + self.bank)

    generator = torch.Generator()
    model, x = Model(), images()
    model.log: Any = []
    model.register_buffer("bank", torch.ones(()))
    before = copy.deepcopy(model.state_dict())
    states = torch.get_rng_state(), random.getstate(), generator.get_state()
    pixels, bank = x.clone(), model.bank.data_ptr()

    assert not find_prefix(model, x)
    model.__class__ = Chained
    split_of(model, x).verify(x)

    assert "calls" not in vars(model) and model.log == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.bank.data_ptr() == bank
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert torch.equal(states[2], generator.get_state())
    assert torch.equal(x, pixels)
    assert all(weight.grad is None for weight in model.parameters())


def test_modules_that_no_name_leads_to_are_left_as_they_were() -> None:
    class Counting(nn.Conv2d):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    parts = [encoder(), Counting(4, 2, 1)]
    split = split_of(lambda x: parts[1](parts[0](x)), images())
    assert split.names == ("Sequential",)
    split.verify(images())
    assert "calls" not in vars(parts[1])


def test_what_ends_the_prefix_is_told() -> None:
    model = Chained()
    split = split_of(model, images())
    assert split.reason == "decoder is trained: decoder.0.weight requires grad"
    assert split.blocked == ()
    assert split.capturable
    assert repr(split) == "Split(encoder)"
    assert split.frozen == (model.encoder,)


def test_weights_that_are_trained_elsewhere_are_not_to_be_frozen() -> None:
    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            target = model(x)
            backbone(x)
        return (model(x) - target).square().mean()

    model, backbone = decoder(3), encoder().requires_grad_(True)
    assert find_prefix(forward, images()).blocked == (
        "backbone runs without gradients, but backbone.0.weight requires grad:"
        " call backbone.requires_grad_(False) if it is not trained",
    )


def test_what_stands_in_for_a_result_has_its_strides() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = encoder(), encoder(4), decoder()

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x.contiguous(memory_format=torch.channels_last))
            assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
            return self.last(self.second(y))  # type: ignore[no-any-return]

    model, x = Model(), images()
    split = split_of(model, x)
    assert [len(feature) for feature in split.prefix(x)] == [1, 2]
    assert split.verify(x).exact


def test_parts_that_run_ahead_piece_by_piece_are_not_told_of() -> None:
    assert split_of(Hooked(), images()).blocked == ()


def test_only_what_the_rest_needs_is_kept() -> None:
    model, x = nn.Sequential(*encoder(), *decoder()), images()
    kept = [[tuple(part.shape) for part in feature[1:]] for feature in split_of(model, x).prefix(x)]
    assert kept == [[], [], [], [(4, 4, 8, 8)]]


def test_neither_part_computes_what_the_other_does() -> None:
    calls: list[str] = []
    model, x = Chained(), images()
    split = split_of(model, x)
    for name in ("encoder", "decoder"):
        part = getattr(model, name)[0]
        plain = part.forward
        part.forward = lambda x, plain=plain, name=name: (calls.append(name), plain(x))[1]
    features = split.prefix(x)
    assert calls == ["encoder"]
    split.rest(x, features)
    assert calls == ["encoder", "decoder"]


def test_what_is_skipped_leaves_no_trace() -> None:
    model, _ = student_before_its_teacher()
    x = images()
    split = split_of(model, x)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    split.prefix(x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_a_short_batch_goes_through() -> None:
    model, x = Chained().eval(), images(6)
    split = split_of(model, x)
    for size in (6, 1, 3):
        features = split.prefix(x[:size])
        assert len(features) == 1
        assert torch.equal(split.rest(x[:size], features), model(x[:size]))


def test_where_zeros_would_have_another_size_the_rest_does_it() -> None:
    model, _ = student_before_its_teacher()
    model.eval()
    x = images(6)
    split = split_of(model, x)
    assert len(split.prefix(x)) == 1
    assert split.prefix(x[:2]) == ()
    assert torch.equal(split.rest(x[:2], ()), model(x[:2]))


class Branching(nn.Module):
    """Takes a course that depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.trained = encoder(4), encoder(4), nn.Conv2d(4, 4, 1)

    def forward(self, batch: tuple[Tensor, str]) -> Tensor:
        x, course = batch
        if course == "swap":
            return self.trained(self.first(self.second(x)))  # type: ignore[no-any-return]
        y = self.first(x)
        if course == "trained" or (course == "ahead" and not torch.is_grad_enabled()):
            y = self.trained(y)
        if course == "again":
            y = self.second(y)
        z = self.second(y)
        if course == "write":
            x.add_(1)
        if course in ("look", "write"):
            z = (z + y * y.mean()).add_(y[0]) * len(y)
        return self.trained(z)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("course", "ahead"), [("", 2), ("trained", 1), ("ahead", 1), ("again", 2), ("look", 2), ("swap", 0)]
)
def test_another_course_gives_what_it_should(course: str, ahead: int) -> None:
    model, x = Branching(), images(channels=4)
    split = split_of(model, (x, ""))
    assert split.names == ("first", "second")
    features = split.prefix((x, course))
    assert len(features) == ahead
    ours, theirs = split.rest((x, course), features), model((x, course))
    assert torch.equal(ours, theirs)
    assert same(gradients(model, ours), gradients(model, theirs))


def test_calls_in_another_order_are_not_answered() -> None:
    model, x = Branching(), images(channels=4)
    split = split_of(model, (x, ""))
    assert torch.equal(split.rest((x, "swap"), split.prefix((x, ""))), model((x, "swap")))


def test_a_result_that_is_wanted_too_late_is_an_error() -> None:
    model, x = Branching(), images(channels=4)
    split = split_of(model, (x, ""))
    with pytest.raises(SplitDiffers, match="find it anew"):
        split.rest((x, "write"), split.prefix((x, "look")))


def test_a_course_that_is_another_ahead_of_the_loop_is_told() -> None:
    model, x = Branching(), images(channels=4)
    with pytest.raises(SplitDiffers, match="another course ahead of the loop"):
        split_of(model, (x, "ahead")).verify((x, "ahead"))


def test_the_part_ahead_needs_no_gradients_and_the_rest_has_them() -> None:
    model, x = Chained(), images()
    split = split_of(model, x)
    features = split.prefix(x)
    assert not any(part.requires_grad for feature in features for part in feature[1:])
    assert split.rest(x, features).requires_grad


def test_an_autocast_around_both_parts_keeps_its_gradients() -> None:
    class Model(Chained):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8))

        def forward(self, x: Tensor) -> Tensor:
            gate = F.linear(x.mean((1, 2)), self.weight)[:, :, None, None]
            return self.decoder(self.encoder(x) * gate)  # type: ignore[no-any-return]

    model, x = Model(), images()
    split = split_of(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        output = split.rest(x, split.prefix(x))
    assert all(gradient.abs().sum() > 0 for gradient in gradients(model, output)[:1])


def test_the_model_is_itself_for_other_threads_and_inside() -> None:
    model, x = Chained().eval(), images()
    split = split_of(model, x)
    whole = model(x)
    elsewhere: list[Tensor] = []

    class Nosy(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: elsewhere.append(model.encoder(x)))
            thread.start()
            thread.join()
            elsewhere.append(split.rest(2 * x, split.prefix(2 * x)) if len(elsewhere) == 1 else y)
            return y

    model.decoder.append(Nosy())
    features = split.prefix(x)
    features = tuple((form, torch.zeros_like(tensor)) for form, tensor in features)
    ours = split.rest(x, features)
    assert torch.equal(elsewhere[0], model.encoder(x))
    assert torch.equal(elsewhere[2], model(2 * x))
    assert not torch.equal(ours, whole)


def test_one_split_may_be_used_inside_another() -> None:
    inner, outer, x = Chained().eval(), Chained().eval(), images()
    inner_split = split_of(inner, x)

    def forward(x: Tensor) -> Tensor:
        inside.append(inner_split.rest(x, inner_split.prefix(x)))
        return outer(x * len(inside[-1]))  # type: ignore[no-any-return]

    inside: list[Tensor] = []
    split = split_of(forward, x)
    assert split.names == ("outer.encoder",)
    features = split.prefix(x)
    outer.encoder.forward = None  # it is answered
    assert torch.equal(split.rest(x, features), outer.decoder(features[0][1]))
    assert all(torch.equal(one, inner(x)) for one in inside)


def test_threads_may_run_both_parts_at_once() -> None:
    model, x = Chained().eval(), images()
    splits = [split_of(model, x) for _ in range(2)]
    wrong: list[int] = []

    def run(split: Split, factor: int) -> None:
        for number in range(20):
            batch = x * (factor + number)
            if not torch.equal(split.rest(batch, split.prefix(batch)), model(batch)):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(split, factor)) for factor, split in enumerate(splits, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_same_attributes_made_anew_are_no_state() -> None:
    class Shapely(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            self.shape, self.sizes, self.note = x.shape, {"width": x.shape[-1]}, "".join(["a", "b"])
            return super().forward(x)

    assert split_of(Tail(frozen(Shapely(4, 4, 1))), images()).names == ("encoder", "between")


def test_an_error_leaves_the_model_as_it_was() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if armed:
                raise ValueError("no")
            return x

    armed: list[int] = []
    model, x = Tail(Fails()), images()
    split = split_of(model, x)
    features = split.prefix(x)
    armed.append(1)
    for run in (lambda: split.prefix(x), lambda: split.rest(x, features[:1]), lambda: find_prefix(model, x)):
        with pytest.raises(ValueError, match="no"):
            run()
        assert "forward" not in vars(model.encoder)


# ---- what changes afterwards


def test_train_mode_and_thawing_are_noticed() -> None:
    model, x = Chained(), images()
    split = split_of(model, x)
    model.train()
    with pytest.raises(NotFrozen, match=r"encoder is in train mode now: call encoder\.eval\(\)"):
        split.prefix(x)
    model.encoder.eval()
    split.prefix(x)
    model.encoder[0].requires_grad_(True)
    with pytest.raises(NotFrozen, match=r"encoder\.0\.weight requires grad now"):
        split.prefix(x)


def follow(teacher: nn.Module, student: nn.Module, way: str) -> None:
    for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
        if way == "in place":
            with torch.no_grad():
                ours.lerp_(theirs, 0.1)
        elif way == "data":
            ours.data = ours.data * 0.9 + theirs.data * 0.1
        else:
            ours.data.mul_(0.9).add_(theirs.data, alpha=0.1)


@pytest.mark.parametrize("way", ["in place", "data", "in place by data"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_teacher_that_follows_is_noticed(way: str, dtype: torch.dtype) -> None:
    model, _ = student_before_its_teacher()
    x = images().to(dtype)
    model.to(dtype)
    split = split_of(model, x)
    assert split.changed() is None
    follow(model.teacher, model.student, way)
    assert split.changed() in dict(model.named_parameters())


def test_a_split_that_differs_is_told() -> None:
    split = split_of(Chained().eval(), images())
    forward = split._forward
    split._forward = _Odd(forward)
    with pytest.raises(SplitDiffers, match="the outputs of the split differ from those of the forward by"):
        split.verify(images())
    split._forward = _Odd(forward, draws=True)
    with pytest.raises(SplitDiffers, match="draws other random numbers"):
        split.verify(images())


def test_a_result_that_goes_another_way_too_is_told() -> None:
    class Model(Chained):
        def forward(self, x: Tensor) -> Tensor:
            self.encoder(x)
            return self.decoder(caught.features)  # type: ignore[no-any-return]

    class Telling(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            caught.features = super().forward(x)
            return caught.features

    caught, model = Caught(), Model()
    model.encoder = frozen(Telling(3, 4, 1))
    with pytest.raises(SplitDiffers, match="the outputs of the split differ"):
        split_of(model, images()).verify(images())


def test_a_forward_that_differs_from_itself_is_told() -> None:
    outside: list[int] = []

    def forward(x: Tensor) -> Tensor:
        outside.append(1)
        return model(x) * len(outside)  # type: ignore[no-any-return]

    model = Chained()
    with pytest.raises(SplitDiffers, match="something else each time"):
        split_of(forward, images()).verify(images())


class _Odd:
    """A forward that depends on how often it has been run ahead, by its result or by its draws."""

    def __init__(self, forward: Any, draws: bool = False) -> None:
        self.forward, self.draws, self.times = forward, draws, 0

    def __call__(self, batch: Any) -> Any:
        if self.draws:
            torch.rand(self.times)
        return self.forward(batch) + (0 if self.draws else self.times)

    def ahead(self, batch: Any) -> Any:
        self.times += 1
        return self.forward.ahead(batch)


# ---- compiled, scripted and distributed models


@pytest.mark.parametrize("way", ["compiled", "compiled in place", "scripted"])
def test_a_frozen_encoder_may_be_compiled(way: str) -> None:
    model, x = Chained(), images()
    whole = gradients(model.eval(), model(x))
    if way == "compiled":
        model.encoder = torch.compile(model.encoder, backend="eager")
    elif way == "compiled in place":
        model.encoder.compile(backend="eager")
    else:
        model.encoder = torch.jit.trace(model.encoder, x)
    split = split_of(model, x)
    assert split.names == ("encoder",)
    assert split.verify(x).exact
    assert same(gradients(model, split.rest(x, split.prefix(x))), whole)


def test_of_a_distributed_model_the_inner_one_runs_ahead(tmp_path: Any) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, x = Chained(), images()
        distributed = nn.parallel.DistributedDataParallel(model)
        split = split_of(distributed, x)
        assert split.names == ("encoder",)
        for _ in range(2):
            features = split.prefix(x)
            torch.manual_seed(0)
            split.rest(x, features).square().mean().backward()
            ours = [weight.grad.clone() for weight in model.decoder.parameters()]
            distributed.zero_grad()
            torch.manual_seed(0)
            theirs = gradients(model, model(x))
            assert same(ours, theirs)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.DataParallel(Chained()), "use DistributedDataParallel"),
        (lambda: nn.Sequential(encoder(), nn.LazyConv2d(2, 1)), "LazyConv2d has no parameters yet"),
    ],
)
def test_models_that_cannot_be_watched(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_prefix(make(), images())


# ---- where to cut


def call(name: str, parent: int, begin: int, end: int, **settings: Any) -> Call:
    return Call(name, parent, begin, end, **settings)


def reads(*keys: int, makes: int | None = None, **settings: Any) -> Op:
    settings.setdefault("traffic", 10)
    return Op(reads=frozenset(keys), makes=frozenset(() if makes is None else (makes,)), **settings)


def taken(found: Cut, trace: Trace) -> list[str]:
    return [f"{step.action.value} {trace.calls[step.call].name}" for step in found.steps]


def halting_student(inside: int) -> Trace:
    """A trained student with a frozen stem of some worth inside, which stops in between; and a frozen teacher."""
    ops = [
        reads(0, makes=1, traffic=inside),
        reads(1, 100, makes=2),
        reads(2, leaks=True),
        reads(0, makes=3, traffic=50),
        reads(2, 3, makes=4),
    ]
    calls = [
        call(
            "student", -1, 0, 3, takes=frozenset({0}), gives=frozenset({2}), renews=frozenset({2}), trained="student.w"
        ),
        call("stem", 0, 0, 1, takes=frozenset({0}), gives=frozenset({1}), renews=frozenset({1})),
        call("teacher", -1, 3, 4, takes=frozenset({0}), gives=frozenset({3}), renews=frozenset({3})),
    ]
    return Trace(ops, calls, frozenset({0}), frozenset({4}), {100: "student.w, which requires grad"})


@pytest.mark.parametrize(
    ("inside", "expected"), [(10, ["skip student", "take teacher"]), (90, ["enter student", "take stem"])]
)
def test_what_is_worth_more_is_taken(inside: int, expected: list[str]) -> None:
    trace = halting_student(inside)
    found = cut(trace)
    assert taken(found, trace) == expected
    assert [step.needed for step in found.steps if step.action is Action.TAKE] == [True]


def test_a_tail_that_is_worth_little_is_left() -> None:
    """A frozen call after a trained one needs that to be skipped, which is not worth it for nothing."""
    ops = [reads(0, makes=1, traffic=1000), reads(1, 100, makes=2), reads(0, makes=3, traffic=1), reads(2, 3, makes=4)]
    calls = [
        call("encoder", -1, 0, 1, gives=frozenset({1})),
        call("head", -1, 1, 2, trained="w", gives=frozenset({2}), renews=frozenset({2})),
        call("small", -1, 2, 3, gives=frozenset({3})),
    ]
    trace = Trace(ops, calls, frozenset({0}), frozenset({4}), {100: "w, which requires grad"})
    assert taken(cut(trace), trace) == ["take encoder"]
    dearer = Trace([*ops[:2], reads(0, makes=3, traffic=100), ops[3]], calls, trace.batch, trace.result, trace.lost)
    assert taken(cut(dearer), dearer) == ["take encoder", "skip head", "take small"]


def test_a_frozen_part_does_not_write_into_what_a_trained_one_has_read() -> None:
    ops = [
        reads(0, makes=1),
        reads(1, 100, makes=2),
        Op(reads=frozenset({1}), writes=frozenset({1}), traffic=10),
        reads(1, 2, makes=3),
    ]
    calls = [
        call("encoder", -1, 0, 1, gives=frozenset({1})),
        call("head", -1, 1, 2, trained="w", gives=frozenset({2}), renews=frozenset({2})),
        call("relu", -1, 2, 3, gives=frozenset({1})),
    ]
    trace = Trace(ops, calls, frozenset({0}), frozenset({3}), {100: "w, which requires grad"})
    found = cut(trace)
    assert taken(found, trace) == ["take encoder"]
    assert found.blocked == ("relu writes in place into a tensor that was used before",)


def test_what_a_trained_part_is_given_is_needed_even_if_no_operation_is_seen_to_read_it() -> None:
    ops = [reads(0, makes=1), reads(100, makes=2)]
    calls = [
        call("encoder", -1, 0, 1, gives=frozenset({1})),
        call("head", -1, 1, 2, trained="w", takes=frozenset({1}), gives=frozenset({2}), renews=frozenset({2})),
    ]
    found = cut(Trace(ops, calls, frozenset({0}), frozenset({2}), {100: "w, which requires grad"}))
    assert [step.needed for step in found.steps] == [True]


@pytest.mark.parametrize(("draws", "leaks"), [(False, False), (True, False), (False, True)])
def test_draws_and_looks_on_the_way_are_told(draws: bool, leaks: bool) -> None:
    ops = [reads(0, makes=1, draws=draws, leaks=leaks), reads(0, makes=2), reads(2, draws=True, leaks=True)]
    calls = [call("encoder", -1, 1, 2, gives=frozenset({2}))]
    found = cut(Trace(ops, calls, frozenset({0}), frozenset({2})))
    assert (found.draws, found.leaks) == (draws, leaks)


# ---- what it costs and brings


@pytest.mark.parametrize(
    ("costs", "as_is", "captured"),
    [
        # both parts fill the device, and the host is quick: at best nothing but the step's own idle time is won
        (Costs(10, 6, 0.5, 0.5, 4, 0, True), (1.0, 10 / 6), (1.0, 10 / 6)),
        # the host launches all the time: a stream brings nothing, a graph takes the launches away
        (Costs(8, 4, 4, 4, 1, 0, True), (1.0, 1.0), (8 / 5, 8 / 4.05)),
        # the hand-over costs
        (Costs(8, 4, 4, 4, 1, 2, True), (0.8, 1.0), (8 / 7, 8 / 4.05)),
        # a device without streams
        (Costs(8, 4, 4, 4, 4, 0, False), (1.0, 1.0), (1.0, 1.0)),
        # noise: the rest alone took longer than the whole
        (Costs(8, 9, 0.1, 1, 0.1, 1, True), (8 / 9, 8 / 9), (8 / 9, 8 / 9)),
    ],
)
def test_prediction(costs: Costs, as_is: tuple[float, float], captured: tuple[float, float]) -> None:
    prediction = predict(costs)
    assert prediction.as_is == pytest.approx(as_is)
    assert prediction.captured == pytest.approx(captured)


@dataclass
class Ticking:
    """A clock that is moved by what takes time."""

    at: float = 0.0

    def now(self) -> float:
        return self.at

    def spend(self, milliseconds: float) -> None:
        self.at += milliseconds / 1000


class Slow(nn.Conv2d):
    def __init__(self, clock: Ticking, milliseconds: float) -> None:
        super().__init__(4, 4, 1)
        self.takes = milliseconds
        self.spend = clock.spend

    def forward(self, x: Tensor) -> Tensor:
        self.spend(self.takes)
        return super().forward(x)


def timed_model() -> tuple[nn.Module, Ticking]:
    clock = Ticking()
    return nn.Sequential(frozen(Slow(clock, 30)), Slow(clock, 20)), clock


def test_measuring_a_step_and_its_parts() -> None:
    model, clock = timed_model()
    x = images(channels=4)
    split = split_of(model, x)
    batches: list[Any] = []

    def step(batch: Any, forward: Callable[[Any], Tensor]) -> None:
        batches.append(batch)
        forward(batch).mean().backward()
        clock.spend(10)

    costs = measure(split, x, step, rounds=3, seconds=0.2, clock=clock)
    assert costs == Costs(
        step=pytest.approx(60),
        rest=pytest.approx(30),
        prefix_host=pytest.approx(30),
        rest_host=pytest.approx(30),
        prefix_device=pytest.approx(30),
        handover=0.0,
        streams=False,
    )
    assert all(batch is x for batch in batches)


def test_the_measured_gain_is_that_of_the_pipeline() -> None:
    model, clock = timed_model()
    x = images(channels=4)
    split = split_of(model, x)
    made: list[int] = []

    def pipeline(loader: Iterable[Any]) -> Iterable[Any]:
        class Ahead:
            def __iter__(self) -> Iterator[Any]:
                made.append(0)
                for batch in loader:
                    result, before = split.stage(batch), clock.at
                    clock.at = before - 0.030 + 0.001  # hidden, but for a millisecond
                    made[-1] += 1
                    yield result

        return Ahead()

    def step(batch: Any, forward: Callable[[Any], Tensor]) -> None:
        forward(batch).mean().backward()
        clock.spend(10)

    gain = compare(split, x, step, pipeline=pipeline, rounds=3, seconds=0.3, clock=clock)
    assert gain.value == pytest.approx(60 / 31)
    assert (gain.low, gain.high) == (pytest.approx(gain.value), pytest.approx(gain.value))
    assert made == [4, 5, 5, 5]


@pytest.mark.parametrize("timing", [measure, compare])
def test_measuring_tells_of_weights_that_change(timing: Any) -> None:
    model, _ = student_before_its_teacher()
    split = split_of(model, images())

    def step(batch: Any, forward: Callable[[Any], Tensor]) -> None:
        forward(batch)
        follow(model.teacher, model.student, "data")

    settings = {} if timing is measure else {"pipeline": lambda loader: map(split.stage, loader)}
    with pytest.raises(NotFrozen, match=r"teacher\.\S+ changes while the loop trains"):
        timing(split, images(), step, seconds=0.01, **settings)


def test_the_proposal_tells_what_to_write() -> None:
    split = split_of(Chained(), images())
    costs = Costs(8, 4, 4, 4, 1, 0, True)
    proposal = propose(split, costs, model="net")
    assert (proposal.names, proposal.prefix_ms, proposal.rest_ms, proposal.pays) == (("encoder",), 4, 4, None)
    assert str(proposal) == (
        "encoder: 4.00 ms of each step need nothing of what the loop learns; the rest takes 4.00 ms."
        " Predicted speedup of running it one batch ahead: 1.60x to 1.98x.\n"
        "split = find_prefix(net, batch)  # with one batch of the loop's, on the device\n"
        "for batch, features in StagePipeline(loader, [split.stage], device):\n"
        "    output = split.rest(batch, features)  # in place of net(batch)"
    )
    split.capturable = False
    assert propose(split, costs).predicted == (1.0, 1.0)


@pytest.mark.parametrize(("low", "pays"), [(1.1, True), (0.9, False)])
def test_the_proposal_goes_by_what_was_measured(low: float, pays: bool) -> None:
    split = split_of(Chained(), images())
    proposal = propose(split, Costs(8, 4, 4, 4, 1, 0, True), Interval(1.3, low, 1.5))
    assert proposal.pays is pays
    assert f"Measured: 1.30x ({low:.2f}x to 1.50x)." in str(proposal)
    assert ("It does not pay: leave the loop as it is." in str(proposal)) is not pays


def test_what_cannot_gain_does_not_pay() -> None:
    split = split_of(Chained(), images())
    assert propose(split, Costs(8, 4, 4, 4, 4, 0, False)).pays is False


# ---- on the GPU


#: Their results differ from run to run by rounding, on the GPU: sums by atomic additions.
ROUNDED = {"sparse_batch", "student_before_its_teacher", "separate_modules_in_a_function"}


@pytest.mark.parametrize("place", [CUDA])
@pytest.mark.parametrize(
    ("case", "name"),
    [pytest.param(*one.values, one.id, id=one.id) for one in CASES if one.id != "autocast_around_both"],
)
def test_on_the_gpu_it_agrees(case: Case, name: str, place: str) -> None:
    torch.manual_seed(0)
    with torch.device(place):
        model, make_batch, *_ = case.make()
        split = find_prefix(model, make_batch(), call=case.call)
        assert isinstance(split, Split), split.reason
        batch = make_batch()
        state = torch.cuda.get_rng_state()
        agreement = split.verify(batch)
        assert torch.equal(torch.cuda.get_rng_state(), state)
    assert split.names == case.names
    assert agreement.outputs <= (2e-6 if name in ROUNDED else 0.0)
    assert agreement.gradients <= 1e-4


@pytest.mark.parametrize("place", [CUDA])
def test_on_the_gpu_it_is_measured(place: str) -> None:
    device = torch.device(place)
    model, x = Chained().to(device), images(64).to(device)
    split = split_of(model, x)

    def step(batch: Any, forward: Callable[[Any], Tensor]) -> None:
        forward(batch).square().mean().backward()

    costs = measure(split, x, step, rounds=3, seconds=0.02)
    assert costs.streams
    assert min(costs.step, costs.rest, costs.prefix_host, costs.rest_host, costs.prefix_device, costs.handover) > 0
    prediction = predict(costs)
    assert prediction.captured[0] <= prediction.captured[1]
    gain = compare(split, x, step, pipeline=lambda loader: _AlongTheLoop(split, loader), rounds=3, seconds=0.02)
    assert gain.value > 0


class _AlongTheLoop:
    """The simplest pipeline: the next batch on a stream of its own."""

    def __init__(self, split: Split, loader: Iterable[Any]) -> None:
        self._split, self._loader = split, loader
        self._side = torch.cuda.Stream()

    def __iter__(self) -> Iterator[Any]:
        current = torch.cuda.current_stream()
        ready: list[tuple[Any, torch.cuda.Event]] = []
        for batch in itertools.chain(self._loader, [None]):
            if batch is not None:
                self._side.wait_stream(current)
                with torch.cuda.stream(self._side):
                    ready.append((self._split.stage(batch), self._side.record_event()))
            if len(ready) > 1 or (batch is None and ready):
                (one, features), event = ready.pop(0)
                current.wait_event(event)
                for tensor in (part for feature in features for part in feature[1:]):
                    tensor.record_stream(current)
                yield one, features
