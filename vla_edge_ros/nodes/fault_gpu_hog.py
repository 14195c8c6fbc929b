"""A process that computes on every multiprocessor of the GPU until it is killed, for `vla-edge inject`."""

import sys

from vla_edge_ros.engine.cuda.device import Device, check
from vla_edge_ros.engine.interface import EngineError

BLOCKS_EACH, THREADS = 4, 1024
AT_ONCE = 4
"""Launches that are queued between two waits, so that the GPU never runs dry."""
BUSY = "the GPU is busy"

BURN = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry burn()
{
    .reg .f32 %sum, %factor;
    .reg .u32 %left;
    .reg .u64 %address;
    .reg .pred %goes_on, %never;
    mov.f32 %sum, 0f3F800000;
    mov.f32 %factor, 0f3F7FFFFF;
    mov.u32 %left, 100000;
again:
    fma.rn.f32 %sum, %sum, %factor, %factor;
    fma.rn.f32 %sum, %sum, %factor, %factor;
    fma.rn.f32 %sum, %sum, %factor, %factor;
    fma.rn.f32 %sum, %sum, %factor, %factor;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %goes_on, %left, 0;
    @%goes_on bra again;
    setp.eq.f32 %never, %sum, 0f00000000;
    mov.u64 %address, 8;
    @%never st.global.f32 [%address], %sum;
    ret;
}
"""
"""Some milliseconds of multiplying and adding. The sum only grows, and the store that never happens keeps the
assembler from leaving all of it out."""


def main() -> int:
    """Endless; 1 with a line where there is no device."""
    try:
        device = Device()
        driver = device.driver
        module = check(driver.cuModuleLoadData(BURN.encode() + b"\0"))
        burn = check(driver.cuModuleGetFunction(module, b"burn"))
        is_told = False
        while True:
            for _ in range(AT_ONCE):
                blocks = BLOCKS_EACH * device.multiprocessors
                check(driver.cuLaunchKernel(burn, blocks, 1, 1, THREADS, 1, 1, 0, 0, 0, 0))
            device.synchronize()
            if not is_told:
                print(BUSY, file=sys.stderr, flush=True)
                is_told = True
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
