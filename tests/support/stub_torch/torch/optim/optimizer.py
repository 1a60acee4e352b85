from collections.abc import Callable

_post_hooks: list[Callable[..., None]] = []


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> None:
    _post_hooks.append(hook)


class Optimizer:
    def step(self) -> None:
        self.update()
        for hook in _post_hooks:
            hook(self, (), {})

    def update(self) -> None:
        pass
