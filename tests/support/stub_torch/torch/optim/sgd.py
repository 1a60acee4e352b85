from torch.optim.optimizer import Optimizer


class SGD(Optimizer):
    def update(self) -> None:
        pass
