"""Stand in for a package that a script imports and uses only with an option that the benchmark does not give."""


class Visdom:
    def __init__(self, *_: object, **__: object) -> None:
        raise RuntimeError("visdom is not installed: run the script without its visualization")
