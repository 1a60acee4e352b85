"""The five kinds of photometric distortion, written for the tests from what they are to compute.

The classes have the names under which such transforms are registered; their code is not that of
any known variant, so a test that wants them recognised enters their fingerprints (``known``).
"""

from __future__ import annotations

import mmcv
import numpy as np
from numpy import random

from loongkit.images import variants
from loongkit.images.fingerprint import fingerprint


class _Ranges:
    def __init__(self, delta=32, contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue_delta=18):
        self.brightness_delta = delta
        self.contrast_lower, self.contrast_upper = contrast
        self.saturation_lower, self.saturation_upper = saturation
        self.hue_delta = hue_delta


def _wrap(hue):
    hue[hue > 360] -= 360
    hue[hue < 0] += 360


def _distort_by_flags(image, flags, clips):
    mode, brightens, contrasts, saturates, shifts, swaps, delta, alpha, factor, turn, order = flags
    image = image.astype(np.float32)
    if brightens:
        image += delta
    if contrasts and mode == 1:
        image *= alpha
    hsv = mmcv.bgr2hsv(image)
    if saturates:
        hsv[..., 1] *= factor
        if clips and factor > 1:
            hsv[..., 1] = hsv[..., 1].clip(0, 1)
    if shifts:
        hsv[..., 0] += turn
        _wrap(hsv[..., 0])
    image = mmcv.hsv2bgr(hsv)
    if contrasts and mode == 0:
        image *= alpha
    return image[..., order] if swaps else image


class AsDrawn(_Ranges):
    """As in mmdet 2."""

    def __call__(self, results):
        if "img_fields" in results:
            assert results["img_fields"] == ["img"], "one image field only"
        image = results["img"].astype(np.float32)
        if random.randint(2):
            image += random.uniform(-self.brightness_delta, self.brightness_delta)
        mode = random.randint(2)
        if mode == 1 and random.randint(2):
            image *= random.uniform(self.contrast_lower, self.contrast_upper)
        hsv = mmcv.bgr2hsv(image)
        if random.randint(2):
            hsv[..., 1] *= random.uniform(self.saturation_lower, self.saturation_upper)
        if random.randint(2):
            hsv[..., 0] += random.uniform(-self.hue_delta, self.hue_delta)
            _wrap(hsv[..., 0])
        image = mmcv.hsv2bgr(hsv)
        if mode == 0 and random.randint(2):
            image *= random.uniform(self.contrast_lower, self.contrast_upper)
        results["img"] = image[..., random.permutation(3)] if random.randint(2) else image
        return results


class MultiView(_Ranges):
    """As in BEVFormer."""

    def __call__(self, results):
        distorted = []
        for image in results["img"]:
            assert image.dtype == np.float32, "float32 is needed"
            if random.randint(2):
                image += random.uniform(-self.brightness_delta, self.brightness_delta)
            late = random.randint(2) == 0
            if not late and random.randint(2):
                image *= random.uniform(self.contrast_lower, self.contrast_upper)
            hsv = mmcv.bgr2hsv(image)
            if random.randint(2):
                hsv[..., 1] *= random.uniform(self.saturation_lower, self.saturation_upper)
            if random.randint(2):
                hsv[..., 0] += random.uniform(-self.hue_delta, self.hue_delta)
                _wrap(hsv[..., 0])
            image = mmcv.hsv2bgr(hsv)
            if late and random.randint(2):
                image *= random.uniform(self.contrast_lower, self.contrast_upper)
            distorted.append(image[..., random.permutation(3)] if random.randint(2) else image)
        results["img"] = distorted
        return results


class ByFlags(_Ranges):
    """As in mmdet 3."""

    def _random_flags(self):
        switches = [random.randint(2) for _ in range(6)]
        return (
            *switches,
            random.uniform(-self.brightness_delta, self.brightness_delta),
            random.uniform(self.contrast_lower, self.contrast_upper),
            random.uniform(self.saturation_lower, self.saturation_upper),
            random.uniform(-self.hue_delta, self.hue_delta),
            random.permutation(3),
        )

    def transform(self, results):
        assert "img" in results, "no image"
        image = results["img"].astype(np.float32)
        results["img"] = _distort_by_flags(image, self._random_flags(), clips=True)
        return results

    def __call__(self, results):
        return self.transform(results)


class ByGivenFlags(ByFlags):
    """As in mmdet3d 1."""

    def transform(self, results):
        assert "img" in results, "no image"
        image = results["img"].astype(np.float32)
        if "photometric_param" not in results:
            results["photometric_param"] = self._random_flags()
        results["img"] = _distort_by_flags(image, results["photometric_param"], clips=False)
        return results


class _Bytes(_Ranges):
    def convert(self, img, alpha=1, beta=0):
        scaled = img.astype(np.float32) * alpha + beta
        return scaled.clip(0, 255).astype(np.uint8)

    def brightness(self, img):
        if not random.randint(2):
            return img
        return self.convert(img, beta=random.uniform(-self.brightness_delta, self.brightness_delta))

    def contrast(self, img):
        if not random.randint(2):
            return img
        return self.convert(img, alpha=random.uniform(self.contrast_lower, self.contrast_upper))

    def saturation(self, img):
        if not random.randint(2):
            return img
        hsv = mmcv.bgr2hsv(img)
        alpha = random.uniform(self.saturation_lower, self.saturation_upper)
        hsv[:, :, 1] = self.convert(hsv[:, :, 1], alpha=alpha)
        return mmcv.hsv2bgr(hsv)

    def hue(self, img):
        if not random.randint(2):
            return img
        hsv = mmcv.bgr2hsv(img)
        turned = hsv[:, :, 0].astype(int) + random.randint(-self.hue_delta, self.hue_delta)
        hsv[:, :, 0] = turned % 180
        return mmcv.hsv2bgr(hsv)


class BytesByCall(_Bytes):
    """As in mmseg 0."""

    def __call__(self, results):
        image = self.brightness(results["img"])
        mode = random.randint(2)
        if mode == 1:
            image = self.contrast(image)
        image = self.hue(self.saturation(image))
        results["img"] = self.contrast(image) if mode == 0 else image
        return results


class BytesByTransform(_Bytes):
    """As in mmseg 1."""

    def transform(self, results):
        image = self.brightness(results["img"])
        mode = random.randint(2)
        if mode == 1:
            image = self.contrast(image)
        image = self.hue(self.saturation(image))
        results["img"] = self.contrast(image) if mode == 0 else image
        return results

    def __call__(self, results):
        return self.transform(results)


#: By the origin of the variant that they stand for.
CLASSES = {
    "mmdet 2": AsDrawn,
    "mmdet 3": ByFlags,
    "mmdet3d 1": ByGivenFlags,
    "BEVFormer": MultiView,
    "mmseg 0": BytesByCall,
    "mmseg 1": BytesByTransform,
}
FLOATS = ("mmdet 2", "mmdet 3", "mmdet3d 1", "BEVFormer")

_VARIANTS = {variant.origin: variant for variant in variants.VARIANTS}
for _origin, _class in CLASSES.items():
    _class.__name__ = _VARIANTS[_origin].class_name


def known() -> tuple[variants.Variant, ...]:
    """The table of variants with the fingerprints of these classes' methods."""
    found = []
    for origin, variant in _VARIANTS.items():
        cls = CLASSES[origin]
        helpers = tuple((name, fingerprint(getattr(cls, name))) for name, _ in variant.helpers)
        print_ = fingerprint(vars(cls)[variant.method])
        found.append(variant._replace(fingerprint=print_, helpers=helpers))
    return tuple(found)


def method_of(origin: str):
    """The function of the class that is replaced, as it is now."""
    return vars(CLASSES[origin])[_VARIANTS[origin].method]
