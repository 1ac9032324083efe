"""Images from arrays, files, PIL and bytes, identified by the hash of their content."""

from __future__ import annotations

import os

from ._names import MEDIA_BYTES

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


class Image:
    """An image: a numpy array or torch tensor (height, width[, 1, 3 or 4 channels]; bytes, or floats from 0 to 1), a PIL
    image, a path, or the bytes of a file. The content is copied. Later changes to the array have no effect.
    """

    def __init__(self, value: Any, caption: str | None = None):
        self.caption = caption
        self.data, self.mime = _read(value)
        if len(self.data) > MEDIA_BYTES:
            raise ValueError(f"the image has {len(self.data)} bytes; the limit is {MEDIA_BYTES}")
        import hashlib

        self.sha256 = hashlib.sha256(self.data).hexdigest()

    def reference(self) -> dict[str, Any]:
        """How messages refer to it."""
        named = {"type": "image", "media": self.sha256, "mime": self.mime}
        if self.caption is not None:
            named["caption"] = str(self.caption)
        return named

    def __repr__(self) -> str:
        return f"Image({self.mime}, {len(self.data)} bytes, caption={self.caption!r})"


def _read(value: Any) -> tuple[bytes, str]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return data, _mime(data)
    if isinstance(value, (str, os.PathLike)):
        with open(value, "rb") as file:
            data = file.read(MEDIA_BYTES + 1)
        return data, _mime(data)
    if hasattr(value, "save") and hasattr(value, "mode"):
        import io

        out = io.BytesIO()
        value.save(out, format="PNG")
        return out.getvalue(), "image/png"
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu().numpy()
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _png(value), "image/png"
    raise TypeError(f"cannot make an Image from {type(value).__name__}; expected an array, a PIL image, a path or bytes")


def _mime(data: bytes) -> str:
    for magic, mime in _MAGIC:
        if data.startswith(magic):
            return mime
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError("unknown image format; expected PNG, JPEG, GIF, WebP or BMP")


def _png(array: Any) -> bytes:
    """Encodes an array as PNG without an image library."""
    import struct
    import zlib

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)) or 0 in array.shape:
        raise ValueError(f"cannot make an Image of shape {tuple(array.shape)}; expected (height, width[, 1, 3 or 4])")
    if array.dtype.kind == "f":
        array = (array.clip(0, 1) * 255).round()
    elif array.dtype.kind == "b":
        array = array * 255
    array = array.clip(0, 255).astype("uint8")
    height, width = array.shape[:2]
    if height * width * 4 > 4 * MEDIA_BYTES:
        raise ValueError(f"the image has {width} x {height} pixels; the limit is {MEDIA_BYTES} in all")
    kind = 0 if array.ndim == 2 else {3: 2, 4: 6}[array.shape[2]]
    row = width * (1 if array.ndim == 2 else array.shape[2])
    flat = array.tobytes()
    lines = b"".join(b"\0" + flat[at : at + row] for at in range(0, row * height, row))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 3)) + chunk(b"IEND", b"")
