"""Give a class a protocol that raises, as a user's class may have one that nobody has called so far."""

#: Protocols that are attributes, and raise when they are read.
ATTRIBUTES = ("__class__", "__dict__", "__module__", "__name__", "__wrapped__", "nbytes", "shape", "to")


def with_odd(cls, protocol):
    """Return a subclass under the same name whose ``protocol`` raises.

    After ``meta.``, it is the protocol of the class itself; ``odd `` before its name: it answers something odd.
    """

    def fails(*args, **kwargs):
        raise KeyError(f"the planted {protocol}")

    meta, _, name = protocol.rpartition(".")
    bodies = {
        "__getattr__": lambda self, name: object.__getattribute__(self, name) if name[:2] == "__" else fails(),
        "any attribute": lambda self, name: object.__getattribute__(self, name) if name[:2] == "__" else Anything(),
    }
    odd, _, name = name.rpartition(" ")
    body = property(fails) if name in ATTRIBUTES else (lambda *args: Unsure()) if odd else bodies.get(name, fails)
    if meta and name == "__getattr__":
        body = fails
    name = "__getattr__" if name == "any attribute" else name
    hashed = {"__hash__": type.__hash__} if name == "__eq__" else {}  # torch asks for the hash of a dataset's class
    kind = type("Meta", (type(cls),), {**hashed, name: body}) if meta else type(cls)
    return kind(cls.__name__, (cls,), {"__module__": cls.__module__, **({} if meta else {name: body})})


class Unsure:
    """Is neither true nor false, as an array of several comparisons is."""

    def __bool__(self):
        raise ValueError("the truth value is ambiguous")


class Anything:
    """Has every attribute, and can be called, as mocks and proxies can."""

    def __getattr__(self, name):
        return object.__getattribute__(self, name) if name[:2] == "__" else Anything()

    def __call__(self, *args, **kwargs):
        return Anything()
