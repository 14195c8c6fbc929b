"""Any picture to the size that the model takes."""

import cv2
import numpy as np

POLICIES = ("stretch", "letterbox", "center_crop")
INTERPOLATIONS = ("area", "linear")


class Resizer:
    """Resizes (h, w, 3) uint8 to (height, width, 3) uint8; channels keep their order.

    policy: what becomes of another aspect ratio.
        stretch: the whole picture, both axes scaled on their own.
        letterbox: the whole picture at its own aspect, centred, black beside it (black as in openpi's
            resize_with_pad). The fitted side is rounded to the nearest pixel; an odd remainder goes to the
            right or the bottom.
        center_crop: the largest centred part with the model's aspect, its cropped side rounded down.
    interpolation:
        area: each pixel is the mean of the area that it covers (cv2.INTER_AREA), free of aliasing. Where an
            axis grows, linear instead: a mean needs something to average.
        linear: bilinear between pixel centres, bit-exact on every machine (cv2.INTER_LINEAR_EXACT); fast, but
            it skips source pixels when shrinking by more than two.

    Raises ValueError for another name or a size below 1.
    """

    def __init__(
        self, width: int = 128, height: int = 64, policy: str = "stretch", interpolation: str = "area"
    ):
        if width < 1 or height < 1:
            raise ValueError(f"resize to {width}x{height} pixels: both must be at least 1")
        if policy not in POLICIES:
            raise ValueError(f"resize policy {policy!r}, wanted one of {', '.join(POLICIES)}")
        if interpolation not in INTERPOLATIONS:
            raise ValueError(f"interpolation {interpolation!r}, wanted one of {', '.join(INTERPOLATIONS)}")
        self.width = width
        self.height = height
        self._policy = policy
        self._averages = interpolation == "area"

    def resize(self, rgb: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write `rgb` (h, w, 3) uint8 into `out` (height, width, 3) uint8 at the model's size; returns `out`.

        Allocates no array.
        """
        if self._policy == "letterbox":
            top, left, bottom, right = self._fitted(*rgb.shape[:2])
            out[:top] = out[bottom:] = 0
            out[:, :left] = out[:, right:] = 0
            self._scale(rgb, out[top:bottom, left:right])
        elif self._policy == "center_crop":
            self._scale(self._cropped(rgb), out)
        else:
            self._scale(rgb, out)
        return out

    def _scale(self, source: np.ndarray, out: np.ndarray) -> None:
        height, width = out.shape[:2]
        shrinks = source.shape[0] >= height and source.shape[1] >= width
        interpolation = cv2.INTER_AREA if self._averages and shrinks else cv2.INTER_LINEAR_EXACT
        cv2.resize(source, (width, height), dst=out, interpolation=interpolation)

    def _fitted(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, bottom, right of the whole picture inside the model's frame."""
        if width * self.height >= height * self.width:
            fitted_height = max(1, (2 * height * self.width + width) // (2 * width))
            top = (self.height - fitted_height) // 2
            return top, 0, top + fitted_height, self.width
        fitted_width = max(1, (2 * width * self.height + height) // (2 * height))
        left = (self.width - fitted_width) // 2
        return 0, left, self.height, left + fitted_width

    def _cropped(self, rgb: np.ndarray) -> np.ndarray:
        """A view of the largest centred part with the model's aspect."""
        height, width = rgb.shape[:2]
        kept_width = max(1, min(width, height * self.width // self.height))
        kept_height = max(1, min(height, width * self.height // self.width))
        top, left = (height - kept_height) // 2, (width - kept_width) // 2
        return rgb[top : top + kept_height, left : left + kept_width]
