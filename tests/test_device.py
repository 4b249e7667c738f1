"""Memory that training frees stays with the process."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from mtrain.device import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [torch.ones(1 << (20 + i % 3)) for i in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
if sys.argv[1] == "keep":
    keep_freed_memory()
    faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told to keep memory")
def test_freed_memory_is_kept() -> None:
    def faults(argument: str) -> int:
        command = [sys.executable, "-c", FAULTS, argument]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < faults("return") / 10
