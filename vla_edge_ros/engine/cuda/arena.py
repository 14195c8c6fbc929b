"""Device memory of an engine: one allocation, cut into named regions before the first pass."""

from vla_edge_ros.engine.cuda.device import Device

_ALIGNMENT = 256


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def account_of(regions: dict[str, int], purposes: dict[str, str]) -> dict[str, int]:
    """Bytes by purpose of the arena that these regions would have."""
    account: dict[str, int] = {}
    for name, n_bytes in regions.items():
        account[purposes[name]] = account.get(purposes[name], 0) + _padded(n_bytes)
    return account


class Arena:
    """`regions` maps names to bytes; `purposes` maps each name to the line of the account it belongs to."""

    def __init__(self, device: Device, regions: dict[str, int], purposes: dict[str, str]):
        self._device = device
        self._offsets: dict[str, int] = {}
        self.account = account_of(regions, purposes)
        total = 0
        for name, n_bytes in regions.items():
            self._offsets[name] = total
            total += _padded(n_bytes)
        self.total_bytes = total
        self._sizes = dict(regions)
        self._base = device.allocate(total, "the engine's arena")

    def __getitem__(self, name: str) -> int:
        """The device address of a region."""
        return self._base + self._offsets[name]

    def size(self, name: str) -> int:
        return self._sizes[name]

    def fill(self, name: str, byte: int) -> None:
        self._device.fill(self[name], byte, self._sizes[name])

    def close(self) -> None:
        if self._base:
            self._device.free(self._base)
            self._base = 0
