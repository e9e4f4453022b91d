"""Give a class a protocol that raises, as a user's class may have one that nobody has called so far."""

#: Protocols that are attributes, and raise when they are read.
ATTRIBUTES = ("__class__", "__dict__", "__module__", "__name__", "__wrapped__", "nbytes", "shape", "to")


def with_odd(cls, protocol):
    """Return a subclass under the same name whose ``protocol`` raises; ``meta.`` before it: that of its own class."""

    def fails(*args, **kwargs):
        raise KeyError(f"the planted {protocol}")

    meta, _, name = protocol.rpartition(".")
    bodies = {
        "__getattr__": lambda self, name: object.__getattribute__(self, name) if name[:2] == "__" else fails(),
        "any attribute": lambda self, name: object.__getattribute__(self, name) if name[:2] == "__" else Anything(),
    }
    body = property(fails) if name in ATTRIBUTES else bodies.get(name, fails)
    name = "__getattr__" if name == "any attribute" else name
    kind = type("Meta", (type(cls),), {name: body}) if meta else type(cls)
    return kind(cls.__name__, (cls,), {"__module__": cls.__module__, **({} if meta else {name: body})})


class Anything:
    """Has every attribute, and can be called, as mocks and proxies can."""

    def __getattr__(self, name):
        return object.__getattribute__(self, name) if name[:2] == "__" else Anything()

    def __call__(self, *args, **kwargs):
        return Anything()
