"""Train a small ResNet to tell from which photograph a crop was taken.

The photographs are those that scikit-image ships. Plain PyTorch: nothing to download.

    python examples/classifier/train.py --steps 100
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import skimage.data
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

PHOTOGRAPHS = [
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
]
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Crops(Dataset):
    """Random crops, mirrored and with jittered brightness; the label is the photograph."""

    def __init__(self, length, size):
        folder = Path(skimage.data.__file__).parent
        self.photographs = [
            np.array(Image.open(folder / name).convert("RGB")) for name in PHOTOGRAPHS
        ]
        self.length = length
        self.size = size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        label = index % len(self.photographs)
        photograph = self.photographs[label]
        height, width = photograph.shape[:2]
        top = random.randrange(height - self.size)
        left = random.randrange(width - self.size)
        crop = photograph[top : top + self.size, left : left + self.size]
        if random.random() < 0.5:
            crop = crop[:, ::-1]
        crop = crop.astype(np.float32) / 255 * random.uniform(0.7, 1.3)
        crop = torch.from_numpy(crop).permute(2, 0, 1)
        return (crop - MEAN) / STD, label


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def small_resnet(classes):
    """A ResNet-18 for small images, at half its width."""
    widths = [32, 64, 128, 256]
    layers = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for i, width in enumerate(widths):
        layers += [Block(channels, width, 1 if i == 0 else 2), Block(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def seed_worker(worker):
    """Give each data worker its own random numbers."""
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)


def add_ulp(model):
    """Move every weight to the next representable number away from zero."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.nextafter(weight, 2 * weight))


def main():
    parser = argparse.ArgumentParser(description="Train a classifier of photographs.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="side of a crop, in pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--losses", type=Path, help="write the losses and times to this JSON file")
    parser.add_argument("--init-ulp", action="store_true", help="move the first weights by one ulp")
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    loader = DataLoader(
        Crops(args.steps * args.batch_size, args.size),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        worker_init_fn=seed_worker,
        drop_last=True,
    )
    model = small_resnet(len(PHOTOGRAPHS)).to(device)
    if args.init_ulp:
        add_ulp(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    criterion = nn.CrossEntropyLoss()

    losses, times = [], []
    model.train()
    start = time.perf_counter()
    for step, (images, labels) in enumerate(loader, 1):
        loss = criterion(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
        if step % args.log_interval == 0:
            speed = args.batch_size * args.log_interval / sum(times[-args.log_interval :])
            print(f"step {step}/{args.steps}  loss {losses[-1]:.4f}  {speed:.0f} images/s")

    if args.losses:
        record = {"batch_size": args.batch_size, "losses": losses, "seconds": times}
        args.losses.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
