from collections.abc import Callable

_post_hooks: list[Callable[..., None]] = []


class Handle:
    """Takes a hook away again."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = hook

    def remove(self) -> None:
        _post_hooks.remove(self._hook)


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> Handle:
    _post_hooks.append(hook)
    return Handle(hook)


class Optimizer:
    def step(self) -> None:
        self.update()
        for hook in _post_hooks:
            hook(self, (), {})

    def update(self) -> None:
        pass
