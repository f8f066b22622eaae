"""An emulated network on one machine, to try jobs and to measure; not part of the wheel."""
