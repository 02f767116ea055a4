"""`python -m benchmarks` (what `make bench` runs): the kernel's benchmarks."""

from benchmarks.core import main

main()
